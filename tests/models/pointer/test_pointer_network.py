"""The pointer network: equations, steps, search, learning."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multihead.configuration import build
from multihead.data.toy.pointing import Sort, collate, collate_inputs, generator
from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.scoring import force
from multihead.decoding.search import Search, Symbols
from multihead.decoding.stepper import State, Stepper
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, ShapeError
from multihead.models.pointer.config import BEGIN, END, FIRST, PADDING, PointerConfig
from multihead.models.pointer.network import PointerNetwork
from multihead.models.pointer.state import PointerState

SYMBOLS = Symbols(BEGIN, END, (PADDING, BEGIN))
CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
Ids = tuple[int, ...]

SHAPES: dict[str, dict[str, Any]] = {
    "recurrent": {"encoder": "recurrent"},
    "two layers, two directions": {"encoder": "bidirectional", "layers": 2},
    "transformer": {"encoder": "transformer", "layers": 2},
    "transformer with positions": {"encoder": "transformer", "positions": True},
}
LENGTHS = (4, 1, 6, 3)


def network(seed: int = 0, sure: float = 3.0, **changes: Any) -> PointerNetwork:
    """A small network in float64 with random biases; ``sure`` makes its choices differ."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"features": 2, "width": 8, "heads": 2, "inner": 12}
    made = PointerNetwork(PointerConfig(**(sizes | changes))).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
        made.pointer.score.energy *= sure
    return made


def inputs(row: int) -> Tensor:
    """The inputs of one row."""
    generator = torch.Generator().manual_seed(row)
    return torch.randn(LENGTHS[row], 2, generator=generator, dtype=torch.float64)


def batch(*rows: int, extra: int = 0, fill: float = 0.0) -> tuple[Tensor, Tensor]:
    """Rows as a padded batch."""
    read = [inputs(row) for row in rows]
    width = max(map(len, read)) + extra
    padded = [F.pad(one, (0, 0, 0, width - len(one)), value=fill) for one in read]
    return torch.stack(padded), torch.tensor([len(one) for one in read])


@pytest.fixture(params=[*SHAPES, "recurrent, once each", "transformer, once each"])
def model(request: pytest.FixtureRequest) -> PointerNetwork:
    name, _, once = request.param.partition(", once")
    return network(no_repeats=bool(once), **SHAPES[name]).requires_grad_(False)


# ------------------------------------------------------------------------------------------ equations


@pytest.mark.parametrize("no_repeats", [False, True])
def test_it_is_the_paper_written_as_loops(no_repeats: bool) -> None:
    model = network(no_repeats=no_repeats)
    parameters = dict(model.named_parameters())

    def cell(of: str) -> nn.LSTMCell:
        made = nn.LSTMCell(8, 8).double()
        made.load_state_dict({name: parameters[f"{of}.{name}_l0"] for name in made.state_dict()})
        return made

    reader, writer = cell("encoder.lstm"), cell("decoder.layer")
    score = model.pointer.score
    for row, chosen in enumerate([(2, 0, 1), (0,), (5, 3), ()]):
        embedded = [model.embedding.linear.weight @ x + model.embedding.linear.bias for x in inputs(row)]
        held = (torch.zeros(1, 8).double(), torch.zeros(1, 8).double())
        keys = [model.end]
        for x in embedded:
            held = reader(x[None], held)
            keys.append(held[0][0])
        reads = [model.begin, *(embedded[index] for index in chosen)]
        source, lengths = batch(row)
        found = model(source, lengths, torch.tensor([[BEGIN, *(index + FIRST for index in chosen)]]))[0]
        for m, read in enumerate(reads):
            held = writer(read[None], held)
            u = [
                score.energy @ torch.tanh(score.key_projection.weight @ e + score.query_projection.weight @ held[0][0])
                for e in keys
            ]
            gone = chosen[:m] if no_repeats else ()
            left = [n for n in range(len(keys)) if n - 1 not in gone]
            total = torch.stack([u[n] for n in left]).logsumexp(0)
            expected = torch.full((len(keys) + 2,), -torch.inf, dtype=torch.float64)
            for n in left:
                expected[END + n] = u[n] - total
            torch.testing.assert_close(found[m], expected, **CLOSE)


