"""How the models of a run in stages translate best, on validation text.

The model that was learned last is fast; an ensemble with the others is better and slower; a reverse model and one that
writes from right to left choose among the candidates of either (`translating.choosing`), with weights that
`judging.tune` finds; a datastore of the model's text (`engine.neighbours`) is slower, too. All but the model alone
compute in int8 where the search is compiled, in half of the time (docs/lab-notes.md, "Uses in int8"). Each use has the
flags of ``multihead translate`` that give it, so that a user pays for quality what it is worth to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihead.judging.tune import MIN_LINES, tune_texts
from multihead.metrics.scores import score
from multihead.platforms import join_words
from multihead.text.languages import Direction, Languages
from multihead.translating.request import TranslationRequest
from multihead.translating.translator import Translator

_BEAM = 12
"""Candidates for the models that choose; 5, the usual width, leave them little to choose from."""
_WIDE_BEAM = 24
"""The same with a judge: 0.1 to 0.2 BLEU more, and twice the time (docs/lab-notes.md, "A judge from right to left")."""


Pairs = tuple[Sequence[str], Sequence[str]]
"""Sources and references."""


@dataclass(frozen=True)
class Use:
    """A way to translate with the models of a run.

    Attributes:
        name: for people.
        flags: of ``multihead translate``, after the folder of the run.
        bleu: on the validation set; with a choice, held out (`judging.tune`).
    """

    name: str
    flags: tuple[str, ...]
    bleu: float

    def as_dict(self) -> dict[str, Any]:
        """The use as JSON data."""
        return {"use": self.name, "flags": list(self.flags), "bleu": round(self.bleu, 2)}

    def __str__(self) -> str:
        return f"{self.name}: {self.bleu:.2f}  {join_words(self.flags)}".rstrip()


def compare_uses(
    model: Path,
    others: Sequence[Path],
    reverse: Sequence[Path],
    valid: Pairs,
    language: str | None,
    found: Callable[[Use], None],
    progress: Callable[[int], None],
    direction: Direction | None = None,
    datastore: Path | None = None,
    judge: Path | None = None,
) -> list[Use]:
    """The uses of a model with others of its vocabulary, the simplest first.

    Args:
        model: the model that translates alone.
        others: the further members of an ensemble.
        reverse: models of the opposite direction; without any, and without a judge, nothing is chosen.
        valid: the validation set.
        language: of the references, for BLEU's tokenization.
        found: called with each use as soon as it is measured.
        progress: called with the number of newly translated sentences; it may raise, to stop.
        direction: of the sentences, if the models have several.
        datastore: what the model remembers; a use of it is listed if it is better than the same without.
        judge: another model of the same direction.
    """
    sources, references = valid
    there = Languages() if direction is None else Languages(*direction)
    back, named = Languages(there.target, there.source), "" if direction is None else f", {direction}"
    alone, asked = Translator.load(model, languages=there), _language_flags(there)
    systems = [(f"the model alone{named}", *_rounded(alone, asked, alone))]
    if others:
        ensemble = alone.ensemble([Translator.load(path, languages=there) for path in others])
        members = [word for path in others for word in ("--with", path.as_posix())]
        systems.append((f"an ensemble{named}", *_rounded(ensemble, [*asked, *members], alone)))
    few = len(sources) < MIN_LINES
    opposite = Translator.load_ensemble(reverse, languages=back) if reverse and not few else None
    judging = None if judge is None or few else Translator.load(judge, languages=there)
    uses, plain = list[Use](), list[Use]()

    def measure(name: str, system: Translator, flags: Sequence[str]) -> Use:
        translations = system.translate(list(sources), progress=progress)
        return Use(name, tuple(flags), score(translations, references, language).bleu)

    def keep(use: Use) -> None:
        uses.append(use)
        found(use)

    beam = _BEAM if judging is None else _WIDE_BEAM
    for name, system, flags in systems:
        # The first use has no flag at all: it is what `translate` does without any.
        plain.append(measure(name, system, flags) if plain else measure(name, alone, asked))
        keep(plain[-1])
        if opposite is None and judging is None:
            continue
        request = TranslationRequest(system.search_settings(beam=beam))
        judged = system if opposite is None else system.with_reverse(opposite)
        judged = judged if judging is None else judged.with_judge(judging)
        best = tune_texts(judged, sources, references, request, language=language, progress=progress).best
        if best.held_out > plain[-1].bleu:
            choosing = ["--beam", str(beam)]
            choosing += [word for path in reverse if best.weights.reverse for word in ("--reverse", path.as_posix())]
            choosing += ["--judge", judge.as_posix()] if judge is not None and best.weights.judge else []
            keep(Use(f"{name}, choosing", (*flags, *choosing, "--weights", str(best.weights)), best.held_out))
    if datastore is None:
        return uses
    remembered = alone.with_datastore(datastore).datastore
    assert remembered is not None
    for (name, system, flags), without in zip(systems, plain, strict=True):
        more = [*flags, "--datastore", datastore.as_posix()]
        use = measure(f"{name} and a datastore", system.with_datastore(remembered), more)
        if use.bleu > without.bleu:
            keep(use)
    return uses


def measure_alone(
    model: Path,
    valid: Pairs,
    language: str | None,
    progress: Callable[[int], None],
    direction: Direction | None = None,
) -> float:
    """BLEU of a model alone, as `compare_uses` measures it."""
    there = Languages() if direction is None else Languages(*direction)
    translations = Translator.load(model, languages=there).translate(list(valid[0]), progress=progress)
    return score(translations, valid[1], language).bleu


def _rounded(system: Translator, flags: Sequence[str], alone: Translator) -> tuple[Translator, list[str]]:
    """The same in int8, if its search is compiled; ``alone`` has the settings of the search."""
    if alone.engine is None or isinstance(system.engines("int8"), str):
        return system, [*flags]
    return system.searching(precision="int8"), [*flags, "--precision", "int8"]


def _language_flags(languages: Languages) -> list[str]:
    codes = ("--source-language", languages.source), ("--target-language", languages.target)
    return [word for flag, code in codes if code is not None for word in (flag, code)]
