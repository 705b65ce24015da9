r"""How far a score can be trusted: 95% intervals, and whether one system is better than another, from sacreBLEU.

*Intervals* are of the bootstrap (Koehn 2004, "Statistical significance tests for machine translation evaluation"): the
test set's sentences are drawn anew, as many, with replacement, n times; of the n scores 95% lie within mean +- half.

*Tests* are paired, two-sided, and compare each system with the first. The null hypothesis is that it does not matter
which of the two wrote a sentence.

    randomization   approximate randomization (Noreen 1989; Riezler & Maxwell 2005, "On some pitfalls in automatic
                    evaluation and significance testing for MT"): outputs are swapped sentence by sentence at random;
                    p = (1 + how often |difference| is larger than it was) / (1 + trials)
    bootstrap       p = (1 + how often |difference| in a resample, less its mean, is larger than it was) / (1 + n)

Both count only larger differences, not equal ones (as MultEval did), so that a system has p = 1 / (1 + n) against
itself, and p is as small where it differs in one sentence alone. But of the 2^k ways to swap k sentences that differ,
two (none, all) have the difference that was: no p of such a test is below 2^(1-k), and no p here is,

    p = min(1, max(p_sacreBLEU, 2^(1-k)))

which leaves p as it is as soon as some 15 sentences differ. A test says that a difference is hardly chance on sentences
like these; whether it matters, or was cherry-picked from many systems, it does not say.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from multihead.errors import ConfigurationError
from multihead.metrics.scores import Tokenizer, all_metrics, bleu_metric, check_lines

SignificanceTest = Literal["randomization", "bootstrap"]

RESAMPLES, TRIALS = 1000, 10_000
LEVEL = 0.05
"""Differences with a smaller p are called significant."""

_FEWEST = 40
"""An interval leaves a 40th out at either end."""
_MOST_RESAMPLED, _MOST_SWAPPED = 20_000_000, 64_000_000
"""Sentences in all resamples, and in all trials: each is some 70 or 16 bytes at once, so that 2 GB are enough."""
_REFUSED = 4
"""Who asks for more than so many times as much would need more memory than most machines have."""


@dataclass(frozen=True)
class MetricScore:
    """One score of one system."""

    name: str
    """ "BLEU", "chrF2" (0 to 100, more is better) or "TER" (from 0, less is better)."""
    score: float
    mean: float
    """Of the resamples."""
    half: float
    """Half of the 95% interval's width."""
    signature: str
    p: float | None = None
    """That a difference as large as that to the first system is chance; None of the first system."""

    @property
    def low(self) -> float:
        """Where the interval begins."""
        return max(self.mean - self.half, 0.0)

    @property
    def high(self) -> float:
        """Where it ends."""
        high = self.mean + self.half
        return high if self.name == "TER" else min(high, 100.0)

    @property
    def significant(self) -> bool:
        """Whether the difference to the first system is."""
        return self.p is not None and self.p < LEVEL

    @property
    def plain_signature(self) -> str:
        """Of the score alone, without the interval's resamples and seed: what others print who compute no interval."""
        return "|".join(part for part in self.signature.split("|") if not part.startswith(("bs:", "seed:")))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "low": self.low, "high": self.high, "significant": self.significant}

    def __str__(self) -> str:
        return f"{self.name:<5} {self.score:6.2f}  [{self.low:.2f}, {self.high:.2f}]  {self.signature}"


@dataclass(frozen=True)
class SystemScores:
    """The scores of one or several systems on one test set."""

    systems: tuple[tuple[MetricScore, ...], ...]
    """BLEU, chrF and TER of each; what they are compared with comes first."""
    test: SignificanceTest | None
    """Which one; None of one system."""
    resamples: int
    """Of the intervals, and of the test "bootstrap"."""
    trials: int | None
    """Of the test "randomization"."""
    seed: str
    """Of both: sacreBLEU's, 12345 or what the environment variable SACREBLEU_SEED says."""

    @property
    def how(self) -> str:
        """Where the intervals and p come from, in a line."""
        intervals = f"95% intervals: {self.resamples:,} bootstrap resamples"
        tests = {
            None: "",
            "bootstrap": "; p: paired bootstrap, the same",
            "randomization": f"; p: paired approximate randomization, {self.trials or 0:,} trials",
        }
        return f"{intervals}{tests[self.test]}; seed {self.seed}"


