"""`multihead translate` without PyTorch: the same translations, and PyTorch where a request needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multihead import Translator
from multihead.bundle import Bundle, StoredBundle, load_bundle, save_bundle
from multihead.decoding.search import Search
from multihead.engine.stored import StoredTransformer
from multihead.engine.weights import load_search_library
from multihead.errors import FormatError
from multihead.model_folder import round_matrix
from multihead.models.config import TransformerConfig
from multihead.models.recurrent.network import RecurrentConfig, RecurrentTranslator
from multihead.models.transformer import Transformer
from multihead.text.tokenizer import Tokenizer
from multihead.translating.request import Sampling, TranslationRequest

LINES = ["eins zwei drei", "", "vier"]
NETWORKS: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "rotary": {
        "positions": "rotary", "norm": "pre", "norm_kind": "rms", "feed_forward": "swiglu", "query_key_norm": "rms",
        "kv_heads": 1,
    },
    "learned": {
        "positions": "learned", "max_positions": 9, "tie_embeddings": False, "tie_output": False, "output_bias": True,
        "embedding_norm": True,
    },
    "shaw": {"positions": "shaw", "norm": "pre", "block": "parallel", "tie_embeddings": False},
    "relative": {"positions": "relative", "relative_distance": 20},
}  # fmt: skip
ROUNDED: dict[str, Any] = {"rotary": "int8", "learned": "bfloat16"}
WITHOUT_TORCH = [name for name in NETWORKS if name != "relative"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models with drawn weights."""
    folder = tmp_path_factory.mktemp("models")
    tokenizer = Tokenizer.learn(LINES * 3, 280)
    torch.manual_seed(5)
    sizes = {"width": 16, "heads": 2, "inner": 24, "encoder_layers": 1, "decoder_layers": 2}
    for name, settings in NETWORKS.items():
        config = TransformerConfig(source_vocab=len(tokenizer), target_vocab=len(tokenizer), **(sizes | settings))
        bundle = Bundle(Transformer(config).eval(), tokenizer, tokenizer, Search(length_factor=1.0, length_margin=3))
        save_bundle(folder / name, bundle, {}, "drawn", ROUNDED.get(name))
    recurrent = RecurrentConfig(source_vocab=len(tokenizer), target_vocab=len(tokenizer), width=8)
    save_bundle(folder / "recurrent", Bundle(RecurrentTranslator(recurrent), tokenizer, tokenizer, Search()), {}, "")
    if (reason := load_search_library().reason) and load_search_library().library is None:
        pytest.skip(reason)
    return folder


