"""Tune the weights of a choice on a validation set, at equal length.

Candidates and their features are computed once (`translating.choosing`). `judging.error_rate_training` then finds
weights for several sets of features.

Where the references are longer than the translations, weights that do nothing but lengthen these gain BLEU; where they
are shorter, they lose it. Which of both holds differs between texts of the same kind (docs/lab-notes.md, "Weights at
equal length"). So weights are found and compared by BLEU *at equal length*: its brevity penalty takes the words of the
search's own choice in place of those of the references.

Weights that were found on some sentences fit those too well. So each set of features is also scored held out: the
sentences are split into halves at random, and each half is translated with the weights of the other one. That BLEU is
of all sentences, and comparable with the search's own; it is the mean of several splits. Its gain has an interval by
the paired bootstrap (Koehn 2004, "Statistical significance tests for machine translation evaluation"). With a thousand
sentences, weights that were found elsewhere are often better than those: the usual ones have a row, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multihead.attention.drawing import format_table
from multihead.data.corpus import check_parallel, language_of
from multihead.data.text_files import read_lines
from multihead.errors import DataError
from multihead.judging.error_rate_training import Places, Table, maximize
from multihead.metrics.bleu_counts import (
    REFERENCE_WORDS,
    WORDS,
    Counts,
    bleu_counts,
    bleu_of,
    expecting,
    length_ratio,
)
from multihead.metrics.scores import Tokenizer, bleu_metric
from multihead.text.context import in_context
from multihead.translating.choosing import FEATURES, Features, as_array, measure
from multihead.translating.request import TranslationRequest, Weights, usual_weights
from multihead.translating.translator import Translator

_FIXED = (("forward",), ("agreement",))
_SOUGHT = (
    ("forward", "length"),
    ("forward", "agreement"),
    ("forward", "reverse"),
    ("forward", "reverse", "length"),
    ("forward", "reverse", "agreement"),
    ("forward", "reverse", "agreement", "length"),
    ("forward", "judge"),
    ("forward", "judge", "agreement"),
    ("forward", "reverse", "judge"),
    ("forward", "reverse", "judge", "agreement"),
)
_DECIMALS = 5
_SPLITS = 5
_RESAMPLES, _SEED = 1000, 12345

MIN_LINES = 2
"""Lines of a validation set: weights found on one half are tried on the other."""


@dataclass(frozen=True)
class Tuned:
    """A set of features with its weights."""

    features: tuple[str, ...]
    weights: Weights
    """The best on all sentences, or the usual ones."""
    bleu: float
    """BLEU with these weights, on the sentences that they were found on."""
    at_equal_length: float
    """The same with the words of the search's own choice in place of those of the references."""
    held_out: float
    """BLEU with weights found on the other half of the sentences; the mean of `_SPLITS` splits."""
    held_out_at_equal_length: float
    gain: tuple[float, float]
    """95% interval of the difference between `held_out_at_equal_length` and that of the search's own choice."""
    length: float
    """Words of the translations relative to those of the references, on all sentences with these weights."""
    usual: bool = False
    """Whether the weights are `usual_weights`, which no sentence of this text decided: held out is all of it."""

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {**vars(self), "weights": self.weights.model_dump()}


@dataclass(frozen=True)
class Tuning:
    """What choosing gains on a validation set."""

    rows: list[Tuned]
    """The search's own choice, agreement alone, every sought set of features, and the usual weights."""
    sentences: int
    candidates: float
    """Mean number of different candidates of a sentence."""
    signature: str
    """Of BLEU."""

    @property
    def best(self) -> Tuned:
        """The row with the highest held-out BLEU at equal length, the first of equals."""
        return max(self.rows, key=lambda row: row.held_out_at_equal_length)

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON data."""
        rows = [row.as_dict() for row in self.rows]
        return {**vars(self), "rows": rows, "best": str(self.best.weights)}

    def __str__(self) -> str:
        own = self.rows[0].held_out_at_equal_length
        lines = [["features", "BLEU", "held out", "equal length", "gain", "95%", "length", "weights"]]
        for row in self.rows:
            (low, high), equal = row.gain, row.held_out_at_equal_length
            found = [f"{equal - own:+.2f}", f"[{low:+.2f}, {high:+.2f}]"] if row.features != _FIXED[0] else ["", ""]
            numbers = [f"{row.bleu:.2f}", f"{row.held_out:.2f}", f"{equal:.2f}", *found]
            name = "usual weights" if row.usual else " + ".join(row.features)
            lines.append([name, *numbers, f"{row.length:.3f}", str(row.weights)])
        return (
            f"{self.sentences:,} sentences, {self.candidates:.1f} candidates each\n\n{format_table(lines)}\n\n"
            f"held out: weights found on the other half of the sentences, mean of {_SPLITS} splits\n"
            "equal length: held out, with the words of the search's own choice for the references'; gain: of that\n"
            "length: words of the translations, relative to the references\n"
            f"{self.signature}"
        )


def tune(
    translator: Translator,
    source: str | Path,
    target: str | Path,
    request: TranslationRequest,
    *,
    language: str | None = None,
    tokenize: Tokenizer | None = None,
    progress: Callable[[int], None] | None = None,
) -> Tuning:
    """Find weights with which the chosen candidates have the highest corpus BLEU at equal length.

    Args:
        translator: the model or ensemble; with a reverse model or a judge, its feature takes part.
        source: text file of a validation set, plain or compressed.
        target: its reference translation.
        request: which candidates there are; its texts and weights are replaced.
        language: of the translations; by default the model's own, else from the file name of ``target``.
        tokenize: BLEU's tokenization; by default chosen by language.
        progress: called with the number of newly translated sentences.

    Raises:
        DataError: a file cannot be read, or the numbers of lines differ; fewer than two lines.
        ConfigurationError: a single candidate, or a tokenizer that is not installed.
    """
    check_parallel(source, target)
    sources, references = list(read_lines(source)), list(read_lines(target))
    if len(sources) < MIN_LINES:
        raise DataError(
            f"weights are found on one half and tried on the other: expected at least {MIN_LINES} lines", source
        )
    language = language or translator.bundle.target_language or language_of(target)
    sources = in_context(translator.bundle.source_tokenizer, sources)
    return tune_texts(translator, sources, references, request, language=language, tokenize=tokenize, progress=progress)


def tune_texts(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    request: TranslationRequest,
    *,
    language: str | None,
    tokenize: Tokenizer | None = None,
    progress: Callable[[int], None] | None = None,
) -> Tuning:
    """As `tune`, with at least `MIN_LINES` texts instead of files; ``language`` decides BLEU's tokenization."""
    metric = bleu_metric(language, tokenize)
    models = {"reverse": translator.reverse, "judge": translator.judge}
    wanted = [name for name in FEATURES if name not in models or models[name] is not None]
    request = request.with_texts(list(sources), Weights(forward=1.0))
    found = measure(translator, request, wanted, progress)
    counts = [
        bleu_counts([one.text for one in each.translations], reference, language, tokenize)
        for each, reference in zip(found, references, strict=True)
    ]
    metric.corpus_score([""], [[""]])  # a signature needs a number of references
    candidates = sum(len(each.translations) for each in found) / len(found)
    rows = tuned_rows(Table.of([each.features for each in found], counts), wanted)
    return Tuning(rows, len(found), candidates, str(metric.get_signature()))


