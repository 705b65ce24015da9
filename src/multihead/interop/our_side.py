"""Our side of a certificate, which searches by the other side's rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from multihead.data.batching import collate_source
from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search, Symbols
from multihead.decoding.task import SearchTask
from multihead.engine.search import Engine, EngineCache
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.near_ties import Decision, closest_decision, token_decision
from multihead.interop.runtimes import Rules

_ROWS = 32
"""Sentences in a batch, of similar lengths."""


class OurSide:
    """The network of a translator on token ids, as `runtimes.Runtime` has them.

    Args:
        parts: the translator.
    """

    def __init__(self, parts: TranslatorParts) -> None:
        self.model = parts.build(Path("the model"))
        self._source, self._target = parts.source_tokenizer, parts.target_tokenizer
        self._engines = EngineCache()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts, without end symbols."""
        return self._source.encode_batch(texts)

    def ended(self, ids: Sequence[int]) -> list[int]:
        """Ids as a source, with the end symbol."""
        return [*ids, self._source.eos_id]

    def finished(self, row: Sequence[int]) -> list[int]:
        """A translation with an end symbol, also if the length limit cut it."""
        return [*(i for i in row if i != self._target.eos_id), self._target.eos_id]

    def without_symbols(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """Translations without end and control symbols, which other tokenizers may print."""
        no_text = {self._target.eos_id, *self._target.forbidden_in_output}
        return [[i for i in row if i not in no_text] for row in rows]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The texts of translations."""
        return self._target.decode_batch(rows)

    @torch.no_grad()
    def translate(self, sources: Sequence[Sequence[int]], rules: Rules) -> list[list[int]]:
        """The best translation of each source by these rules; sources and translations end with the end symbol."""
        task, search = self._task(rules), rules.search
        engine = self._engines.get(self.model, "float32")
        if not isinstance(engine, str):
            found = engine.search(sources, task, search)
        else:
            found = self._search(sources, task, search)
        best = [max(row, key=lambda one: one.score) if rules.unfinished_compete else row[0] for row in found]
        end = self._target.eos_id
        return [[*one.tokens, end] if one.finished else [*one.tokens] for one in best]

    def translate_int8(self, sources: Sequence[Sequence[int]], search: Search) -> list[Hypothesis]:
        """The best translation of each source by our engine with int8 products and our own rules."""
        target = self._target
        task = SearchTask(Symbols(target.bos_id, target.eos_id, target.forbidden_in_output, target.prefix))
        engine = Engine(self.model, "int8")
        return [row[0] for row in engine.search(sources, task, search)]

    def rounding(self, sources: Sequence[Sequence[int]], found: Sequence[Hypothesis]) -> float:
        """How far int8 products move the log-probability of a translation at most, compared with float32."""
        end = self._target.eos_id
        targets = [[*one.tokens, end] for one in found]
        exact = [sum(row) for row in self.score(sources, targets)]
        pairs = zip(found, exact, strict=True)
        return max((abs(one.log_probability - other) for one, other in pairs if one.finished), default=0.0)

    def _search(self, sources: Sequence[Sequence[int]], task: SearchTask, search: Search) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for places, source, lengths in self._batches(sources):
            if search.beam == 1:
                rows = [[one] for one in greedy_search(self.model, source, lengths, task, search)]
            else:
                rows = beam_search(self.model, source, lengths, task, search)
            for place, row in zip(places, rows, strict=True):
                found[place] = row
        return found

    @torch.no_grad()
    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """log p of every id of each target, which ends with the end symbol."""
        scores: list[list[float]] = [[] for _ in sources]
        for places, source, lengths in self._batches(sources):
            output, counts = collate_source([list(targets[place][:-1]) for place in places], 0, self._target.eos_id)
            given = output.roll(1, dims=1)
            given[:, 0] = self._target.bos_id
            logits = self.model(source, lengths, given).logits
            found = logits.log_softmax(-1, dtype=torch.float32).gather(2, output[:, :, None])[:, :, 0]
            for place, row, count in zip(places, found.tolist(), counts.tolist(), strict=True):
                scores[place] = row[:count]
        return scores

    @torch.no_grad()
    def decision(
        self, source: Sequence[int], ours: Sequence[int], theirs: Sequence[int], rules: Rules
    ) -> Decision | None:
        """The decision of our search that is closest to turning out as theirs; None if rounding cannot turn any."""
        task, pad = self._task(rules), self._source.pad_id
        if rules.search.beam > 1:
            return closest_decision(self.model, source, task, rules.search, pad)
        if any(one != other for one, other in zip(ours, theirs, strict=False)):
            return token_decision(self.model, source, ours, theirs, task, pad)
        return None  # one of them is the beginning of the other

    def ranks_cut_higher(self, source: Sequence[int], ours: Sequence[int], theirs: Sequence[int], rules: Rules) -> bool:
        """Whether the length limit cuts their translation, and it scores higher than ours by our model too.

        Where cut hypotheses compete with finished ones, such a translation is no error: our search drops a cut
        hypothesis once K others have ended.
        """
        search, end = rules.search, self._target.eos_id
        if not rules.unfinished_compete or end in theirs or len(theirs) != search.max_length or not ours:
            return False
        targets = [row if row[-1] == end else [*row, end] for row in (ours, theirs)]
        rows = self.score([source, source], targets)
        free = len(self._target.prefix)  # forced symbols cost nothing, and count for the length
        scores = [
            sum(row[free : len(target)]) / search.penalty(len(target), search.alpha)
            for row, target in zip(rows, (ours, theirs), strict=True)
        ]
        return scores[1] > scores[0]

    def _task(self, rules: Rules) -> SearchTask:
        """If cut hypotheses compete with finished ones, all K are asked for: they come after finished ones."""
        target, search = self._target, rules.search
        return SearchTask(
            Symbols(target.bos_id, target.eos_id, rules.forbidden, target.prefix),
            max_lengths=search.max_length,
            min_lengths=search.min_length,
            n_best=search.beam if rules.unfinished_compete else 1,
        )

    def _batches(self, sources: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Places, padded sources and their lengths."""
        order = sorted(range(len(sources)), key=lambda place: -len(sources[place]))
        for start in range(0, len(order), _ROWS):
            places = order[start : start + _ROWS]
            rows = [list(sources[place][:-1]) for place in places]
            yield places, *collate_source(rows, self._source.pad_id, self._source.eos_id)
