"""Pairs for training that a model makes from one side: synthetic pairs.

* Back-translation (Sennrich et al. 2016, "Improving neural machine translation models with monolingual data"): the
  line is the target, its translation by a model of the opposite direction the source. A tag at the beginning of the
  source tells the trained model that it is synthetic (Caswell et al. 2019, "Tagged back-translation").
* Sequence-level distillation (Kim and Rush 2016, "Sequence-level knowledge distillation", section 3.2): the line is the
  source, its translation by a larger model, or an ensemble, the target.

Both are written as TSV (`data.records`), a pair a line. Translations that would teach errors are left out: without
words, cut at the length limit, or suspicious to the guard. `lines.translate_file` writes and resumes the file.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihead.bundle import model_digest
from multihead.data.text_files import one_line
from multihead.errors import ConfigurationError, Interrupted
from multihead.judging.guard_signs import GuardSettings
from multihead.lines.growing_file import lines_done
from multihead.lines.translate_file import check_input, translate_file
from multihead.lines.windows import LineOptions
from multihead.training.context import RunContext
from multihead.translating.lengths import most_tokens
from multihead.translating.request import TranslationRequest
from multihead.translating.searching import Translation
from multihead.translating.translator import Translator

_SAYING = 10.0
"""Seconds between lines of progress."""


@dataclass(frozen=True)
class PairOptions(LineOptions):
    """How lines are made into pairs.

    Args:
        backwards: the line is the target of the pair.
        tag: a word at the beginning of each source; "" for none.

    Raises:
        ConfigurationError: the tag is not a single word.
    """

    backwards: bool = False
    tag: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tag(self.tag)

    @property
    def record(self) -> dict[str, Any]:
        return {"pairs": {"backwards": self.backwards, "tag": self.tag}}

    def rows(self, number: int, text: str, found: Sequence[Translation], suspicions: Sequence[float] = ()) -> list[str]:
        """A row for each different translation that is good enough to learn from."""
        del number
        most = 1.0 if self.guard is None else self.guard.threshold
        kept: dict[str, None] = {}
        for translation, suspicion in zip(found, suspicions or [0.0] * len(found), strict=True):
            if translation.finished and translation.text.strip() and suspicion < most:
                kept[_cell(translation.text)] = None
        line, tag = _cell(text), f"{self.tag} " if self.tag else ""
        return [f"{tag}{made}\t{line}" if self.backwards else f"{tag}{line}\t{made}" for made in kept]


def write_pairs(
    models: Sequence[Path],
    text: Path,
    output: Path,
    context: RunContext,
    *,
    backwards: bool = False,
    tag: str = "",
    until: float | None = None,
) -> None:
    """Write the pairs that a model, or an ensemble, makes of a text file; lines that seem wrong are left out.

    The compiled search multiplies in int8: hardly a translation differs, and it takes half the time.

    Args:
        models: run or model folders.
        text: a file of sentences, a line each.
        output: the file of pairs (.tsv). If the work was stopped, it goes on.
        context: receives progress, and may stop the work.
        backwards, tag: as in `PairOptions`.
        until: a time of `time.monotonic`, from which on lines are left out.

    Raises:
        Interrupted: ``context.stop_signal`` returned a signal; the same call goes on.
    """
    translator = Translator.load_ensemble(models)
    maxima = most_tokens(translator.lengths, translator.reach, None)
    fast: dict[str, Any] = {"precision": "int8"} if translator.compiled else {}
    request = TranslationRequest(translator.search_settings().model_copy(update=fast))
    options = PairOptions(request, False, GuardSettings(), *maxima, backwards=backwards, tag=tag)
    scanned, done, said = check_input(text), 0, time.monotonic()

    def progress(more: int) -> None:
        nonlocal done, said
        done += more
        if time.monotonic() - said > _SAYING or done == scanned.lines:
            said = time.monotonic()
            context.say(f"  {output.name}: {done:,} of {scanned.lines:,} lines are translated")
        if (number := context.stop_signal()) is not None:
            kept = lines_done(output)
            raise Interrupted(number, f"stopped after line {kept:,} of {text}; run the same command again to continue")

    def enough() -> bool:
        if until is None or time.monotonic() < until:
            return False
        context.say(f"  {output.name}: there is no time for more than {done:,} of {scanned.lines:,} lines")
        return True

    digest = "+".join(map(model_digest, models))
    translate_file(translator, digest, scanned, output, options, begin=progress, progress=progress, enough=enough)


def check_tag(tag: str) -> None:
    """Check the first word of synthetic sources.

    Raises:
        ConfigurationError: it is not a single word.
    """
    if tag and tag.split() != [tag]:
        raise ConfigurationError(f"the tag is one word without blanks, such as <bt>, got {tag!r}")


def _cell(text: str) -> str:
    """A text without tabs and line breaks."""
    return one_line(text).replace("\t", " ").strip()
