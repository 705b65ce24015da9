"""Training on packed tokens equals training on the padded batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from multihead.kernels import random
from multihead.models.config import TransformerConfig
from multihead.models.network import Network
from multihead.models.transformer import ROUND, Transformer, pack

LENGTHS = torch.tensor([7, 1, 12, 5, 9])
TARGETS = torch.tensor([4, 11, 1, 8, 6])
SETTINGS: list[dict[str, Any]] = [
    {"norm": "post", "dropout": 0.0},
    {"norm": "pre", "dropout": 0.4},
    {"norm": "post", "dropout": 0.4, "feed_forward": "gelu", "embedding_norm": True},
    {"norm": "pre", "dropout": 0.2, "feed_forward": "swiglu", "positions": "learned", "max_positions": 8},
    {"norm": "pre", "dropout": 0.2, "positions": "rotary"},
    {"norm": "pre", "dropout": 0.2, "positions": "alibi"},
    {"norm": "pre", "dropout": 0.2, "positions": "none"},
    {"norm": "pre", "dropout": 0.2, "query_key_norm": "rms", "positions": "rotary"},
    {"norm": "pre", "dropout": 0.2, "query_key_norm": "layer"},
    {"norm": "pre", "dropout": 0.2, "encoder_window": 3},
    {"norm": "pre", "dropout": 0.2, "block": "parallel"},
    {"norm": "post", "dropout": 0.2, "embedding_scale": "projection", "tie_output": False},
    {"norm": "post", "dropout": 0.2, "feed_forward": "silu", "sinusoid": "halves", "output_bias": True},
    {"norm": "pre", "dropout": 0.2, "source_end": False},
    {"norm": "pre", "dropout": 0.2, "norm_kind": "rms", "feed_forward": "gelu_tanh", "feed_forward_bias": False},
]


def ids(lengths: Tensor, vocabulary: int, seed: int) -> Tensor:
    """Rows of this many ids from 4 on, padded with 0 on the right."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(4, vocabulary, (len(lengths), int(lengths.max())), generator=generator)
    return drawn * (torch.arange(drawn.shape[1]) < lengths[:, None])


def example(config: TransformerConfig) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A source, its lengths, and a target as input and as output."""
    target = ids(TARGETS, config.target_vocab, 2)
    return ids(LENGTHS, config.source_vocab, 1), LENGTHS, target.roll(1, 1) * (target > 0), target


def learned(model: Transformer, seed: int, precision: torch.dtype | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of one step."""
    model.zero_grad()
    with random.step(seed), torch.autocast("cpu", precision, enabled=precision is not None):
        loss = model.loss(*example(model.config), smoothing=0.1)
    loss.total.backward()
    return loss.total.detach(), {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def model_of(**settings: Any) -> Transformer:
    """A small model in float32, as in training."""
    torch.manual_seed(3)
    sizes = {"width": 24, "heads": 3, "inner": 40, "encoder_layers": 2, "decoder_layers": 2}
    config = TransformerConfig(source_vocab=30, target_vocab=30, padding_id=0, **{**sizes, **settings})
    return Transformer(config).train()


def of_the_padded_batch(model: Transformer, seed: int, precision: torch.dtype | None, monkeypatch: Any) -> Any:
    """The same by `Network.loss`, which does not pack."""
    with monkeypatch.context() as patch:
        patch.setattr(Transformer, "loss", Network.loss)
        return learned(model, seed, precision)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(str(value) for value in settings.values()))
def test_loss_and_gradients_are_those_of_the_padded_batch(settings: Any, compiled: Any, monkeypatch: Any) -> None:
    model = model_of(**settings)
    assert model._packs(*example(model.config)[::2])
    loss, gradients = learned(model, 5)
    want, theirs = of_the_padded_batch(model, 5, None, monkeypatch)
    torch.testing.assert_close(loss, want, rtol=1e-5, atol=0)
    with compiled():  # and those of the plain kernels, which never pack
        assert not model._packs(*example(model.config)[::2])
        torch.testing.assert_close(learned(model, 5)[0], want, rtol=1e-5, atol=0)
    assert gradients.keys() == theirs.keys()
    for name, gradient in gradients.items():
        scale = theirs[name].abs().max().item()
        torch.testing.assert_close(
            gradient, theirs[name], rtol=0, atol=2e-5 * scale + 1e-7, msg=lambda m, n=name: f"{n} {m}"
        )
    if settings["dropout"]:
        assert abs(learned(model, 6)[0] - loss) > 1e-3 * loss  # another seed, another mask


