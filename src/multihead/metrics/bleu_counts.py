"""Corpus BLEU from the counts of single sentences.

    BLEU = 100 min(1, exp(1 - r / c)) exp(1/4 sum_n log(m_n / t_n)),    n = 1 ... 4

with c and r the words of translations and references, t_n the n-grams of the translations and m_n those of them that
the references have (Papineni et al. 2002); an m_n of 0 is smoothed as sacreBLEU does by default (Chen and Cherry 2014,
method 3). Counts of sentences add up, so the score of any choice among candidates is a sum and this formula, as
minimum error rate training needs it. `metrics.scores` has the scores of whole texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from multihead.metrics.scores import Tokenizer, bleu_metric

Counts = npt.NDArray[np.int64]

COLUMNS = 10
"""m_1 ... m_4, t_1 ... t_4, c, r."""
WORDS, REFERENCE_WORDS = 8, 9
"""The columns of c and r."""


def bleu_counts(
    hypotheses: Sequence[str], reference: str, language: str | None = None, tokenize: Tokenizer | None = None
) -> Counts:
    """[hypothesis, `COLUMNS`]: the counts of translations of one sentence.

    Args:
        hypotheses: the translations, detokenized.
        reference: of the sentence.
        language: language code of the translations, which decides the tokenization.
        tokenize: the tokenizer; by default chosen by language.

    Raises:
        ConfigurationError: a package that the tokenizer needs is not installed.
    """
    metric = bleu_metric(language, tokenize)
    rows = []
    for hypothesis in hypotheses:
        found = metric.corpus_score([hypothesis], [[reference]])
        rows.append([*found.counts, *found.totals, found.sys_len, found.ref_len])
    return np.array(rows, np.int64).reshape(-1, COLUMNS)


def bleu_of(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Corpus BLEU, from 0 to 100, of each row of summed counts [..., `COLUMNS`]."""
    matches, totals = counts[..., :4].astype(np.float64), counts[..., 4:8].astype(np.float64)
    ours, theirs = counts[..., WORDS].astype(np.float64), counts[..., REFERENCE_WORDS].astype(np.float64)
    none = matches == 0
    smoothed = np.where(none, 0.5 ** none.cumsum(-1), matches)
    possible = (totals > 0).all(-1) & (matches > 0).any(-1)
    logs = np.log(smoothed / np.maximum(totals, 1)).mean(-1)
    brevity = np.minimum(0.0, 1 - theirs / np.maximum(ours, 1))
    return np.where(possible, 100 * np.exp(logs + brevity), 0.0)


def length_ratio(counts: Counts) -> float:
    """c / r of a row of summed counts; 1.0 if the references have no words."""
    return float(counts[WORDS] / counts[REFERENCE_WORDS]) if counts[REFERENCE_WORDS] else 1.0


def expecting(counts: Counts, words: npt.NDArray[np.int64]) -> Counts:
    """Counts whose brevity penalty expects other numbers of words than the references have.

    Args:
        counts: [..., `COLUMNS`].
        words: the numbers that take the place of r, broadcast to [...].
    """
    changed = counts.copy()
    changed[..., REFERENCE_WORDS] = words
    return changed
