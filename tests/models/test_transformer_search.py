"""Search with a Transformer: independence of sentences, and exactness."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis, make_hypothesis
from multihead.decoding.scoring import force
from multihead.decoding.search import Search
from multihead.decoding.task import SearchTask
from multihead.models.transformer import Transformer

LIMIT = 9
Ids = tuple[int, ...]


def same(ours: list[Hypothesis], theirs: list[Hypothesis]) -> None:
    """The same symbols in the same order, with scores that differ by at most rounding."""
    assert [h.tokens for h in ours] == [h.tokens for h in theirs]
    assert [h.finished for h in ours] == [h.finished for h in theirs]
    assert [h.log_probability for h in ours] == pytest.approx([h.log_probability for h in theirs], abs=1e-9)


@pytest.fixture(scope="module", params=["post", "pre", "unusual"])
def model(small: Any, request: pytest.FixtureRequest) -> Transformer:
    """A model whose translations end at different steps."""
    changes = small.unusual if request.param == "unusual" else {"norm": request.param}
    for seed in itertools.count():
        made: Transformer = small.model(seed, noise=0.2, tie_output=False, **changes)
        found = greedy_search(made, *small.padded(small.sources), SearchTask(small.symbols, max_lengths=LIMIT))
        if len({len(hypothesis.tokens) for hypothesis in found}) >= 3:
            break
    return made


@pytest.mark.parametrize("extra", [0, 1, 6])
def test_a_batch_is_searched_as_its_sentences_alone(small: Any, model: Transformer, extra: int) -> None:
    batch = small.padded(small.sources, extra)
    greedy = greedy_search(model, *batch, SearchTask(small.symbols, max_lengths=LIMIT))
    beams = beam_search(model, *batch, SearchTask(small.symbols, max_lengths=LIMIT, n_best=3), Search(beam=4))
    for row, source in enumerate(small.sources):
        alone = small.padded([source])
        same([greedy[row]], greedy_search(model, *alone, SearchTask(small.symbols, max_lengths=LIMIT)))
        same(
            beams[row],
            beam_search(model, *alone, SearchTask(small.symbols, max_lengths=LIMIT, n_best=3), Search(beam=4))[0],
        )


def test_a_beam_of_one_is_greedy(small: Any, model: Transformer) -> None:
    batch = small.padded(small.sources, 1)
    greedy = greedy_search(model, *batch, SearchTask(small.symbols, max_lengths=LIMIT))
    beams = beam_search(model, *batch, SearchTask(small.symbols, max_lengths=LIMIT), Search(beam=1))
    same(greedy, [hypothesis for (hypothesis,) in beams])


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_a_wide_beam_finds_all_there_is_in_the_right_order(small: Any, seed: int, alpha: float) -> None:
    few, words, limit = small.model(seed, target_vocab=6), (3, 4, 5), 3
    finished = [(*t, 2) for length in range(limit) for t in itertools.product(words, repeat=length)]
    every = finished + list(itertools.product(words, repeat=limit))
    found = beam_search(
        few,
        *small.padded(small.sources),
        SearchTask(small.symbols, max_lengths=limit, n_best=len(every)),
        Search(beam=len(every), alpha=alpha),
    )
    for source, hypotheses in zip(small.sources, found, strict=True):
        scores = whole_pass(small, few, source, every)
        expected = [make_hypothesis(*pair, end=2, alpha=alpha) for pair in zip(every, scores, strict=True)]
        same(hypotheses, sorted(expected, key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score)))


def whole_pass(small: Any, model: Transformer, source: Ids, targets: list[Ids]) -> list[float]:
    """log p(target | source) of each target, its end symbol included, from one forward pass."""
    wanted, lengths = small.padded(targets)
    given = torch.cat([torch.ones_like(wanted[:, :1]), wanted[:, :-1]], dim=1)
    with torch.no_grad():
        logits = model(*small.padded([source] * len(targets)), given).logits
    scores = logits.log_softmax(-1).gather(-1, wanted[:, :, None])[:, :, 0]
    real = torch.arange(wanted.size(1)) < lengths[:, None]
    summed: list[float] = scores.masked_fill(~real, 0.0).sum(-1).tolist()
    return summed


def test_forced_scores_are_those_of_the_forward_pass(small: Any, model: Transformer) -> None:
    targets = [target[1:] for target in small.targets]
    forced = force(model, *small.padded(small.sources), targets, small.symbols)
    for source, scores, target in zip(small.sources, forced, targets, strict=True):
        assert len(scores) == len(target) + 1
        assert [sum(scores)] == pytest.approx(whole_pass(small, model, source, [(*target, 2)]), abs=1e-9)
