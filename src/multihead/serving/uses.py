"""The ways to use the models of a run of ``multihead train --best``.

``uses.json`` in the folder of such a run lists them, each with its flags of ``multihead translate``; `runs.best` writes
it. The models are those of the run, wherever its folder is now.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

from multihead.errors import ConfigurationError, FormatError, InputError
from multihead.serving.folders import Team
from multihead.serving.served_model import Pair
from multihead.translating.request import Weights, usual_weights
from multihead.uses_file import USES, damaged, read_uses_file

_MODELS = {"--with": "others", "--reverse": "reverse", "--judge": "judge"}
_LANGUAGES = ("--source-language", "--target-language")


def read_uses(run: Path) -> tuple[Team, ...]:
    """The ways to use the models of a run, the simplest first.

    Raises:
        ConfigurationError: it is no finished run in stages.
        FormatError: the file is damaged, or has something that a server cannot do.
    """
    content = read_uses_file(run)
    if content is None:
        raise ConfigurationError(f"{run}: has no {USES}: --uses is for a finished run of multihead train --best")
    try:
        uses = content["uses"]
        teams = tuple(_team(run, _name(use["use"]), use["flags"]) for use in uses)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise damaged(run, error) from None
    if not teams:
        raise FormatError(f"{run / USES}: lists no uses: copy the run again")
    return teams


def has_uses(run: Path) -> bool:
    """Whether a folder is a run in stages with several ways to use its models."""
    try:
        return len(read_uses(run)) > 1
    except InputError:
        return False


def _name(text: str) -> str:
    """ "ensemble, choosing" for "an ensemble, choosing"."""
    article, _, rest = text.partition(" ")
    return rest if article in ("a", "an", "the") and rest else text


def _team(run: Path, name: str, flags: Sequence[str]) -> Team:
    if len(flags) % 2:
        raise IndexError
    models: dict[str, tuple[Path, ...]] = dict.fromkeys(_MODELS.values(), ())
    search: dict[str, Any] = {}
    languages: dict[str, str] = {}
    weights: Weights | None = None
    datastore: Path | None = None
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        if flag in _MODELS:
            models[_MODELS[flag]] += (_model(run, value),)
        elif flag == "--beam":
            search["beam"] = int(value)
        elif flag == "--precision":
            search["precision"] = value
        elif flag == "--datastore":
            datastore = _model(run, value)
        elif flag == "--weights":
            weights = Weights.parse(value)
        elif flag in _LANGUAGES:
            languages[flag] = value
        else:
            raise FormatError(f"{run / USES}: {name}: {flag} is a flag that a server does not have")
    weights = weights or usual_weights(bool(models["reverse"]), bool(models["judge"]))
    pair = Pair(*(languages[flag] for flag in _LANGUAGES)) if len(languages) == len(_LANGUAGES) else None
    if pair is not None:
        name = name.replace(f", {pair}", "")  # a request names its languages already
    others, reverse, judge = models["others"], models["reverse"], models["judge"]
    return Team(
        others,
        reverse=reverse,
        judge=judge,
        datastore=datastore,
        weights=weights,
        search=search,
        name=name,
        pair=pair,
    )


def _model(run: Path, value: str) -> Path:
    """A model of the run, or its datastore; the path is that at the time of the training, perhaps on Windows."""
    found = run / PureWindowsPath(value).name
    if not found.is_dir():
        raise FormatError(f"{run / USES}: names the model {found.name}, which is not in {run}: copy the run again")
    return found
