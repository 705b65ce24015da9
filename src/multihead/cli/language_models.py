"""``score`` and ``evaluate`` of a language model, which reads one text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from multihead.cli.options import flag_name
from multihead.errors import ConfigurationError, DataError
from multihead.text.languages import Languages

if TYPE_CHECKING:
    from multihead.judging.score import ScoredPair
    from multihead.metrics.perplexity import TextPerplexity
    from multihead.runs.language_model.model import LanguageModel


def is_given(model: Path) -> bool:
    """Whether a command was given the folder of a language model; called after the flags were checked."""
    from multihead.cli.process import configure_process

    configure_process()
    from multihead.runs.language_model.model import holds_language_model

    return holds_language_model(model)


def refuse(flags: Mapping[str, Any], languages: Languages) -> None:
    """Raise ConfigurationError if a flag was given that is for translators alone; None, False and () are not given."""
    sides = {"source_language": languages.source, "target_language": languages.target}
    for name, value in {**flags, **sides}.items():
        if value is not None and value is not False and value != ():  # 0 is a value, and equals False
            raise ConfigurationError(
                f"{flag_name(name)} is for translators, and this is a language model: leave it out"
            )


def load(model: Path, device: str, threads: int | None) -> LanguageModel:
    """Load a language model."""
    import torch

    from multihead.runs.language_model.model import LanguageModel

    if threads is not None:
        torch.set_num_threads(threads)
    return LanguageModel.load(model, device)


def score_texts(
    model: LanguageModel,
    target: Path | None,
    batch_tokens: int,
    write: Callable[[list[ScoredPair]], None] = lambda _: None,
) -> TextPerplexity:
    """Score each line of a file or of standard input, and return the perplexity of all.

    Args:
        model: the model.
        target: the file; None = standard input.
        batch_tokens: maximum number of padded tokens of a batch.
        write: writes the scores of some lines, in order.

    Raises:
        DataError: a line is not UTF-8; of standard input, the scores of the lines before it have been written.
    """
    from multihead.metrics.perplexity import TextPerplexity

    total = TextPerplexity()

    def score(lines: list[str]) -> None:
        scored = model.score(lines, batch_tokens=batch_tokens)
        for line, one in zip(lines, scored, strict=True):
            total.add(line, one.log_probabilities)
        write(scored)

    if target is None:
        _score_standard_input(score)
    else:
        _score_file(score, target)
    return total


def _score_standard_input(score: Callable[[list[str]], None]) -> None:
    import sys

    from multihead.cli.streams import ByteStream, read_arriving

    fault: list[DataError] = []
    stream: ByteStream = sys.stdin.buffer  # type: ignore[assignment]
    for lines in read_arriving(stream, fault):
        score(lines)
    if fault:
        raise fault[0]


def _score_file(score: Callable[[list[str]], None], target: Path) -> None:
    from multihead.cli.streams import counter
    from multihead.data.text_files import read_lines
    from multihead.lines.translate_file import check_input
    from multihead.lines.windows import WINDOW

    with counter("scored", "lines", check_input(target).lines) as count:
        lines = read_lines(target)
        while window := list(islice(lines, WINDOW)):
            score(window)
            count(len(window))


def evaluate_text(
    model: Path, target: Path, batch_tokens: int, threads: int | None, device: str, as_json: bool
) -> None:
    """Print the perplexity of a text.

    Raises:
        DataError: as `score_texts`; or every line is empty.
    """
    from multihead.data.text_files import read_lines, refuse_pipe

    refuse_pipe(target)
    if not any(line.strip() for line in read_lines(target)):
        raise DataError("every line is empty: there is nothing to evaluate", target)
    found = score_texts(load(model, device, threads), target, batch_tokens)
    if as_json:
        click.echo(json.dumps({"model": str(model), **found.as_dict()}))
    else:
        click.echo(f"{found}\n{found.texts:,} lines, {found.tokens:,} tokens")
