"""The models of the command line, checked before the server listens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from multihead.bundle import locate, model_digest, model_digests, read_directions
from multihead.decoding.search import Mean
from multihead.engine.weights import Precision
from multihead.errors import ConfigurationError
from multihead.model_folder import open_model, read_config
from multihead.serving.loaded_model import estimate_bytes
from multihead.serving.served_model import ModelSource, Pair
from multihead.serving.settings import ServeSettings
from multihead.text.languages import Languages, listed
from multihead.translating.datastore import Datastore, datastore_digest, read, size_of
from multihead.translating.request import TranslationRequest, Weights
from multihead.translating.translator import Translator

Folders = Mapping[tuple[str, ...] | None, Path]
"""Folders by source language, target language and perhaps a name; a single one may have None."""


@dataclass(frozen=True)
class Team:
    """How a model translates together with others.

    Args:
        others: further models of an ensemble.
        mean: what the ensemble averages.
        reverse: models of the opposite direction.
        judge: other models of the same direction.
        draft: guesses for greedy searches.
        datastore: what the model remembers (`translating.datastore`).
        weights: by which a translation is chosen among the hypotheses of the beam; None if it is not.
        search: settings that replace those of the model.
        name: tells it from other ways to use the model.
        pair: the only direction that it is for, of a model of several; None if it is for all.
    """

    others: tuple[Path, ...] = ()
    mean: Mean = "probabilities"
    reverse: tuple[Path, ...] = ()
    judge: tuple[Path, ...] = ()
    draft: Path | None = None
    datastore: Path | None = None
    weights: Weights | None = None
    search: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    pair: Pair | None = None


def find_models(
    folders: Folders,
    search: Mapping[str, Any],
    device: str,
    settings: ServeSettings,
    teams: tuple[Team, ...] = (Team(),),
) -> list[ModelSource]:
    """The models in folders.

    Args:
        folders: by languages.
        search: settings that replace those of the models.
        device: ``cpu``, ``cuda`` or ``mps``.
        settings: of the server.
        teams: the ways to use each model; the first one serves requests that name none.

    Raises:
        FormatError: a folder is not a model.
        ConfigurationError: a model is larger than the memory limit; a limit or pivot that does nothing; nothing to
            choose from.
    """
    opened, limit = Opened(), settings.memory_bytes
    found: list[ModelSource] = []
    for languages, folder in _by_direction(folders).items():
        pair, name = None if languages is None else Pair(*languages[:2]), "".join((languages or ())[2:]) or None
        if pair is None and len(teams) > 1:
            pair = _pair_of(folder)
        for team in teams:
            if None not in (team.pair, pair) and team.pair != pair:
                continue
            searching = {**team.search, **search}
            _check_choice(team, searching)
            needed = _estimate(folder, team, searching.get("precision", "float32"))
            if limit is not None and needed > limit:
                raise ConfigurationError(
                    f"{folder}: needs about {needed / 1e6:,.1f} MB of memory, more than --memory-limit "
                    f"{settings.memory_limit}"
                )
            loading = partial(load, folder, pair, searching, device, opened, team)
            found.append(ModelSource(loading, pair, needed, name or team.name, team.weights))
    if len(found) == 1 and found[0].pair is None:
        for flag, value in (("--memory-limit", settings.memory_limit), ("--pivot", settings.pivot)):
            if value is not None:
                raise ConfigurationError(f"{flag} is for models given with their languages, as in de-en=FOLDER")
    return found


def _check_choice(team: Team, search: Mapping[str, Any]) -> None:
    if team.weights is not None and search.get("beam", 2) < 2:
        raise ConfigurationError("--beam 1 leaves nothing to choose from: widen it, or leave out the choice")


def _estimate(folder: Path, team: Team, precision: Precision) -> int:
    """Bytes of a model and the others of its team; those that other ways to use it share are counted again."""
    drafts = [] if team.draft is None else [team.draft]
    searched = sum(estimate_bytes(locate(one), precision) for one in (folder, *team.others, *drafts))
    remembered = 0 if team.datastore is None else 2 * size_of(team.datastore)  # read, and prepacked
    return searched + remembered + sum(estimate_bytes(locate(one), None) for one in (*team.reverse, *team.judge))


def _pair_of(folder: Path) -> Pair | None:
    """The languages that a model of ours names; None if it names none."""
    with open_model(folder) as found:
        config = read_config(found)
    source, target = config.get("source_language"), config.get("target_language")
    return Pair(source, target) if isinstance(source, str) and isinstance(target, str) else None


def _by_direction(folders: Folders) -> Folders:
    """The folders, where a single model of several directions is given once for each.

    Raises:
        ConfigurationError: the model does not name a source language.
    """
    if None not in folders or len(directions := read_directions(folders[None])) < 2:
        return folders
    found: dict[tuple[str, ...] | None, Path] = {}
    for source, target in directions:
        if source is None:
            raise ConfigurationError(
                f"{folders[None]}: translates {listed(directions)}, without naming every source language; give it with "
                f"its languages, as in SOURCE-{target}={folders[None]}"
            )
        found[source, target] = folders[None]
    return found


class Opened:
    """Models in memory that are used in several ways: each is loaded once for all directions and teams."""

    def __init__(self) -> None:
        self._models: WeakValueDictionary[str, Translator] = WeakValueDictionary()
        self._datastores: WeakValueDictionary[str, Datastore] = WeakValueDictionary()

    def load(self, folder: Path, pair: Pair | None, device: str, shared: bool = False) -> Translator:
        """The translator for a direction.

        Args:
            folder: of the model.
            pair: the direction; None for that of the model.
            device: ``cpu`` or ``cuda``.
            shared: whether its network may be in memory for another use; that of a model of several directions may.
        """
        languages = Languages() if pair is None else Languages(*pair)
        if not shared and not read_directions(folder):
            return Translator.load(folder, device, languages)
        name = f"{folder} {model_digest(folder)}"  # a reload finds other weights
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = Translator.load(folder, device, languages)
        return found.toward(languages)  # which keeps ``found`` in memory

    def datastore(self, path: Path, folder: Path) -> Datastore:
        """The datastore of the model in a folder; several ways to use the model share it.

        Raises:
            FormatError, ConfigurationError: as `translating.datastore.read`.
        """
        models = model_digests(locate(folder))
        name = f"{path} {datastore_digest(path)} {models[0]}"
        found = self._datastores.get(name)
        if found is None:
            found = self._datastores[name] = read(path, *models)
        return found


def load(
    folder: Path,
    pair: Pair | None,
    search: Mapping[str, Any],
    device: str,
    opened: Opened | None = None,
    team: Team | None = None,
) -> Translator:
    """Load a model, with its team if it has one, and translate a word, so that a broken model is never served.

    Raises:
        MultiheadError: a folder is damaged, has other languages, or the model computes NaN; the models do not fit
            together.
    """
    opened, team = opened or Opened(), team or Team()

    def together(folders: Sequence[Path], pair: Pair | None) -> Translator:
        """The model, or the ensemble of the models, that chooses."""
        first, *more = (opened.load(one, pair, device, shared=True) for one in folders)
        return first.ensemble(more) if more else first

    translator = opened.load(folder, pair, device, shared=team != Team()).searching(**search)
    if team.others:
        others = [opened.load(one, pair, device, shared=True) for one in team.others]
        translator = translator.ensemble(others, team.mean)
    if team.datastore is not None:
        translator = translator.with_datastore(opened.datastore(team.datastore, folder))
    if team.reverse:
        opposite = None if pair is None else Pair(pair.target, pair.source)
        translator = translator.with_reverse(together(team.reverse, opposite))
    if team.judge:
        translator = translator.with_judge(together(team.judge, pair))
    if team.draft is not None:
        translator = translator.with_draft(opened.load(team.draft, pair, device, shared=True))
    translator.run(TranslationRequest(translator.search_settings(), ["a"], weights=team.weights))
    return translator
