"""Judging is a pure function: chunks, processes and skipped filters change nothing else."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from faulty_pairs import faulty

from multihead.cleaning.candidates import read_candidates
from multihead.cleaning.filters import Candidates, Rules, explain, judge
from multihead.cleaning.rules import make_rules, scan_held_out
from multihead.cleaning.settings import FILTERS, REASONS, CleanSettings
from multihead.data.readers import CorpusScan, scan_corpus
from multihead.errors import ConfigurationError


@pytest.fixture
def corpus(text: tuple[Path, Path]) -> CorpusScan:
    return scan_corpus(*text)


@pytest.fixture
def rules(corpus: CorpusScan, held_out: list[str]) -> Rules:
    return make_rules(corpus, CleanSettings(), (None, None), scan_held_out(held_out, (None, None)))


def part(candidates: Candidates, start: int, stop: int) -> Candidates:
    return Candidates(*(field[start:stop] for field in candidates))


def test_each_fault_is_found_by_its_filter(corpus: CorpusScan, rules: Rules) -> None:
    (candidates,) = read_candidates(corpus)
    found = judge(rules, candidates)
    wanted = {line: reason for line, reason in faulty()[1].items() if "duplicate" not in reason}
    places = np.flatnonzero(found["reason"])
    assert {int(found["line"][p]): REASONS[found["reason"][p]] for p in places} == wanted


def test_chunks_judged_apart_are_the_whole_judged_at_once(corpus: CorpusScan, rules: Rules) -> None:
    (candidates,) = read_candidates(corpus)
    whole, sent = judge(rules, candidates), pickle.loads(pickle.dumps(rules))
    cuts = [0, 1, 20, 90, 91, 299, 300]
    parts = [judge(sent, part(candidates, *ends)) for ends in pairwise(cuts)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert len(judge(rules, part(candidates, 0, 0))) == 0


@pytest.mark.parametrize(
    "name", [name for name in FILTERS if name not in ("alignment", "duplicate", "near-duplicate", "similar")]
)
def test_a_filter_that_is_skipped_removes_and_measures_nothing(corpus: CorpusScan, rules: Rules, name: str) -> None:
    (candidates,) = read_candidates(corpus)
    rules = Rules(**{**vars(rules), "settings": CleanSettings.model_validate({"skip": (name,)})})
    found = judge(rules, candidates)
    assert REASONS.index(name) not in found["reason"]
    assert np.isnan(found["values"][:, FILTERS.index(name)]).all()  # type: ignore[arg-type]
    others = {line: reason for line, reason in faulty()[1].items() if reason != name and "duplicate" not in reason}
    assert all(found["reason"][line - 1] == REASONS.index(reason) for line, reason in others.items())


def test_a_pair_is_removed_just_above_the_threshold(corpus: CorpusScan, rules: Rules) -> None:
    (candidates,) = read_candidates(corpus)
    place = FILTERS.index("leak")
    values = judge(rules, candidates)["values"][:, place]
    largest = float(np.nanmax(values[values < 1]))
    for threshold, removed in ((largest, False), (np.nextafter(np.float32(largest), np.float32(0)), True)):
        settings = CleanSettings(max_leak=float(threshold))
        found = judge(Rules(**{**vars(rules), "settings": settings}), candidates)
        assert (found["reason"][values == np.float32(largest)] == REASONS.index("leak")).all() == removed


def test_filters_without_what_they_need_are_idle(corpus: CorpusScan) -> None:
    rules = make_rules(corpus, CleanSettings(), (None, None), [])
    assert set(rules.idle()) == {"leak", "alignment"}
    assert set(Rules(CleanSettings()).idle()) == {"ratio", "swapped", "leak", "language", "alignment"}
    skipping = CleanSettings(skip=("leak", "alignment", "language"))
    assert set(Rules(skipping).idle()) == {"ratio", "swapped"}


def test_a_language_that_cannot_be_detected_is_refused(corpus: CorpusScan) -> None:
    with pytest.raises(ConfigurationError, match="'xx' cannot be detected"):
        make_rules(corpus, CleanSettings(), ("xx", None), [])
    rules = make_rules(corpus, CleanSettings(skip=("language",)), ("xx", None), [])
    assert rules.languages == (None, None)


def test_details_say_what_differs(rules: Rules) -> None:
    assert explain(rules, "numbers", "im Jahr 1984", "in 1985") == "1984 against 1985"
    assert explain(rules, "urls", "www.a.org", "nothing") == "a.org against nothing"
    assert explain(rules, "leak", "Der Hund rennt durch das hohe Gras", "x").startswith("line 1 of ")
    assert explain(rules, "language", "x", "Un homme est debout sur une échelle.").startswith(
        "the target seems to be fr"
    )
    assert explain(rules, "ratio", "x", "y") == ""


def test_the_model_removes_what_it_finds_improbable(trained: Path) -> None:
    rows = ["eins zwei drei"] * 2, ["one two three", "seven six nine eight"]
    candidates = Candidates([1, 2], *rows, ["", ""])
    rules = Rules(CleanSettings(), model=trained)
    place = FILTERS.index("alignment")
    values = judge(rules, candidates)["values"][:, place]
    assert values[0] < values[1]
    limit = CleanSettings(max_surprise=float(values.mean()))
    found = judge(Rules(limit, model=trained), candidates)
    assert found["reason"].tolist() == [0, REASONS.index("alignment")]
    from multihead import Translator
    from multihead.judging.score import score

    for value, pair in zip(values, score(Translator.load(trained), *rows), strict=True):
        assert math.isclose(value, -sum(pair.log_probabilities) / len(pair.tokens), rel_tol=1e-5)
