"""Choosing among candidates by a weighted sum of features.

    y* = argmax_y  w_f log p(y | x) / penalty(|y|)  +  w_r log p(x | y) / |x|  +  w_a U(y)  +  w_l |y| / |x|
                   +  w_j log q(y | x) / |y|

    forward     the score by which the search ranks, of the model or of the ensemble
    reverse     the probability of the source by a model of the opposite direction, for each token (Yee, Dauphin and
                Auli 2019, "Simple and effective noisy channel modeling for neural machine translation"; Ng et al. 2019,
                "Facebook FAIR's WMT19 news translation task submission"). Their language model has no counterpart here
    agreement   the expected utility (`translating.consensus`), from 0 to 1
    length      tokens of the translation for each token of the source
    judge       the probability of the translation by another model of the same direction, for each token: one that
                writes from right to left makes other mistakes (`text.backwards`)

|x| and |y| count the end symbol. Reverse model and judge have their own vocabularies and score the candidate's text.
Candidates are the hypotheses of a beam, samples, or both; of equal texts the one with the highest score remains, and
incomplete ones take part only if none is complete. So with w_f alone the choice is the search's own. Of equal sums the
first candidate wins, in the order of the search. `judging.tune` finds weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from multihead.bundle import Bundle
from multihead.decoding.hypothesis import refuse_nan
from multihead.engine.forcing import force
from multihead.engine.search import Engine
from multihead.engine.weights import Precision
from multihead.errors import ConfigurationError
from multihead.text.context import own_text
from multihead.text.tokenizer import Tokenizer
from multihead.translating.consensus import agreement, consensus
from multihead.translating.request import TranslationRequest, Weights
from multihead.translating.searching import Translation

if TYPE_CHECKING:
    from multihead.models.network import Network

Features = npt.NDArray[np.float64]


@runtime_checkable
class Translating(Protocol):
    """What is asked of a `translating.translator.Translator`."""

    @property
    def bundle(self) -> Bundle:
        """The model, of an ensemble the first, with its vocabularies."""

    @property
    def networks(self) -> list[Network]:
        """The networks of the ensemble, or the only one."""

    def engines(self, precision: Precision) -> list[Engine] | str:
        """The networks as compiled code, or the reason why there is none."""

    @property
    def reverse(self) -> Translating | None:
        """The model of the opposite direction, if there is one."""

    @property
    def judge(self) -> Translating | None:
        """The other model of the same direction, if there is one."""

    def candidates(
        self, request: TranslationRequest, progress: Callable[[int], None] | None = None
    ) -> list[list[Translation]]:
        """The candidates of each text of a request."""


FEATURES = tuple(Weights.model_fields)
"""The features, in the order of their columns."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidates of one sentence."""

    translations: list[Translation]
    features: Features
    """[candidate, feature], in the order of `FEATURES`; 0 where a feature was not asked for."""

    def best(self, weights: Weights) -> Translation:
        """The candidate with the highest weighted sum, the first of equals."""
        return self.translations[int(weighted(self.features, as_array(weights)).argmax())]


def as_array(weights: Weights) -> Features:
    """The weights in the order of `FEATURES`."""
    return np.array(list(weights.model_dump().values()))


def weighted(features: Features, weights: Features) -> Features:
    """sum_i w_i f_i over the last axis, in that order, so that equal features have equal sums in any array."""
    total = np.zeros(features.shape[:-1])
    for place, weight in enumerate(weights):
        total += weight * features[..., place]
    return total


