"""Captured values are those that the model computes, and it continues with replaced values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

from multihead import Translator
from multihead.attention import Additive, Attention, Causal, MultiHeadAttention, Padding
from multihead.attention.torch_compatible.module import MultiheadAttention
from multihead.errors import ConfigurationError, InputError, ShapeError
from multihead.inspection.capture import attentions, capture
from multihead.inspection.replacements import mean_heads, patch_heads, zero_heads
from multihead.models.config import RecurrentConfig, TransformerConfig
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.models.transformer import Transformer

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),  # which PyTorch gives once per process
]

KINDS = ("encoder.1.self_attention", "decoder.1.self_attention", "decoder.0.cross_attention")
PLACES = ("encoder.layers.1.self_attn", "decoder.layers.1.self_attn", "decoder.layers.0.multihead_attn")


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


class Case:
    """A model, a call of it, and its output projections by the names of its attention modules."""

    def __init__(self, model: nn.Module, run: Callable[[nn.Module, int], Tensor], projection: str) -> None:
        self.model = model.eval()
        self._run = run
        self._projection = projection

    def output(self, model: nn.Module | None = None, seed: int = 0) -> Tensor:
        return self._run(self.model if model is None else model, seed)

    def without_columns(self, name: str, heads: list[int]) -> nn.Module:
        """A copy whose W^O has zeros in the columns of these heads."""
        model = copy.deepcopy(self.model)
        matrix = model.get_submodule(name).get_submodule(self._projection).weight
        assert isinstance(matrix, Tensor)
        size = matrix.shape[1] // 4
        for head in heads:
            matrix[:, head * size : (head + 1) * size] = 0
        return model


def ours(**settings: Any) -> Case:
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"source_vocab": 20, "target_vocab": 20, "width": 16, "heads": 4, "inner": 24}
    model = Transformer(TransformerConfig(**{**sizes, "encoder_layers": 2, "decoder_layers": 2, **settings}))

    def run(model: nn.Module, seed: int) -> Tensor:
        draw = torch.Generator().manual_seed(seed)
        source, target = (torch.randint(4, 20, (3, length), generator=draw) for length in (7, 5))
        logits: Tensor = model(source, torch.tensor([7, 4, 2]), target).logits
        return logits

    return Case(model, run, "output_projection")


def pytorch(kind: str = "eager") -> Case:
    torch.manual_seed(3)
    model = nn.Transformer(16, 4, 2, 2, 24, dropout=0.0, batch_first=True)
    if kind == "drop-in":
        for part in list(model.modules()):
            for name, child in part.named_children():
                if isinstance(child, nn.MultiheadAttention):
                    setattr(part, name, MultiheadAttention.from_torch(child))

    def run(model: nn.Module, seed: int) -> Tensor:
        draw = torch.Generator().manual_seed(seed)
        source, target = (torch.randn(3, length, 16, generator=draw) for length in (7, 5))
        hidden = torch.arange(7) >= torch.tensor([7, 4, 2])[:, None]
        mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
        found: Tensor = model(
            source, target, tgt_mask=mask, src_key_padding_mask=hidden, memory_key_padding_mask=hidden
        )
        return found

    return Case(model, run, "out_proj")


CASES: dict[str, tuple[Callable[[], Case], tuple[str, ...]]] = {
    "ours": (ours, KINDS),
    "grouped queries": (lambda: ours(kv_heads=2, positions="rotary"), KINDS),
    "relative positions": (lambda: ours(positions="shaw", relative_distance=2, kv_heads=2), KINDS),
    "PyTorch's": (pytorch, PLACES),
    "drop-in": (lambda: pytorch("drop-in"), PLACES),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Case, tuple[str, ...]]:
    make, names = CASES[request.param]
    return make(), names


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------ recording


@pytest.mark.parametrize(
    "settings", [{}, {"positions": "relative"}, {"positions": "shaw"}, {"kv_heads": 1, "positions": "rotary"}]
)
def test_weights_are_those_of_need_weights_and_the_output_is_unchanged(settings: dict[str, Any]) -> None:
    case = ours(**settings)
    before = case.output()
    with capture(case.model) as seen:
        assert torch.equal(case.output(), before)
    assert torch.equal(case.output(), before)
    draw = torch.Generator().manual_seed(0)
    source, target = (torch.randint(4, 20, (3, length), generator=draw) for length in (7, 5))
    wanted = case.model(source, torch.tensor([7, 4, 2]), target, need_weights=True).weights
    assert list(seen) == list(attentions(case.model))
    for pattern, layers in (
        ("encoder.*.self_attention", wanted.encoder),
        ("decoder.*.self_attention", wanted.decoder),
        ("decoder.*.cross_attention", wanted.cross),
    ):
        found = seen.weights_of(pattern)
        assert len(found) == len(layers) == 2
        for one, other in zip(found, layers, strict=True):
            close(one, other)


def test_heads_are_what_the_output_projection_reads() -> None:
    case, read = ours(), {}
    for name, part in attentions(case.model).items():
        part.get_submodule("output_projection").register_forward_pre_hook(
            lambda _, given, name=name: read.update({name: given[0]})
        )
    with capture(case.model) as seen:
        case.output()
    assert read.keys() == dict(seen).keys()
    for name, attended in seen.items():
        assert torch.equal(attended.heads.transpose(1, 2).flatten(2), read[name])


@pytest.mark.parametrize("kind", [nn.MultiheadAttention, MultiheadAttention])
@pytest.mark.parametrize("first", [True, False])
def test_one_module_of_pytorch(kind: type[nn.MultiheadAttention], first: bool) -> None:
    torch.manual_seed(0)
    module = kind(12, 3, batch_first=first, add_bias_kv=True).eval()
    x, y = torch.randn(2, 5, 12), torch.randn(2, 4, 12)
    given = (x, y, y) if first else (x.mT.permute(2, 0, 1), *[y.transpose(0, 1)] * 2)
    output, mean = module(*given)
    _, weights = module(*given, average_attn_weights=False)
    with capture(module) as seen:
        found, found_mean = module(*given)
        close(module(*given, need_weights=False)[0], output)
    close(found, output)
    close(found_mean, mean)
    assert len(seen.calls("")) == 2
    for attended in seen.calls(""):
        close(attended.weights, weights)
        width = attended.heads.transpose(1, 2).flatten(2) @ module.out_proj.weight.T + module.out_proj.bias
        close(width if first else width.transpose(0, 1), output)


def test_pytorchs_fast_path_does_not_bypass_it() -> None:
    """Two layers with padding: the fast path, with nested tensors, calls no attention module."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, hidden = torch.randn(2, 5, 16), torch.arange(5) >= torch.tensor([5, 3])[:, None]
    before = model(x, src_key_padding_mask=hidden)
    with pytest.MonkeyPatch.context() as patch:
        for part in model.layers:
            patch.setattr(part.self_attn, "forward", None)
        assert torch.equal(model(x, src_key_padding_mask=hidden), before)
    with capture(model) as seen:
        close(model(x, src_key_padding_mask=hidden), before)
    assert list(seen) == ["layers.0.self_attn", "layers.1.self_attn"]
    weights = seen["layers.1.self_attn"].weights
    assert weights.shape == (2, 4, 5, 5)
    close(weights[0].sum(-1), torch.ones(4, 5))
    assert weights[1, :, :, 3:].count_nonzero() == 0
    assert torch.equal(model(x, src_key_padding_mask=hidden), before)
    with capture(model, heads={"layers.0.self_attn": zero_heads(0, 1, 2, 3)}):
        assert not torch.allclose(model(x, src_key_padding_mask=hidden), before, atol=1e-3)


