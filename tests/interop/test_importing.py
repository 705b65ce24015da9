"""Imports: saved with a certificate, or not at all."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from multihead.bundle import load_bundle
from multihead.errors import SurroundingsError
from multihead.interop import hub, importing
from multihead.interop.hub import model_folder_of
from multihead.interop.importing import ImportOptions, import_model
from multihead.translating.translator import Translator

pytest.importorskip("transformers")

OPTIONS = ImportOptions(count=6, beam=3)


@pytest.fixture(scope="module")
def imported(opus_mt: tuple[Any, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("imported") / "model"
    import_model(opus_mt[1], output, OPTIONS, say=lambda _: None)
    return output


def test_the_certificate_compares_with_transformers(imported: Path) -> None:
    found = json.loads((imported / "certificate.json").read_text(encoding="utf-8"))
    assert (found["state"], found["program"], found["format"]) == ("passed", "transformers", "MarianMT (OPUS-MT)")
    assert found["tokenizer"]["equal_ids"] == found["tokenizer"]["lines"] == 6
    for search in found["searches"]:
        assert search["equal"] + search["near_ties"] == 6
    card = (imported / "README.md").read_text(encoding="utf-8")
    assert "imported by multihead" in card
    assert "## Certificate" in card


def test_a_line_longer_than_the_positions_is_left_out(
    opus_mt: tuple[Any, Path], foreign: Any, tmp_path: Path, call: Callable[..., Any]
) -> None:
    lines = foreign.sentences(2, seed=5)
    positions = opus_mt[0].config.max_position_embeddings
    (tmp_path / "lines").write_text(f"{lines[0]}\n{'Hund ' * positions}\n{lines[1]}\n", encoding="utf-8")
    result = call("import", opus_mt[1], "-o", tmp_path / "out", "--lines", tmp_path / "lines", "--beam", 2)
    assert result.status == 0, result.err
    found = json.loads((tmp_path / "out" / "certificate.json").read_text(encoding="utf-8"))
    assert (found["state"], found["lines"]) == ("passed", 2)
    assert found["origin"] == f"the first 2 lines of lines, without 1 of more than {positions} tokens"


def test_the_saved_model_translates_as_the_folder_does(imported: Path, opus_mt: tuple[Any, Path], foreign: Any) -> None:
    texts = foreign.sentences(5, seed=9)
    assert Translator.load(imported).translate(texts) == Translator.load(opus_mt[1]).translate(texts)
    one, other = load_bundle(imported), load_bundle(opus_mt[1])
    assert one.model.config == other.model.config
    assert one.source_tokenizer.digest == other.source_tokenizer.digest
    assert (one.source_language, one.target_language) == ("de", "en")


def test_an_import_goes_on_to_other_programs(imported: Path, tmp_path: Path, call: Callable[..., Any]) -> None:
    pytest.importorskip("ctranslate2")
    words = ("--format", "ctranslate2", "-o", tmp_path / "out", "--count", 4, "--beam", 3)
    result = call("export", imported, *words)
    assert result.status == 0, result.err
    assert "tokenizer 4 of 4 equal" in result.err


@pytest.mark.parametrize(
    ("family", "source", "target"), [("m2m100", "de", "en"), ("nllb", "de", "eng_Latn"), ("mbart50", "de_DE", "en")]
)
def test_a_model_of_many_languages_is_compared_in_two(
    foreign: Any, tmp_path: Path, call: Callable[..., Any], family: str, source: str, target: str
) -> None:
    (tmp_path / "folder").mkdir()
    getattr(foreign, family)(tmp_path / "folder")
    words = ("--source-language", source, "--target-language", target, "--count", 4, "--beam", 2)
    result = call("import", tmp_path / "folder", "-o", tmp_path / "out", *words)
    assert result.status == 0, result.err
    assert "tokenizer 4 of 4 equal" in result.err


def copied(opus_mt: tuple[Any, Path], folder: Path) -> Path:
    return Path(shutil.copytree(opus_mt[1], folder / "broken"))


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def declare_a_huge_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 100 * 2**30) + b"{}")


def change_shapes(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "encoder_ffn_dim": 7}))


def remove_pieces(folder: Path) -> None:
    (folder / "source.spm").unlink()


class Evil:
    """Unpickling this object writes a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path("executed"), "code of the file was executed")


