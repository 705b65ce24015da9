"""A model folder with rounded weights gives the compiled search the weights that it would round itself, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from multihead import Translator, model_folder
from multihead.cli.quantise import quantise as command
from multihead.engine.search import Engine
from multihead.errors import ConfigurationError, FormatError
from multihead.files import sha256_of, write_tensors
from multihead.models.transformer import Transformer
from multihead.translating.quantise import quantise
from multihead.translating.shortlist import FILE, shortlist

if TYPE_CHECKING:
    from tests.conftest import Numbers

TEXTS = ["eins zwei drei", "", "sieben acht", "zehn neun acht eins", "🎉"]


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_the_same_search_to_the_last_bit(drawn: Any, kind: str, precision: Any, tmp_path: Path) -> None:
    model, asked = drawn.model(kind), {"max_lengths": 9, "beam": 3, "n_best": 3}
    model_folder.save_folder(tmp_path / "model", model, model.config, rounding=precision)
    with model_folder.open_model(tmp_path / "model") as folder:
        config = model_folder.read_config(folder)
        again = model_folder.load_network(model.config, lambda: Transformer(model.config).eval(), folder, config)
    assert not torch.equal(again.output.weight, model.output.weight)
    found, expected = (
        Engine(one, precision).search(drawn.sentences(), *drawn.split(drawn.symbols, **asked)) for one in (again, model)
    )
    assert found == expected


@pytest.mark.parametrize(("precision", "share"), [("bfloat16", 0.55), ("int8", 0.35)])
def test_a_translator_of_a_smaller_folder(trained: Path, precision: Any, share: float, tmp_path: Path) -> None:
    said: list[str] = []
    folder = quantise(trained, output=tmp_path / "small", precision=precision, say=said.append)
    sizes = [(place / "model.safetensors").stat().st_size for place in (trained / "best", folder)]
    assert sizes[1] < share * sizes[0]
    assert f"--precision {precision}" in said[0]
    assert "before they were rounded" in (folder / "README.md").read_text(encoding="utf-8")
    whole, small = (Translator.load(place).searching(precision=precision) for place in (trained, folder))
    assert small.n_best(TEXTS, 3, beam=3) == whole.n_best(TEXTS, 3, beam=3)
    once_more = quantise(folder, output=tmp_path / "again", precision=precision, say=lambda _: None)
    assert (once_more / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert Translator.load(folder).searching(no_repeat=3).translate(TEXTS)[0]  # in PyTorch, too


def test_the_shortlist_comes_along(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    path = shortlist(run, say=lambda _: None)
    folder = quantise(run, output=tmp_path / "small", say=lambda _: None)
    assert (folder / FILE).read_bytes() == path.read_bytes()
    assert Translator.load(folder).searching(shortlist=True, precision="int8").translate(TEXTS)[0]


def test_a_damaged_one_is_refused(trained: Path, tmp_path: Path, numbers: Numbers) -> None:
    folder = quantise(trained, output=tmp_path / "small", say=lambda _: None)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FormatError, match="damaged, or changed since it was written"):
        Translator.load(folder)
    # A wrong file with a matching hash.
    path.write_bytes(whole)
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}  # it is mapped, and written again
    name = next(name for name in tensors if name.endswith(":largest"))
    write_tensors(path, {key: tensor for key, tensor in tensors.items() if key != name})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"weights": sha256_of(path)}), encoding="utf-8")
    numbers.seal_again(folder)
    with pytest.raises(FormatError, match=r"damaged: .* not a largest number for each"):
        Translator.load(folder)


def test_the_command(trained: Path, tmp_path: Path) -> None:
    asked = [str(trained), "--output", str(tmp_path / "small"), "--precision", "bfloat16"]
    done = CliRunner().invoke(command, asked, catch_exceptions=False)
    assert done.exit_code == 0
    assert "MB of weights instead of" in done.output
    with pytest.raises(ConfigurationError, match="nothing was overwritten"):
        CliRunner().invoke(command, asked, catch_exceptions=False)