def test_compiled_search_and_packed_batches_do_not_bypass_it(trained: Path) -> None:
    translator = Translator.load(trained)
    plain = translator.translate(["eins zwei"])
    name = "decoder.0.cross_attention"
    with capture(translator.bundle.model) as seen:
        assert translator.translate(["eins zwei"]) == plain
        steps = len(seen.calls(name))
        assert steps > 1
        model = translator.bundle.model
        with torch.enable_grad():
            tokens = torch.tensor([[5, 6, 7, 2], [5, 2, 0, 0]])
            model.loss(tokens, torch.tensor([4, 2]), tokens, tokens, smoothing=0.0)
    assert seen[name].weights.shape == (2, 2, 4, 4)  # a row of its own for each sentence
    assert seen[name].weights.requires_grad
    assert translator.compiled


@pytest.mark.parametrize("how", ["compiled", "checkpointing"])
def test_other_ways_to_train_do_not_bypass_it(how: str) -> None:
    """The loss is recorded once, and its gradient can be taken after the block."""
    case, tokens = ours(dropout=0.0), torch.tensor([[5, 6, 7, 2], [5, 2, 0, 0]])
    model = case.model.train()
    assert isinstance(model, Transformer)
    losses = []
    for on in (False, True):
        setattr(model, how, on)
        with torch.enable_grad():
            with capture(model) as seen:
                losses.append(model.loss(tokens, torch.tensor([4, 2]), tokens, tokens, smoothing=0.0).total)
            losses[-1].backward()
        assert [len(seen.calls(name)) for name in seen] == [1] * 6
    assert torch.equal(*losses)


