"""A step replayed within a bucket of shapes is the model's own step; and it could be captured."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from multihead import Translator
from multihead.attention import functional
from multihead.data.batching import collate_source
from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.search import Search, Symbols
from multihead.decoding.stepper import Stepper
from multihead.decoding.task import SearchTask
from multihead.engine.graphs import Bucket, Graphs
from multihead.engine.search import EngineCache
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer

VOCAB = 40
SYMBOLS = Symbols(begin=2, end=3, forbidden=(0, 1, 2))

MODELS: dict[str, dict[str, Any]] = {
    "paper": {},
    "learned positions": {"positions": "learned", "max_positions": 6, "norm": "pre"},
    "grouped": {"heads": 4, "kv_heads": 2, "norm": "pre", "feed_forward": "geglu"},
    "linear positions": {"positions": "alibi", "heads": 4},
    "shaw": {"positions": "shaw", "relative_distance": 3, "kv_heads": 1},
    "relative": {"positions": "relative", "norm": "pre", "norm_kind": "rms", "relative_buckets": 8},
}


def model_of(name: str = "paper", **changes: Any) -> Transformer:
    torch.manual_seed(1)
    sizes = {"width": 32, "heads": 2, "inner": 48, "encoder_layers": 2, "decoder_layers": 2, **MODELS[name], **changes}
    model = Transformer(TransformerConfig(source_vocab=VOCAB, target_vocab=VOCAB, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def sources_of(count: int, longest: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    draw = random.Random(seed)
    rows = [[draw.randrange(4, VOCAB) for _ in range(draw.randint(1, longest))] for _ in range(count)]
    return collate_source(rows, 0, 3)


class Again:
    """What a graph does, without a GPU: the same computation from the same tensors into the same tensors."""

    def __init__(self) -> None:
        self.replays: list[Callable[[], None]] = []

    def __call__(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[tuple[Tensor, ...], Callable[[], None]]:
        outputs = tuple(output.clone() for output in compute())

        def replay() -> None:
            for output, new in zip(outputs, compute(), strict=True):
                output.copy_(new)

        self.replays.append(replay)
        return outputs, replay


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("beam", [1, 4])
def test_a_search_over_graphs_is_the_search_over_the_model(name: str, beam: int, without_checks: Any) -> None:
    model, limits = model_of(name), [3, 24, 9, 2, 24]
    graphs = Graphs(model, Again())

    def found(stepper: Stepper[Any]) -> Any:
        if beam == 1:
            return greedy_search(stepper, *sources_of(5, 21), SearchTask(SYMBOLS, max_lengths=limits))
        return beam_search(
            stepper, *sources_of(5, 21), SearchTask(SYMBOLS, max_lengths=limits, n_best=3), Search(beam=beam)
        )

    def flat(hypotheses: list[Any]) -> list[Any]:
        return [h for one in hypotheses for h in (one if isinstance(one, list) else [one])]

    with without_checks():  # the steps of the next test are checked
        ours, theirs = flat(found(graphs)), flat(found(model))
    assert [h.tokens for h in ours] == [h.tokens for h in theirs]
    assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-5)
    assert len(graphs.buckets) > 1


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_rows_that_joined_late_are_padded_twice(name: str) -> None:
    """The search pads to the length of the others, the graph to that of the bucket."""
    model = model_of(name)
    graphs = Graphs(model, Again())
    state, late = model.start(*sources_of(3, 9)), model.start(*sources_of(2, 18, seed=2))
    draw = torch.Generator().manual_seed(1)
    for step in range(20):
        if step in (3, 17):
            state = state.join(late)
        if step == 10:
            state = state.select(torch.tensor([4, 1, 1, 0]))
        tokens = torch.randint(4, VOCAB, (state.rows,), generator=draw)
        expected, following = model.step(tokens, state)
        got, ours = graphs.step(tokens, state)
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)
        assert ours.cache is not None
        assert following.cache is not None
        for mine, its in zip(ours.cache, following.cache, strict=True):
            torch.testing.assert_close((mine.key, mine.value), (its.key, its.value), atol=2e-5, rtol=1e-4)
        assert torch.equal(ours.positions, following.positions)
        state = ours


@torch.no_grad()
def test_a_state_stays_what_it_was() -> None:
    """Two searches of the same bucket in turn do not affect each other."""
    model = model_of()
    graphs, tokens = Graphs(model, Again()), torch.tensor([5, 6, 7])
    one, other = model.start(*sources_of(3, 9)), model.start(*sources_of(3, 9, seed=2))
    first, after = graphs.step(tokens, one)
    assert after.cache is not None
    kept = first.clone(), after.cache[0].key.clone()
    graphs.step(tokens.flip(0), other)
    torch.testing.assert_close((first, after.cache[0].key), kept, atol=0, rtol=0)
    assert torch.equal(graphs.step(tokens, one)[0], first)
    assert len(graphs.buckets) == 1


def test_several_threads_search_over_the_same_graphs() -> None:
    model = model_of()
    given = [sources_of(3, 4, seed) for seed in range(4)]

    class Slow(Again):
        def __call__(self, compute: Callable[[], tuple[Tensor, ...]]) -> Any:
            outputs, replay = super().__call__(compute)
            return outputs, lambda: (time.sleep(0.001), replay())

    graphs = Graphs(model, Slow())

    @torch.no_grad()
    def search(stepper: Stepper[Any], place: int) -> Any:
        return beam_search(stepper, *given[place], SearchTask(SYMBOLS), Search(beam=2, max_length=6))

    expected = [search(model, place) for place in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda place: search(graphs, place), range(4)))
    assert [[one.tokens for one in row] for rows in found for row in rows] == [
        [one.tokens for one in row] for rows in expected for row in rows
    ]


@torch.no_grad()
def test_nothing_of_another_search_is_left() -> None:
    """An earlier, larger search leaves NaN where this one has padding."""
    model = model_of()
    graphs, capture = Graphs(model, Again()), torch.tensor([5] * 4)
    poisoned = model.start(*sources_of(4, 15, seed=3))
    for layer in poisoned.memory.layers:
        layer.key.fill_(torch.nan)
        layer.value.fill_(torch.nan)
    for _ in range(3):
        _, poisoned = graphs.step(capture, poisoned)
    state, tokens = model.start(*sources_of(3, 3)), torch.tensor([5, 6, 7])
    torch.testing.assert_close(graphs.step(tokens, state)[0], model.step(tokens, state)[0], atol=2e-5, rtol=1e-4)
    assert len(graphs.buckets) == 1


@torch.no_grad()
def test_changed_weights_are_seen_and_those_elsewhere_are_captured_anew() -> None:
    model = model_of()
    capture = Again()
    graphs, tokens = Graphs(model, capture), torch.tensor([5, 6, 7])
    for change in ("none", "in place", "moved"):
        if change == "in place":
            model.output.weight.mul_(2)
        if change == "moved":
            model.load_state_dict({k: v * 0.5 for k, v in model.state_dict().items()}, assign=True)
        state = model.start(*sources_of(3, 9))
        torch.testing.assert_close(graphs.step(tokens, state)[0], model.step(tokens, state)[0], atol=2e-5, rtol=1e-4)
    assert len(capture.replays) == 2


@torch.no_grad()
def test_only_so_many_are_kept() -> None:
    model = model_of()
    graphs = Graphs(model, Again(), most=2)
    for count in (1, 2, 4, 1, 8):
        state = model.start(*sources_of(count, 9))
        graphs.step(torch.full((count,), 5), state)
    assert [bucket.sentences for bucket in graphs.buckets] == [1, 8]


def test_where_something_is_learned_the_model_itself_steps() -> None:
    model = model_of()
    capture = Again()
    graphs = Graphs(model, capture)
    state, tokens = model.start(*sources_of(2, 5)), torch.tensor([5, 6])
    graphs.step(tokens, state)[0].sum().backward()
    assert model.output.weight.grad is not None
    assert not capture.replays


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_step_decides_nothing_by_numbers_on_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it could not be captured. Tensors without values show it: reading one raises an error."""
    captured: list[Bucket] = []

    def capture(compute: Callable[[], tuple[Tensor, ...]]) -> tuple[tuple[Tensor, ...], Callable[[], None]]:
        captured.append(bucket)
        return compute(), lambda: None

    # They read values only on a CPU, where nothing waits for them, and catch the error.
    monkeypatch.setattr(functional, "_can_inspect", lambda _: False)
    model, bucket = model_of(name), Bucket(4, 1, 16, 16)
    graphs = Graphs(model, capture)
    with FakeTensorMode(allow_non_fake_inputs=True):
        source = torch.zeros(3, 7, dtype=torch.long)
        with pytest.raises(RuntimeError):
            source[0, 0].item()
        state = model.start(source, source[:, 0] + 7)
        for _ in range(2):
            rows, state = graphs.step(source[:, 0], state)
            assert rows.shape == (3, VOCAB)
    assert captured == [bucket]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", MODELS)