def choose(
    translator: Translating, request: TranslationRequest, progress: Callable[[int], None] | None = None
) -> list[Translation]:
    """The chosen translation of each text of a request that chooses.

    Args:
        translator: the model, with a reverse model and a judge if the weights have them.
        request: with ``metric``, ``weights`` or both.
        progress: called with the number of newly finished sentences.

    Raises:
        InputError, ConfigurationError: as `Translator.run`.
    """
    if request.weights is None:
        rows, references = _gather(translator, request, progress)
        if not request.both:
            drawn, language = request.sampling is not None, translator.bundle.target_language
            return [consensus(row, request.metric or "chrf", drawn=drawn, language=language) for row in rows]
        found = _measure(translator, request, rows, references, {"agreement"})
        return [each.best(Weights(agreement=1.0)) for each in found]
    wanted = {name for name, weight in request.weights.model_dump().items() if weight}
    return [each.best(request.weights) for each in measure(translator, request, wanted, progress)]


def rank(
    translator: Translating, request: TranslationRequest, rows: Sequence[Sequence[Translation]], weights: Weights
) -> list[list[Translation]]:
    """The candidates of each text by their weighted sums, best first: the first one is what `choose` returns.

    Of equal texts one remains, and incomplete ones only if none is complete.

    Args:
        translator: the model, with a reverse model and a judge if the weights have them.
        request: the texts, and how they were translated.
        rows: the candidates of each text.
        weights: of the features.

    Raises:
        InputError, ConfigurationError: as `Translator.run`.
    """
    wanted = {name for name, weight in weights.model_dump().items() if weight}
    _require_models(translator, wanted)
    ranked = []
    for each in _measure(translator, request, rows, rows, wanted):
        order = np.argsort(-weighted(each.features, as_array(weights)), kind="stable")  # of equals the first
        ranked.append([each.translations[place] for place in order])
    return ranked


def measure(
    translator: Translating,
    request: TranslationRequest,
    wanted: Collection[str] = FEATURES,
    progress: Callable[[int], None] | None = None,
) -> list[Candidates]:
    """The candidates of each text with their features.

    Args:
        translator: the model, with a reverse model and a judge for these features.
        request: which candidates there are.
        wanted: the features to compute.
        progress: called with the number of newly finished sentences.

    Raises:
        InputError, ConfigurationError: as `Translator.run`.
    """
    _require_models(translator, wanted)
    rows, references = _gather(translator, request, progress)
    return _measure(translator, request, rows, references, wanted)


def _require_models(translator: Translating, wanted: Collection[str]) -> None:
    if "reverse" in wanted and translator.reverse is None:
        raise ConfigurationError("weights: reverse needs a reverse model (--reverse, or Translator.with_reverse)")
    if "judge" in wanted and translator.judge is None:
        raise ConfigurationError("weights: judge needs another model (--judge, or Translator.with_judge)")


def _gather(
    translator: Translating, request: TranslationRequest, progress: Callable[[int], None] | None
) -> tuple[list[list[Translation]], list[list[Translation]]]:
    """All candidates of each text, and those that agreement is measured against: samples, where there are any."""
    if not request.both:
        rows = translator.candidates(request, progress)
        return rows, rows
    drawing = replace(request, both=False, metric=None, weights=None)  # either half alone may be one candidate
    rows = translator.candidates(drawing, progress)
    searching = replace(drawing, sampling=None, keys=None, n_best=request.search.beam, scores=True)
    return [[*beam, *drawn] for beam, drawn in zip(translator.candidates(searching), rows, strict=True)], rows


def _measure(
    translator: Translating,
    request: TranslationRequest,
    rows: Sequence[Sequence[Translation]],
    references: Sequence[Sequence[Translation]],
    wanted: Collection[str],
) -> list[Candidates]:
    kept = [_distinct(row) for row in rows]
    features = [np.zeros((len(row), len(FEATURES))) for row in kept]
    forward, reverse, agree, length, judge = (name in wanted for name in FEATURES)
    if forward:
        for columns, row in zip(features, kept, strict=True):
            columns[:, 0] = [one.score for one in row]
    if reverse:
        for columns, values in zip(features, _reverse(translator, request, kept), strict=True):
            columns[:, 1] = values
    if agree:
        metric, language = request.metric or "chrf", translator.bundle.target_language
        for columns, row, others in zip(features, kept, references, strict=True):
            values = agreement(row, others, metric, drawn=request.sampling is not None, language=language)
            columns[:, 2] = np.array(values) / 100
    if length:
        read = translator.bundle.source_tokenizer.encode_batch(list(request.texts))
        for columns, row, ids in zip(features, kept, read, strict=True):
            columns[:, 3] = [one.tokens / (len(ids) + 1) for one in row]
    if judge:
        for columns, values in zip(features, _judge(translator, request, kept), strict=True):
            columns[:, 4] = values
    return [Candidates(row, columns) for row, columns in zip(kept, features, strict=True)]


