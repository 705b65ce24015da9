"""Weights under our names: rows below each other, zeros for what is missing, nothing left over."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from multihead.errors import FormatError
from multihead.interop.formats.renaming import count_layers, fit, rename, same, take
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer

FILE = Path("model.pt")


def weights(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {name.replace("__", "."): torch.randn(shape) for name, shape in shapes.items()}


def test_rows_are_put_below_each_other() -> None:
    theirs = weights(q__weight=(2, 3), k__weight=(1, 3), k__bias=(1,), norm__weight=(3,), pe=(9, 3))
    found = rename(theirs, {"both": ("q", "k"), "last": ("norm",)}, r"^pe$", FILE)
    assert found.keys() == {"both.weight", "both.bias", "last.weight"}
    assert torch.equal(found["both.weight"], torch.cat((theirs["q.weight"], theirs["k.weight"])))
    assert torch.equal(found["both.bias"], torch.cat((torch.zeros(2), theirs["k.bias"])))


def test_faults_name_the_weight_and_the_file() -> None:
    for theirs, message in (
        (weights(q__weight=(2, 3)), "model.pt: the weight 'k.weight' is missing"),
        (weights(q__weight=(2, 3), k__weight=(2, 3), x=(1,)), "model.pt: has the weight 'x'"),
        (weights(q__weight=(2, 3), k__weight=(2, 4)), r"'q.weight' and its neighbors .*: \[2, 3\], \[2, 4\]"),
    ):
        with pytest.raises(FormatError, match=message):
            rename(theirs, {"both": ("q", "k")}, "^$", FILE)
    with pytest.raises(FormatError, match=r"expected a matrix 'q', found a tensor of shape \[3\]"):
        take(weights(q=(3,)), "q", FILE)
    with pytest.raises(FormatError, match="expected a matrix 'q', found no such weight"):
        take({}, "q", FILE)


def test_small_helpers() -> None:
    assert count_layers(weights(a__layers__0__x=(1,), a__layers__11__x=(1,), b__layers__20__x=(1,)), "a.layers") == 12
    assert count_layers({}, "a.layers") == 0
    one = torch.ones(2, 2)
    assert same(None, one)
    assert same(one, one.clone())
    assert not same(one, torch.ones(2, 3))
    assert not same(one, None)


def test_units_of_zeros_change_nothing() -> None:
    """A decoder that is narrower inside, and layers without biases, compute what they compute alone."""
    sizes = {"source_vocab": 9, "target_vocab": 9, "width": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    narrow = TransformerConfig(**sizes, inner=5, feed_forward="gelu", output_bias=True)  # type: ignore[arg-type]
    torch.manual_seed(1)
    model = Transformer(narrow).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    given = {name: parameter for name, parameter in model.state_dict().items() if not name.endswith("bias")}
    wide = narrow.model_copy(update={"inner": 7})
    fitted = fit(given, wide)
    other = Transformer(wide).eval()
    assert fitted.keys() == dict(other.named_parameters()).keys()
    other.load_state_dict(fitted, strict=False)
    inputs = torch.tensor([[4, 5, 3]]), torch.tensor([3]), torch.tensor([[2, 6]])
    with torch.no_grad():
        torch.testing.assert_close(other(*inputs).logits, model(*inputs).logits, rtol=0, atol=1e-6)
