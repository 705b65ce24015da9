"""Make the rules of a corpus: usual lengths, languages, held-out pairs.

One pass over the corpus samples up to 40,000 evenly spread pairs. From these come the usual ratio of the lengths and
its spread, and the classifier that tells the two sides apart. A corpus of fewer than 100 pairs says neither; the two
filters are then off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multihead.cleaning.candidates import read_candidates
from multihead.cleaning.filters import Rules
from multihead.cleaning.languages import can_detect
from multihead.cleaning.leaks import HeldOutIndex
from multihead.cleaning.settings import CleanSettings
from multihead.data.corpus import Languages, Report, language_of
from multihead.data.readers import CorpusScan, scan_corpus
from multihead.diagnosis.corpus import Chunk, Sample
from multihead.diagnosis.heuristics import SideClassifier, length_model
from multihead.errors import ConfigurationError, MissingDependencyError
from multihead.platforms import split_words

_MIN_PAIRS = 100
"""Pairs from which the sides can be told apart."""


def make_rules(
    scan: CorpusScan,
    settings: CleanSettings,
    languages: Languages,
    held_out: Sequence[CorpusScan],
    model: Path | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Rules:
    """Read a corpus once and make its rules.

    Args:
        scan: the corpus.
        settings: thresholds.
        languages: codes of both sides; None is taken from the file or its name.
        held_out: corpora whose pairs must not be in this one.
        model: a run or model folder that scores the pairs.
        progress: called with the number of newly read candidates.

    Raises:
        ConfigurationError: a given language cannot be detected, or languages are known and the extra ``detect`` is not
            installed.
    """
    sample = Sample()
    for candidates in read_candidates(scan):
        places = [place for place, fault in enumerate(candidates.faults) if not fault]
        sides = ([side[place] for place in places] for side in (candidates.sources, candidates.targets))
        sample.add(Chunk(np.array(candidates.lines, np.int64)[places], *sides))
        progress(len(candidates.lines))
    lengths = np.array([list(map(len, sample.sources)), list(map(len, sample.targets))], np.float64)
    classifier = None
    if len(sample) >= _MIN_PAIRS:
        classifier = SideClassifier()
        classifier.learn(sample.sources, sample.targets)
    return Rules(
        settings,
        _checked_languages(scan, settings, languages),
        length_model(*lengths),
        classifier,
        _index(held_out) if "leak" not in settings.skip else None,
        model,
    )


def _checked_languages(scan: CorpusScan, settings: CleanSettings, given: Languages) -> Languages:
    """The languages that are checked; None for a side whose language is unknown or cannot be detected."""
    if "language" in settings.skip:
        return None, None
    codes = [given[side] or scan.languages[side] or language_of(scan.path(side)) for side in (0, 1)]
    try:
        source, target = (code if can_detect(code) else None for code in codes)
    except MissingDependencyError as error:
        raise ConfigurationError(f"{error}; or check no language: --skip language") from None
    for code, found in zip(given, (source, target), strict=True):
        if code is not None and found is None:
            raise ConfigurationError(
                f"the language {code!r} cannot be detected; expected a code such as de, or check no language: "
                "--skip language"
            )
    return source, target


def _index(held_out: Sequence[CorpusScan]) -> HeldOutIndex | None:
    index = HeldOutIndex()
    for scan in held_out:
        name = " + ".join(str(file.path) for file in scan.files)
        for pair in scan.read(Report()):
            index.add(f"line {pair.line} of {name}", pair.source, pair.target)
    if not len(index):
        return None
    index.seal()
    return index


def scan_held_out(words: Sequence[str], languages: Languages) -> list[CorpusScan]:
    """Scan held-out corpora, each given as "FILE" or "FILE FILE"; names with spaces are quoted as in a shell.

    Raises:
        ConfigurationError: more than two files, or quotes that do not end.
        DataError: as `scan_corpus`.
    """
    found = []
    for text in words:
        try:
            files = split_words(text)
        except ValueError as error:
            raise ConfigurationError(f"held out: {text!r} cannot be read ({error}); expected FILE [FILE]") from None
        if not 1 <= len(files) <= 2:
            raise ConfigurationError(f"held out: expected FILE [FILE], names with spaces in quotes, got {text!r}")
        found.append(scan_corpus(files[0], files[1] if len(files) == 2 else None, *languages))
    return found


def record_of_rules(scan: CorpusScan, rules: Rules, held_out: Sequence[CorpusScan]) -> dict[str, Any]:
    """Everything that decides the verdicts, as JSON."""
    model = None
    if rules.model is not None:
        from multihead.bundle import model_digest  # imports torch, which nothing else here needs

        model = model_digest(rules.model)
    return {
        "input": [file.sha256[:16] for file in scan.files],
        "settings": rules.settings.model_dump(mode="json"),
        "languages": list(rules.languages),
        # Of a file of several languages, these decide what is read; the line above has them if they are checked.
        **({"read": list(scan.languages)} if "language" in rules.settings.skip else {}),
        "held_out": [file.sha256[:16] for one in held_out for file in one.files],
        "model": model,
    }
