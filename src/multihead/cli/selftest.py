"""``multihead selftest``: check a model's guarantees."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from multihead.cli.help import ExampleGroup
from multihead.cli.options import language_flags, quiet_flag
from multihead.errors import ConfigurationError, MultiheadError
from multihead.platforms import DEVICES
from multihead.text.languages import Languages

if TYPE_CHECKING:
    from multihead.judging.selftest import BatchReport

_LINES_NAMED = 20


@click.group(cls=ExampleGroup, examples=("multihead selftest batch run --source test.de",))
def selftest() -> None:
    """Check, on a model of your own, the guarantees that every model must satisfy."""


@selftest.command(
    short_help="Translate lines alone and in batches, and compare.",
    examples=(
        "multihead selftest batch run --source test.de",
        "multihead selftest batch run --source test.de --size 4 --size 64 --beam 1",
    ),
)
@click.argument("model", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--source",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Text to translate; plain or compressed (gz, xz, zst).",
)
@click.option(
    "--size", "sizes", type=int, multiple=True, metavar="NUMBER", help="Lines per batch; may be repeated. [2, 8, 32]"
)
@click.option("--beam", type=int, metavar="NUMBER", help="Number of hypotheses; 1 is greedy search. [RUN's own]")
@click.option("--seed", type=int, default=0, show_default=True, metavar="NUMBER", help="Seed of the other order.")
@click.option("--bound", type=float, metavar="NUMBER", help="Largest effect of rounding on a log-probability. [0.0001]")
@click.option("--plain", is_flag=True, help="Search with PyTorch instead of compiled code.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@quiet_flag
@click.option("--device", type=click.Choice(DEVICES), default="cpu", show_default=True, help="Where to compute.")
@language_flags
def batch(
    model: Path,
    source: Path,
    sizes: tuple[int, ...],
    beam: int | None,
    seed: int,
    bound: float | None,
    plain: bool,
    as_json: bool,
    device: str,
    languages: Languages,
) -> None:
    """Translate each line alone, in batches, all together and in another order, and count lines that differ.

    A line that differs is either proved to be a near tie, which rounding decides, or reported as a fault with exit
    status 1. RUN is a run or model folder.
    """
    from multihead.cli.options import check_search
    from multihead.cli.process import configure_process
    from multihead.cli.streams import counter

    check_search(beam, None)
    configure_process()
    from multihead.data.text_files import read_lines
    from multihead.judging import selftest as workflow
    from multihead.lines.translate_file import check_input
    from multihead.translating.translator import Translator

    if any(size < 1 for size in sizes):
        raise ConfigurationError(f"--size: expected at least 1, got {min(sizes)}")
    sizes = sizes or workflow.SIZES
    lines = check_input(source).lines
    translator = Translator.load(model, device, languages)
    if beam is not None:
        translator = translator.searching(beam=beam)
    with counter("made", "translations", (len(sizes) + 3) * lines) as count:
        report = workflow.check_batches(
            translator,
            list(read_lines(source)),
            sizes=sizes,
            seed=seed,
            bound=workflow.BOUND if bound is None else bound,
            plain=plain,
            progress=count,
        )
    click.echo(_as_json(report) if as_json else _as_text(report))
    if report.unproved:
        named = ", ".join(map(str, report.unproved[:_LINES_NAMED]))
        more = len(report.unproved) - _LINES_NAMED
        raise MultiheadError(
            f"the translations of these lines depend on the batch by more than rounding: {named}"
            + (f" and {more} more" if more > 0 else "")
        )


def _as_text(report: BatchReport) -> str:
    searched = "compiled code" if report.compiled else "PyTorch"
    rows = [f"{report.lines:,} lines, alone and in batches, searched by {searched}"]
    rows += [f"{name}: {count:,} lines differ" for name, count in report.passes.items()]
    for one in report.differences:
        proof = one.proof or "not a near tie"
        rows.append(f"line {one.line}, {one.where}: {proof}, scores {one.scores[0]:.6f} and {one.scores[1]:.6f}")
        rows += [f"  alone       {one.alone}", f"  in a batch  {one.other}"]
    proved = len(report.differing) - len(report.unproved)
    rows.append(f"{len(report.differing):,} of {report.lines:,} lines differ, {proved:,} of them near ties")
    return "\n".join(rows)


def _as_json(report: BatchReport) -> str:
    content = {**asdict(report), "differing": report.differing, "unproved": report.unproved}
    return json.dumps(content, ensure_ascii=False)
