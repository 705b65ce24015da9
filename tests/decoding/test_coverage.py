"""The coverage penalty: its equation on toys and real models, exact stopping with it, and no cost if it is off."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from multihead import Translator
from multihead.configuration import build
from multihead.decoding.beam import beam_search
from multihead.decoding.diverse import diverse_beam_search
from multihead.decoding.ensemble import Ensemble
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.lexical import lexical_beam_search
from multihead.decoding.ranking import LEAST, Ahead, Exact
from multihead.decoding.search import Search, power, wu
from multihead.decoding.stepper import Attending
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, ShapeError
from multihead.models.config import RecurrentConfig, TransformerConfig
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.models.transformer import Transformer

END, WORDS = 2, (3, 4, 5)


@functools.cache
def looked(source: tuple[int, ...], prefix: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Random but fixed attention of the symbol after ``prefix``; of a source with a 4, none to its first symbol."""
    generator = torch.Generator().manual_seed(hash((seed, source, prefix)) & 0x7FFFFFFF)
    weights = (3 * torch.randn(len(source), generator=generator, dtype=torch.float64)).softmax(0)
    if 4 in source and len(source) > 1:
        weights[0] = 0.0
        weights /= weights.sum()
    return weights


def coverage_of(source: tuple[int, ...], sequence: tuple[int, ...]) -> float:
    """cp(x, y) in plain words: what each source symbol got, at most 1."""
    total = torch.zeros(len(source), dtype=torch.float64)
    for place in range(len(sequence)):
        total += looked(source, (1, *sequence[:place]))
    return sum(math.log(min(max(float(one), LEAST), 1.0)) for one in total)


@dataclass(frozen=True)
class Never:
    """Only the limit ends a search."""

    def done(self, standing: Any) -> torch.Tensor:
        return torch.zeros_like(standing.settled, dtype=torch.bool)