def test_the_directions_of_the_encoder_meet_where_the_decoder_starts() -> None:
    model = network(encoder="bidirectional", layers=2)
    lstm: nn.LSTM = model.encoder.lstm
    source, lengths = batch(0, 2, 3)
    encoded = model.encoder(model.embedding(source, lengths), lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model.embedding(source[row : row + 1, :length], lengths[row : row + 1])
        states, (hidden, cell) = lstm(alone)
        torch.testing.assert_close(encoded.states[row, :length], states[0], **CLOSE)
        torch.testing.assert_close(encoded.last[0][row], torch.cat((states[0, -1, :4], states[0, 0, 4:])), **CLOSE)
        torch.testing.assert_close(encoded.last[1][row], torch.cat((cell[2, 0], cell[3, 0])), **CLOSE)
        torch.testing.assert_close(encoded.last[0][row], torch.cat((hidden[2, 0], hidden[3, 0])), **CLOSE)


def test_without_positions_a_set_has_no_order() -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    target = torch.tensor([[BEGIN, 2 + FIRST, 5 + FIRST]])
    there = torch.cat((torch.arange(FIRST), FIRST + order))  # where each symbol of the permuted set was
    back = torch.empty_like(order).scatter_(0, order, torch.arange(6))
    moved = torch.tensor([[BEGIN, *(FIRST + back[[2, 5]]).tolist()]])
    source, lengths = batch(2)
    for name, changes in SHAPES.items():
        model = network(**changes)
        whole = model(source, lengths, target)
        permuted = model(source[:, order], lengths, moved)
        assert torch.allclose(permuted, whole[..., there], rtol=1e-9, atol=1e-9) == (name == "transformer"), name


# ------------------------------------------------------------------------------------------ rows and padding


TARGETS = [(BEGIN, FIRST, FIRST + 3), (BEGIN, FIRST), (BEGIN, FIRST + 4, FIRST + 5, FIRST, FIRST + 1), (BEGIN,)]


def targets(extra: int = 0) -> Tensor:
    width = max(map(len, TARGETS)) + extra
    return torch.tensor([[*target, *[PADDING] * (width - len(target))] for target in TARGETS])


@pytest.mark.parametrize("extra", [0, 1, 5])
def test_a_padded_batch_equals_its_rows_one_by_one(model: PointerNetwork, extra: int) -> None:
    together = model(*batch(0, 1, 2, 3, extra=extra, fill=torch.nan), targets(extra))
    assert together.shape == (4, 5 + extra, FIRST + 6 + extra)
    assert (together[:, :, [PADDING, BEGIN]] == -torch.inf).all()
    for row, target in enumerate(TARGETS):
        alone = model(*batch(row), torch.tensor([target]))[0]
        found = together[row, : len(target)]
        torch.testing.assert_close(found[:, : alone.size(1)], alone, **CLOSE)
        assert (found[:, alone.size(1) :] == -torch.inf).all()
        torch.testing.assert_close(found.exp().sum(-1), torch.ones(len(target)).double())


def test_nothing_in_the_padding_reaches_the_loss_or_a_gradient(model: PointerNetwork) -> None:
    model.requires_grad_()
    output = torch.where(targets(1)[:, 1:] == PADDING, PADDING, targets(1)[:, 1:])
    output[torch.arange(4), torch.tensor([len(target) - 1 for target in TARGETS])] = END
    results = []
    for fill in (0.0, torch.nan):
        loss = model.loss(*batch(0, 1, 2, 3, extra=2, fill=fill), targets(), output, smoothing=0.1)
        results.append([loss.total, loss.nll, *torch.autograd.grad(loss.total, list(model.parameters()))])
    for clean, dirty in zip(*results, strict=True):
        assert torch.equal(clean, dirty)
        assert clean.isfinite().all()


# ------------------------------------------------------------------------------------------ the loss


def pairs(extra: int = 0) -> tuple[Tensor, Tensor]:
    """Target input and target output."""
    read = targets(extra)
    predicted = torch.full_like(read, PADDING)
    for row, target in enumerate(TARGETS):
        predicted[row, : len(target)] = torch.tensor([*target[1:], END])
    return read, predicted


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_its_definition(model: PointerNetwork, smoothing: float) -> None:
    read, predicted = pairs(2)
    source = batch(0, 1, 2, 3, extra=1)
    loss = model.loss(*source, read, predicted, smoothing=smoothing)
    log_probabilities = model(*source, read)
    nll = total = 0.0
    correct = 0
    for row, target in enumerate(TARGETS):
        for m, wanted in enumerate([*target[1:], END]):
            here = log_probabilities[row, m].tolist()
            possible = [p for p in here if p > -math.inf]
            gone = m if model.config.no_repeats else 0
            assert len(possible) == LENGTHS[row] + 1 - gone
            nll -= here[wanted]
            total -= (1 - smoothing) * here[wanted] + smoothing * sum(possible) / len(possible)
            correct += here[wanted] == max(here)
    assert loss.total.item() == pytest.approx(total, rel=1e-12)
    assert loss.nll.item() == pytest.approx(nll, rel=1e-12)
    assert loss.correct.item() == correct


def test_without_masks_the_loss_is_pytorchs_cross_entropy() -> None:
    model = network()
    read = torch.tensor([[BEGIN, FIRST + 1, FIRST]])
    predicted = torch.tensor([[FIRST + 1, FIRST, END]])
    loss = model.loss(*batch(0), read, predicted, smoothing=0.2)
    scores = model(*batch(0), read)[0, :, END:]  # log-probabilities are logits too
    expected = F.cross_entropy(scores, predicted[0] - END, label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(loss.total, expected)
    assert loss.total.requires_grad
    assert not loss.nll.requires_grad


def test_what_is_random_in_the_loss_comes_from_the_current_generator() -> None:
    source, (read, predicted) = batch(0, 1, 2, 3), pairs()
    for changes in SHAPES.values():
        model = network(dropout=0.3, **changes)

        def loss(seed: int, model: PointerNetwork = model) -> float:
            torch.manual_seed(seed)
            return model.loss(*source, read, predicted, smoothing=0.0).total.item()

        assert loss(1) == loss(2)  # evaluated, it draws nothing
        model.train()
        assert loss(1) == loss(1) != loss(2)


def test_under_autocast_it_is_nearly_the_same() -> None:
    source, (read, predicted) = batch(0, 1, 2, 3), pairs()
    for changes in SHAPES.values():
        model = network(sure=1.0, **changes).float()
        exact = model.loss(source[0].float(), source[1], read, predicted, smoothing=0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = model.loss(source[0].float(), source[1], read, predicted, smoothing=0.1)
            log_probabilities, _ = model.step(read[:, 0], model.start(source[0].float(), source[1]))
        assert low.total.dtype == log_probabilities.dtype == torch.float32
        torch.testing.assert_close(low.total, exact.total, rtol=0.02, atol=0.0)


# ------------------------------------------------------------------------------------------ step by step


@dataclass
class Checked:
    """A state, with the inputs and the symbols so far of each row."""

    model: PointerNetwork
    state: PointerState
    rows: list[tuple[int, Ids]]
    known: dict[tuple[int, Ids], Tensor] = field(default_factory=dict)

    @classmethod
    def begin(cls, model: PointerNetwork, *which: int, extra: int = 0) -> Checked:
        return cls(model, model.start(*batch(*which, extra=extra)), [(row, ()) for row in which])

    def step(self, tokens: Sequence[int]) -> Checked:
        """Make a step and compare every row with a forward pass over that row alone."""
        visited = self.state.visited.clone()
        log_probabilities, following = self.model.step(torch.tensor(tokens, dtype=torch.long), self.state)
        rows = [(row, (*so_far, token)) for (row, so_far), token in zip(self.rows, tokens, strict=True)]
        assert following.rows == len(rows) == len(log_probabilities)
        for found, row in zip(log_probabilities, rows, strict=True):
            expected = self._alone(row)
            torch.testing.assert_close(found[: len(expected)], expected, **CLOSE)
            assert (found[len(expected) :] == -torch.inf).all()
        assert torch.equal(self.state.visited, visited)
        return Checked(self.model, following, rows, self.known)

    def select(self, *rows: int) -> Checked:
        state = self.state.select(torch.tensor(rows, dtype=torch.long))
        return Checked(self.model, state, [self.rows[row] for row in rows], self.known)

    def join(self, other: Checked) -> Checked:
        return Checked(self.model, self.state.join(other.state), self.rows + other.rows, self.known)

    def choose(self, choose: random.Random) -> list[int]:
        """Any symbol of each row: finished rows of a search may get any input."""
        return [choose.choice([END, BEGIN, *range(FIRST, FIRST + LENGTHS[row])]) for row, _ in self.rows]

    def _alone(self, row: tuple[int, Ids]) -> Tensor:
        if row not in self.known:
            self.known[row] = self.model(*batch(row[0]), torch.tensor([row[1]]))[0, -1]
        return self.known[row]


def test_a_pointer_network_is_a_stepper(model: PointerNetwork) -> None:
    assert isinstance(model, Stepper)
    assert isinstance(model.start(*batch(0)), State)


def test_steps_equal_the_forward_pass_position_by_position(model: PointerNetwork) -> None:
    source, lengths = batch(0, 2, 3, extra=2)
    target = torch.tensor([[BEGIN, 5, 4, 3], [BEGIN, 8, 3, 7], [BEGIN, 4, 5, 3]])
    expected = model(source, lengths, target)
    state = model.start(source, lengths)
    for position in range(target.size(1)):
        log_probabilities, state = model.step(target[:, position], state)
        torch.testing.assert_close(log_probabilities, expected[:, position], **CLOSE)


def test_hypotheses_of_a_row_share_its_inputs(model: PointerNetwork) -> None:
    rows = Checked.begin(model, 0, 2, 3).step([BEGIN] * 3).select(0, 0, 1, 1, 2, 2)
    assert rows.state.choices.lengths.tolist() == [5, 7, 4]  # each once, and the end
    rows = rows.step([3, 4, 8, 4, 5, 3]).select(1, 0, 4, 4, 3, 2)
    assert rows.state.choices.lengths.tolist() == [5, 4, 7]
    rows = rows.step([5, 5, 3, 4, 7, 7]).select(4, 5)
    assert rows.state.choices.lengths.tolist() == [7]
    rows.step([3, 3])


def test_states_begun_apart_can_be_joined(model: PointerNetwork) -> None:
    early = Checked.begin(model, 0, 3).step([BEGIN, BEGIN]).select(0, 0, 1, 1).step([3, 4, 5, 3]).step([6, 5, 4, 4])
    late = Checked.begin(model, 1, 2, extra=3).step([BEGIN, BEGIN])
    for rows in (early.join(late), late.join(early)):
        names = [row for row, _ in rows.rows]
        rows = rows.step([FIRST] * 6).select(5, 0, 1, 4, 2)
        assert [row for row, _ in rows.rows] == [names[index] for index in (5, 0, 1, 4, 2)]
        rows = rows.step([END, FIRST, FIRST, BEGIN, FIRST])
        rows.join(Checked.begin(model, 2)).step([FIRST] * 5 + [BEGIN])


def test_a_state_without_rows_can_be_stepped_and_joined(model: PointerNetwork) -> None:
    rows = Checked.begin(model, 0, 2).step([BEGIN, BEGIN]).select(0, 0, 1, 1).step([3, 4, 5, 6])
    nothing = rows.select()
    assert nothing.state.rows == 0
    nothing = nothing.step([]).select().join(nothing)
    for joined in (nothing.join(Checked.begin(model, 3, 1)), Checked.begin(model, 3, 1).join(nothing)):
        joined.step([BEGIN, BEGIN]).select(1, 0).step([FIRST, FIRST])
    rows.join(nothing).step([5, 5, 7, 8])


def test_any_course_of_steps_selections_and_joins(model: PointerNetwork) -> None:
    choose = random.Random(1)

    def fresh() -> Checked:
        which = choose.sample(range(len(LENGTHS)), choose.randint(1, 3))
        return Checked.begin(model, *which, extra=choose.randint(0, 2))

    pool = [fresh()]
    for _ in range(12):
        rows = choose.choice(pool)
        match choose.choice(["step", "step", "select", "join"]):
            case "step":
                rows = rows.step(rows.choose(choose))
            case "select":
                picked = [choose.randrange(len(rows.rows)) for _ in range(choose.randint(1, 6))]
                rows = rows.select(*(sorted(picked) if choose.random() < 0.5 else picked))
            case "join" if len(rows.rows) < 8:
                rows = rows.join(choose.choice([*pool, fresh()]))
        pool = [*pool[-3:], rows.step(rows.choose(choose))]


# ------------------------------------------------------------------------------------------ search


def same(ours: list[Hypothesis], theirs: list[Hypothesis]) -> None:
    """The same symbols in the same order, with scores that differ by at most rounding."""
    assert [h.tokens for h in ours] == [h.tokens for h in theirs]
    assert [h.finished for h in ours] == [h.finished for h in theirs]
    assert [h.log_probability for h in ours] == pytest.approx([h.log_probability for h in theirs], abs=1e-5)


def test_a_batch_is_searched_as_its_rows_alone_and_a_beam_of_one_is_greedy(model: PointerNetwork) -> None:
    source = batch(0, 1, 2, 3, extra=1)
    task = SearchTask(SYMBOLS, max_lengths=[length + 2 for length in LENGTHS])
    greedy = greedy_search(model, *source, task)
    beams = beam_search(model, *source, replace(task, n_best=3), Search(beam=3))
    assert len({len(hypothesis.tokens) for hypothesis in greedy}) > 1
    same(greedy, [best for (best,) in beam_search(model, *source, task, Search(beam=1))])
    for row, length in enumerate(LENGTHS):
        limit = length + 2
        same([greedy[row]], greedy_search(model, *batch(row), SearchTask(SYMBOLS, max_lengths=limit)))
        same(
            beams[row],
            beam_search(model, *batch(row), SearchTask(SYMBOLS, n_best=3, max_lengths=limit), Search(beam=3))[0],
        )


def selections(count: int) -> list[Ids]:
    """Every sequence of different inputs."""
    sizes = range(count + 1)
    return [tuple(FIRST + i for i in chosen) for k in sizes for chosen in itertools.permutations(range(count), k)]


@pytest.mark.parametrize("name", SHAPES)
def test_the_probabilities_of_all_selections_sum_to_one(name: str) -> None:
    model = network(1, no_repeats=True, **SHAPES[name])
    for row in (1, 3, 0):
        every = selections(LENGTHS[row])
        source, lengths = batch(row)
        many = source.expand(len(every), -1, -1), lengths.expand(len(every))
        scores = force(model, *many, every, SYMBOLS)
        assert math.fsum(math.exp(sum(score)) for score in scores) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", SHAPES)
def test_a_wide_beam_finds_all_selections_in_the_right_order(name: str) -> None:
    model = network(2, no_repeats=True, **SHAPES[name])
    every = selections(3)
    found = beam_search(
        model, *batch(3), SearchTask(SYMBOLS, max_lengths=9, n_best=len(every)), Search(beam=len(every), alpha=0.0)
    )[0]
    source, lengths = batch(3)
    scores = force(model, source.expand(len(every), -1, -1), lengths.expand(len(every)), every, SYMBOLS)
    ranked = sorted(zip(every, map(sum, scores), strict=True), key=lambda pair: -pair[1])
    assert [hypothesis.tokens for hypothesis in found] == [tokens for tokens, _ in ranked]
    assert all(hypothesis.finished for hypothesis in found)


def test_with_repeats_what_ends_and_what_goes_on_sum_to_one() -> None:
    model, limit = network(1), 4
    source, lengths = batch(3)
    sequences = [target for k in range(limit) for target in itertools.product(range(FIRST, FIRST + 3), repeat=k)]
    going = list(itertools.product(range(FIRST, FIRST + 3), repeat=limit))
    every = [*sequences, *going]
    scores = force(model, source.expand(len(every), -1, -1), lengths.expand(len(every)), every, SYMBOLS)
    ended = [sum(score) for score in scores[: len(sequences)]]
    open_ones = [sum(score[:-1]) for score in scores[len(sequences) :]]
    assert math.fsum(map(math.exp, ended + open_ones)) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_is_chosen_twice_on_request_alone(name: str) -> None:
    """Untrained networks repeat choices unless ``no_repeats`` is set; then only the end remains."""
    source = batch(0, 1, 2, 3)
    task = SearchTask(SYMBOLS, max_lengths=8, min_lengths=list(LENGTHS))
    repeated = 0
    for seed in range(3):
        free, once = (network(seed, no_repeats=no, **SHAPES[name]) for no in (False, True))
        found = [h for beam in beam_search(free, *source, replace(task, n_best=2), Search(beam=2)) for h in beam]
        repeated += sum(len(set(h.tokens)) < len(h.tokens) for h in [*found, *greedy_search(free, *source, task)])
        greedy = greedy_search(once, *source, task)
        beams = beam_search(once, *source, replace(task, n_best=3), Search(beam=3))
        for length, best, beam in zip(LENGTHS, greedy, beams, strict=True):
            for hypothesis in (best, *beam):
                assert sorted(hypothesis.tokens) == list(range(FIRST, FIRST + length))
                assert hypothesis.finished
    assert repeated


# ------------------------------------------------------------------------------------------ settings and errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": "bidirectional", "width": 9}, "width must be even for a bidirectional encoder, got 9: take 10"),
        ({"encoder": "transformer", "width": 9, "heads": 2}, "multiple of heads, got width 9 and 2 heads: take 10"),
        ({"encoder": "transformer", "width": 9, "heads": 3, "positions": True}, "even for sinusoidal positions, got 9"),
        ({"positions": True}, "positions are for encoder = 'transformer', got 'recurrent'"),
        ({"features": 0}, "features: input should be greater than or equal to 1, got 0"),
        ({"no_repeat": True}, "no setting 'no_repeat'; did you mean 'no_repeats'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(PointerConfig, settings, "a test")


def test_every_setting_changes_what_it_says() -> None:
    plain = network()
    assert plain.config.padding_id == PADDING
    assert plain.max_positions is None
    sizes = {name: value.shape for name, value in plain.named_parameters()}
    deeper = {name: value.shape for name, value in network(layers=3).named_parameters()}
    assert {name.rpartition("_l")[2] for name in deeper.keys() - sizes.keys()} == {"1", "2"}
    assert network(features=5).embedding.linear.in_features == 5
    assert network(no_repeats=True).state_dict().keys() == sizes.keys()
    positions = [network(encoder="transformer", positions=on) for on in (False, True)]
    assert dict(positions[0].state_dict()).keys() == dict(positions[1].state_dict()).keys()


def test_rows_without_inputs_and_inputs_of_another_width_are_refused() -> None:
    model = network()
    with pytest.raises(ShapeError, match=r"row 1 has the length 0 in a batch of 3 inputs; expected 1 to 3"):
        model.start(torch.zeros(2, 3, 2), torch.tensor([3, 0]))
    with pytest.raises(ShapeError, match=r"row 0 has the length 4 in a batch of 3 inputs"):
        model.start(torch.zeros(1, 3, 2), torch.tensor([4]))
    with pytest.raises(ShapeError, match=r"shape \[1, 3, 1\], but this network reads \[batch, inputs, 2\]"):
        model.start(torch.zeros(1, 3, 1), torch.tensor([3]))


# ------------------------------------------------------------------------------------------ learning


def trained(updates: int, rate: float, **shape: Any) -> PointerNetwork:
    """A network trained to sort lists of 2 to 5 numbers."""
    torch.manual_seed(1)
    model = PointerNetwork(PointerConfig(features=1, width=64, no_repeats=True, **shape))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, updates, pct_start=0.1)
    for update in range(updates):
        batch = collate(Sort().draw(generator(1, update), 64, 2, 5))
        loss = model.loss(batch.source, batch.source_lengths, batch.target_input, batch.target_output, smoothing=0.0)
        optimizer.zero_grad()
        (loss.total / batch.target_tokens).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@pytest.mark.parametrize(
    ("encoder", "updates", "rate", "least"),
    [pytest.param("recurrent", 700, 3e-3, 0.95, marks=pytest.mark.proof), ("transformer", 80, 6e-3, 0.98)],
)
@pytest.mark.usefixtures("one_thread")
def test_it_learns_to_sort(encoder: str, updates: int, rate: float, least: float, without_checks: Any) -> None:
    with without_checks():
        model = trained(updates, rate, encoder=encoder, heads=2, inner=128)
    unseen = Sort().draw(generator(1), 400, 2, 5)
    source, lengths = collate_inputs([inputs for inputs, _ in unseen])
    wanted = [tuple((answer + FIRST).tolist()) for _, answer in unseen]
    for found in (
        greedy_search(model, source, lengths, SearchTask(SYMBOLS, max_lengths=6)),
        [best for (best,) in beam_search(model, source, lengths, SearchTask(SYMBOLS, max_lengths=6), Search(beam=3))],
    ):
        right = sum(hypothesis.tokens == answer for hypothesis, answer in zip(found, wanted, strict=True))
        assert right >= least * len(unseen)
