"""Flags of ``multihead translate`` for what is asked beyond the search: samples, several models, the guard, demands.

From flags to a `Rendering`, which says what is written. What can be refused without a model is refused before one is
loaded; nothing here imports torch until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from multihead.cli.options import flags_of
from multihead.cli.searching import flag_of, need
from multihead.configuration import build
from multihead.errors import ConfigurationError
from multihead.workflows.guard_settings import GuardSettings, Mode
from multihead.workflows.search_settings import Mean, Metric, Sampling, SearchSettings

if TYPE_CHECKING:
    from multihead.workflows.rendering import Rendering
    from multihead.workflows.side_files import SideFiles
    from multihead.workflows.translate import Translator

F = TypeVar("F", bound=Callable[..., Any])

_FILE: Any = {"type": click.Path(path_type=Path), "metavar": "FILE"}
_IDLE = ("beam", "stopping", "patience", "groups", "diversity", "coverage")
"""Settings of a search that do nothing where translations are drawn."""


def asking_flags(function: F) -> F:
    """A decorator that gives a command these flags; `Asked.of` reads them."""
    decorations: tuple[Callable[[Any], Any], ...] = (
        click.option(
            "--n-best",
            type=int,
            metavar="NUMBER",
            help="Write so many translations of each line, as rows: line TAB score TAB text, best first.",
        ),
        click.option("--scores", is_flag=True, help="Write such a row for the best translation of each line."),
        click.option(
            "--max-source",
            type=int,
            metavar="NUMBER",
            help="Translate a line of more tokens, its end counted, in parts, cut at the ends of sentences, and a "
            "sentence in halves; 0: never. [what is usual, and the longest, in the model's training]",
        ),
        click.option("--prefixes", **_FILE, help="What each translation begins with: a line for each line."),
        click.option(
            "--phrases",
            **_FILE,
            help="What each translation contains: a line for each line, a TAB between phrases, ||| between "
            "alternatives of one.",
        ),
        flags_of(Sampling, _without_the_flag),
        click.option(
            "--mbr",
            type=click.Choice(get_args(Metric)),
            help="Write of all that --sample draws, or that the beam holds, the one that the others agree with.",
        ),
        click.option(
            "--with",
            "others",
            type=click.Path(path_type=Path),
            multiple=True,
            metavar="MODEL",
            help="Another model with the same vocabulary; their predictions are averaged. May be repeated.",
        ),
        click.option(
            "--mean", type=click.Choice(get_args(Mean)), help="What is averaged, with --with. [probabilities]"
        ),
        click.option(
            "--guard",
            type=click.Choice(["off", *get_args(Mode)]),
            default="off",
            show_default=True,
            help="Say which translations are suspicious (mark), or search those again more safely (retry).",
        ),
        click.option("--guard-threshold", type=float, metavar="NUMBER", help="From which score on. [0.5]"),
        click.option("--guard-closer", is_flag=True, help="Run each translation through the model, too."),
    )
    for decoration in reversed(decorations):
        function = decoration(function)
    return function


@dataclass(frozen=True)
class Asked:
    """What the flags say."""

    n_best: int | None
    scores: bool
    max_source: int | None
    prefixes: Path | None
    phrases: Path | None
    sampling: Sampling | None
    mbr: Metric | None
    others: tuple[Path, ...]
    mean: Mean | None
    guard: GuardSettings | None

    @classmethod
    def of(cls, flags: Mapping[str, Any]) -> Asked:
        """From all flags of the command.

        Raises:
            ConfigurationError: a value that cannot be; flags that exclude or need each other.
        """
        drawing = {name: flags[name] for name in Sampling.model_fields if flags[name] is not None}
        sampling = build(Sampling, drawing, "the command line") if "sample" in drawing else None
        told = {"threshold": flags["guard_threshold"], "closer": flags["guard_closer"] or None}
        guarding = {name: value for name, value in told.items() if value is not None}
        off = flags["guard"] == "off"
        guard = None if off else build(GuardSettings, {"mode": flags["guard"], **guarding}, "the command line")
        need("--sample", sampling is not None, drawing)
        need("--guard mark or --guard retry", not off, [f"guard_{name}" for name in guarding])
        need("--with", bool(flags["others"]), ["mean"] if flags["mean"] else [])
        if sampling is not None:
            idle = [name for name in (*_IDLE, "n_best", "phrases") if flags[name] is not None]
            if idle:
                raise ConfigurationError(f"{flag_of(idle[0])} does nothing for samples: leave it out, or --sample")
        if (flags["groups"] or 1) > 1 and flags["phrases"] is not None:
            raise ConfigurationError("--phrases cannot be had with --groups: leave one of them out")
        names = ("n_best", "scores", "max_source", "prefixes", "phrases", "mbr", "others", "mean")
        return cls(**{name: flags[name] for name in names}, sampling=sampling, guard=guard)

    @staticmethod
    def wishes(flags: Mapping[str, Any]) -> dict[str, Any]:
        """The flags that are of the search."""
        return {name: flags[name] for name in SearchSettings.model_fields}

    def together(self, translator: Translator, device: str) -> Translator:
        """With the other models, where there are some."""
        if not self.others:
            return translator
        from multihead.workflows.translate import Translator

        others = [Translator.load(path, device) for path in self.others]
        return translator.ensemble(others, self.mean or "probabilities")

    def digest(self, model: Path) -> str:
        """Which models translate, and how together."""
        from multihead.workflows.translate_file import model_digest

        digests = [model_digest(path) for path in (model, *self.others)]
        return "+".join(digests) + (f" ({self.mean or 'probabilities'})" if self.others else "")

    def rendering(self, translator: Translator, batch_tokens: int) -> Rendering:
        """What is made, and written, by this translator."""
        from multihead.workflows.long_lines import most_tokens
        from multihead.workflows.rendering import Rendering

        return Rendering(
            translator.search_settings(),
            self.n_best,
            self.scores,
            batch_tokens,
            self.sampling,
            self.mbr,
            self.guard,
            *most_tokens(translator, self.max_source),
        )

    def files(self) -> SideFiles:
        """The side files, looked through.

        Raises:
            DataError: one cannot be read, or is not text.
        """
        from multihead.workflows.side_files import SideFiles
        from multihead.workflows.translate_file import check_input

        prefixes, phrases = (None if path is None else check_input(path) for path in (self.prefixes, self.phrases))
        return SideFiles(prefixes, phrases)


def _without_the_flag(name: str) -> str:
    default = Sampling.model_fields[name].default
    if name == "sample":
        return "One is written as a line, several as rows."
    return "" if default is None else f"[{default}]"
