"""The model folder: round trip, mixed-up parts, and old folders."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from multihead import Translator, model_folder
from multihead.bundle import FORMAT_VERSION, Bundle, load_bundle, locate, save_bundle
from multihead.decoding.search import Search
from multihead.errors import FormatError, SurroundingsError
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tests.conftest import Numbers


FOLDERS = Path(__file__).parent / "data_folders"
VERSIONS = (*range(1, FORMAT_VERSION + 1), "5-relative")


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """A copy of an intact model folder."""
    return Path(shutil.copytree(trained / "best", tmp_path / "model"))


@pytest.fixture
def old(model: Path, numbers: Numbers) -> Path:
    """The same without a manifest, as version 5 wrote it."""
    return numbers.without_manifest(model)


def two_vocabularies():
    source = Tokenizer.learn(["eins zwei drei"] * 3, 270)
    target = Tokenizer.learn(["one two three four"] * 3, 275)
    torch.manual_seed(1)
    sizes = {"width": 8, "heads": 2, "inner": 8, "encoder_layers": 1, "decoder_layers": 1, "tie_embeddings": False}
    config = TransformerConfig(source_vocab=len(source), target_vocab=len(target), **sizes)
    return Bundle(Transformer(config), source, target, Search(beam=3, alpha=0.5, length_margin=7), "de", "en")


def refused(folder, *said):
    with pytest.raises(FormatError) as caught:
        Translator.load(folder)
    message = str(caught.value)
    assert caught.value.exit_status == 2
    assert "\n" not in message
    for words in said:
        assert words in message
    return message


# ------------------------------------------------------------------------------------------ round trips


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    made = two_vocabularies()
    save_bundle(tmp_path / "model", made, {"bleu": 12.5}, "Made by a test.")
    found = load_bundle(tmp_path / "model")
    assert found.model.config == made.model.config
    assert found.generation == made.generation
    assert (found.source_language, found.target_language) == ("de", "en")
    assert found.source_tokenizer.digest == made.source_tokenizer.digest
    assert found.target_tokenizer.digest == made.target_tokenizer.digest
    theirs = dict(found.model.named_parameters())
    assert theirs.keys() == dict(made.model.named_parameters()).keys()
    assert all(torch.equal(theirs[name], parameter) for name, parameter in made.model.named_parameters())
    assert not found.model.training


def test_the_form_of_the_length_penalty_comes_back(tmp_path: Path) -> None:
    """It is written only if it is not the default, so that older code reads all other models, and refuses these."""
    made = two_vocabularies()
    for form in ("power", "wu"):
        search = Search(**{**made.generation.model_dump(), "length_penalty": form})
        save_bundle(tmp_path / form, replace(made, generation=search), {}, "Made by a test.")
        assert load_bundle(tmp_path / form).generation == search
        written = json.loads((tmp_path / form / "generation.json").read_text(encoding="utf-8"))
        assert written.keys() == {*Search.stored} - ({"length_penalty"} if form == "power" else set())


def test_it_translates_as_before(trained: Path, tmp_path: Path, numbers: Numbers) -> None:
    translator = Translator.load(trained)
    sources = [source for source, _ in numbers.pairs(15, 77)]
    save_bundle(tmp_path / "again", translator.bundle, {}, "Made by a test.")
    assert Translator.load(tmp_path / "again").translations(sources) == translator.translations(sources)


def test_the_model_has_learned_something(trained: Path, numbers: Numbers) -> None:
    """Otherwise equality would prove little."""
    pairs = numbers.pairs(15, 77)
    found = Translator.load(trained).translate([source for source, _ in pairs])
    assert sum(text == target for text, (_, target) in zip(found, pairs, strict=True)) >= 10


def test_what_stands_in_the_folder(tmp_path: Path) -> None:
    save_bundle(tmp_path / "model", two_vocabularies(), {"bleu": 12.5, "bleu_signature": "a|b"}, "Made by a test.")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    tokenizers = {"source.tokenizer.json", "target.tokenizer.json"}
    others = {"config.json", "model.safetensors", "generation.json", "metrics.json", "README.md", "manifest.json"}
    assert names == tokenizers | others
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "Made by a test." in card
    assert "| bleu | 12.5 |" in card
    assert "| bleu_signature | a\\|b |" in card
    assert len({path.stat().st_mode for path in (tmp_path / "model").iterdir()}) == 1  # all for the same readers


def with_options(**changes):
    tokenizer = Tokenizer.learn(["eins zwei drei"] * 3, 270)
    sizes = {"width": 8, "heads": 2, "inner": 8, "encoder_layers": 1, "decoder_layers": 1}
    config = TransformerConfig(source_vocab=len(tokenizer), target_vocab=len(tokenizer), **{**sizes, **changes})
    return Bundle(Transformer(config), tokenizer, tokenizer, Search(min_length=2, max_length=9))


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "learned", "max_positions": 7, "embedding_scale": "projection", "embedding_norm": True},
        {"kv_heads": 1, "key_dim": 5, "value_dim": 3, "attention_bias": False, "feed_forward": "geglu"},
        {"tie_output": False, "norm": "pre", "final_norm": False, "attention_dropout": 0.1, "residual_dropout": 0.0},
    ],
)
def test_every_option_comes_back_and_is_on_the_card(tmp_path: Path, changes: dict[str, Any]) -> None:
    made = with_options(**changes)
    save_bundle(tmp_path / "model", made, {}, "Made by a test.")
    found = load_bundle(tmp_path / "model")
    assert found.model.config == made.model.config
    assert found.generation == made.generation
    source = torch.tensor([[5, 6, 7, 8, 2]])
    again, before = (one.model.eval()(source, torch.tensor([5]), source).logits for one in (found, made))
    assert torch.equal(again, before)
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    told = ", ".join(
        f"{name} {changes[name]}" for name in TransformerConfig.model_fields if name in changes.keys() - {"norm"}
    )
    assert f"\nOther than by default: {told}.\n" in card
    assert f"{changes.get('norm', 'post')}-norm" in card


def test_the_card_of_a_usual_model_names_nothing_else(tmp_path: Path) -> None:
    save_bundle(tmp_path / "model", with_options(), {}, "Made by a test.")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "1+1 layers, width 8, inner 8, 2 heads, post-norm" in card
    assert "default" not in card
    assert "validation" not in card  # nothing was measured


def test_a_shared_tokenizer_and_tied_weights_are_written_once(trained: Path) -> None:
    best = trained / "best"
    assert (best / "tokenizer.json").is_file()
    assert not (best / "source.tokenizer.json").exists()
    found = load_bundle(best)
    assert found.source_tokenizer.digest == found.target_tokenizer.digest
    size = sum(parameter.numel() for parameter in found.model.parameters())
    assert sum(tensor.numel() for tensor in load_file(best / "model.safetensors").values()) == size


def test_a_model_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    made = two_vocabularies()
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "model", "model"):
        save_bundle(tmp_path / folder, made, {}, "Made by a test.")
        assert load_bundle(tmp_path / folder)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mother.txt").write_text("dear")
    (tmp_path / "file").write_text("x")
    for name in ("letters", "file"):
        with pytest.raises(FormatError, match="not a model; nothing was touched"):
            save_bundle(tmp_path / name, made, {}, "Made by a test.")
    assert (tmp_path / "letters" / "mother.txt").read_text() == "dear"
    assert (tmp_path / "file").read_text() == "x"


def test_the_old_model_stands_when_the_disk_is_full(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_bundle(model)
    before = {path.name: path.read_bytes() for path in model.iterdir()}

    def full(path, tensors):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_folder, "write_tensors", full)
    with pytest.raises(SurroundingsError, match=r"model: cannot be written: no space left"):
        save_bundle(model, found, {}, "Made by a test.")
    assert {path.name: path.read_bytes() for path in model.iterdir()} == before
    assert [path.name for path in model.parent.iterdir()] == ["model"]


# ------------------------------------------------------------------------------------------ old folders


def test_every_version_has_a_folder_here() -> None:
    assert {path.name for path in FOLDERS.iterdir() if path.is_dir()} == {f"v{version}" for version in VERSIONS}
    for folder in FOLDERS.glob("v*/"):
        assert sum(path.stat().st_size for path in folder.iterdir()) < 100_000


@pytest.mark.parametrize("version", VERSIONS)
def test_folders_of_every_version_are_read(version: int | str) -> None:
    sources, targets = (
        (FOLDERS / f"v{version}.{side}.txt").read_text(encoding="utf-8").split("\n")[:-1]
        for side in ("source", "target")
    )
    assert len(sources) == len(targets) > 2
    assert any(targets)
    assert Translator.load(FOLDERS / f"v{version}").translate(sources) == targets


def test_the_new_folder_has_what_is_new() -> None:
    """Otherwise reading it would prove little."""
    config = load_bundle(FOLDERS / "v2").model.config
    fields = {name: getattr(config, name) for name in TransformerConfig.model_fields}
    old = json.loads((FOLDERS / "v1" / "config.json").read_text(encoding="utf-8"))["model"]
    dropouts = {"embedding_dropout", "residual_dropout"}  # like the third
    newest = {"sinusoid", "output_bias", "source_end"}
    relative = {"feed_forward_bias", "positions", "relative_buckets", "relative_distance", "norm_kind"}
    rare = TransformerConfig.rare - relative  # settings of models that no older version wrote
    for name in fields.keys() - old.keys() - dropouts - newest - relative - rare:
        assert fields[name] != TransformerConfig.model_fields[name].default, name
    assert load_bundle(FOLDERS / "v3").model.config.architecture == "recurrent"
    types = [
        {tensor.dtype for tensor in load_file(FOLDERS / f"v{version}" / "model.safetensors").values()}
        for version in (3, 4)
    ]
    assert types == [{torch.float32}, {torch.float32, torch.int8}]
    for folder, names in (("v5", newest), ("v5-relative", relative)):
        newer = load_bundle(FOLDERS / folder).model.config
        assert all(getattr(newer, name) != TransformerConfig.model_fields[name].default for name in names)


def test_what_an_old_folder_does_not_say_is_the_default() -> None:
    config = load_bundle(FOLDERS / "v1").model.config
    said = json.loads((FOLDERS / "v1" / "config.json").read_text(encoding="utf-8"))["model"]
    assert config == TransformerConfig(**said)
    assert (config.positions, config.embedding_scale, config.feed_forward) == ("sinusoidal", "embedding", "relu")


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 0, -1, "1", None, 1.0])
def test_a_version_that_is_not_known_is_refused(old: Path, version: object) -> None:
    change(old / "config.json", format_version=version)
    refused(old, f"format version {version!r}", f"versions 1 to {FORMAT_VERSION}", "newer multihead")


# ------------------------------------------------------------------------------------------ damage


@pytest.mark.parametrize("name", ["config.json", "generation.json", "model.safetensors", "tokenizer.json"])
def test_what_is_not_as_it_was_written_is_refused(model: Path, name: str) -> None:
    content = bytearray((model / name).read_bytes())
    content[len(content) // 2] ^= 1
    (model / name).write_bytes(content)
    refused(model, f"{name}: damaged, or changed since it was written", "manifest.json says", "copy the whole")
    (model / name).write_bytes(content[:-1])
    refused(model, f"{name}: damaged: it", "copy the whole")
    (model / name).unlink()
    refused(model, f"{name}: is missing", "copy the whole")


def test_a_folder_without_its_manifest_is_refused(model: Path) -> None:
    (model / "manifest.json").write_text("{}")
    refused(model, "manifest.json: is missing or damaged", "copy the whole")
    (model / "manifest.json").unlink()
    refused(model, "manifest.json: is missing or damaged", "copy the whole")


def test_files_that_are_not_used_may_change(model: Path, numbers: Numbers) -> None:
    sources = [source for source, _ in numbers.pairs(5, 78)]
    expected = Translator.load(model).translate(sources)
    (model / "README.md").write_text("my model")
    (model / ".gitattributes").write_text("* text")
    (model / "vocab.txt").write_text("not its words")
    assert Translator.load(model).translate(sources) == expected


def change(path, **values):
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **values}), encoding="utf-8")


def test_another_tokenizer_is_refused(old: Path) -> None:
    """It has the same size, so only the hash can show it."""
    size = len(Tokenizer.load(old / "tokenizer.json"))
    other = Tokenizer.learn(["ganz andere Wörter und Sätze mit jeder Menge von Silben, hier und dort"] * 3, size)
    assert len(other) == size
    other.save(old / "tokenizer.json")
    refused(old, "tokenizer.json", "not the tokenizer that this model was trained with", "copy the whole")


def test_swapped_tokenizers_are_refused(tmp_path: Path, numbers: Numbers) -> None:
    save_bundle(tmp_path, two_vocabularies(), {}, "Made by a test.")
    numbers.without_manifest(tmp_path)
    source, target = (tmp_path / f"{side}.tokenizer.json" for side in ("source", "target"))
    content = source.read_bytes()
    source.write_bytes(target.read_bytes())
    target.write_bytes(content)
    refused(tmp_path, "source.tokenizer.json", "not the tokenizer")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[]"])
def test_a_damaged_tokenizer_is_refused(model: Path, content: bytes) -> None:
    (model / "tokenizer.json").write_bytes(content)
    refused(model, "tokenizer")


@pytest.mark.parametrize("place", [0, 7, 9, 40, -1, -1000])
def test_a_flipped_bit_in_the_weights_is_seen(old: Path, place: int) -> None:
    content = bytearray((old / "model.safetensors").read_bytes())
    content[place] ^= 1
    (old / "model.safetensors").write_bytes(content)
    refused(old, "model.safetensors", "copy the whole model folder again")


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_weights_cut_short_are_seen(old: Path, keep: int) -> None:
    content = (old / "model.safetensors").read_bytes()
    (old / "model.safetensors").write_bytes(content[:keep])
    refused(old, "model.safetensors", "copy the whole model folder again")


def test_weights_of_another_model_of_the_same_shape_are_refused(old: Path) -> None:
    tensors = {name: tensor + 0.01 for name, tensor in load_file(old / "model.safetensors").items()}
    save_file(tensors, old / "model.safetensors")
    refused(old, "not the weights that config.json was written with")


@pytest.mark.parametrize("how", ["missing", "unknown", "of another shape"])
def test_weights_are_matched_by_name_and_shape_even_in_a_folder_made_by_hand(old: Path, how: str) -> None:
    """Such a folder has no hash to check."""
    content = json.loads((old / "config.json").read_text())
    del content["weights"]
    (old / "config.json").write_text(json.dumps(content))
    assert Translator.load(old).translate(["eins"])
    tensors = load_file(old / "model.safetensors")
    name = sorted(tensors)[0]
    tensor = tensors.pop(name)
    if how == "unknown":
        tensors |= {name: tensor, f"{name}.more": tensor.clone()}
    elif how == "of another shape":
        tensors[name] = torch.zeros(3, 3)
    save_file(tensors, old / "model.safetensors")
    refused(old, "not the weights that config.json describes", f"{how} ['{name}")


@pytest.mark.parametrize("name", ["config.json", "generation.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"null", b'{"model": 3}'])
def test_a_damaged_description_is_refused(old: Path, name: str, content: bytes) -> None:
    (old / name).write_bytes(content)
    refused(old, str(old))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": None}, "it describes no model"),
        ({"model": {"source_vocab": 3}}, "target_vocab"),
        ({"model": {"source_vocab": 8, "target_vocab": 8, "widht": 4}}, "did you mean 'width'"),
        ({"tokenizers": None}, "names no tokenizers"),
        ({"tokenizers": {}}, "names no tokenizers"),
        ({"tokenizers": {"../../secret.json": "0"}}, "names no tokenizers"),
        ({"tokenizers": {"tokenizer.json": 7}}, "not the tokenizer"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(old: Path, values: dict[str, Any], said: str) -> None:
    change(old / "config.json", **values)
    refused(old, said)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation.json", "tokenizer.json"])
def test_a_missing_part_is_named(old: Path, name: str) -> None:
    (old / name).unlink()
    refused(old, name)


def test_parts_for_people_may_be_missing(old: Path) -> None:
    for name in ("README.md", "metrics.json"):
        (old / name).unlink()
    assert Translator.load(old).translate(["eins"])


@pytest.mark.parametrize("kind", ["nowhere", "empty", "file", "other", "run"])
def test_what_is_no_model_is_said_to_be_none(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "file":
        path.write_text("x")
    elif kind != "nowhere":
        path.mkdir()
    if kind in ("other", "run"):
        (path / {"other": "a.txt", "run": "run.json"}[kind]).write_text("x")
    said = {"nowhere": "no such folder", "file": "is a file", "run": "stopped before its first validation"}
    refused(path, str(path), said.get(kind, "not a model folder"))


class Bomb:
    """A pickle that runs code when it is loaded."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_no_pickle_is_ever_loaded(old: Path) -> None:
    torch.save({"weights": Bomb()}, old / "pytorch_model.bin")
    assert Translator.load(old)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        content = (old / name).read_bytes()
        (old / name).write_bytes(pickle.dumps(Bomb()))
        refused(old, name)
        torch.save(Bomb(), old / name)
        refused(old, name)
        (old / name).write_bytes(content)


# ------------------------------------------------------------------------------------------ runs


def test_a_run_stands_for_its_best_model(trained: Path, tmp_path: Path) -> None:
    assert locate(trained) == trained / "best"
    assert locate(trained / "best") == trained / "best"


def test_the_best_model_is_found_in_the_moment_of_its_exchange_and_not_touched(trained: Path, tmp_path: Path) -> None:
    """A reader must not write where a training process is about to write."""
    shutil.copytree(trained / "best", tmp_path / "run" / ".best.replaced")
    before = sorted((tmp_path / "run").rglob("*"))
    assert Translator.load(tmp_path / "run").translate(["eins zwei"])
    assert sorted((tmp_path / "run").rglob("*")) == before
