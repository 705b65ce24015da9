"""The compiled search at work: threads that share its weights, each with running batches of its own.

A lane runs its batches for a few milliseconds, hands over what is done and takes new sentences in between: those of
different clients share a step. Sentences that are searched otherwise (another beam, another penalty) are a batch of
their own and take turns. What is found for a sentence depends on no other one, to the last bit (`engine.search`).

Several lanes rather than several workers of one search: who has least to do takes the next sentence, so that few
sentences are spread over all threads, and none waits at the end of a slice for the others.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from multihead.decoding.beams import Settings
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.stepper import Symbols
from multihead.decoding.stopping import usual_stop
from multihead.engine.search import ROWS, Engine, Running
from multihead.serving.queue import Kind, Post, Queue, Sentence
from multihead.translating.searching import penalty_of, stop_of

SLICE = 0.004
"""Seconds between two looks at the queue; a step at least."""

WATCHED = 0.001
"""The same where somebody watches a translation grow."""

IDLE = 4
"""Batches of other kinds that are kept open without sentences."""


@dataclass
class _Batch:
    running: Running
    sentences: dict[int, Sentence] = field(default_factory=dict)


class Lane(threading.Thread):
    """A thread that searches what it takes from a queue.

    Args:
        engine: shared with other lanes.
        symbols: of the target vocabulary.
        longest: the highest limit that a sentence can have.
        queue: where sentences wait.
        aside: where those go that could not be searched with others; a search of one by one takes them.
        post: into the event loop.
    """

    def __init__(self, engine: Engine, symbols: Symbols, longest: int, queue: Queue, aside: Queue, post: Post) -> None:
        super().__init__(name="lane", daemon=True)
        self._engine, self._symbols, self._longest = engine, symbols, longest
        self._queue, self._aside, self._post = queue, aside, post
        self._batches: dict[Kind, _Batch] = {}
        queue.join(self)

    def run(self) -> None:
        """Until the queue is closed and everything taken from it is done."""
        while (taken := self._queue.take(self, self._load, ROWS)) is not None:
            self._let_go()
            for sentence in taken:
                self._add(sentence)
            for kind in [kind for kind, batch in self._batches.items() if batch.sentences]:
                self._go_on(kind)
            self._close_idle()
        for batch in self._batches.values():
            batch.running.__exit__(None, None, None)

    @property
    def _load(self) -> int:
        return sum(len(batch.sentences) * kind.settings.beam for kind, batch in self._batches.items())

    def _add(self, sentence: Sentence) -> None:
        kind = sentence.job.kind
        try:
            if kind not in self._batches:
                self._batches[kind] = _Batch(self._engine.open(self._settings(kind), self._longest, workers=1))
            batch = self._batches[kind]
            batch.running.add(sentence.number, sentence.ids, sentence.limit, kind.settings.least(len(sentence.ids)))
            batch.sentences[sentence.number] = sentence
        except Exception:  # whatever it is, the lane goes on: others wait for it
            sentence.alone = True
            self._aside.put_back([sentence])

    def _settings(self, kind: Kind) -> Settings:
        asked = kind.settings
        stop = stop_of(asked) or usual_stop(asked.beam)
        return Settings(self._symbols, asked.beam, kind.n_best, asked.alpha, penalty_of(asked), stop)

    def _let_go(self) -> None:
        """Sentences that nobody waits for leave the running batch."""
        for batch in self._batches.values():
            for number in [number for number, sentence in batch.sentences.items() if sentence.job.dropped]:
                batch.running.drop(number)
                del batch.sentences[number]

    def _go_on(self, kind: Kind) -> None:
        batch = self._batches[kind]
        done: list[tuple[Sentence, list[Hypothesis]]] = []
        watched = any(sentence.job.watched for sentence in batch.sentences.values())
        try:
            for number, found in batch.running.run(WATCHED if watched else SLICE):
                done.append((batch.sentences.pop(number), found))
        except Exception:
            # Whatever it is. Which sentence it was is not said: each is tried by itself, and only that one fails.
            self._put_aside(kind)
        grown = [
            (sentence, leading)
            for number, sentence in batch.sentences.items()
            if sentence.job.watched and (leading := batch.running.leading(number)) and leading != sentence.leading
        ]
        if done or grown:
            self._post(lambda: _hand_over(done, grown))

    def _put_aside(self, kind: Kind) -> None:
        batch = self._batches.pop(kind)
        batch.running.__exit__(None, None, None)
        for sentence in batch.sentences.values():
            sentence.alone = True
        self._aside.put_back(list(batch.sentences.values()))
        batch.sentences.clear()

    def _close_idle(self) -> None:
        idle = [kind for kind, batch in self._batches.items() if not batch.sentences]
        for kind in idle[: max(len(idle) - IDLE, 0)]:
            self._batches.pop(kind).running.__exit__(None, None, None)


def _hand_over(
    done: Sequence[tuple[Sentence, list[Hypothesis]]], grown: Sequence[tuple[Sentence, tuple[int, ...]]]
) -> None:
    for sentence, found in done:
        sentence.job.settle(sentence, found)
    for sentence, leading in grown:
        sentence.job.grow(sentence, leading)
