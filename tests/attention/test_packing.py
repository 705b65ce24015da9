"""Self-attention that projects the words alone is the one that projects everything, gradients and all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from multihead.attention import Causal, Mask, MultiHeadAttention, Padding
from multihead.attention import packing as module
from multihead.attention.packing import LEAST, WORTH, Packing, packing_of

WIDTH, HEADS, BATCH, LENGTH = 12, 4, 4, 6
WORDS = [6, 2, 0, 3]
EXACT = {"rtol": 1e-10, "atol": 1e-12}


@pytest.fixture(autouse=True)
def small_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it pays in tests, too."""
    monkeypatch.setattr(module, "LEAST", 1)
    monkeypatch.setattr(module, "WORTH", 0)


def attention(**settings: object) -> MultiHeadAttention:
    torch.manual_seed(0)
    made = MultiHeadAttention(WIDTH, HEADS, **settings).double()  # type: ignore[arg-type]
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)  # zero biases would hide a mistake
    return made


def sentences(seed: int = 1) -> Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(ours: MultiHeadAttention, x: Tensor, packed: bool, **call: object) -> list[Tensor]:
    """Output, weights and all gradients. `step` is the way that projects everything."""
    x = x.detach().requires_grad_()
    ours.zero_grad()
    output, weights = ours(x, **call) if packed else ours.step(x, **call)[:2]
    factors = sentences(seed=5)
    loss = (output * factors).sum() + (0 if weights is None else weights.pow(2).sum())
    loss.backward()
    gradients = [parameter.grad for parameter in ours.parameters()]
    return [output.detach(), *([] if weights is None else [weights.detach()]), x.grad, *gradients]


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("settings", [{}, {"kv_heads": 2, "bias": False}, {"key_width": 8, "value_width": 16}], ids=str)
@pytest.mark.parametrize(
    "mask",
    [
        Padding(WORDS, WORDS),
        Padding(WORDS, WORDS) & Causal(),
        Padding(WORDS, [3, 4, 1, 0]),
        Padding([3, 4, 1, 0], WORDS),
        Padding(WORDS) & Padding([5, 5, 4, 4], [6, 1, 2, 5]),
        Padding([99, 2, 0, 3], [99, 2, 0, 3]),
    ],
    ids=repr,
)
def test_equals_projecting_everything(mask: Mask, settings: dict[str, object], need_weights: bool) -> None:
    ours, x = attention(**settings), sentences()
    assert packing_of(mask, x) is not None
    packed, whole = (run(ours, x, way, mask=mask, need_weights=need_weights) for way in (True, False))
    for one, other in zip(packed, whole, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_a_bias_and_a_backend_go_through() -> None:
    ours, x, mask = attention(), sentences(), Padding(WORDS, WORDS)
    call = {"mask": mask, "bias": torch.randn(LENGTH, LENGTH, dtype=torch.float64), "backend": "explicit"}
    packed, whole = (run(ours, x, way, **call) for way in (True, False))
    for one, other in zip(packed, whole, strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_the_padding_s_output_is_that_of_zeros() -> None:
    ours = attention()
    output, _ = ours(sentences(), mask=Padding(WORDS, WORDS))
    expected = ours.output_projection.bias.detach()
    for row, count in zip(output, WORDS, strict=True):
        assert torch.equal(row[count:], expected.expand(LENGTH - count, -1))


def test_nothing_in_the_padding_reaches_anything() -> None:
    ours, mask = attention(), Padding(WORDS, WORDS)
    clean = run(ours, sentences(), True, mask=mask)
    dirty = sentences()
    for row, count in zip(dirty, WORDS, strict=True):
        row[count:] = torch.tensor([torch.nan, torch.inf, 1e300] * (WIDTH // 3))
    for one, other in zip(clean, run(ours, dirty, True, mask=mask), strict=True):
        assert torch.equal(one, other)  # of the parameters' gradients, `step` can only say so where x is zeroed first


def test_twice_differentiable() -> None:
    ours, mask = attention(), Padding(WORDS, WORDS)

    def of_words(x: Tensor) -> Tensor:
        return ours(x, mask=mask, backend="explicit")[0]

    assert torch.autograd.gradgradcheck(of_words, sentences().requires_grad_(), fast_mode=True)


def test_hooks_on_the_output_see_the_words_and_one_place_of_padding() -> None:
    ours, seen = attention(), []
    ours.output_projection.register_forward_hook(lambda module, args, output: seen.append(args[0].shape))
    ours(sentences(), mask=Padding(WORDS, WORDS))
    assert seen == [(sum(WORDS) + 1, WIDTH)]


@pytest.mark.parametrize(
    "mask",
    [
        None,
        Causal(),
        Padding(WORDS),
        Padding(torch.tensor(WORDS), WORDS),
        Padding(WORDS, torch.tensor(WORDS)),
        Padding(WORDS, WORDS) | Causal(),
        ~Padding(WORDS, WORDS),
        Padding(WORDS[:3], WORDS[:3]),
    ],
    ids=repr,
)
def test_not_without_lengths_of_both_on_the_host(mask: Mask | None) -> None:
    assert packing_of(mask, sentences()) is None


def test_only_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    mask, full = Padding([LEAST // 2] * 2, [LEAST // 2] * 2), LEAST // 2
    wide = torch.zeros(2, full + full // 4, WORTH * 5)  # a fifth is padding
    assert packing_of(mask, wide) is not None
    assert packing_of(mask, wide[:, :, 1:]) is None
    assert packing_of(mask, wide[:, :full]) is None  # no padding
    assert packing_of(Padding([1], [1]), torch.zeros(1, LEAST - 1, 999)) is None  # too few positions
    assert packing_of(mask, wide.to("meta")) is None
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert packing_of(mask, wide) is None


def test_the_shortest_of_several_paddings_counts() -> None:
    both = packing_of(Padding(WORDS, WORDS) & Padding([3, 3, 3, 3], [1, 1, 1, 1]), sentences())
    assert both is not None
    assert len(both.words) == 3 + 2 + 0 + 3 + 1  # words, and one place of padding


def test_spreading_undoes_packing() -> None:
    made = packing_of(Padding(WORDS, WORDS), sentences())
    assert isinstance(made, Packing)
    x = sentences()
    words = made.spread(made.pack(x))
    for before, after, count in zip(x, words, WORDS, strict=True):
        assert torch.equal(after[:count], before[:count])
        assert not after[count:].any()
    everything = made.spread_with_padding(made.pack_with_padding(words))
    assert torch.equal(everything, words)