@pytest.fixture
def attending(toys: Any) -> Any:
    """Toy models with attention."""

    class Looking(toys.stepper):  # type: ignore[name-defined, misc]
        asked = 0

        def start(self, source: torch.Tensor, lengths: torch.Tensor) -> Any:
            self.width = source.shape[1]
            return super().start(source, lengths)

        def step_attending(self, tokens: torch.Tensor, state: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
            self.asked += 1
            rows, following = self.step(tokens, state)
            weights = torch.zeros(len(tokens), self.width, dtype=torch.float64)
            for row, (source, prefix) in enumerate(zip(following.sources, following.prefixes, strict=True)):
                weights[row, : len(source)] = looked(source, prefix)
            return rows, weights, following

    return Looking


def exhaustive(table: Any, source: tuple[int, ...], limit: int, score: Any) -> list[tuple[tuple[int, ...], float]]:
    """Every hypothesis within the limit with its score: finished ones first, each kind by score."""
    every = [(*words, END) for n in range(limit) for words in itertools.product(WORDS, repeat=n)]
    every += list(itertools.product(WORDS, repeat=limit))
    rows = []
    for sequence in every:
        total = sum(float(table(source, (1, *sequence[:t]))[symbol]) for t, symbol in enumerate(sequence))
        rows.append((sequence, score(total, sequence)))
    return sorted(rows, key=lambda row: (row[0][-1] != END, -row[1]))


def sequence_of(hypothesis: Hypothesis) -> tuple[int, ...]:
    return (*hypothesis.tokens, END) if hypothesis.finished else hypothesis.tokens


@pytest.mark.parametrize(("penalty", "alpha"), [(power, 0.0), (power, 1.0), (wu, 0.8)])
@pytest.mark.parametrize("beta", [0.2, 3.0])
def test_a_wide_beam_is_exhaustive_search(toys: Any, attending: Any, penalty: Any, alpha: float, beta: float) -> None:
    table, sources, limit = toys.random(1), toys.sources[:3], 4
    found = beam_search(
        attending(table),
        *toys.padded(sources),
        SearchTask(toys.symbols, max_lengths=limit, penalty=penalty, n_best=125),
        Search(beam=125, alpha=alpha, coverage=beta),
    )
    moved = 0
    for source, hypotheses in zip(sources, found, strict=True):
        expected = exhaustive(
            table, source, limit,
            lambda total, y, x=source: total / penalty(len(y), alpha) + beta * coverage_of(x, y),
        )  # fmt: skip
        assert [sequence_of(one) for one in hypotheses] == [sequence for sequence, _ in expected]
        assert [one.score for one in hypotheses] == pytest.approx([score for _, score in expected])
        plain = exhaustive(table, source, limit, lambda total, y: total / penalty(len(y), alpha))
        moved += plain[0] != expected[0]
    assert moved  # otherwise nothing was shown


@pytest.mark.parametrize(("penalty", "alpha"), [(power, 0.0), (power, 0.7), (power, 2.0), (wu, 1.5)])
@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_stopping_early_loses_nothing(toys: Any, attending: Any, penalty: Any, alpha: float, beta: float) -> None:
    """Bit for bit as without early stopping; and it does stop, if length does not dominate the score."""
    stopped = 0
    for seed, (beam, n_best) in enumerate([(1, 1), (2, 1), (3, 3), (4, 1), (4, 4)]):
        steps, results = [], []
        for stop in (Exact(), Never()):
            stepper = attending(short(toys.random(seed)))
            results.append(
                beam_search(
                    stepper,
                    *toys.padded(toys.sources),
                    SearchTask(toys.symbols, max_lengths=[11, 9, 12, 10, 8], penalty=penalty, n_best=n_best, stop=stop),
                    Search(beam=beam, alpha=alpha, coverage=beta),
                )
            )
            steps.append(sum(stepper.steps))
        assert results[0] == results[1]
        stopped += steps[0] < steps[1]
    assert stopped >= 2 or alpha == 2.0


def short(table: Any) -> Any:
    """A model that probably ends after three words, and never continues for long."""

    def turned(source: Any, prefix: Any) -> torch.Tensor:
        row: torch.Tensor = table(source, prefix)
        return row - torch.tensor([0.0, 0, 0 if len(prefix) > 3 else 4, *[2.0 * (len(prefix) > 3)] * 3])

    return turned


def test_ahead_compares_with_what_the_open_ones_would_score_now(toys: Any, attending: Any) -> None:
    """With alpha 0, length gains nothing, but coverage can: `Ahead` never finds a better score than `Exact`."""
    worse = 0
    for seed in range(8):
        asked: dict[str, Any] = {"max_lengths": 9, "beam": 3, "alpha": 0.0, "coverage": 1.0}
        tables = [attending(toys.random(seed)) for _ in range(2)]
        exact, ahead = (
            beam_search(table, *toys.padded(toys.sources), *toys.split(toys.symbols, stop=stop, **asked))
            for table, stop in zip(tables, (Exact(), Ahead()), strict=True)
        )
        assert sum(tables[1].steps) <= sum(tables[0].steps)
        assert all(a[0].score <= b[0].score for a, b in zip(ahead, exact, strict=True))
        worse += sum(tables[1].steps) < sum(tables[0].steps)
    assert worse


def test_rows_do_not_talk(toys: Any, attending: Any) -> None:
    table, asked = toys.random(4), {"max_lengths": 7, "beam": 3, "n_best": 3, "coverage": 0.5}
    alone = [
        beam_search(attending(table), *toys.padded([x]), *toys.split(toys.symbols, **asked))[0] for x in toys.sources
    ]
    assert beam_search(attending(table), *toys.padded(toys.sources, 3), *toys.split(toys.symbols, **asked)) == alone


def test_every_beam_search_has_it(toys: Any, attending: Any) -> None:
    table, beta = toys.random(2), 0.7
    arguments: dict[str, Any] = {"max_lengths": 6, "beam": 4, "n_best": 4, "alpha": 0.6, "coverage": beta}
    given = toys.padded(toys.sources)
    kinds = [
        diverse_beam_search(attending(table), *given, *toys.split(toys.symbols, groups=2, **arguments)),
        lexical_beam_search(attending(table), *given, [[[[5]]]] * 5, *toys.split(toys.symbols, **arguments)),
        beam_search(Ensemble([attending(table), attending(table)]), *given, *toys.split(toys.symbols, **arguments)),
    ]
    for found in kinds:
        for source, hypotheses in zip(toys.sources, found, strict=True):
            for one in hypotheses:
                y = sequence_of(one)
                expected = one.log_probability / len(y) ** 0.6 + beta * coverage_of(source, y)
                assert one.score == pytest.approx(expected)


def test_off_it_asks_nothing_and_without_attention_it_is_refused(toys: Any, attending: Any) -> None:
    given = toys.padded(toys.sources)
    stepper, plain = attending(toys.random(3)), toys.stepper(toys.random(3))
    assert beam_search(stepper, *given, *toys.split(toys.symbols, max_lengths=5)) == beam_search(
        plain, *given, *toys.split(toys.symbols, max_lengths=5)
    )
    assert stepper.asked == 0
    plain.log.clear()
    with pytest.raises(ConfigurationError, match="ToyStepper does not"):
        beam_search(plain, *given, *toys.split(toys.symbols, max_lengths=5, coverage=0.2))
    assert plain.log == []
    with pytest.raises(ConfigurationError, match="ToyStepper in the ensemble"):
        beam_search(Ensemble([stepper, plain]), *given, *toys.split(toys.symbols, max_lengths=5, coverage=0.2))
    for wrong in (-0.1, math.inf, math.nan):
        with pytest.raises(ConfigurationError, match="coverage: "):
            build(Search, {"beam": 2, "coverage": wrong}, "the search")


def test_attention_of_another_shape_is_refused(toys: Any, attending: Any) -> None:
    class Wide(attending):  # type: ignore[name-defined, misc]
        def step_attending(self, tokens: torch.Tensor, state: Any) -> tuple[torch.Tensor, torch.Tensor, Any]:
            rows, weights, following = super().step_attending(tokens, state)
            return rows, weights[:, 1:], following

    with pytest.raises(ShapeError, match="a column for each source symbol"):
        beam_search(
            Wide(toys.random(1)),
            *toys.padded(toys.sources),
            SearchTask(toys.symbols, max_lengths=3),
            Search(coverage=0.2),
        )


def networks() -> list[Any]:
    sizes: dict[str, Any] = {"source_vocab": 20, "target_vocab": 20, "width": 16}
    torch.manual_seed(3)
    made: list[Any] = [
        Transformer(TransformerConfig(**sizes, heads=2, inner=24, encoder_layers=1, decoder_layers=layers))
        for layers in (1, 3)
    ]
    made += [RecurrentTranslator(RecurrentConfig(**sizes, attend=attend)) for attend in ("before", "after")]
    return [model.eval() for model in made]


@torch.no_grad()
@pytest.mark.parametrize("number", range(4))
def test_a_step_attends_as_the_whole_pass_does(number: int) -> None:
    """For hypotheses of a beam, row by row: the weights of a forward pass, in the layer that aligns best."""
    model = networks()[number]
    assert isinstance(model, Attending)
    source, lengths = torch.randint(4, 20, (3, 6)), torch.tensor([6, 2, 4])
    target = torch.randint(4, 20, (6, 5))
    target[1::2, :2] = target[::2, :2]  # pairs of hypotheses of a sentence, alike at first
    state = model.start(source, lengths)
    whole = model(source.repeat_interleave(2, 0), lengths.repeat_interleave(2), target, need_weights=True)
    layers = whole.weights.cross
    expected = layers[max(len(layers) - 2, 0)].mean(1)
    for time in range(5):
        rows = target[::2] if time < 1 else target
        plain, _ = model.step(rows[:, time], state)
        log_probabilities, attention, state = model.step_attending(rows[:, time], state)
        every = 2 if time < 1 else 1
        torch.testing.assert_close(log_probabilities, plain)
        torch.testing.assert_close(attention, expected[::every, time])
        assert (attention[torch.arange(6)[None] >= lengths.repeat_interleave(2 // every)[:, None]] == 0).all()
        state = state.select(torch.arange(3).repeat_interleave(2)) if time < 1 else state


def test_a_translators_scores_have_it(trained: Path) -> None:
    """Each n-best score is the score without the penalty plus beta times the penalty, recomputed from attention."""
    translator, beta = Translator.load(trained), 0.4
    texts = ["eins zwei drei", "sieben acht"]
    plain = translator.searching(beam=4, stopping="patience", patience=9.0)
    without = {(place, one.text): one.score for place, text in enumerate(texts) for one in plain.n_best([text], 4)[0]}
    compared = 0
    for place, text in enumerate(texts):
        for one in plain.searching(coverage=beta).n_best([text], 4)[0]:
            seen = translator.attention(text, one.text) if one.finished else None
            if seen is None or (place, one.text) not in without:
                continue
            cross = seen.weights.cross
            total = cross[max(len(cross) - 2, 0)][0].mean(0).double().sum(0)
            added = beta * float(total.clamp(LEAST, 1).log().sum())
            assert one.score == pytest.approx(without[place, one.text] + added, abs=1e-3)
            compared += 1
    assert compared >= 2
    with pytest.raises(ConfigurationError, match="coverage"):
        translator.searching(coverage=-1.0)
