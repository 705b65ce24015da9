"""The decoder-only language model: equations, loss, steps with a cache, searches."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multihead.configuration import build
from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.sampling import sample
from multihead.decoding.search import Search, Symbols
from multihead.decoding.stepper import State, Stepper
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError
from multihead.models.decoder.config import DECODER_PRESETS, DecoderConfig, decoder_preset
from multihead.models.decoder.network import DecoderLM
from multihead.training.splitting import Trainable

CLOSE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
PAD, BEGIN, END, VOCAB = 0, 1, 2, 9
SYMBOLS = Symbols(BEGIN, END, (PAD, BEGIN))

KINDS: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "post-norm, learned": {"norm": "post", "positions": "learned", "max_positions": 20, "tie_output": False},
    "like LLaMA": {
        "positions": "rotary",
        "norm_kind": "rms",
        "feed_forward": "swiglu",
        "kv_heads": 1,
        "attention_bias": False,
        "feed_forward_bias": False,
        "embedding_scale": "none",
    },
    "relative": {"positions": "relative", "query_key_norm": "rms"},
    "parallel": {"block": "parallel", "positions": "rotary"},
    "shaw": {"positions": "shaw", "relative_distance": 3},
    "alibi": {"positions": "alibi", "embedding_scale": "projection", "output_bias": True},
    "none": {"positions": "none"},
}


def network(kind: str = "sinusoidal", seed: int = 0, **changes: Any) -> DecoderLM:
    """A small network in float64 with random norms and biases."""
    sizes = {"vocab": VOCAB, "width": 8, "heads": 2, "inner": 12, "decoder_layers": 2, "dropout": 0.0}
    torch.manual_seed(seed)
    made = DecoderLM(build(DecoderConfig, sizes | KINDS[kind] | changes, "a test")).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return made


def texts(lengths: tuple[int, ...] = (5, 1, 7, 3), seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows that begin with the begin symbol, padded on the right; and their lengths."""
    drawn = torch.Generator().manual_seed(seed)
    rows = torch.randint(3, VOCAB, (len(lengths), max(lengths)), generator=drawn)
    rows[:, 0] = BEGIN
    sizes = torch.tensor(lengths)
    return rows.masked_fill(torch.arange(max(lengths)) >= sizes[:, None], PAD), sizes


def test_the_model_is_what_training_and_searches_ask_for() -> None:
    model = network()
    assert isinstance(model, Trainable)
    assert isinstance(model, Stepper)
    assert isinstance(model.start(*texts()), State)