PROGRAM = """
import io, itertools, json, sys
from pathlib import Path
from multihead.cli.main import main
from multihead.kernels.native import set_thread_count, threads, thread_count
from multihead.translating.request import USUAL, TranslationRequest
from multihead.translating.translator import Translator

folder, names, lines = Path(sys.argv[1]), sys.argv[2].split(","), json.loads(sys.argv[3])
(folder / "lines.de").write_text("".join(line + chr(10) for line in lines), encoding="utf-8")

def by_command(name, output):
    sys.stdin = io.TextIOWrapper(io.BytesIO((folder / "lines.de").read_bytes()))
    flags = ["--input", str(folder / "lines.de"), "--output", str(output)] if output else []
    flags += ["--threads", "2"] if output else ["--beam", "5", "--precision", "int8", "--scores", "--n-best", "3"]
    assert main(["translate", str(folder / name), *flags]) == 0
    return output and output.read_text(encoding="utf-8")

def requested(translator):
    found = []
    for precision, beam, alpha in itertools.product(("float32", "bfloat16", "int8"), (1, 5), (0.0, 1.0)):
        settings = {"precision": precision, "beam": beam, "alpha": alpha}
        other = translator.searching(**settings)
        found.append(other.run(TranslationRequest(other.search_settings(), lines, n_best=beam)))
    return found, other

def chosen(lazily):  # of an ensemble's candidates, by two other models
    first, *others = (Translator.load(folder / name, lazily=lazily) for name in names)
    joined = first.ensemble(others[:1]).with_judge(others[1]).with_reverse(others[2]).searching(beam=4)
    request = TranslationRequest(joined.search_settings(), lines, weights=USUAL)
    found = [row[0].text for row in joined.run(request)]
    flags = ["--with", names[1], "--judge", names[2], "--reverse", names[3], "--beam", "4"]
    words = [str(folder / word) if word in names else word for word in flags]
    output = folder / f"chosen.{lazily}"
    files = ["--input", str(folder / "lines.de"), "--output", str(output)]
    assert main(["translate", str(folder / names[0]), *words, *files]) == 0
    assert output.read_text(encoding="utf-8").split(chr(10))[:-1] == found
    return found

usual = thread_count()
before = [by_command(name, folder / f"{name}.before") for name in names] + [by_command(names[0], None)]
set_thread_count(3)
found = [requested(Translator.load(folder / name, lazily=True)) for name in names]
by_judges = chosen(True)
assert "torch" not in sys.modules, "PyTorch was imported"

import torch

assert chosen(False) == by_judges

assert all(translator.bundle.model.config.width == 16 for _, translator in found)
assert torch.get_num_threads() == thread_count() == 3
assert usual == threads.usual_threads()
maps = {line.partition("/")[2] for line in Path("/proc/self/maps").read_text().splitlines()}
assert len({name for name in maps if "libgomp" in name}) == 1
assert [one for one, _ in found] == [requested(Translator.load(folder / name))[0] for name in names]
after = [by_command(name, folder / f"{name}.after") for name in names]
assert before[:-1] == after
print(json.dumps(usual), file=sys.stderr)
"""


THREADS = """
import ctypes, importlib.util
from pathlib import Path

found = importlib.util.find_spec("torch")
library = Path(found.origin).parent / "lib" / "libtorch_cpu.so"
try:  # importing all of PyTorch takes seconds
    theirs = ctypes.CDLL(str(library))._ZN2at15get_num_threadsEv()
except (OSError, AttributeError):
    import torch
    theirs = torch.get_num_threads()
print(theirs)
"""
"""Prints `torch.get_num_threads()`."""