def pickle_code(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Evil()}))


def name_another_architecture(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**settings, "model_type": "prophetnet", "architectures": ["ProphetNetForConditionalGeneration"]})
    )


@pytest.mark.parametrize(
    "fault",
    [cut_weights, declare_a_huge_header, change_shapes, remove_pieces, pickle_code, name_another_architecture],
)
def test_a_bad_folder_is_one_line_status_2_and_nothing_written(
    opus_mt: tuple[Any, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[..., Any],
    fault: Callable[[Path], None],
) -> None:
    folder = copied(opus_mt, tmp_path)
    fault(folder)
    monkeypatch.chdir(tmp_path)
    result = call("import", folder, "-o", tmp_path / "out")
    assert (result.status, len(result.err.splitlines())) == (2, 1), result.err
    assert str(folder) in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken"]
    if fault is name_another_architecture:
        for word in ("prophetnet", "ProphetNetForConditionalGeneration", "multihead lacks", "MarianMT"):
            assert word in result.err


def test_a_failed_certificate_leaves_nothing(
    opus_mt: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]
) -> None:
    from dataclasses import replace

    from multihead.interop.certificate import certify

    def certify_other_weights(parts: Any, *others: Any) -> Any:
        return certify(replace(parts, weights={name: 1.2 * w for name, w in parts.weights.items()}), *others)

    monkeypatch.setattr(importing, "certify", certify_other_weights)
    result = call("import", opus_mt[1], "-o", tmp_path / "out", "--count", 3, "--beam", 2)
    assert result.status == 1
    assert "not written: the log-probability of a token differs by" in result.err
    assert list(tmp_path.iterdir()) == []


def test_our_own_models_are_not_imported(trained: Path, tmp_path: Path, call: Callable[..., Any]) -> None:
    result = call("import", trained, "-o", tmp_path / "out")
    assert (result.status, list(tmp_path.iterdir())) == (2, [])
    assert "a model of multihead already" in result.err


def test_a_name_of_the_hub_is_downloaded_with_its_cache(
    opus_mt: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def download(name: str, **options: Any) -> str:
        asked.append((name, options))
        return str(opus_mt[1])

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    found = import_model("Helsinki-NLP/opus-mt-de-en", tmp_path / "out", OPTIONS, say=lambda _: None)
    assert found.state == "passed"
    assert asked[0][0] == "Helsinki-NLP/opus-mt-de-en"
    assert "*.safetensors" in asked[0][1]["allow_patterns"]


def test_of_the_folders_of_a_model_only_the_tokenizer_of_the_target_is_downloaded() -> None:
    """By the rules of `huggingface_hub.utils.filter_repo_objects`: fnmatch, where * matches slashes, too."""

    def downloaded(name: str) -> bool:
        allowed, ignored = (any(fnmatch(name, one) for one in some) for some in (hub.WANTED, hub._UNWANTED))
        return allowed and not ignored

    for name in ("config.json", "model.safetensors", "tokenizer.json", "target_tokenizer/tokenizer.json"):
        assert downloaded(name)
    others = ("onnx", "t", "target", "target_tokenizer2", "target-tokenizer", "source_tokenizer", "1_Pooling", "flax")
    for folder in others:
        assert not downloaded(f"{folder}/config.json")
    assert not downloaded("deep/target_tokenizer/tokenizer.json")


def test_a_folder_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert model_folder_of("org/model") == Path("org/model")
    assert model_folder_of("/no/such/folder") == Path("/no/such/folder")


def test_a_name_that_the_hub_cannot_have_is_an_error_of_ours() -> None:
    pytest.importorskip("huggingface_hub")
    with pytest.raises(SurroundingsError, match=r"org/one--two: there is no such folder, .*cannot be downloaded"):
        model_folder_of("org/one--two")


def test_without_a_network_it_says_what_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SurroundingsError, match=r"put the files of https://huggingface.co/org/none into a folder"):
        model_folder_of("org/none")
