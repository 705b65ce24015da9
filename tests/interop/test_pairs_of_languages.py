"""Commands that make additions to a model: for a model of another program, and for a pair of its languages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from multihead import Translator, prepare
from multihead.bundle import SHORTLIST, model_digest, model_digests
from multihead.errors import ConfigurationError
from multihead.text.languages import Languages
from multihead.translating.datastore import CONFIG

if TYPE_CHECKING:
    from tests.conftest import CommandResult, Numbers
    from tests.interop.conftest import Foreign

pytestmark = pytest.mark.usefixtures("one_thread")

Call = Callable[..., "CommandResult"]

PAIR = Languages("de", "en")
FLAGS = ("--source-language", "de", "--target-language", "en")


@pytest.fixture
def folder(nllb_200: tuple[Any, Path], tmp_path: Path) -> Path:
    """A model of five languages, whose folder may be written to."""
    return Path(shutil.copytree(nllb_200[1], tmp_path / "nllb"))


@pytest.fixture
def text(foreign: Foreign, tmp_path: Path) -> dict[str, Path]:
    """A training text and a validation text in two of its languages."""
    found = {}
    for name, count, seed in (("", 40, 1), ("valid_", 8, 2)):
        for side in ("source", "target"):
            lines = foreign.sentences(count, seed, english=side == "target")
            found[f"{name}{side}"] = path = tmp_path / f"{name}{side}.txt"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return found


def flags(text: dict[str, Path]) -> list[str]:
    return [word for name, path in text.items() for word in (f"--{name.replace('_', '-')}", str(path))]


@pytest.mark.parametrize("command", ["quantise", "shortlist", "datastore", "average", "shrink"])
def test_a_flag_that_is_missing_is_one_of_the_command(
    call: Call, folder: Path, text: dict[str, Path], tmp_path: Path, command: str
) -> None:
    more = flags(text) if command == "datastore" else []
    output = () if command == "shortlist" else ("--output", tmp_path / "output")
    ended = call(command, folder, *output, *more)
    assert ended.status == 2
    assert "name one with --source-language" in ended.err
    assert not (tmp_path / "output").exists()
    assert all(flag in call(command, "--help").text for flag in FLAGS[::2])


def test_a_quantised_pair_translates_as_the_model(call: Call, folder: Path, foreign: Foreign, tmp_path: Path) -> None:
    """From a file of weights that has another name than ours."""
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}  # it is mapped
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    ended = call("quantise", folder, "--output", tmp_path / "small", *FLAGS)
    assert ended.status == 0, ended.err
    assert "MB of weights; translate with --precision int8" in ended.err
    whole, small = Translator.load(folder, languages=PAIR), Translator.load(tmp_path / "small")
    lines = foreign.sentences(4)
    assert small.searching(precision="int8").translate(lines) == whole.searching(precision="int8").translate(lines)


def test_the_mean_of_equal_models_and_all_parts_of_one_are_the_pair(
    call: Call, folder: Path, foreign: Foreign, tmp_path: Path
) -> None:
    mean = call("average", folder, folder, "--output", tmp_path / "mean", *FLAGS)
    assert mean.status == 0, mean.err
    whole = Translator.load(folder, languages=PAIR)
    layers = whole.bundle.model.config
    sizes = ("--encoder-layers", layers.encoder_layers, "--decoder-layers", layers.decoder_layers)
    parts = call("shrink", folder, "--output", tmp_path / "parts", *sizes, "--inner", layers.inner, *FLAGS)
    assert parts.status == 0, parts.err
    lines = foreign.sentences(4)
    for name in ("mean", "parts"):
        assert Translator.load(tmp_path / name).translate(lines) == whole.translate(lines)


def test_a_shortlist_of_a_pair_leaves_the_model_what_it_was(
    call: Call, folder: Path, text: dict[str, Path], foreign: Foreign, tmp_path: Path
) -> None:
    """All symbols are for every sentence, since there are fewer than 1,024."""
    wishes: dict[str, Any] = {"source_language": "de", "target_language": "en", **text}
    prepare(output=tmp_path / "prepared", from_model=folder, say=lambda _: None, **wishes)
    before = model_digest(folder)
    ended = call("shortlist", folder, "--data", tmp_path / "prepared", *FLAGS)
    assert ended.status == 0, ended.err
    assert (folder / SHORTLIST).is_file()
    assert model_digest(folder) == before
    translator, lines = Translator.load(folder, languages=PAIR), foreign.sentences(3)
    assert translator.searching(shortlist=True).translate(lines) == translator.translate(lines)


def test_a_datastore_of_a_pair_stays_one_of_the_model(
    call: Call, folder: Path, text: dict[str, Path], numbers: Numbers, tmp_path: Path
) -> None:
    """Whatever is added to the model's folder; also a datastore of a version that hashed all files of the folder."""
    store = tmp_path / "store"
    ended = call("datastore", folder, "--output", store, "--neighbours", 4, *flags(text), *FLAGS)
    assert ended.status == 0, ended.err
    translator = Translator.load(folder, languages=PAIR)
    for name in ("README.md", SHORTLIST):
        (folder / name).write_text("made later", encoding="utf-8")
    assert translator.with_datastore(store).datastore is not None
    _, earlier = model_digests(folder)
    said = json.loads((store / CONFIG).read_text(encoding="utf-8"))
    (store / CONFIG).write_text(json.dumps({**said, "model": earlier}), encoding="utf-8")
    numbers.seal_again(store)
    assert translator.with_datastore(store).datastore is not None
    (folder / "README.md").write_text("written again", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="is of another model"):
        translator.with_datastore(store)
