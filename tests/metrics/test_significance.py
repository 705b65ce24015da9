"""Intervals and p are sacreBLEU's, bounded for few differing sentences."""

from __future__ import annotations

import random
from itertools import product

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from multihead.errors import ConfigurationError, InputError
from multihead.metrics import significance
from multihead.metrics.scores import score
from multihead.metrics.significance import check_score_settings, score_systems

WORDS = ["a", "man", "rides", "the", "horse", "in", "snow", "two", "dogs", "play", "happily", "near", "water", "and"]
NAMES = ("BLEU", "chrF2", "TER")


def sentences(count: int) -> list[str]:
    draw = random.Random(5)
    return [" ".join(draw.choices(WORDS, k=draw.randint(5, 14))).capitalize() + "." for _ in range(count)]


def damaged(lines: list[str], share: float, seed: int) -> list[str]:
    """Omit each word with this probability."""
    draw = random.Random(seed)
    return [" ".join(word for word in line.split() if draw.random() >= share) for line in lines]


REFERENCES = sentences(100)
GOOD, AS_GOOD, BAD = damaged(REFERENCES, 0.1, 1), damaged(REFERENCES, 0.1, 2), damaged(REFERENCES, 0.3, 3)


def test_scores_intervals_and_signatures_are_sacrebleus() -> None:
    (found,) = score_systems([GOOD], REFERENCES, resamples=200).systems
    for name, metric, one in zip(NAMES, (BLEU(), CHRF(), TER()), found, strict=True):
        theirs = metric.corpus_score(GOOD, [REFERENCES], n_bootstrap=200)
        assert one.name == name == theirs.name
        assert one.score == theirs.score
        assert (one.mean, one.half) == pytest.approx((theirs._mean, theirs._ci), rel=1e-6)  # summed in another order
        assert one.signature == str(metric.get_signature())
        assert "|bs:200|seed:12345|" in one.signature
        assert one.low <= one.score <= one.high
        assert one.p is None
        assert not one.significant
    plain = score(GOOD, REFERENCES)
    assert [one.plain_signature for one in found[:2]] == [plain.bleu_signature, plain.chrf_signature]
    assert [one.score for one in found[:2]] == [plain.bleu, plain.chrf]


@pytest.mark.parametrize(("test", "short"), [("randomization", "ar"), ("bootstrap", "bs")])
def test_p_is_sacrebleus_where_many_sentences_differ(test: significance.SignificanceTest, short: str) -> None:
    systems = [GOOD, AS_GOOD, BAD]
    found = score_systems(systems, REFERENCES, test=test, resamples=90, trials=120)
    _, theirs = PairedTest(
        [(str(number), lines) for number, lines in enumerate(systems)],
        {"BLEU": BLEU(), "chrF": CHRF(), "TER": TER()},
        [REFERENCES],
        test_type=short,
        n_samples={"ar": 120, "bs": 90}[short],
    )()
    for place in (1, 2):
        assert [one.p for one in found.systems[place]] == [theirs[name][place].p_value for name in NAMES]
    assert (found.test, found.resamples, found.trials) == (test, 90, {"ar": 120, "bs": None}[short])
    assert "90 bootstrap resamples" in found.how
    assert "seed 12345" in found.how


@pytest.mark.parametrize("test", ["randomization", "bootstrap"])
def test_known_damage_is_significant_and_other_luck_is_not(test: significance.SignificanceTest) -> None:
    _, other, worse = score_systems([GOOD, AS_GOOD, BAD], REFERENCES, test=test, resamples=150, trials=150).systems
    assert not any(one.significant for one in other)
    assert all(one.significant for one in worse)
    first = score_systems([GOOD], REFERENCES, resamples=200).systems[0]
    assert worse[0].high < first[0].low
    assert worse[1].high < first[1].low
    assert worse[2].low > first[2].high


@pytest.mark.parametrize("test", ["randomization", "bootstrap"])
def test_a_system_against_itself(test: significance.SignificanceTest) -> None:
    found = score_systems([GOOD, list(GOOD)], REFERENCES, test=test, resamples=50, trials=50)
    first, again = found.systems
    assert [one.p for one in again] == [1.0] * 3
    assert [(one.score, one.low, one.high) for one in first] == [(one.score, one.low, one.high) for one in again]


@pytest.mark.parametrize("test", ["randomization", "bootstrap"])
@pytest.mark.parametrize("differing", [1, 2, 3, 5])
def test_few_sentences_prove_nothing(test: significance.SignificanceTest, differing: int) -> None:
    """Although sacreBLEU computes p = 1 / (1 + trials) if a single sentence is better."""
    better = [*REFERENCES[:differing], *BAD[differing:]]
    for one in score_systems([BAD, better], REFERENCES, test=test, resamples=100, trials=500).systems[1]:
        assert one.p is not None
        assert one.p >= min(1.0, 2.0 ** (1 - differing))
        assert not one.significant