# ------------------------------------------------------------------------------------------ one head, step by step


RECURRENT: dict[str, dict[str, Any]] = {
    "bahdanau": {},
    "luong, fused": {"attend": "after", "score": "dot", "encoder_attention": "softmax"},
    "luong, fed": {"attend": "after", "input_feeding": True, "score": "bilinear", "cell": "lstm"},
    "sampled": {"alignment": "sample"},
    "segments": {"alignment": "segmentation", "score": "dot"},
}
ALIGNMENT = "decoder.attention"


def recurrent(name: str) -> tuple[RecurrentTranslator, tuple[Tensor, Tensor, Tensor]]:
    torch.manual_seed(3)
    settings = {"source_vocab": 20, "target_vocab": 20, "width": 16, **RECURRENT[name]}
    model = RecurrentTranslator(RecurrentConfig(**settings)).eval()
    source, target = (torch.randint(4, 20, (3, length)) for length in (7, 5))
    return model, (source, torch.tensor([7, 4, 2]), target)


@pytest.mark.parametrize("name", RECURRENT)
def test_the_steps_of_a_recurrent_translator(name: str) -> None:
    """Recording changes nothing; the rows of all steps together are the weights of the whole target."""
    model, given = recurrent(name)
    before, wanted = model(*given).logits, model(*given, need_weights=True).weights
    with capture(model) as seen:
        assert torch.equal(model(*given).logits, before)
    once = "luong, fused"
    assert len(seen.calls(ALIGNMENT)) == (1 if name == once else 5)
    whole = seen.whole(ALIGNMENT)
    close(whole.weights, wanted.cross[0])
    assert whole.heads.shape == (3, 1, 5, 16)
    assert list(seen) == ["encoder.attention.attention"] * (name == once) + [ALIGNMENT]
    if name == once:
        close(seen["encoder.attention.attention"].weights, wanted.encoder[0])
    with capture(model) as seen:
        model(*given, need_weights=True)
    assert torch.equal(seen.whole(ALIGNMENT).weights, wanted.cross[0])
    assert torch.equal(model(*given).logits, before)


@pytest.mark.parametrize("name", RECURRENT)
def test_the_alignment_of_a_recurrent_translator_is_replaced(name: str) -> None:
    """Recorded weights change nothing; with all weight on the first position, every context is its state."""
    model, given = recurrent(name)
    before = model(*given).logits
    with capture(model) as clean:
        model(*given)
    for what in ("weights", "heads"):
        steps = iter(clean.calls(ALIGNMENT))
        with capture(model, **{what: {ALIGNMENT: lambda own: getattr(next(steps), what)}}):  # noqa: B023
            close(model(*given).logits, before)

    def first(own: Tensor) -> Tensor:
        return nn.functional.one_hot(torch.tensor(0), own.shape[-1]).expand_as(own)

    with capture(model, weights={ALIGNMENT: first}) as seen:
        changed = model(*given)
        returned = model(*given, need_weights=True).weights.cross[0]
    assert not torch.allclose(changed.logits, before, atol=1e-3)
    assert torch.equal(returned, first(returned).to(returned))
    state = model.encoder(*given[:2]).states[:, :1]
    assert torch.equal(seen.whole(ALIGNMENT).heads[:, 0, :5], state.expand(3, 5, 16))
    with capture(model, heads={ALIGNMENT: zero_heads(0)}) as seen:
        model(*given)
    assert not seen.whole(ALIGNMENT).heads.any()