def test_captured_on_a_gpu(name: str) -> None:
    model = model_of(name).cuda()
    source, lengths = (tensor.cuda() for tensor in sources_of(9, 30))
    for beam in (1, 5):
        ours = beam_search(Graphs(model), source, lengths, SearchTask(SYMBOLS, max_lengths=40), Search(beam=beam))
        theirs = beam_search(model, source, lengths, SearchTask(SYMBOLS, max_lengths=40), Search(beam=beam))
        assert [h.tokens for (h, *_) in ours] == [h.tokens for (h, *_) in theirs]


def test_a_translator_asks_for_graphs_of_a_transformer_on_a_gpu_alone(trained: Path) -> None:
    translator, capture = Translator.load(trained), Again()
    model = translator.bundle.model
    assert translator.stepper is model
    graphs = EngineCache(capture)
    assert isinstance(graphs.stepper(model), Graphs)
    assert graphs.stepper(model) is graphs.stepper(model)
    hook = model.register_forward_hook(lambda *_: None)
    assert graphs.stepper(model) is model  # a graph would call no hook
    hook.remove()
    texts = ["eins zwei drei", "vier", "sechs sieben acht neun zehn"]
    expected = translator.n_best(texts, 2, beam=3)
    through = translator.searching()
    through._engines = graphs
    assert isinstance(through.stepper, Graphs)
    graphs.get = lambda *_: "not compiled here"  # type: ignore[method-assign]
    got = through.n_best(texts, 2, beam=3)
    assert [[one.text for one in found] for found in got] == [[one.text for one in found] for found in expected]
    assert capture.replays
