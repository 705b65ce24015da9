"""Recurrent decoding step by step equals the forward pass."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis, make_hypothesis
from multihead.decoding.scoring import force
from multihead.decoding.search import Search
from multihead.decoding.stepper import State, Stepper
from multihead.decoding.task import SearchTask
from multihead.models.config import RecurrentConfig
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.models.recurrent.state import RecurrentState

Ids = tuple[int, ...]
Row = tuple[Ids, Ids]
LIMIT = 9
SIZES: dict[str, Any] = {"source_vocab": 13, "target_vocab": 11, "tie_embeddings": False, "width": 8, "dropout": 0.0}
WIRINGS: dict[str, dict[str, Any]] = {
    "before": {"attend": "before"},
    "after": {"attend": "after", "cell": "lstm", "score": "bilinear"},
    "fed": {"attend": "after", "input_feeding": True, "decoder_layers": 2, "score": "dot"},
}


def network(seed: int = 0, noise: float = 0.3, **changes: Any) -> RecurrentTranslator:
    """A model in float64 and evaluation mode, with random biases."""
    torch.manual_seed(seed)
    made = RecurrentTranslator(RecurrentConfig(**(SIZES | changes))).double().eval().requires_grad_(False)
    for parameter in made.parameters():
        parameter += noise * torch.randn_like(parameter)
    return made


@pytest.fixture(params=WIRINGS)
def model(request: pytest.FixtureRequest) -> RecurrentTranslator:
    return network(**WIRINGS[request.param])


class Rows:
    """A state, with the source and the target so far of each row."""

    def __init__(
        self, model: RecurrentTranslator, state: RecurrentState, rows: list[Row], known: dict[Row, Tensor]
    ) -> None:
        self.model, self.state, self.rows, self.known = model, state, rows, known

    def step(self, *tokens: int) -> Rows:
        """Make a step and compare every row with a forward pass over that row alone."""
        log_probabilities, following = self.model.step(torch.tensor(tokens, dtype=torch.long), self.state)
        rows = [(source, (*target, token)) for (source, target), token in zip(self.rows, tokens, strict=True)]
        assert following.rows == len(rows)
        assert log_probabilities.shape == (len(rows), self.model.config.target_vocab)
        for found, row in zip(log_probabilities, rows, strict=True):
            torch.testing.assert_close(found, self._alone(row), rtol=1e-9, atol=1e-9)
        return Rows(self.model, following, rows, self.known)

    def select(self, *rows: int) -> Rows:
        state = self.state.select(torch.tensor(rows, dtype=torch.long))
        return Rows(self.model, state, [self.rows[row] for row in rows], self.known)

    def join(self, other: Rows) -> Rows:
        return Rows(self.model, self.state.join(other.state), self.rows + other.rows, self.known)

    def _alone(self, row: Row) -> Tensor:
        if row not in self.known:
            source, target = (torch.tensor([ids]) for ids in row)
            logits = self.model(source, torch.tensor([source.shape[1]]), target).logits
            self.known[row] = logits[0, -1].log_softmax(-1)
        return self.known[row]


def begin(small: Any, model: RecurrentTranslator, *which: int, extra: int = 0) -> Rows:
    """A state of some sources before the first step."""
    sources = [small.sources[index] for index in which]
    return Rows(model, model.start(*small.padded(sources, extra)), [(source, ()) for source in sources], {})


# ------------------------------------------------------------------------------------------ steps


def test_it_is_a_stepper(small: Any, model: RecurrentTranslator) -> None:
    assert isinstance(model, Stepper)
    assert isinstance(begin(small, model, 0).state, State)


@pytest.mark.parametrize("alignment", ["softmax", "sample", "straight_through", "gumbel", "segmentation"])
@pytest.mark.parametrize("score", ["additive", "dot", "scaled_dot", "bilinear", "low_rank"])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_steps_equal_the_whole_pass(small: Any, wiring: str, score: str, alignment: str) -> None:
    """Every decoder, score and alignment, with both cells and 0 to 2 layers per side."""
    mixed = len(score) + len(alignment)
    layers = {"encoder_layers": mixed % 3, "decoder_layers": 1 + mixed // 3 % 2}
    others = {"cell": ("gru", "lstm")[mixed % 2], "encoder_attention": ("none", "softmax", "tree")[len(score) % 3]}
    model = network(**{**WIRINGS[wiring], **layers, **others, "score": score, "alignment": alignment})
    source, lengths = small.padded(small.sources, 2)
    target = torch.randint(3, 11, (len(source), 4), generator=torch.Generator().manual_seed(1))
    expected = model(source, lengths, target).logits.log_softmax(-1)
    state = model.start(source, lengths)
    for time in range(target.shape[1]):
        log_probabilities, state = model.step(target[:, time], state)
        torch.testing.assert_close(log_probabilities, expected[:, time], rtol=1e-9, atol=1e-9)


def test_hypotheses_of_a_sentence_share_its_memory(small: Any, model: RecurrentTranslator) -> None:
    rows = begin(small, model, 0, 1, 3).step(1, 1, 1)
    rows = rows.select(0, 0, 0, 1, 1, 1, 2, 2, 2)
    assert rows.state.memory.lengths.tolist() == [len(small.sources[i]) for i in (0, 1, 3)]  # a sentence once
    rows = rows.step(3, 4, 5, 6, 7, 8, 9, 10, 3)
    rows = rows.select(2, 0, 0, 4, 4, 5, 8, 7, 6).step(3, 4, 5, 6, 7, 8, 9, 10, 3)  # reordered within sentences
    rows = rows.select(6, 7, 8, 0, 1, 2)  # the sentence in the middle is finished, the others change places
    assert rows.state.memory.lengths.tolist() == [len(small.sources[i]) for i in (3, 0)]
    rows.step(4, 5, 6, 7, 8, 9).select(5).step(3)


def test_groups_may_become_unequal_and_mixed(small: Any, model: RecurrentTranslator) -> None:
    rows = begin(small, model, 0, 1, 2).step(1, 1, 1).select(0, 0, 1, 1, 2, 2).step(3, 4, 5, 6, 7, 8)
    rows = rows.select(0, 0, 1, 3, 5, 4).step(3, 4, 5, 6, 7, 8)  # three, one and two rows
    rows.select(5, 0, 3, 1, 4).step(3, 4, 5, 6, 7).select(1, 1, 3, 3).step(9, 8, 7, 6)  # and in no order


def test_states_begun_apart_can_be_joined(small: Any, model: RecurrentTranslator) -> None:
    """States at other steps, from sources of other widths."""
    early = begin(small, model, 0, 3).step(1, 1).select(0, 0, 1, 1).step(3, 4, 5, 6).step(6, 5, 4, 3)
    late = begin(small, model, 1, 2, extra=7).step(1, 1)
    assert early.state.memory.values.shape[1] < late.state.memory.values.shape[1]
    for rows in (early.join(late), late.join(early)):
        stepped = rows.step(3, 4, 5, 6, 7, 8).select(5, 0, 1, 4, 2).step(3, 4, 5, 6, 7)
        stepped.join(begin(small, model, 2).step(1)).step(3, 4, 5, 6, 7, 8)


def test_what_was_never_stepped_joins_what_was(small: Any, model: RecurrentTranslator) -> None:
    fresh, stepped = begin(small, model, 1), begin(small, model, 3, 0).step(1, 1)
    fresh.join(begin(small, model, 2)).step(1, 1).step(3, 4)
    fresh.join(stepped).step(1, 3, 4).step(5, 6, 7)
    stepped.join(fresh).step(3, 4, 1)


def test_a_state_is_a_value(small: Any, model: RecurrentTranslator) -> None:
    origin = begin(small, model, 0, 1)
    once = origin.step(1, 1)
    one = once.step(3, 4)
    once.step(9, 10).step(5, 6)
    one.step(5, 6)
    one.join(once).step(7, 7, 3, 3)
    one.select(1, 0).step(7, 7)
    once.step(3, 4).step(5, 6)
    origin.step(1, 1)
    first, second = (model.step(torch.tensor([3, 4]), once.state)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_a_state_without_rows_can_be_stepped_and_joined(small: Any, model: RecurrentTranslator) -> None:
    rows = begin(small, model, 0, 1).step(1, 1).select(0, 0, 1, 1).step(3, 4, 5, 6)
    nothing = rows.select()
    assert nothing.state.rows == 0
    nothing = nothing.step().select().join(nothing)
    fresh = begin(small, model, 3, 2)
    for joined in (nothing.join(fresh), fresh.join(nothing), begin(small, model, 0).select().join(fresh)):
        joined.step(1, 1).select(1, 0).step(3, 4)
    rows.join(nothing).step(7, 8, 9, 10)


@pytest.mark.parametrize("seed", range(3))
def test_any_course_of_steps_selections_and_joins(small: Any, seed: int) -> None:
    model, choose = network(seed, **list(WIRINGS.values())[seed]), random.Random(seed)

    def fresh() -> Rows:
        which = choose.sample(range(len(small.sources)), choose.randint(1, 3))
        return begin(small, model, *which, extra=choose.randint(0, 3))

    def stepped(rows: Rows) -> Rows:
        return rows.step(*(choose.randint(1, 10) for _ in rows.rows))

    pool = [fresh()]
    for _ in range(12):
        rows = choose.choice(pool)
        match choose.choice(["step", "select", "join"]):
            case "step":
                rows = stepped(rows)
            case "select":
                picked = [choose.randrange(len(rows.rows)) for _ in range(choose.randint(1, 6))]
                rows = rows.select(*(sorted(picked) if choose.random() < 0.5 else picked))
            case "join" if len(rows.rows) < 8:
                rows = rows.join(choose.choice([*pool, fresh()]))
        pool = [*pool[-3:], stepped(rows)]


# ------------------------------------------------------------------------------------------ search


def same(ours: list[Hypothesis], theirs: list[Hypothesis]) -> None:
    """The same symbols in the same order, with scores that differ by at most rounding."""
    assert [h.tokens for h in ours] == [h.tokens for h in theirs]
    assert [h.finished for h in ours] == [h.finished for h in theirs]
    assert [h.log_probability for h in ours] == pytest.approx([h.log_probability for h in theirs], abs=1e-9)


@pytest.fixture(scope="module", params=[*WIRINGS, "hard", "runs"])
def searched(small: Any, request: pytest.FixtureRequest) -> RecurrentTranslator:
    """A model whose translations end at different steps."""
    others = {"hard": {"alignment": "sample"}, "runs": {"alignment": "segmentation", "encoder_attention": "tree"}}
    for seed in itertools.count():
        made = network(seed, 0.6, tie_output=False, **(WIRINGS | others)[request.param])
        found = greedy_search(made, *small.padded(small.sources), SearchTask(small.symbols, max_lengths=LIMIT))
        if len({len(hypothesis.tokens) for hypothesis in found}) >= 3:
            break
    return made


@pytest.mark.parametrize("extra", [0, 6])
def test_a_batch_is_searched_as_its_sentences_alone(small: Any, searched: RecurrentTranslator, extra: int) -> None:
    batch = small.padded(small.sources, extra)
    greedy = greedy_search(searched, *batch, SearchTask(small.symbols, max_lengths=LIMIT))
    beams = beam_search(searched, *batch, SearchTask(small.symbols, max_lengths=LIMIT, n_best=3), Search(beam=4))
    for row, source in enumerate(small.sources):
        alone = small.padded([source])
        same([greedy[row]], greedy_search(searched, *alone, SearchTask(small.symbols, max_lengths=LIMIT)))
        same(
            beams[row],
            beam_search(searched, *alone, SearchTask(small.symbols, max_lengths=LIMIT, n_best=3), Search(beam=4))[0],
        )


def test_a_beam_of_one_is_greedy(small: Any, searched: RecurrentTranslator) -> None:
    batch = small.padded(small.sources, 1)
    greedy = greedy_search(searched, *batch, SearchTask(small.symbols, max_lengths=LIMIT))
    beams = beam_search(searched, *batch, SearchTask(small.symbols, max_lengths=LIMIT), Search(beam=1))
    same(greedy, [hypothesis for (hypothesis,) in beams])


def whole_pass(small: Any, model: RecurrentTranslator, source: Ids, targets: list[Ids]) -> list[float]:
    """log p(target | source) of each target, its end symbol included, from one whole pass."""
    wanted, lengths = small.padded(targets)
    given = torch.cat([torch.ones_like(wanted[:, :1]), wanted[:, :-1]], dim=1)
    logits = model(*small.padded([source] * len(targets)), given).logits
    scores = logits.log_softmax(-1).gather(-1, wanted[:, :, None])[:, :, 0]
    real = torch.arange(wanted.shape[1]) < lengths[:, None]
    summed: list[float] = scores.masked_fill(~real, 0.0).sum(-1).tolist()
    return summed


@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_wide_beam_finds_all_there_is_in_the_right_order(small: Any, wiring: str) -> None:
    few, words, limit = network(target_vocab=6, **WIRINGS[wiring]), (3, 4, 5), 3
    finished = [(*t, 2) for length in range(limit) for t in itertools.product(words, repeat=length)]
    every = finished + list(itertools.product(words, repeat=limit))
    task = SearchTask(small.symbols, max_lengths=limit, n_best=len(every))
    found = beam_search(few, *small.padded(small.sources), task, Search(beam=len(every)))
    for source, hypotheses in zip(small.sources, found, strict=True):
        scores = whole_pass(small, few, source, every)
        expected = [make_hypothesis(*pair, end=2, alpha=1.0) for pair in zip(every, scores, strict=True)]
        same(hypotheses, sorted(expected, key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score)))


def test_forced_scores_are_those_of_the_whole_pass(small: Any, searched: RecurrentTranslator) -> None:
    targets = [target[1:] for target in small.targets]
    forced = force(searched, *small.padded(small.sources), targets, small.symbols)
    for source, scores, target in zip(small.sources, forced, targets, strict=True):
        assert [sum(scores)] == pytest.approx(whole_pass(small, searched, source, [(*target, 2)]), abs=1e-9)
