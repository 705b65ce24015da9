"""``multihead heads``: what each head is worth; see `judging.heads`."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import click

from multihead.cli.options import (
    FILE,
    NUMBER,
    Command,
    check_positive,
    language_flags,
    load_translator,
    machine_flags,
    parse_search_flags,
    quiet_flag,
    require_flag,
    search_flags,
)
from multihead.errors import ConfigurationError
from multihead.text.languages import Languages


@click.command(
    cls=Command,
    examples=(
        "multihead heads run --source test.de --target test.en",
        "multihead heads run --source test.de --target test.en --bleu 3",
        "multihead heads run --source test.de --target test.en --head cross.2.head.1",
    ),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--source", required=True, **FILE, help="Sentences of a test set; plain or compressed (gz, xz, zst).")
@click.option("--target", required=True, **FILE, help="Their translations, line by line.")
@click.option(
    "--head",
    "names",
    multiple=True,
    metavar="HEAD",
    help="Only this head, such as encoder.2.head.5, decoder.2.head.5 or cross.2.head.5, counted from 1; repeatable. "
    "[all]",
)
@click.option(
    "--bleu",
    default="0",
    show_default=True,
    metavar="NUMBER|all",
    help="Also translate without each of this many heads: those whose absence changes the loss most.",
)
@click.option("--lines", **NUMBER, help="Read only this many lines from the start of the files. [all]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@quiet_flag
@search_flags
@machine_flags
@language_flags
def heads(
    model: Path,
    source: Path,
    target: Path,
    names: tuple[str, ...],
    bleu: str,
    lines: int | None,
    as_json: bool,
    batch_tokens: int,
    threads: int | None,
    device: str,
    languages: Languages,
    **asked: Any,
) -> None:
    """Leave out each attention head of MODEL (a run or model folder) in turn, and show what changes.

    The loss is that of the given translations, per token. If it hardly rises without a head, the head is of little use
    on this text. With --bleu, the model also translates without each of the heads that matter most.
    """
    from multihead.cli.process import configure_process
    from multihead.cli.streams import counter
    from multihead.data.corpus import check_parallel, language_of
    from multihead.data.text_files import read_lines

    wishes = parse_search_flags(asked)
    check_positive(batch_tokens=batch_tokens, threads=threads, lines=lines)
    wanted = _parse_bleu(bleu)
    require_flag("--bleu NUMBER: nothing is translated otherwise", wanted != 0, wishes)
    check_parallel(source, target)
    configure_process()
    from multihead.judging.heads import all_heads, head_importance, parse_head, work
    from multihead.text.context import in_context

    chosen = [parse_head(name) for name in dict.fromkeys(names)]
    translator = load_translator(model, wishes, threads, device, languages)
    chosen = chosen or all_heads(translator.bundle.model)
    translated = len(chosen) if wanted is None else wanted
    sources, references = (list(islice(read_lines(path), lines)) for path in (source, target))
    sources = in_context(translator.bundle.source_tokenizer, sources)
    with counter("read", "sentences", work(len(sources), len(chosen), translated)) as count:
        found = head_importance(
            translator,
            sources,
            references,
            chosen,
            bleu=translated,
            language=translator.bundle.target_language or language_of(target),
            batch_tokens=batch_tokens,
            progress=count,
        )
    click.echo(json.dumps({"model": str(model), **found.as_dict()}, ensure_ascii=False) if as_json else str(found))


def _parse_bleu(word: str) -> int | None:
    """The number of heads; None for all."""
    if word == "all":
        return None
    if not word.isdecimal():
        raise ConfigurationError(f"--bleu: expected a number of heads or all, got {word}")
    return int(word)
