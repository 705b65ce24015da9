"""Searches that are not compiled, in a thread of their own: other networks and devices, prefixes, no compiler.

Sentences that wait are searched together, as far as they have their settings in common, by the searches of
`multihead.decoding`; those that come meanwhile are the next batch. A sentence whose translation somebody wants to see
grow is watched from inside the search, step by step (`_Watch`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.data.batching import collate_source
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.restrictions import Restriction, Rows
from multihead.decoding.stepper import Symbols
from multihead.serving.queue import Post, Queue, Sentence
from multihead.text.tokenizer import Tokenizer
from multihead.translating.searching import Demands, find, restrictions_of, symbols_of
from multihead.translating.translator import Translator

ROWS = 256
"""Hypotheses in a batch at most."""

MARGIN = 64
"""Tokens beyond twice the shortest source that are still worth a common batch."""


class _NobodyWaits(Exception):  # noqa: N818 - not an error
    """Every sentence of a batch was dropped."""


class _Watch:
    """A restriction that forbids nothing and sees everything: what is written, and whether anybody still waits."""

    def __init__(self, batch: Sequence[Sentence], post: Post) -> None:
        self._batch, self._post = batch, post
        self._watched = [place for place, sentence in enumerate(batch) if sentence.job.watched]

    def check(self, limits: Int[Tensor, " batch"], symbols: Symbols) -> None:
        """It fits every batch."""

    def restrict(self, permitted: Float[Tensor, "rows vocab"], rows: Rows) -> Float[Tensor, "rows vocab"]:
        """All of it, told to those who watch; hypotheses of a sentence stand together, the best first."""
        if all(sentence.job.dropped for sentence in self._batch):
            raise _NobodyWaits
        if self._watched and rows.written.shape[1]:
            places = rows.sentences.tolist()
            for place in self._watched:
                if place in places:
                    self._tell(self._batch[place], tuple(rows.written[places.index(place)].tolist()))
        return permitted

    def _tell(self, sentence: Sentence, leading: tuple[int, ...]) -> None:
        self._post(lambda: sentence.job.grow(sentence, leading))


class Eager(threading.Thread):
    """A thread that searches what it takes from a queue, a batch after the other.

    Args:
        translator: the model.
        queue: where sentences wait.
        post: into the event loop.
    """

    def __init__(self, translator: Translator, queue: Queue, post: Post) -> None:
        super().__init__(name="eager search", daemon=True)
        self._translator, self._queue, self._post = translator, queue, post
        queue.join(self)

    def run(self) -> None:
        """Until the queue is closed and everything taken from it is done."""
        while (taken := self._queue.take(self, 0, ROWS)) is not None:
            while taken:
                batch = _together(taken)
                taken = [sentence for sentence in taken if sentence not in batch]
                self._do([sentence for sentence in batch if not sentence.job.dropped])

    def _do(self, batch: list[Sentence]) -> None:
        if not batch:
            return
        try:
            found = self._search(batch)
        except _NobodyWaits:
            return
        except Exception as error:  # whatever it is: others go on
            if len(batch) > 1:  # only the one that cannot be searched fails
                for sentence in batch:
                    self._do([sentence])
            else:
                self._post(_failing(batch[0], error))
            return
        for sentence, hypotheses in zip(batch, found, strict=True):
            self._post(_settling(sentence, hypotheses))

    @torch.no_grad()
    def _search(self, batch: Sequence[Sentence]) -> list[list[Hypothesis]]:
        bundle, kind = self._translator.bundle, batch[0].job.kind
        source, lengths = collate_source([one.ids[:-1] for one in batch], Tokenizer.pad_id, Tokenizer.eos_id)
        device = bundle.model.output.weight.device
        wanted = Demands([one.prefix for one in batch] if any(one.prefix for one in batch) else [])
        restrictions: list[Restriction] = [_Watch(batch, self._post)]
        restrictions += restrictions_of(kind.settings, bundle.target_tokenizer, wanted)
        symbols = symbols_of(bundle.target_tokenizer)
        source, lengths = source.to(device), lengths.to(device)
        stepper = self._translator.stepper
        return find(stepper, source, lengths, symbols, kind.settings, kind.n_best, restrictions)


def _failing(sentence: Sentence, error: Exception) -> Callable[[], None]:
    return lambda: sentence.job.fail(error)


def _settling(sentence: Sentence, found: list[Hypothesis]) -> Callable[[], None]:
    return lambda: sentence.job.settle(sentence, found)


def _together(sentences: Sequence[Sentence]) -> list[Sentence]:
    """The first one, and those that can be in a batch with it without much padding."""
    first = sentences[0]
    if first.alone:
        return [first]
    most = 2 * len(first.ids) + MARGIN
    return [
        one
        for one in sentences
        if one is first or (one.job.kind == first.job.kind and not one.alone and len(one.ids) <= most)
    ]