def test_p_is_that_of_all_swaps() -> None:
    """All 128 swaps of 7 sentences can be enumerated; p counts larger differences, and two swaps change nothing."""
    references = sentences(7)
    one, other = damaged(references, 0.2, 8), damaged(references, 0.5, 9)
    found = score_systems([one, other], references, trials=4000).systems[1]
    for metric, ours in zip((BLEU(), CHRF(), TER()), found, strict=True):

        def difference(swaps: tuple[bool, ...], metric: BLEU | CHRF | TER = metric) -> float:
            mine = [b if swap else a for swap, a, b in zip(swaps, one, other, strict=True)]
            theirs = [a if swap else b for swap, a, b in zip(swaps, one, other, strict=True)]
            scores = [metric.corpus_score(lines, [references]).score for lines in (mine, theirs)]
            return abs(scores[0] - scores[1])

        real = difference((False,) * 7)
        larger = [difference(swaps) > real + 1e-9 for swaps in product((False, True), repeat=7)]
        assert ours.p == pytest.approx(max(sum(larger) / 128, 2 / 128), abs=0.03)


def test_identical_lines_have_no_interval() -> None:
    bleu, chrf, ter = score_systems([REFERENCES], REFERENCES, resamples=100).systems[0]
    assert (bleu.score, bleu.low, bleu.high) == pytest.approx((100, 100, 100))
    assert (chrf.score, chrf.low, chrf.high) == pytest.approx((100, 100, 100))
    assert (ter.score, ter.low, ter.high) == (0, 0, 0)


def test_intervals_do_not_depend_on_what_a_system_is_compared_with() -> None:
    alone = score_systems([BAD], REFERENCES, resamples=50).systems[0]
    for test in ("randomization", "bootstrap"):
        beside = score_systems([GOOD, BAD], REFERENCES, test=test, resamples=50, trials=50).systems[1]  # type: ignore[arg-type]
        for one, other in zip(alone, beside, strict=True):
            assert (one.low, one.high, one.signature) == (other.low, other.high, other.signature)


def test_an_interval_stays_within_the_scale() -> None:
    near = [*REFERENCES[1:], "nothing at all"]
    for one in score_systems([near], REFERENCES[1:] + REFERENCES[:1], resamples=100).systems[0]:
        assert 0 <= one.low <= one.high
        assert one.name == "TER" or one.high <= 100
    bleu = score_systems([["x"] * 3], ["a b c d"] * 3, resamples=50).systems[0][0]
    assert (bleu.score, bleu.low, bleu.high) == (0, 0, 0)


def test_the_seed_is_sacrebleus(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = score_systems([BAD], REFERENCES, resamples=50)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    other = score_systems([BAD], REFERENCES, resamples=50)
    assert (usual.seed, other.seed) == ("12345", "7")
    assert usual.systems[0][0].score == other.systems[0][0].score
    assert usual.systems[0][0].mean != other.systems[0][0].mean
    assert "|seed:7|" in other.systems[0][0].signature
    for wrong in ("lucky", "0"):  # with 0, sacreBLEU's tests would have no seed
        monkeypatch.setenv("SACREBLEU_SEED", wrong)
        with pytest.raises(ConfigurationError, match=f"expected a number above 0 or 'none', got '{wrong}'"):
            score_systems([BAD], REFERENCES)


def test_large_sets_have_fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(significance, "_MOST_RESAMPLED", 80 * len(REFERENCES))
    monkeypatch.setattr(significance, "_MOST_SWAPPED", len(REFERENCES))
    found = score_systems([GOOD, BAD], REFERENCES)
    assert (found.resamples, found.trials) == (100, 1000)
    asked = score_systems([GOOD, BAD], REFERENCES, resamples=60, trials=50)
    assert (asked.resamples, asked.trials) == (60, 50)


def test_what_cannot_be_measured() -> None:
    with pytest.raises(InputError, match="99 translations but 100 references"):
        score_systems([GOOD, GOOD[1:]], REFERENCES)
    for numbers in ({"resamples": 39}, {"trials": 0}):
        name = next(iter(numbers))
        with pytest.raises(ConfigurationError, match=f"{name}: expected at least 40, got {numbers[name]}"):
            check_score_settings(**numbers)  # type: ignore[arg-type]
    for name in ("resamples", "trials"):
        with pytest.raises(
            ConfigurationError, match=f"{name}: expected at most .* for 100 sentences, got 1,000,000,000"
        ):
            score_systems([GOOD, BAD], REFERENCES, **{name: 10**9})  # type: ignore[arg-type]
    check_score_settings(resamples=1000, trials=10_000, lines=10**9)  # the defaults are always accepted


def test_both_forms_say_the_same() -> None:
    one = score_systems([GOOD, BAD], REFERENCES, resamples=50, trials=50).systems[1][0]
    content = one.as_dict()
    assert (content["low"], content["high"], content["p"]) == (one.low, one.high, one.p)
    assert str(one).split() == ["BLEU", f"{one.score:.2f}", f"[{one.low:.2f},", f"{one.high:.2f}]", one.signature]
