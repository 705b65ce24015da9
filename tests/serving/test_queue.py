"""The sentence queue: fair to jobs, spreads sentences over threads, loses none; also text lines, rates and batches."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead import Translator
from multihead.decoding.lexical import table_size
from multihead.decoding.search import Search
from multihead.serving import search_threads
from multihead.serving.queue import LARGE, BatchKey, Job, SentenceQueue
from multihead.serving.requests import split_lines
from multihead.serving.responses import block_diagonal, join_lines
from multihead.serving.scheduler import SlidingRate
from multihead.serving.search_threads import MAX_IDLE_BATCHES, SearchThread, UncompiledSearchThread
from multihead.translating.searching import symbols_of


def kind(beam: int = 1) -> BatchKey:
    return BatchKey(Search(beam=beam), 1)


def in_loop(test: Callable[[], Any]) -> Any:
    """Run a test in an event loop, which jobs need."""

    async def run() -> Any:
        return test()

    return asyncio.run(run())


def jobs(*sizes: int, beam: int = 1) -> list[Job]:
    return [Job(kind(beam), [[number, 3] for number in range(size)], [], False) for size in sizes]


@settings(max_examples=50)
@given(sizes=st.lists(st.integers(0, 5), max_size=6))
def test_each_job_has_its_turn(sizes: list[int]) -> None:
    """With one taker, sentence k of any job comes before sentence k + 1 of every other job waiting at the same time."""

    def test() -> None:
        queue = SentenceQueue()
        queue.register("one")
        made = jobs(*sizes)
        for job in made:
            queue.put(job)
        assert len(queue) == sum(sizes)
        taken = queue.take("one", 0, 1000) if sum(sizes) else []
        assert taken is not None
        rounds = [sentence.ids[0] for sentence in taken]
        assert rounds == sorted(rounds)
        assert sorted(id(one) for one in taken) == sorted(id(one) for job in made for one in job.sentences)
        assert len(queue) == 0

    in_loop(test)


def test_large_jobs_come_one_after_the_other_and_small_ones_between() -> None:
    def test() -> None:
        queue = SentenceQueue()
        queue.register("one")
        first, second, small = jobs(3 * LARGE, 2 * LARGE, 3)
        for job in (first, second, small):
            queue.put(job)
        taken = [sentence.job for sentence in queue.take("one", 0, 1000) or []]
        assert len(taken) == 5 * LARGE + 3
        assert second not in taken[: 2 * LARGE + 3]  # the first one has become small by then
        assert taken[:6].count(small) == 3

    in_loop(test)


def test_a_taker_has_no_more_rows_than_places_but_one_sentence_in_any_case() -> None:
    def test() -> None:
        queue = SentenceQueue()
        queue.register("one")
        for job in jobs(7, beam=5):
            queue.put(job)
        assert len(queue.take("one", 0, 16) or []) == 3
        assert queue.running_rows == 15
        assert queue.take("one", 15, 16) == []
        assert len(queue.take("one", 0, 2) or []) == 1

    in_loop(test)


def test_who_has_least_to_do_takes() -> None:
    def test() -> None:
        queue = SentenceQueue()
        for who in ("one", "other"):
            queue.register(who)
        for job in jobs(1, 1, 1):
            queue.put(job)
        assert len(queue.take("one", 4, 64) or []) == 0  # the other taker has no load
        assert len(queue.take("other", 0, 64) or []) == 3
        assert queue.running_rows == 7

    in_loop(test)


def test_a_dropped_job_leaves_and_the_others_stay() -> None:
    def test() -> None:
        queue = SentenceQueue()
        queue.register("one")
        one, other = jobs(3, 2)
        queue.put(one)
        queue.put(other)
        queue.cancel(one)
        assert one.cancelled
        assert queue.take("one", 0, 64) == other.sentences
        queue.cancel(other)  # its sentences were taken already: no effect
        assert len(queue) == 0

    in_loop(test)


def test_what_is_put_back_comes_first() -> None:
    def test() -> None:
        queue = SentenceQueue()
        queue.register("one")
        one, other = jobs(2, 1)
        queue.put(one)
        first = (queue.take("one", 0, 1) or [])[0]
        queue.put(other)
        queue.put_back([first])
        taken = queue.take("one", 0, 64)
        assert taken is not None
        assert {*one.sentences, *other.sentences} == set(taken)
        assert len(taken) == 3

    in_loop(test)


def test_what_was_put_back_before_the_rest_of_its_job_stays() -> None:
    """A compiled search can fail while the other sentences of the job are still being handed out."""

    def test() -> None:
        queue = SentenceQueue()
        queue.register("one")
        (job,) = jobs(3)
        queue.put_back(job.sentences[:1])
        queue.put(job, job.sentences[1:])
        assert queue.take("one", 0, 64) == job.sentences

    in_loop(test)


def test_a_job_waits_in_each_queue_by_itself() -> None:
    """Sentences in the fallback queue stay there while others of the same job wait in the first queue."""

    def test() -> None:
        queue, aside = SentenceQueue(), SentenceQueue()
        queue.register("lane")
        aside.register("other")
        (job,) = jobs(3)
        queue.put(job)
        (first,) = queue.take("lane", 0, 1) or []
        aside.put_back([first])
        assert (len(queue), len(aside)) == (2, 1)
        queue.cancel(job)
        assert (len(queue), len(aside)) == (0, 1)  # a search may look before the second queue is cancelled
        assert aside.take("other", 0, 64) == [first]
        aside.put_back([first])
        assert len(aside) == 0  # the job is cancelled

    in_loop(test)


@pytest.mark.parametrize("kinds", range(1, MAX_IDLE_BATCHES + 3))
def test_a_lane_keeps_as_many_idle_batches_as_it_may(kinds: int, translator: Translator) -> None:
    engine = translator.engine
    if engine is None:
        pytest.skip("no compiled search here")
    symbols = symbols_of(translator.bundle.target_tokenizer)

    def test() -> None:
        queue, aside = SentenceQueue(), SentenceQueue()
        thread = SearchThread(engine, symbols, 1000, queue, aside, lambda act: act())
        for beam in range(1, kinds + 1):
            (job,) = jobs(1, beam=beam)
            thread._add(job.sentences[0])
            queue.cancel(job)
        assert len(thread._batches) == kinds
        thread._drop_cancelled()
        thread._close_idle_batches()
        assert len(thread._batches) == min(kinds, MAX_IDLE_BATCHES)
        for batch in thread._batches.values():
            batch.close()

    in_loop(test)


def test_a_batch_has_no_more_tables_of_phrases_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def test() -> None:
        few, many = [[[1, 2]]], [[[number, number + 1]] for number in range(6)]
        job = Job(kind(), [[5, 3]] * 5, [], False, [few, [], many, few, many])
        assert search_threads._select_batch(job.sentences) == job.sentences
        most = 2 * table_size(many)
        monkeypatch.setattr(search_threads, "MAX_STATES", most)
        waiting, batches = job.sentences, []
        while waiting:
            batches.append(search_threads._select_batch(waiting))
            waiting = [sentence for sentence in waiting if sentence not in batches[-1]]
        assert sorted(sentence.number for batch in batches for sentence in batch) == sorted(
            sentence.number for sentence in job.sentences
        )
        assert len(batches) > 1
        for batch in batches:
            assert len(batch) * max(table_size(sentence.phrases) for sentence in batch) <= most

    in_loop(test)


def test_a_closed_queue_gives_what_it_has_and_then_wakes_those_who_wait() -> None:
    def test() -> None:
        queue = SentenceQueue()
        queue.register("one")
        (job,) = jobs(1)
        queue.put(job)
        queue.close()
        assert queue.take("one", 0, 64) == job.sentences
        assert queue.take("one", 0, 64) is None

    in_loop(test)
    queue, ended = SentenceQueue(), []
    queue.register("one")
    thread = threading.Thread(target=lambda: ended.append(queue.take("one", 0, 64)))
    thread.start()
    queue.close()
    thread.join(10)
    assert ended == [None]


def test_a_queue_forgets_a_taker_that_has_ended(translator: Translator) -> None:
    """Otherwise both, and with them the model, would live until the next garbage collection."""
    queue = SentenceQueue()
    thread = UncompiledSearchThread(translator, queue, lambda act: act())
    thread.start()
    queue.close()
    thread.join(10)
    known = weakref.ref(thread)
    gc.disable()
    try:
        del thread
        assert known() is None
    finally:
        gc.enable()


def test_a_rate_is_of_its_window() -> None:
    now = 100.0
    rate = SlidingRate(10.0, lambda: now)
    assert rate.value() == 0
    now = 104.0
    rate.add(8)
    assert rate.value() == 2.0  # 4 seconds since the start
    now = 112.0
    rate.add(12)
    assert rate.value() == 2.0  # 20 in 10 seconds
    now = 115.0
    assert rate.value() == 1.2  # the first 8 are forgotten
    now = 200.0
    assert rate.value() == 0


@given(st.text(alphabet="ab \r\n\u2028\0\t", max_size=30))
def test_pieces_put_together_are_the_text(text: str) -> None:
    lines = split_lines(text)
    assert join_lines(lines, [line.text for line in lines]) == text
    assert len(lines) == text.count("\n") + 1
    assert all(line.ending in ("\n", "\r\n") for line in lines[:-1])
    assert not any("\n" in line.text for line in lines)


def test_blocks_stand_behind_and_below_each_other() -> None:
    assert block_diagonal([[[1.0, 2.0]], [], [[3.0], [4.0]]], [2, 1, 1]) == [[1, 2, 0, 0], [0, 0, 0, 3], [0, 0, 0, 4]]


@pytest.mark.parametrize("words", [(), ([1, 2, 3],)])
def test_a_job_without_sentences_is_done(words: tuple[list[int], ...]) -> None:
    assert in_loop(lambda: Job(kind(), list(words), [], False).done.done()) is (not words)