def test_a_recurrent_translator_searches_and_draws_as_before_while_it_is_captured() -> None:
    model, (source, lengths, target) = recurrent("sampled")
    state = model.start(source, lengths)
    plain, after = model.step(target[:, 0], state)
    with capture(model) as seen:
        state = model.start(source, lengths)
        found, _ = model.step(target[:, 0], state)
        grouped = model.step(target[:, 1].repeat_interleave(2), after.select(torch.arange(3).repeat_interleave(2)))
    assert torch.equal(found, plain)
    assert [tuple(call.weights.shape) for call in seen.calls(ALIGNMENT)] == [(3, 1, 1, 7), (3, 1, 2, 7)]
    assert len(grouped[0]) == 6
    model.train()
    drawn = []
    for watched in (False, True):
        torch.manual_seed(9)
        with torch.enable_grad(), capture(model) if watched else nullcontext():
            drawn.append(model.loss(source, lengths, target, target, smoothing=0.0).total)
    assert torch.equal(*drawn)


def test_calls_of_different_inputs_are_not_joined() -> None:
    torch.manual_seed(0)
    module = Attention(Additive(4, 4, 4))
    with capture(module) as seen:
        for keys in (3, 5):
            module(torch.randn(2, 1, 4), torch.randn(2, keys, 4))
    with pytest.raises(
        ShapeError, match=r"its calls have different \[batch, heads, keys\], \[2, 1, 3\] and \[2, 1, 5\]"
    ):
        seen.whole("")


# ------------------------------------------------------------------------------------------ replacing


def test_a_head_set_to_zero_is_one_without_its_columns(case: tuple[Case, tuple[str, ...]]) -> None:
    model, names = case
    before = model.output()
    for name in names:
        wanted = model.output(model.without_columns(name, [1, 2]))
        assert not torch.allclose(wanted, before, atol=1e-3)
        for what in ("heads", "weights"):
            with capture(model.model, **{what: {name: zero_heads(1, 2)}}) as seen:
                close(model.output(), wanted)
            assert seen[name].heads[:, 1:3].count_nonzero() == 0
    close(model.output(), before)


def test_its_own_recording_changes_nothing(case: tuple[Case, tuple[str, ...]]) -> None:
    model, names = case
    with capture(model.model) as seen:
        before = model.output()
    for what in ("heads", "weights"):
        own = {name: getattr(seen[name], what) for name in seen}
        with capture(model.model, **{what: own}):
            close(model.output(), before)
        with capture(model.model, **{what: {name: patch_heads(own[name], 0, 3) for name in names}}):
            close(model.output(), before)


@pytest.mark.parametrize("kind", [MultiHeadAttention, nn.MultiheadAttention, MultiheadAttention])
def test_with_all_heads_of_another_run_the_output_is_its(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = kind(12, 3) if kind is MultiHeadAttention else kind(12, 3, batch_first=True)
    one, other = torch.randn(2, 2, 5, 12)
    with capture(module) as seen:
        wanted, _ = module(other, other, other)
    for what in ("heads", "weights"):
        with capture(module, **{what: {"": getattr(seen[""], what)}}):
            found, _ = module(one, one, other)
        close(found, wanted)
    with capture(module, heads={"": patch_heads(seen[""].heads, 1)}) as mixed:
        module(one, one, one)
    close(mixed[""].heads[:, 1], seen[""].heads[:, 1])
    assert not torch.allclose(mixed[""].heads[:, 0], seen[""].heads[:, 0], atol=1e-2)


def test_a_function_of_weights_is_used_and_recorded() -> None:
    """The first head looks at the first key alone."""
    torch.manual_seed(0)
    module = MultiHeadAttention(12, 3).eval()
    x = torch.randn(2, 5, 12)

    def first_key(weights: Tensor) -> Tensor:
        weights = weights.clone()
        weights[:, 0] = nn.functional.one_hot(torch.tensor(0), 5).to(weights)
        return weights

    with capture(module, weights={"": first_key}) as seen:
        output, weights = module(x, mask=Padding([5, 3]) & Causal(), need_weights=True)
    value = module.project(x).value
    close(seen[""].heads[:, 0], value[:, 0, :1].expand(2, 5, 4))
    assert weights is seen[""].weights
    close(output, module.output_projection(seen[""].heads.transpose(1, 2).flatten(2)))


def test_the_mean_of_a_head_counts_the_real_queries() -> None:
    case, name = ours(), "encoder.0.self_attention"
    with capture(case.model) as plain:
        case.output()
    real = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]
    with capture(case.model, heads={name: mean_heads(2, real=real)}) as seen:
        case.output()
    mean = plain[name].heads.transpose(1, 2)[real].mean(0)[2]
    close(seen[name].heads[:, 2], mean.expand(3, 7, 4))
    assert torch.equal(seen[name].heads[:, [0, 1, 3]], plain[name].heads[:, [0, 1, 3]])
    with capture(case.model, heads={name: mean_heads(2)}) as seen:
        case.output()
    close(seen[name].heads[:, 2], plain[name].heads[:, 2].flatten(0, 1).mean(0).expand(3, 7, 4))


