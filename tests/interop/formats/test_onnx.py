"""ONNX graphs compute our network; all decoders agree; names and shapes are those of Optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from transformers import AutoTokenizer

from multihead.interop.certificate import Terms, certify
from multihead.interop.formats import onnx as format_
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.lines import Lines
from multihead.interop.runtimes.onnxruntime import OnnxRuntime, OnnxStepper, open_as_used, open_folder

MakeParts = Callable[..., TranslatorParts]

LINES = Lines(("Ein Hund rennt.", "Zwei Hunde rennen!", "12 Bälle im Park"), "three lines")

NETWORKS: dict[str, dict[str, Any]] = {
    "default": {"norm": "pre"},
    "post-norm": {"norm": "post", "feed_forward": "gelu", "output_bias": True},
    "two vocabularies": {"norm": "pre", "shared": False, "tie_output": False, "feed_forward": "silu"},
    "no positions": {"norm": "pre", "positions": "none"},
    "rotary": {"norm": "pre", "positions": "rotary"},
    "everything": {
        "norm": "post",
        "final_norm": True,
        "embedding_norm": True,
        "embedding_scale": "projection",
        "positions": "learned",
        "max_positions": 5,
        "feed_forward": "geglu",
        "attention_bias": False,
    },
}


@pytest.fixture(scope="session", params=list(NETWORKS))
def written(request: pytest.FixtureRequest, make_parts: MakeParts, tmp_path_factory: pytest.TempPathFactory) -> Any:
    parts = make_parts(**NETWORKS[request.param])
    folder = tmp_path_factory.mktemp("onnx")
    assert format_.refusals(parts) == []
    format_.write(parts, folder)
    return parts, folder


@pytest.mark.parametrize("merged", [False, True])
def test_equal_probabilities_and_translations(written: tuple[TranslatorParts, Path], merged: bool) -> None:
    parts, folder = written
    runtime = OnnxRuntime(OnnxStepper(folder, merged=merged), parts)
    certificate = certify(parts, runtime, Terms("onnx", LINES, beam=3, allowed=1e-4))
    assert certificate.state == "passed", certificate.reason


def test_a_past_of_several_tokens(written: tuple[TranslatorParts, Path]) -> None:
    """Two steps of two tokens are a step of four, in every decoder."""
    _, folder = written
    tokens = torch.tensor([[2, 270, 280, 265], [2, 281, 266, 275]])
    source, lengths = torch.tensor([[265, 270, 3], [280, 3, 0]]), torch.tensor([3, 2])
    for merged in (False, True):
        stepper = OnnxStepper(folder, merged=merged)
        start = stepper.start(source, lengths)
        whole, _ = stepper.run(tokens, start)
        first, state = stepper.run(tokens[:, :2], start)
        second, _ = stepper.run(tokens[:, 2:], state.select(torch.tensor([0, 1])))
        torch.testing.assert_close(torch.cat((first, second), dim=1), whole, rtol=0, atol=1e-5)


def test_names_of_inputs_and_outputs(written: tuple[TranslatorParts, Path]) -> None:
    _, folder = written
    both = [f"{i}.{side}.{part}" for i in range(2) for side in ("decoder", "encoder") for part in ("key", "value")]
    own = [name for name in both if "decoder" in name]
    past, present = ([f"{kind}.{name}" for name in both] for kind in ("past_key_values", "present"))
    expected = {
        "encoder_model": (["input_ids", "attention_mask"], ["last_hidden_state"]),
        "decoder_model": (["encoder_attention_mask", "input_ids", "encoder_hidden_states"], ["logits", *present]),
        "decoder_with_past_model": (
            ["encoder_attention_mask", "input_ids", *past],
            ["logits", *(f"present.{name}" for name in own)],
        ),
        "decoder_model_merged": (
            ["encoder_attention_mask", "input_ids", "encoder_hidden_states", *past, "use_cache_branch"],
            ["logits", *present],
        ),
    }
    for name, names in expected.items():
        model = onnx.load(folder / "onnx" / f"{name}.onnx")
        assert ([one.name for one in model.graph.input], [one.name for one in model.graph.output]) == names
        assert [(one.domain, one.version) for one in model.opset_import] == [("", 17)]


def test_int8(tmp_path: Path, make_parts: MakeParts) -> None:
    """Files of a quarter of the size, with the matrices that the certificate uses for comparison."""
    parts = make_parts(width=64, inner=128, norm="pre")
    format_.write(parts, tmp_path, "int8")
    (tmp_path / "large").mkdir()
    format_.write(parts, tmp_path / "large")
    small, large = (
        tmp_path / "onnx" / "encoder_model_quantized.onnx",
        tmp_path / "large" / "onnx" / "encoder_model.onnx",
    )
    positions = 1024 * 64 * 4
    assert small.stat().st_size - positions < 0.4 * (large.stat().st_size - positions)
    rounded = format_.represented(parts, "int8")
    assert format_.represented(rounded, "int8").weights.keys() == rounded.weights.keys()
    source, target = [[270, 280, 275, 3]], [[265, 275, 282, 3]]
    ours = torch.tensor(open_folder(tmp_path, parts, "int8").score(source, target))
    format_.write(rounded, tmp_path / "large" / "onnx")
    exact = torch.tensor(open_folder(tmp_path / "large" / "onnx", rounded, "float32").score(source, target))
    torch.testing.assert_close(ours, exact, rtol=0, atol=1e-5)
    as_used, _ = open_as_used(tmp_path, parts)
    torch.testing.assert_close(torch.tensor(as_used.score(source, target)), exact, rtol=0, atol=0.3)
    certificate = certify(rounded, open_folder(tmp_path, parts, "int8"), Terms("onnx", LINES, beam=2))
    assert certificate.state == "passed", certificate.reason


def twice_a_scale(model: Any) -> None:
    """One row of one matrix is twice as large."""
    (scale,) = [one for one in model.graph.initializer if one.name == "decoder.1.feed_forward.contract.scale"]
    values = onnx.numpy_helper.to_array(scale).copy()
    values[3] *= 2
    scale.raw_data = values.tobytes()


def a_step_of_one_weight(model: Any) -> None:
    (steps,) = [one for one in model.graph.initializer if one.name == "decoder.1.feed_forward.contract.steps"]
    values = onnx.numpy_helper.to_array(steps).copy()
    values[3, 5] ^= 64
    steps.raw_data = values.tobytes()


def a_zero_point(model: Any) -> None:
    """The zero point of the inputs of one product is that of the weights, so only its integers are wrong."""
    (*_, node) = [one for one in model.graph.node if one.op_type == "MatMulInteger"]
    node.input[2] = "zero_point"


def a_forgotten_scale(model: Any) -> None:
    """The step of the inputs of one product is used twice."""
    (*_, integers) = [one for one in model.graph.node if one.op_type == "DynamicQuantizeLinear"]
    (factor,) = [one for one in model.graph.node if integers.output[1] in one.input]
    factor.input[1] = integers.output[1]


@pytest.mark.parametrize("plant", [twice_a_scale, a_step_of_one_weight, a_zero_point, a_forgotten_scale])
def test_an_error_in_the_integers_fails_the_certificate(tmp_path: Path, make_parts: MakeParts, plant: Any) -> None:
    """However small the fault is: no bound grows with the measured difference."""
    parts = make_parts(width=64, inner=128, norm="pre")
    format_.write(parts, tmp_path, "int8")
    for name in (format_.FIRST, format_.WITH_PAST):
        path = tmp_path / "onnx" / format_.file_name(name, "int8")
        model = onnx.load(path)
        plant(model)
        onnx.save(model, path)
    runtime = open_folder(tmp_path, parts, "int8")
    certificate = certify(format_.represented(parts, "int8"), runtime, Terms("onnx", LINES, beam=2))
    assert certificate.state == "failed"


def test_the_tokenizer_is_that_of_transformers(written: tuple[TranslatorParts, Path], hard_texts: list[str]) -> None:
    parts, folder = written
    ids = [[*row, 3] for row in parts.source_tokenizer.encode_batch(hard_texts)]
    assert AutoTokenizer.from_pretrained(folder)(hard_texts)["input_ids"] == ids


def test_grouped_queries_are_refused(make_parts: MakeParts) -> None:
    assert "grouped queries" in format_.refusals(make_parts(kv_heads=1))[0]


def test_a_weight_too_large_for_a_file(make_parts: MakeParts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from multihead.errors import InputError
    from multihead.interop.formats import onnx_graph

    monkeypatch.setattr(onnx_graph, "LARGEST", 1000)
    with pytest.raises(InputError, match="at most 2 GB"):
        format_.write(replace(make_parts()), tmp_path)