def score_systems(
    systems: Sequence[Sequence[str]],
    references: Sequence[str],
    language: str | None = None,
    *,
    tokenize: Tokenizer | None = None,
    test: SignificanceTest = "randomization",
    resamples: int | None = None,
    trials: int | None = None,
) -> SystemScores:
    """Scores systems with intervals, and tests each against the first.

    Args:
        systems: the translations of each, detokenised, in the order of the references.
        references: the right translations.
        language: of the translations, by its code; decides how words are told apart (`tokenisation`).
        tokenize: how BLEU tells them apart instead.
        test: which test.
        resamples: of the bootstrap; by default 1,000, and fewer above 20,000 sentences.
        trials: of the randomization; by default 10,000, and fewer above 6,400 sentences.

    Raises:
        InputError: as `scores.score`.
        ConfigurationError: fewer than 40 resamples or trials, or more than memory has room for; a seed that is none; a
            tokenizer that is not installed.
    """
    for hypotheses in systems:
        check_lines(hypotheses, references)
    check_score_settings(tokenize, resamples=resamples, trials=trials, lines=len(references))
    resamples = resamples or min(RESAMPLES, max(_MOST_RESAMPLED // len(references), RESAMPLES // 10))
    trials = trials or min(TRIALS, max(_MOST_SWAPPED // len(references), TRIALS // 10))
    seed = _seed()
    scores = all_metrics(language, tokenize)
    found = [_intervals(system, references, scores, resamples) for system in systems]
    p_values: list[list[float | None]] = [[None] * len(found[0])]
    if len(systems) > 1:
        paired = PairedTest(
            [(str(number), list(system)) for number, system in enumerate(systems)],
            scores,
            [list(references)],
            test_type="ar" if test == "randomization" else "bs",
            n_samples=trials if test == "randomization" else resamples,
        )
        _, results = paired()
        for place, system in enumerate(systems[1:], start=1):
            differing = sum(one != other for one, other in zip(systems[0], system, strict=True))
            p_values.append([_p(results[score.name][place], differing) for score in found[0]])
    return SystemScores(
        tuple(
            tuple(replace(one, p=p) for one, p in zip(row, column, strict=True))
            for row, column in zip(found, p_values, strict=True)
        ),
        test if len(systems) > 1 else None,
        resamples,
        trials if len(systems) > 1 and test == "randomization" else None,
        seed,
    )


def _intervals(
    hypotheses: Sequence[str], references: Sequence[str], scores: dict[str, Metric], resamples: int
) -> list[MetricScore]:
    """Each system's by itself, so that they do not depend on what it is compared with."""
    signatures, results = PairedTest(
        [("", list(hypotheses))], scores, [list(references)], test_type="bs", n_samples=resamples
    )()
    found = []
    for name, signature in signatures.items():
        (one,) = results[name]
        assert isinstance(one, Result)
        assert one.mean is not None
        assert one.ci is not None
        found.append(MetricScore(name, float(one.score), float(one.mean), float(one.ci), str(signature)))
    return found


def _p(result: str | Result, differing: int) -> float:
    """Never below what the swaps of so many sentences that differ can have."""
    assert isinstance(result, Result)
    assert result.p_value is not None
    return min(1.0, max(float(result.p_value), 2.0 ** (1 - differing)))


def check_score_settings(
    tokenize: Tokenizer | None = None, *, resamples: int | None = None, trials: int | None = None, lines: int = 1
) -> None:
    """Refuses what `score_systems` would refuse after the hours that a translation may take.

    Args:
        tokenize: as in `score_systems`, and so are ``resamples`` and ``trials``.
        lines: of the references.

    Raises:
        ConfigurationError: as `score_systems`.
    """
    bleu_metric(tokenize=tokenize)
    _seed()
    asked = (("resamples", resamples, _MOST_RESAMPLED, RESAMPLES), ("trials", trials, _MOST_SWAPPED, TRIALS))
    for name, value, sentences, usual in asked:
        if value is not None and value < _FEWEST:
            raise ConfigurationError(f"{name}: expected at least {_FEWEST}, got {value}")
        most = max(_REFUSED * sentences // max(lines, 1), usual)
        if value is not None and value > most:
            raise ConfigurationError(f"{name}: expected at most {most:,} of {lines:,} sentences, got {value:,}")


def _seed() -> str:
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if not seed.isdecimal() and seed.lower() != "none":
        raise ConfigurationError(f"SACREBLEU_SEED: expected a number or 'none', got {seed!r}")
    return seed.lower()
