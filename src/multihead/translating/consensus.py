"""Minimum Bayes risk: the translation that the others agree with most.

    y* = argmax_h sum_r w_r u(h, r)        (`decoding.risk`)

The candidates are the references. Samples have equal weights, so that a text which was drawn twice counts twice; the
weights of a beam are its probabilities. The utility u is

    chrf    the F-score of character n-grams, n = 1 ... 6, beta = 2 (Popović 2015, "chrF: character n-gram F-score for
            automatic MT evaluation"); equal to sacreBLEU's, but faster for many pairs of few texts
    bleu    sentence BLEU of sacreBLEU with exponential smoothing and effective order

both between 0 and 100.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from multihead.decoding.risk import Utility, expected_utility
from multihead.errors import ConfigurationError
from multihead.metrics.scores import default_tokenizer
from multihead.translating.request import Metric
from multihead.translating.searching import Translation

_ORDERS = range(1, 7)
_BETA = 2
_MOST_TABLED = 500
"""Texts that are compared all at once: the tables of more would take more than they save."""


def consensus(
    candidates: Sequence[Translation], metric: Metric = "chrf", *, drawn: bool = True, language: str | None = None
) -> Translation:
    """The candidate with the highest expected utility, the first of equals.

    Args:
        candidates: translations of one sentence.
        metric: the utility.
        drawn: whether they are samples, or the result of a beam search.
        language: of the translations; decides the tokenization of "bleu".

    Raises:
        ConfigurationError: no candidates.
    """
    expected = agreement(candidates, candidates, metric, drawn=drawn, language=language)
    if not expected:
        raise ConfigurationError("minimum Bayes risk needs at least one hypothesis to choose from")
    return candidates[max(range(len(expected)), key=lambda place: expected[place])]


def agreement(
    candidates: Sequence[Translation],
    references: Sequence[Translation],
    metric: Metric = "chrf",
    *,
    drawn: bool = True,
    language: str | None = None,
) -> list[float]:
    """The expected utility of each candidate; arguments as in `consensus`, where ``drawn`` is of the references."""
    texts, others = ([one.text for one in side] for side in (candidates, references))
    utility = chrf_table([*texts, *others]) if metric == "chrf" else bleu_utility(language)
    weights = None if drawn else [reference.log_probability for reference in references]
    return expected_utility(texts, utility, references=others, log_probabilities=weights)


def chrf_table(texts: Sequence[str]) -> Utility:
    """`chrf_utility` for pairs of some texts, all computed at once.

    n-grams that two texts share are counted by products: min(a, b) = sum_k [a >= k] [b >= k] of their counts a, b.
    n-grams that fewer than two texts have k times are left out of the k-th product and all later ones, so that a text
    that says one word a thousand times does not make all of them large.
    """
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    if len(places) > _MOST_TABLED:
        return chrf_utility()
    plain = ["".join(text.split()) for text in places]
    precision, recall, orders = (np.zeros((len(plain), len(plain))) for _ in range(3))
    for n in _ORDERS:
        counts = _gram_counts(plain, n)
        sizes, shared, level = counts.sum(1), np.zeros_like(precision), 1
        while (common := (counts >= level).sum(0) > 1).any():
            counts = counts[:, common]
            has = (counts >= level).astype(np.float32)
            shared, level = shared + has @ has.T, level + 1
        np.fill_diagonal(shared, sizes)
        counted = (sizes[:, None] > 0) & (sizes > 0)
        precision += np.where(counted, shared / np.maximum(sizes, 1)[:, None], 0)
        recall += np.where(counted, shared / np.maximum(sizes, 1), 0)
        orders += counted
    precision, recall = precision / np.maximum(orders, 1), recall / np.maximum(orders, 1)
    below = _BETA**2 * precision + recall
    table = (100 * (1 + _BETA**2) * precision * recall / np.where(below > 0, below, 1)).tolist()
    return lambda hypothesis, reference: float(table[places[hypothesis]][places[reference]])


def _gram_counts(texts: Sequence[str], n: int) -> npt.NDArray[np.int64]:
    """[text, n-gram]: how often each n-gram of characters occurs in each text."""
    columns: dict[str, int] = {}
    found = [[columns.setdefault(text[i : i + n], len(columns)) for i in range(len(text) - n + 1)] for text in texts]
    counts = np.zeros((len(texts), len(columns)), np.int64)
    for row, grams in zip(counts, found, strict=True):
        np.add.at(row, grams, 1)
    return counts


def chrf_utility() -> Utility:
    """chrF of a hypothesis and a reference; the n-grams of each text are counted once."""

    @cache
    def counts(text: str) -> list[tuple[Counter[str], int]]:
        characters = "".join(text.split())
        grams = [[characters[i : i + n] for i in range(len(characters) - n + 1)] for n in _ORDERS]
        return [(Counter(order), len(order)) for order in grams]

    def utility(hypothesis: str, reference: str) -> float:
        precision = recall = orders = 0.0
        for (own, size), (other, wanted) in zip(counts(hypothesis), counts(reference), strict=True):
            if size and wanted:
                same = sum((own & other).values())
                precision, recall, orders = precision + same / size, recall + same / wanted, orders + 1
        if not precision:
            return 0.0
        precision, recall = precision / orders, recall / orders
        return 100 * (1 + _BETA**2) * precision * recall / (_BETA**2 * precision + recall)

    return utility


def bleu_utility(language: str | None = None) -> Utility:
    """Sentence BLEU of a hypothesis and a reference."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize=default_tokenizer(language), effective_order=True, force=True)
    return lambda hypothesis, reference: float(metric.sentence_score(hypothesis, [reference]).score)
