r"""Confidence intervals and significance tests of scores, by sacreBLEU.

*Intervals* are computed with the bootstrap (Koehn 2004, "Statistical significance tests for machine translation
evaluation"): the sentences of the test set are resampled with replacement n times; 95% of the n scores lie within
mean +- half.

*Tests* are paired and two-sided, and compare each system with the first. The null hypothesis is that it does not matter
which of the two systems produced a sentence.

    randomization   approximate randomization (Noreen 1989; Riezler & Maxwell 2005, "On some pitfalls in automatic
                    evaluation and significance testing for MT"): outputs are swapped sentence by sentence at random;
                    p = (1 + number of trials with a larger |difference|) / (1 + trials)
    bootstrap       p = (1 + number of resamples with a larger |difference|, after subtracting their mean) / (1 + n)

Both count only larger differences, not equal ones (as in MultEval). A system compared with itself would have
p = 1 / (1 + n), and so would one that differs in a single sentence. But of the 2^k ways to swap k differing sentences,
two (none and all) give the observed |difference|, so no such test can have p below 2^(1-k). Therefore

    p = min(1, max(p_sacreBLEU, 2^(1-k)))

which changes nothing as soon as some 15 sentences differ. A test says that a difference on such sentences is hardly due
to chance. It does not say whether the difference matters, or whether it was selected from many comparisons.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest, Result

from multihead.errors import ConfigurationError
from multihead.metrics.scores import Tokenizer, all_metrics, bleu_metric, check_lines

SignificanceTest = Literal["randomization", "bootstrap"]

RESAMPLES, TRIALS = 1000, 10_000
LEVEL = 0.05
"""Differences with a p below this are significant."""

_FEWEST = 40
"""Minimum number of resamples or trials: an interval omits one 40th at either end."""
_MOST_RESAMPLED, _MOST_SWAPPED = 20_000_000, 64_000_000
"""Sentences in all resamples, and in all trials: with about 70 or 16 bytes each, 2 GB suffice."""
_REFUSED = 4
"""Requests above this multiple are refused: they would exceed the memory of most machines."""


@dataclass(frozen=True)
class MetricScore:
    """A score of one system, with its confidence interval."""

    name: str
    """ "BLEU", "chrF2" (0 to 100, more is better), "TER" (from 0, less is better) or "COMET" (more is better)."""
    score: float
    mean: float
    """Mean score of the resamples."""
    half: float
    """Half of the 95% interval's width."""
    signature: str
    p: float | None = None
    """Probability of so large a difference to the first system by chance; None for the first system."""

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        low = self.mean - self.half
        return low if self.name == "COMET" else max(low, 0.0)

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        high = self.mean + self.half
        return high if self.name in ("TER", "COMET") else min(high, 100.0)

    @property
    def decimals(self) -> int:
        """Decimals that are shown: of COMET, which is about 1, more than of percentages."""
        return 4 if self.name == "COMET" else 2

    @property
    def significant(self) -> bool:
        """Whether the difference to the first system is significant."""
        return self.p is not None and self.p < LEVEL

    @property
    def plain_signature(self) -> str:
        """Signature without the interval's resamples and seed, comparable with scores that have no interval."""
        return "|".join(part for part in self.signature.split("|") if not part.startswith(("bs:", "seed:")))

    def as_dict(self) -> dict[str, Any]:
        """The score as JSON data."""
        return {**vars(self), "low": self.low, "high": self.high, "significant": self.significant}

    def __str__(self) -> str:
        score, low, high = (f"{value:.{self.decimals}f}" for value in (self.score, self.low, self.high))
        return f"{self.name:<5} {score:>6}  [{low}, {high}]  {self.signature}"


@dataclass(frozen=True)
class SystemScores:
    """The scores of one or more systems on a test set."""

    systems: tuple[tuple[MetricScore, ...], ...]
    """BLEU, chrF and TER of each system, and further metrics; all are compared with the first."""
    test: SignificanceTest | None
    """The significance test; None for a single system."""
    resamples: int
    """Number of resamples of the intervals, and of the test "bootstrap"."""
    trials: int | None
    """Number of trials of the test "randomization"."""
    seed: str
    """Seed of both: the environment variable SACREBLEU_SEED, or sacreBLEU's default, 12345."""

    @property
    def how(self) -> str:
        """One line on how intervals and p were computed."""
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
    others: Mapping[str, Metric] | None = None,
) -> SystemScores:
    """Score systems with confidence intervals, and test each against the first.

    Args:
        systems: the translations of each system, detokenized, in the order of the references.
        references: the reference translations.
        language: language code of the translations; decides the tokenization (`metrics.scores`).
        tokenize: BLEU's tokenization, if not that of the language.
        test: significance test.
        resamples: number of bootstrap resamples; by default 1,000, fewer above 20,000 sentences.
        trials: number of randomization trials; by default 10,000, fewer above 6,400 sentences.
        others: further metrics, by name (`metrics.comet.CometMetric`).

    Raises:
        InputError: as `scores.score`.
        ConfigurationError: resamples or trials below 40 or above what memory allows, an invalid seed, or a tokenizer
            that is not installed.
    """
    for hypotheses in systems:
        check_lines(hypotheses, references)
    check_score_settings(tokenize, resamples=resamples, trials=trials, lines=len(references))
    resamples = resamples or min(RESAMPLES, max(_MOST_RESAMPLED // len(references), RESAMPLES // 10))
    trials = trials or min(TRIALS, max(_MOST_SWAPPED // len(references), TRIALS // 10))
    seed = _seed()
    scores = {**all_metrics(language, tokenize), **(others or {})}
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
    """Scores of one system, computed separately so that its intervals do not depend on the other systems."""
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
    """The p-value, at least 2^(1-k) for k differing sentences."""
    assert isinstance(result, Result)
    assert result.p_value is not None
    return min(1.0, max(float(result.p_value), 2.0 ** (1 - differing)))


def check_score_settings(
    tokenize: Tokenizer | None = None, *, resamples: int | None = None, trials: int | None = None, lines: int = 1
) -> None:
    """Check the arguments of `score_systems` before translating, which may take hours.

    Args:
        tokenize, resamples, trials: as in `score_systems`.
        lines: number of references.

    Raises:
        ConfigurationError: as `score_systems`.
    """
    bleu_metric(tokenize=tokenize)
    _seed()
    limits = (("resamples", resamples, _MOST_RESAMPLED, RESAMPLES), ("trials", trials, _MOST_SWAPPED, TRIALS))
    for name, value, sentences, usual in limits:
        if value is not None and value < _FEWEST:
            raise ConfigurationError(f"{name}: expected at least {_FEWEST}, got {value}")
        most = max(_REFUSED * sentences // max(lines, 1), usual)
        if value is not None and value > most:
            raise ConfigurationError(f"{name}: expected at most {most:,} for {lines:,} sentences, got {value:,}")


def _seed() -> str:
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if not (seed.isdecimal() and int(seed)) and seed.lower() != "none":  # sacreBLEU takes 0 for no seed in its tests
        raise ConfigurationError(f"SACREBLEU_SEED: expected a number above 0 or 'none', got {seed!r}")
    return seed.lower()