def _distinct(row: Sequence[Translation]) -> list[Translation]:
    """The complete candidates, or all if none is; of equal texts the one with the highest score."""
    best: dict[str, Translation] = {}
    for one in [one for one in row if one.finished] or row:
        if one.text not in best or one.score > best[one.text].score:
            best[one.text] = one
    return list(best.values())


def _reverse(
    translator: Translating, request: TranslationRequest, rows: Sequence[Sequence[Translation]]
) -> list[list[float]]:
    """log p(x | y) / |x| of each candidate y."""
    assert translator.reverse is not None
    sources = [[own_text(text)] * len(row) for text, row in zip(request.texts, rows, strict=True)]
    return _log_probabilities(translator.reverse, request, _texts_of(rows), sources)


def _judge(
    translator: Translating, request: TranslationRequest, rows: Sequence[Sequence[Translation]]
) -> list[list[float]]:
    """log q(y | x) / |y| of each candidate y."""
    judge = translator.judge
    assert judge is not None
    read = request.texts if judge.bundle.source_tokenizer.context else [own_text(text) for text in request.texts]
    sources = [[text] * len(row) for text, row in zip(read, rows, strict=True)]
    return _log_probabilities(judge, request, sources, _texts_of(rows))


def _texts_of(rows: Sequence[Sequence[Translation]]) -> list[list[str]]:
    return [[one.text for one in row] for row in rows]


def _log_probabilities(
    model: Translating, request: TranslationRequest, sources: list[list[str]], targets: list[list[str]]
) -> list[list[float]]:
    """The mean log-probability of each target's tokens, given its source, by another model or ensemble.

    Compiled, where its search is, in the precision of the request. Elsewhere the products are in bfloat16 if that is
    below float32.
    """
    bundle, precision = model.bundle, request.search.precision
    read, written = ([text for row in rows for text in row] for rows in (sources, targets))
    given, answers = bundle.source_tokenizer.encode_batch(read), bundle.target_tokenizer.answers(written, read)
    engines = model.engines(precision)
    if isinstance(engines, str):
        import torch

        from multihead.translating.forced import forced_log_probabilities

        device = bundle.model.output.weight.device.type
        with torch.autocast(device, torch.bfloat16, enabled=precision != "float32"):
            tokenizer, together = bundle.target_tokenizer, request.batch_tokens
            found = forced_log_probabilities(model.networks, tokenizer, given, answers, together)
    else:
        found = _forced(engines, bundle.target_tokenizer, given, answers)
    means = iter([sum(values) / len(values) for values in found])
    return [[next(means) for _ in row] for row in targets]


def _forced(
    engines: Sequence[Engine], tokenizer: Tokenizer, sources: Sequence[list[int]], targets: Sequence[list[int]]
) -> list[list[float]]:
    """As `translating.forced.forced_log_probabilities`, compiled."""
    end = tokenizer.eos_id
    ended = [[*row, end] for row in sources], [[*row, end] for row in targets]
    found = [force(engine, *ended, tokenizer.bos_id) for engine in engines]
    refuse_nan(math.fsum(chain.from_iterable(chain.from_iterable(found))))
    if len(found) == 1:
        return found[0]
    mean = np.logaddexp.reduce([[*chain.from_iterable(rows)] for rows in found]) - math.log(len(found))
    rest = iter(mean.tolist())
    return [[next(rest) for _ in row] for row in found[0]]