def tuned_rows(table: Table, wanted: Sequence[str]) -> list[Tuned]:
    """A row for each set of features among those ``wanted``, and one for the usual weights of models that choose."""
    halves = _halves(len(table.features))
    others = [place + (1 if place % 2 == 0 else -1) for place in range(len(halves))]  # the other half of the same split
    own = table.picked(table.chosen(as_array(Weights(forward=1.0))))
    words, expected = own[:, WORDS], own[:, REFERENCE_WORDS]  # of the search's own choice, of the references
    equal, own = table.expecting(words), expecting(own, words)
    parts = [equal, *(equal.select(half) for half in halves)]
    rows: list[Tuned] = []

    def row(names: tuple[str, ...], weights: Features, found: Counts, usual: bool = False) -> Tuned:
        """``found``: of the choices that are held out, at equal length, [split, sentence, column]."""
        picked = table.picked(table.chosen(weights))
        return Tuned(
            features=names,
            weights=Weights(**dict(zip(FEATURES, weights.tolist(), strict=True))),
            bleu=float(bleu_of(picked.sum(0))),
            at_equal_length=float(bleu_of(expecting(picked, words).sum(0))),
            held_out=float(bleu_of(expecting(found, expected).sum(1)).mean()),
            held_out_at_equal_length=float(bleu_of(found.sum(1)).mean()),
            gain=_interval(own, found),
            length=length_ratio(picked.sum(0)),
            usual=usual,
        )

    earlier: list[list[Features]] = [[] for _ in parts]
    for names in (*_FIXED, *(names for names in _SOUGHT if {*names} <= {*wanted})):
        weights = [_search(part, names, starts) for part, starts in zip(parts, earlier, strict=True)]
        for starts, one in zip(earlier, weights, strict=True):
            starts.append(one)
        found = np.zeros((_SPLITS, *own.shape), np.int64)
        for place, half in enumerate(halves):
            found[place // 2, half] = equal.picked(equal.chosen(weights[1 + others[place]]))[half]
        rows.append(row(names, weights[0], found))
    usual = usual_weights("reverse" in wanted, "judge" in wanted)
    if usual is not None:
        chosen = as_array(usual)
        used = tuple(name for name, weight in zip(FEATURES, chosen.tolist(), strict=True) if weight)
        rows.append(row(used, chosen, equal.picked(equal.chosen(chosen))[None], usual=True))
    return rows


def _halves(count: int) -> list[Places]:
    """The two halves of each split of so many sentences, one split after the other."""
    orders = [np.random.default_rng(seed).permutation(count) for seed in range(_SPLITS)]
    return [np.sort(half) for order in orders for half in np.array_split(order, 2)]


def _search(table: Table, names: Sequence[str], earlier: Sequence[Features]) -> Features:
    """Weights of some features, rounded, with a BLEU of at least that of each feature alone and of earlier weights."""
    places = [FEATURES.index(name) for name in names]
    corners = [corner for corner in np.eye(len(FEATURES))[places] if not corner[FEATURES.index("length")]]
    if names in _FIXED:
        return np.asarray(corners[0])
    fitting = [weights for weights in earlier if not np.delete(weights, places).any()]
    starts = [*fitting, *corners, np.isin(np.arange(len(FEATURES)), places).astype(np.float64)]
    found = maximize(table, starts, places, [FEATURES.index("length")]).round(_DECIMALS)
    best: Features = max([found, *fitting, *corners], key=table.bleu)
    return best


def _interval(own: Counts, found: Counts) -> tuple[float, float]:
    """95% interval of the mean difference of BLEU between choices [split, sentence, column] and the search's own."""
    draw = np.random.default_rng(_SEED)
    shares = draw.multinomial(len(own), np.full(len(own), 1 / len(own)), size=_RESAMPLES)
    differences = np.mean([bleu_of(shares @ one) for one in found], axis=0) - bleu_of(shares @ own)
    low, high = np.percentile(differences, [2.5, 97.5]).tolist()
    return low, high