def test_the_command_translates_without_torch_what_it_translates_with_it(models: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    words = [sys.executable, "-c", PROGRAM, str(models), ",".join(WITHOUT_TORCH), json.dumps(LINES)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # By default, as many threads as PyTorch takes.
    usual = subprocess.run([sys.executable, "-c", THREADS], env=environment, capture_output=True, check=True).stdout
    assert json.loads(done.stderr.splitlines()[-1]) == int(usual)


def test_more_threads_than_cores_are_as_many_as_pytorch_takes() -> None:
    program = f"from multihead.kernels.native.threads import usual_threads\nprint(usual_threads())\n{THREADS}"
    environment = {**os.environ, "OMP_NUM_THREADS": "64"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    ours, theirs = done.stdout.split()
    assert ours == theirs


def lazily(folder: Path) -> Translator:
    translator = Translator.load(folder, lazily=True)
    assert isinstance(translator.bundle, StoredBundle)
    assert isinstance(translator.bundle.searched, StoredTransformer)
    return translator


ASKED: dict[str, dict[str, Any]] = {
    "samples with prefixes": {"sampling": Sampling(sample=2, seed=2), "prefixes": ["zwei", "", ""]},
    "prefixes": {"prefixes": ["zwei", "", ""]},
    "phrases": {"phrases": [["drei"], [], []]},
    "a choice": {"metric": "chrf"},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "no n-gram twice": {"no_repeat": 2},
    "groups": {"beam": 4, "groups": 2},
    "coverage": {"coverage": 0.1, "without": ("drei",)},
}


def test_samples_do_without_the_network(models: Path) -> None:
    lazy = lazily(models / "rotary")
    assert lazy.sample(LINES, 2, seed=2) == Translator.load(models / "rotary").sample(LINES, 2, seed=2)
    assert isinstance(lazy.bundle.searched, StoredTransformer)


@pytest.mark.parametrize("what", [*ASKED, *SEARCHES])
def test_a_request_that_needs_the_network_gets_it(models: Path, what: str) -> None:
    results = []
    for translator in (lazily(models / "rotary"), Translator.load(models / "rotary")):
        other = translator.searching(**SEARCHES.get(what, {}))
        request = TranslationRequest(other.search_settings(), LINES, **ASKED.get(what, {}))
        results.append(other.run(request))
        assert any(translation.text for row in results[-1] for translation in row)
        assert isinstance(translator.bundle.searched, Transformer)
    assert results[0] == results[1]


def test_attention_ensembles_and_other_directions_get_the_network(models: Path) -> None:
    stored, whole = lazily(models / "sinusoidal"), Translator.load(models / "sinusoidal")
    for one, other in zip(stored.bundle.model.parameters(), whole.bundle.model.parameters(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(
        lazily(models / "learned").attention("eins").weights.cross,
        Translator.load(models / "learned").attention("eins").weights.cross,
        strict=True,
    ):
        assert torch.equal(one, other)
    both = lazily(models / "shaw").ensemble([lazily(models / "rotary")])
    expected = Translator.load(models / "shaw").ensemble([Translator.load(models / "rotary")])
    assert both.translations(LINES) == expected.translations(LINES)


@pytest.mark.parametrize("name", ["relative", "recurrent"])
def test_other_networks_are_loaded_as_ever(models: Path, name: str) -> None:
    bundle = load_bundle(models / name, lazily=True)
    assert type(bundle) is Bundle
    assert Translator(bundle).translations(LINES) == Translator.load(models / name).translations(LINES)


def test_without_compiled_code_there_is_the_network(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from multihead.kernels import native

    monkeypatch.setitem(native._loaded, "decoding", native.Native(None, "plain decoding: a test"))
    translator = lazily(models / "shaw")
    assert not translator.compiled
    assert translator.translations(LINES) == Translator.load(models / "shaw").translations(LINES)


def test_weights_that_do_not_fit_are_refused_in_the_same_words(models: Path, tmp_path: Path) -> None:
    """A folder without a manifest and with other settings."""
    for change in ({"encoder_layers": 2}, {"inner": 25}, {"output_bias": True}, {"tie_output": False}):
        for file in (models / "sinusoidal").iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / "manifest.json").unlink()
        config = json.loads((tmp_path / "config.json").read_text())
        config["model"] |= change
        (tmp_path / "config.json").write_text(json.dumps(config | {"format_version": 5}))
        said = []
        for how in (False, True):
            with pytest.raises(FormatError) as caught:
                load_bundle(tmp_path, lazily=how)
            said.append(str(caught.value))
        assert said[0] == said[1]
        assert "these are not the weights" in said[0]


def test_weights_that_are_no_numbers_are_left_to_the_network(models: Path) -> None:
    stored = lazily(models / "sinusoidal").bundle.searched
    assert isinstance(stored, StoredTransformer)
    assert stored.fits()
    stored.weights["encoder.0.feed_forward.expand.bias"][3] = np.nan
    assert not stored.fits()
    assert not StoredTransformer(stored.config, {**stored.weights, "other": np.zeros(2, np.float32)}).fits()


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_arrays_are_rounded_as_tensors_are(models: Path, precision: Any) -> None:
    stored = lazily(models / "sinusoidal").bundle.searched
    assert isinstance(stored, StoredTransformer)
    matrix = torch.randn(40, 60, generator=torch.Generator().manual_seed(1))
    matrix[3], matrix[4], matrix[5, 2], matrix[6] = 0.0, 1e-31, 3e38, torch.arange(60) / 8
    for given in (matrix, round_matrix(matrix, precision)):
        assert torch.equal(torch.from_numpy(stored.rounded(given.numpy(), precision)), round_matrix(given, precision))