def test_the_layers_are_those_of_pytorch_with_a_causal_mask() -> None:
    """Of `torch.nn.TransformerEncoder`, with the same weights: an oracle that shares no code with ours."""
    model = network()
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, norm_first=True, batch_first=True, layer_norm_eps=1e-6)
    theirs = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8, eps=1e-6), enable_nested_tensor=False).double().eval()
    own = dict(model.named_parameters())
    names = {
        "self_attn.in_proj_": "self_attention.in_projection.",
        "self_attn.out_proj.": "self_attention.output_projection.",
        "linear1.": "feed_forward.expand.",
        "linear2.": "feed_forward.contract.",
        "norm1.": "self_residual.norm.",
        "norm2.": "feed_forward_residual.norm.",
    }
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            for old, new in names.items():
                name = name.replace(old, new)
            parameter.copy_(own[name])
    tokens, _ = texts((7, 7))
    at = torch.arange(7).double()[:, None] / 10000 ** (torch.arange(0, 8, 2).double() / 8)
    places = torch.stack((at.sin(), at.cos()), -1).flatten(-2)
    table = own["embedding.table.weight"]
    mask = torch.full((7, 7), -torch.inf, dtype=torch.float64).triu(1)
    expected = theirs(table[tokens] * math.sqrt(8) + places, mask=mask) @ table.T
    torch.testing.assert_close(model(tokens), expected, rtol=1e-6, atol=1e-6)  # the positions are float32


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_depends_on_the_tokens_before_it_and_on_nothing_else(kind: str) -> None:
    model, (tokens, _) = network(kind), texts((7,))
    before = model(tokens)
    for place in range(1, 7):
        changed = tokens.clone()
        changed[0, place] = 3 + (changed[0, place] - 2) % 6
        after = model(changed)
        torch.testing.assert_close(after[:, :place], before[:, :place], **CLOSE)
        assert not torch.allclose(after[:, place], before[:, place])


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_other_rows_change_nothing(kind: str) -> None:
    model, (tokens, lengths) = network(kind), texts()
    together = model(tokens)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(model(tokens[row : row + 1, :length])[0], together[row, :length], **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_sum_of_the_log_probabilities(kind: str) -> None:
    model, (tokens, lengths) = network(kind), texts()
    following = tokens.roll(-1, dims=1)
    following[:, -1] = PAD
    following[torch.arange(4), lengths - 1] = END
    found = model.loss(tokens, following, smoothing=0.0)
    expected, smoothed, hits = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), 0
    for row, length in enumerate(lengths.tolist()):
        logits, targets = model(tokens[row : row + 1, :length])[0], following[row, :length]
        expected = expected + F.cross_entropy(logits, targets, reduction="sum")
        smoothed = smoothed + F.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)
        hits += int((logits.argmax(-1) == targets).sum())
    torch.testing.assert_close(found.nll, expected, rtol=1e-6, atol=1e-6)  # the sum is in float32
    assert int(found.correct) == hits
    torch.testing.assert_close(model.loss(tokens, following, smoothing=0.1).total, smoothed, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_with_a_cache_equal_the_whole_pass(kind: str) -> None:
    """From prompts of different lengths, which are read in one pass; the search's begin symbol is ignored then."""
    model, (tokens, lengths) = network(kind), texts()
    written = torch.randint(3, VOCAB, (4, 4), generator=torch.Generator().manual_seed(5))
    state = model.start(tokens, lengths)
    last = torch.full((4,), BEGIN)
    for step in range(5):
        found, state = model.step(last, state)
        for row, length in enumerate(lengths.tolist()):
            whole = torch.cat((tokens[row, :length], written[row, :step]))[None]
            torch.testing.assert_close(found[row], model(whole)[0, -1].log_softmax(-1), **CLOSE)
        last = written[:, step] if step < 4 else last


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_selected_and_joined(kind: str) -> None:
    model, (tokens, lengths) = network(kind), texts()
    _, early = model.step(torch.full((4,), BEGIN), model.start(tokens, lengths))
    late = model.start(tokens[2:3], lengths[2:3])
    rows = torch.tensor([3, 0, 0])
    joined = early.select(rows).join(late)
    assert joined.rows == 4
    following = torch.tensor([4, 5, 6, BEGIN])
    found, _ = model.step(following, joined)
    for place, (row, length) in enumerate(zip((3, 0, 0), (3, 5, 5), strict=True)):
        whole = torch.cat((tokens[row, :length], following[place : place + 1]))[None]
        torch.testing.assert_close(found[place], model(whole)[0, -1].log_softmax(-1), **CLOSE)
    torch.testing.assert_close(found[3], model(tokens[2:3, :7])[0, -1].log_softmax(-1), **CLOSE)
    assert joined.select(torch.tensor([], dtype=torch.long)).rows == 0


def log_probability(model: DecoderLM, prompt: list[int], continuation: tuple[int, ...]) -> float:
    """log p of a continuation after a prompt, by the whole pass."""
    whole = torch.tensor([[*prompt, *continuation]])
    rows = model(whole)[0].log_softmax(-1)
    return sum(float(rows[len(prompt) - 1 + place, token]) for place, token in enumerate(continuation))


def test_greedy_search_beam_search_and_samples_continue_a_prompt() -> None:
    """A beam as wide as the space finds the best of all continuations; scores are the model's."""
    model, (tokens, lengths) = network("like LLaMA", seed=3), texts((4, 1, 3))
    task = SearchTask(SYMBOLS, max_lengths=2)
    greedy = greedy_search(model, tokens, lengths, task)
    wide = beam_search(model, tokens, lengths, task, Search(beam=50, alpha=0.0))
    drawn = sample(model, tokens, lengths, task, seed=4)
    with torch.no_grad():
        for row, length in enumerate(lengths.tolist()):
            prompt, prefix = tokens[row, :length].tolist(), list[int]()
            for _ in range(2):
                scores = model(torch.tensor([[*prompt, *prefix]]))[0, -1]
                scores[[PAD, BEGIN]] = -torch.inf
                prefix.append(int(scores.argmax()))
                if prefix[-1] == END:
                    break
            assert list(greedy[row].tokens) == [token for token in prefix if token != END]
            words = range(3, VOCAB)
            ended = [(*body, END) for size in range(2) for body in itertools.product(words, repeat=size)]
            cut = list(itertools.product(words, repeat=2))
            best = max([*ended, *cut], key=lambda text: log_probability(model, prompt, text))
            assert wide[row][0].tokens == tuple(token for token in best if token != END)
            assert wide[row][0].log_probability == pytest.approx(log_probability(model, prompt, best), abs=1e-5)
            (one,) = drawn[row]
            symbols = (*one.tokens, END) if one.finished else one.tokens
            assert one.log_probability == pytest.approx(log_probability(model, prompt, symbols), abs=1e-5)


def test_it_learns_a_markov_chain_to_its_entropy_rate(without_checks: Any, one_thread: None) -> None:
    """Of three symbols, each of which is followed by the next with 0.8; no model can do better than the entropy."""
    chain = torch.tensor([[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])
    entropy = -sum(p * math.log(p) for p in (0.1, 0.8, 0.1))
    drawn = torch.Generator().manual_seed(1)

    def rows(count: int) -> Tensor:
        states = [torch.randint(0, 3, (count,), generator=drawn)]
        for _ in range(16):
            states.append(torch.multinomial(chain[states[-1]], 1, generator=drawn)[:, 0])
        return torch.stack(states, 1) + 3

    torch.manual_seed(0)
    model = DecoderLM(DecoderConfig(vocab=6, width=16, heads=2, inner=16, decoder_layers=1, dropout=0.0))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    with without_checks():
        for _ in range(150):
            batch = rows(32)
            mean = model.loss(batch[:, :-1], batch[:, 1:], smoothing=0.0).total / (32 * 16)
            mean.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
        test = rows(1000)
        with torch.no_grad():
            loss = float(model.loss(test[:, :-1], test[:, 1:], smoothing=0.0).nll) / (1000 * 16)
    assert loss == pytest.approx(entropy, abs=0.03)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"padding_id": 9}, "padding_id must be an entry of the vocabulary"),
        ({"heads": 3}, "width must be a multiple of heads"),
        ({"positions": "rotary", "key_dim": 3, "value_dim": 3}, "rotary positions rotate pairs"),
        ({"encoder_layers": 2}, "no setting 'encoder_layers'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        network(**changes)


def test_presets() -> None:
    for name, sizes in DECODER_PRESETS.items():
        assert DecoderConfig(vocab=9, **decoder_preset(name)).width == sizes["width"]
    with pytest.raises(ConfigurationError, match="no preset 'smal'; did you mean 'small'"):
        decoder_preset("smal")
    assert "2 layers, width 8, inner 12, 2 heads, pre-norm" in network().config.summary