def test_in_bfloat16_too(compiled: Any, monkeypatch: Any) -> None:
    model = model_of(norm="post", dropout=0.3)
    loss, gradients = learned(model, 5, torch.bfloat16)
    want, theirs = of_the_padded_batch(model, 5, torch.bfloat16, monkeypatch)
    torch.testing.assert_close(loss, want, rtol=2e-3, atol=0)
    for name, gradient in gradients.items():
        assert (gradient - theirs[name]).norm() <= 0.05 * theirs[name].norm() + 1e-6, name


def test_pieces_of_a_batch_add_up_to_it(compiled: Any) -> None:
    """Rows draw what they draw in the whole batch, however it is split (contract 9)."""
    model = model_of(norm="pre", dropout=0.3)
    loss, gradients = learned(model, 5)
    model.zero_grad()
    total = torch.zeros(())
    for start, stop in ((0, 2), (2, 5)):
        source, lengths, read, predicted = (part[start:stop] for part in example(model.config))
        with random.step(5, first_row=start):
            part = model.loss(source[:, : int(lengths.max())], lengths, read, predicted, smoothing=0.1)
        part.total.backward()
        total += part.total.detach()
    torch.testing.assert_close(total, loss, rtol=1e-5, atol=0)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [{"attention_dropout": 0.1}, {"kv_heads": 1}],
    ids=lambda settings: next(iter(settings)),
)
def test_what_the_kernels_do_not_take_stays_padded(settings: Any, compiled: Any) -> None:
    model = model_of(**settings)
    assert not model._packs(*example(model.config)[::2])
    assert learned(model, 5)[0].isfinite()


def test_a_loss_is_the_same_with_and_without_gradients(compiled: Any, monkeypatch: Any) -> None:
    """Both are packed and equal bit for bit; the padded validation loss differs only by rounding."""
    model = model_of().eval()
    source, lengths, read, wanted = example(model.config)
    learning = model.loss(source, lengths, read, wanted, smoothing=0.0)
    with torch.no_grad():
        validated = model.loss(source, lengths, read, wanted, smoothing=0.0)
        monkeypatch.setattr(model, "_packs", lambda *_: False)
        padded = model.loss(source, lengths, read, wanted, smoothing=0.0)
    assert torch.equal(learning.total, validated.total)
    torch.testing.assert_close(padded.total, validated.total, rtol=1e-5, atol=0.0)


def test_a_loss_is_not_packed_where_it_is_not_compiled(compiled: Any) -> None:
    model = model_of()
    source, _, read, _ = example(model.config)
    assert model._packs(source, read)
    assert not model.double()._packs(source, read)


def test_packing_keeps_every_word_in_its_order_and_says_where_it_stood() -> None:
    source = ids(LENGTHS, 30, 1)
    packed = pack(source, LENGTHS, 0)
    assert packed.total == LENGTHS.sum()
    assert len(packed.tokens) % ROUND == 0
    assert torch.equal(packed.tokens[: packed.total], source[source > 0])
    assert torch.equal(source[packed.rows, packed.positions][: packed.total], packed.tokens[: packed.total])
    assert not packed.tokens[packed.total :].any()


CHECKPOINTED: list[dict[str, Any]] = [
    {"norm": "post", "dropout": 0.0},
    {"norm": "pre", "dropout": 0.3, "positions": "rotary", "query_key_norm": "rms", "feed_forward": "swiglu"},
    {"norm": "pre", "dropout": 0.3, "positions": "relative"},  # padded
    {"norm": "post", "dropout": 0.1, "attention_dropout": 0.2},  # padded, drawn by PyTorch
]


@pytest.mark.parametrize("settings", CHECKPOINTED, ids=str)
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_layers_that_are_computed_again_are_the_same(settings: Any, precision: Any) -> None:
    """Loss and every gradient, bit by bit, with our random numbers and PyTorch's; and most states are not kept."""
    model, results, kept = model_of(**settings), [], []
    for model.checkpointing in (False, True):
        sizes: list[int] = []

        def count(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        torch.manual_seed(4)
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            results.append(learned(model, 5, precision))
        kept.append(sum(sizes))
    (loss, gradients), (again, others) = results
    assert torch.equal(loss, again)
    assert gradients.keys() == others.keys()
    assert all(torch.equal(gradients[name], others[name]) for name in gradients)
    assert kept[1] < 0.6 * kept[0]


def test_layers_are_computed_again_for_every_backward_pass_and_outside_of_a_step() -> None:
    model = model_of(norm="pre", dropout=0.4)
    found = []
    for model.checkpointing in (False, True):
        torch.manual_seed(4)
        model.zero_grad()
        loss = model.loss(*example(model.config), smoothing=0.1).total
        for _ in range(2):
            with random.step(9):  # of another computation
                loss.backward(retain_graph=True)
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    with torch.no_grad():
        assert model.eval().loss(*example(model.config), smoothing=0.1).total.isfinite()
