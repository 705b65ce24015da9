"""PyTorch's layers call our forward in every mode, with the same results as before.

``torch.nn.TransformerEncoderLayer`` bypasses its attention module in evaluation mode without gradients, which would
silently leave out a module that differs from PyTorch's.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from multihead.attention.torch_compatible.module import MultiheadAttention

WIDTH, HEADS, BATCH, LENGTH = 8, 2, 3, 5
PADDING = torch.arange(LENGTH) >= torch.tensor([5, 2, 3])[:, None]
MODES: dict[str, tuple[bool, Callable[[], Any]]] = {
    "training": (True, nullcontext),
    "evaluating": (False, nullcontext),
    "no_grad": (False, torch.no_grad),
    "inference_mode": (False, torch.inference_mode),
}


class Counted(MultiheadAttention):
    calls = 0

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        type(self).calls += 1
        return super().forward(*args, **kwargs)


@pytest.fixture(autouse=True)
def count() -> Iterator[None]:
    Counted.calls = 0
    yield
    Counted.calls = 0


def exchange(model: nn.Module) -> nn.Module:
    """Replace every attention module of PyTorch with ours."""
    for name, child in list(model.named_children()):
        if isinstance(child, nn.MultiheadAttention):
            setattr(model, name, Counted.from_torch(child))
        else:
            exchange(child)
    return model


def layer(**options: Any) -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 16, dropout=0.0, dtype=torch.float64, **options)


def draw(seed: int = 1, batch_first: bool = True) -> Tensor:
    x = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x if batch_first else x.transpose(0, 1)


def causal() -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.float64)


CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "padding": lambda: {"src_key_padding_mask": PADDING},
    "causal": lambda: {"src_mask": causal(), "is_causal": True},
    "both": lambda: {"src_mask": causal() < 0, "src_key_padding_mask": PADDING},
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options", [{"batch_first": True}, {}, {"batch_first": True, "norm_first": True, "bias": False}], ids=str
)
def test_an_encoder_layer_calls_ours(options: dict[str, Any], mode: str, call: str) -> None:
    training, grad = MODES[mode]
    theirs, ours = layer(**options), exchange(layer(**options))
    assert isinstance(ours, nn.TransformerEncoderLayer)
    with grad():
        x = draw(batch_first=options.get("batch_first", False))
        expected = theirs.train(training)(x, **CALLS[call]())
        output = ours.train(training)(x, **CALLS[call]())
    assert Counted.calls == 1
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("mode", MODES)
def test_is_causal_alone_reaches_ours(mode: str) -> None:
    """PyTorch's layer raises an error or is not causal."""
    training, grad = MODES[mode]
    theirs, ours = layer(batch_first=True), exchange(layer(batch_first=True))
    with grad():
        expected = theirs.train(training)(draw(), src_mask=causal())
        torch.testing.assert_close(ours.train(training)(draw(), is_causal=True), expected)


@pytest.mark.parametrize("call", ["nothing", "padding", "causal", "both"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_calls_ours_in_every_layer(when: str, mode: str, call: str) -> None:
    """Replaced before `TransformerEncoder` is constructed, or after, when it still passes nested tensors."""
    training, grad = MODES[mode]
    theirs = nn.TransformerEncoder(layer(batch_first=True), 2)
    if when == "after":
        ours = exchange(nn.TransformerEncoder(layer(batch_first=True), 2))
    else:
        ours = nn.TransformerEncoder(exchange(layer(batch_first=True)), 2, enable_nested_tensor=False)
    arguments = {name.removeprefix("src_") if name == "src_mask" else name: x for name, x in CALLS[call]().items()}
    with grad():
        expected = theirs.train(training)(draw(), **arguments)
        output = ours.train(training)(draw(), **arguments)
    assert Counted.calls == 2
    words = ~PADDING if "src_key_padding_mask" in arguments else torch.ones_like(PADDING)
    torch.testing.assert_close(output[words], expected[words])  # PyTorch's own modes differ in the padding


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_transformer_calls_ours_everywhere(mode: str) -> None:
    training, grad = MODES[mode]

    def make() -> nn.Transformer:
        torch.manual_seed(0)
        return nn.Transformer(WIDTH, HEADS, 2, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)

    theirs, ours = make(), exchange(make())
    source, target = draw(2), draw(3)
    call = {"src_key_padding_mask": PADDING, "memory_key_padding_mask": PADDING}
    with grad():
        expected = theirs.train(training)(source, target, tgt_mask=causal() < 0, tgt_is_causal=True, **call)
        output = ours.train(training)(source, target, tgt_mask=causal() < 0, tgt_is_causal=True, **call)
        assert Counted.calls == 2 + 2 * 2
        alone = ours(source, target, tgt_is_causal=True, **call)  # PyTorch requires the mask as well
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(alone, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_sentence_of_padding_alone_stays_finite(mode: str) -> None:
    training, grad = MODES[mode]
    padding = PADDING.clone()
    padding[1] = True
    encoder = exchange(nn.TransformerEncoder(layer(batch_first=True), 2)).train(training)
    with grad():
        output = encoder(draw(), src_key_padding_mask=padding)
        assert output.isfinite().all()
        others = encoder(draw()[::2], src_key_padding_mask=padding[::2])
    torch.testing.assert_close(output[::2][~padding[::2]], others[~padding[::2]])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", ["nothing", "padding"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_copies_and_pickles_call_ours_too(call: str, mode: str) -> None:
    """`TransformerEncoder` deep-copies its layer; a whole model is saved and loaded. No warning says anything of it."""
    training, grad = MODES[mode]
    made = nn.TransformerEncoder(exchange(layer(batch_first=True)), 2)
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    for model in (made, copy.deepcopy(made), torch.load(file, weights_only=False)):
        Counted.calls = 0
        with grad():
            model.train(training)(draw(), **CALLS[call]())
        assert Counted.calls == 2
        assert [len(part.self_attn._forward_pre_hooks) for part in model.layers] == [1, 1]


def test_a_module_pickled_by_version_0_1_gets_the_flag_and_the_hook() -> None:
    old = layer(batch_first=True).eval()
    module = Counted.from_torch(old.self_attn)
    module._forward_pre_hooks.clear()
    module._qkv_same_embed_dim = False
    old.self_attn = pickle.loads(pickle.dumps(module))
    assert old.self_attn._qkv_same_embed_dim
    with torch.no_grad():
        old(draw())
    assert Counted.calls == 1


@pytest.mark.parametrize("options", [{}, {"kdim": WIDTH, "vdim": WIDTH}, {"kdim": 3}, {"vdim": 3}, {"num_kv_heads": 1}])
def test_the_flag_says_whether_the_matrices_are_packed(options: dict[str, int]) -> None:
    """As in PyTorch's module: code that reads it takes `in_proj_weight`, or three matrices."""
    ours = MultiheadAttention(WIDTH, HEADS, **options)
    assert ours._qkv_same_embed_dim == (ours.in_proj_weight is not None) == (ours.q_proj_weight is None)
    if "num_kv_heads" not in options:
        theirs = nn.MultiheadAttention(WIDTH, HEADS, **options)
        assert ours._qkv_same_embed_dim == theirs._qkv_same_embed_dim
        assert MultiheadAttention.from_torch(theirs)._qkv_same_embed_dim == theirs._qkv_same_embed_dim