def test_a_gradient_reaches_a_replacement() -> None:
    """A gate g on each head: d loss / d g_h is the sum of O_h times its gradient (Michel et al. 2019)."""
    case, name = ours(), "encoder.0.self_attention"
    with torch.enable_grad():
        gate = torch.ones(4, requires_grad=True)
        with capture(case.model, heads={name: lambda own: own * gate[:, None, None]}) as seen:
            output = case.output().square().sum()
        heads = seen[name].heads
        found, gradient = torch.autograd.grad(output, [gate, heads])
    close(found, (heads * gradient).sum((0, 2, 3)))


# ------------------------------------------------------------------------------------------ names and errors


def test_only_what_is_named_is_recorded() -> None:
    case = ours()
    with capture(case.model, only=["decoder.0.cross_attention"], heads={KINDS[0]: zero_heads(0)}) as seen:
        with pytest.raises(KeyError, match="has not been called yet"):
            seen[KINDS[0]]
        case.output()
    assert list(seen) == [KINDS[0], "decoder.0.cross_attention"]
    with pytest.raises(KeyError, match=r"not captured; did you mean 'encoder\.1\.self_attention'"):
        seen["encoder.1.self_atention"]
    with pytest.raises(KeyError, match="no module that was called matches"):
        seen.weights_of("encoder.0.*")


def test_what_cannot_be_captured() -> None:
    case = ours()
    with pytest.raises(ConfigurationError, match=r"not an attention .* did you mean 'encoder.1.self_attention'"):
        capture(case.model, heads={"encoder.1.self_atention": zero_heads(0)}).__enter__()
    with pytest.raises(InputError, match="Linear has no attention that can be captured"):
        capture(nn.Linear(2, 2)).__enter__()
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(InputError, match=r"expected a module .* got str"):
            capture("run").__enter__()  # type: ignore[arg-type]
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    encoder = case.model.get_submodule("encoder")
    with capture(encoder), pytest.raises(ConfigurationError, match="captured already"):
        capture(case.model).__enter__()
    with capture(case.model):  # which is free again
        pass
    for wrong in (zero_heads(4), zero_heads(-1), zero_heads()):
        with (
            capture(case.model, heads={KINDS[0]: wrong}),
            pytest.raises(ConfigurationError, match="heads: expected numbers from 0 to 3"),
        ):
            case.output()


@pytest.mark.parametrize("make", [ours, pytorch, lambda: pytorch("drop-in")])
def test_after_an_error_the_model_is_as_before(make: Callable[[], Case]) -> None:
    case = make()
    before = case.output()
    (name, *_) = attentions(case.model)
    hooks = [(len(part._forward_pre_hooks), sorted(vars(part))) for part in case.model.modules()]
    for replaced in (torch.zeros(1, 4, 7, 4), patch_heads(torch.zeros(3, 4, 7, 1), 0)):
        with (
            pytest.raises(ShapeError, match=rf"{name}: the heads have shape \[3, 4, 7, 4\], .* same lengths"),
            capture(case.model, heads={name: replaced}),
        ):
            case.output()
    assert [(len(part._forward_pre_hooks), sorted(vars(part))) for part in case.model.modules()] == hooks
    assert torch.equal(case.output(), before)
