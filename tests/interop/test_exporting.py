"""Exports: written whole and with a certificate, or not at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from multihead.bundle import Bundle, build_network, save_bundle
from multihead.cli.export import FORMATS
from multihead.decoding.search import Search
from multihead.errors import ConfigurationError, InputError, MissingDependencyError
from multihead.interop import exporting
from multihead.interop.certificate import certify
from multihead.interop.exporting import CertificateError, ExportOptions, export_model, find_format
from multihead.interop.runtimes import ctranslate2 as runtime
from multihead.models.config import RecurrentConfig, TransformerConfig
from multihead.text.languages import Languages
from multihead.text.tokenizer import Tokenizer

pytest.importorskip("ctranslate2")

OPTIONS = ExportOptions(count=3, beam=2)


@pytest.fixture(scope="module")
def exported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("exported") / "deep" / "folder"
    export_model(trained, "ctranslate2", output, OPTIONS, say=lambda _: None)
    return output


def save(folder: Path, config: TransformerConfig | RecurrentConfig, tokenizer: Tokenizer) -> Path:
    torch.manual_seed(0)
    bundle = Bundle(build_network(config), tokenizer, tokenizer, Search(max_length=8))
    save_bundle(folder, bundle, {}, "A test wrote it.")
    return folder


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(["eins zwei"] * 3, 280)


def test_the_certificate_is_in_the_folder_and_in_its_card(exported: Path) -> None:
    found = json.loads((exported / "certificate.json").read_text(encoding="utf-8"))
    assert (found["state"], found["format"], found["lines"]) == ("passed", "ctranslate2", 3)
    assert found["origin"] == "the first 3 lines of the run's validation text"
    assert found["searches"][1]["equal"] + found["searches"][1]["near_ties"] == 3
    card = (exported / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# Translator for CTranslate2, de to en")
    assert "| equal token ids | 3 of 3 lines |" in card


def test_the_command_exports_with_the_users_lines(trained: Path, tmp_path: Path, call: Callable[..., Any]) -> None:
    (tmp_path / "own.txt").write_text("eins zwei\nneun\n", encoding="utf-8")
    words = ("--format", "ctranslate2", "-o", tmp_path / "out", "--quantization", "int8", "--beam", 2)
    (tmp_path / "other.txt").write_text("zwei eins\nneun\n", encoding="utf-8")
    words += ("--lines", tmp_path / "own.txt", "--references", tmp_path / "other.txt")
    result = call("export", trained, *words)
    assert result.status == 0, result.err
    assert "certificate passed: CTranslate2" in result.err
    assert "on both sides" in result.err
    found = json.loads((tmp_path / "out" / "certificate.json").read_text(encoding="utf-8"))
    assert found["quantization"] == "int8"
    assert found["scores"]["largest"] < found["rounding"]["largest"] < 5, "rounded numbers are another matter"
    assert found["rounding"]["arithmetic"].startswith("int8")
    assert found["rounding"]["bleu"]["ours"] == found["searches"][1]["bleu"]["ours"]
    assert "against float32" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_a_failed_certificate_leaves_nothing(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]
) -> None:
    monkeypatch.setattr(exporting, "certify", certify_other_weights)
    (tmp_path / "empty").mkdir()
    for output in (tmp_path / "new", tmp_path / "empty"):
        result = call("export", trained, "--format", "ctranslate2", "-o", output, "--count", 2, "--beam", 2)
        assert result.status == 1
        assert "not written: the log-probability of a token differs by" in result.err
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


def certify_other_weights(parts: Any, *others: Any) -> Any:
    """The certificate of a file that has other weights than our side."""
    return certify(replace(parts, weights={name: 1.1 * weight for name, weight in parts.weights.items()}), *others)


def test_without_the_runtime_the_certificate_says_what_to_install(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise MissingDependencyError("ctranslate2", "ctranslate2", "running a CTranslate2 folder")

    monkeypatch.setattr(runtime, "open_folder", missing)
    found = export_model(trained, "ctranslate2", tmp_path / "out", OPTIONS, say=lambda _: None)
    assert found.state == "not run"
    assert 'pip install "multihead[ctranslate2]"' in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


class Opened(AbstractContextManager[None]):
    """A runtime without a tokenizer that has to be closed, as a browser has to be."""

    name, version = "opened", "1"
    closed = False

    def encode(self, texts: object) -> None: ...

    def decode(self, rows: object) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.closed = True


def test_a_runtime_is_closed_if_there_are_no_lines(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened()
    monkeypatch.setattr(runtime, "open_folder", lambda *_: opened)
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8", newline="\n")
    with pytest.raises(InputError, match="no line has text"):
        export_model(trained, "ctranslate2", tmp_path / "out", ExportOptions(lines=tmp_path / "empty.txt"))
    assert opened.closed
    assert not (tmp_path / "out").exists()


def test_a_package_that_writes_the_format_is_named(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    result = call("export", trained, "--format", "ctranslate2", "-o", tmp_path / "out")
    assert result.status == 1
    assert "multihead[ctranslate2]" in result.err
    assert list(tmp_path.iterdir()) == []


def test_what_a_format_cannot_carry_is_refused_before_anything_is_written(
    tmp_path: Path, tokenizer: Tokenizer, call: Callable[..., Any]
) -> None:
    size = {"source_vocab": len(tokenizer), "target_vocab": len(tokenizer), "width": 16}
    networks = {
        "its network is recurrent": RecurrentConfig(**size),
        "values of another width than the keys": TransformerConfig(
            **size, heads=2, key_dim=8, value_dim=12, inner=8, encoder_layers=1, decoder_layers=1
        ),
    }
    for number, (reason, config) in enumerate(networks.items()):
        model = save(tmp_path / f"model{number}", config, tokenizer)
        result = call("export", model, "--format", "ctranslate2", "-o", tmp_path / "out")
        assert result.status == 2
        assert reason in result.err
        assert len(result.err.splitlines()) == 1
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("family", "languages"),
    [("marian", ()), ("nllb", ("deu_Latn", "eng_Latn")), ("m2m100", ("de", "en")), ("mbart50", ("de_DE", "en_XX"))],
)
def test_a_model_of_another_program_goes_on_to_ctranslate2(
    foreign: Any, tmp_path: Path, family: str, languages: tuple[str, ...]
) -> None:
    (tmp_path / "folder").mkdir()
    getattr(foreign, family)(tmp_path / "folder")
    (tmp_path / "lines").write_text("\n".join(foreign.sentences(4)), encoding="utf-8")
    options = ExportOptions(lines=tmp_path / "lines", beam=3, languages=Languages(*languages))
    found = export_model(tmp_path / "folder", "ctranslate2", tmp_path / "out", options, say=lambda _: None)
    assert found.state == "passed"
    assert found.tokenizer is not None
    assert found.tokenizer.equal_ids == found.tokenizer.lines == 4


def test_a_package_for_argos_translate_takes_its_languages_from_the_command(
    tmp_path: Path, tokenizer: Tokenizer, call: Callable[..., Any]
) -> None:
    pytest.importorskip("onnx")
    size = {"source_vocab": len(tokenizer), "target_vocab": len(tokenizer), "width": 16, "heads": 2, "inner": 8}
    model = save(tmp_path / "model", TransformerConfig(**size, encoder_layers=1, decoder_layers=1), tokenizer)
    words = ("export", model, "--format", "argos", "-o", tmp_path / "out", "--no-certificate")
    result = call(*words)
    assert result.status == 2
    assert "give --source-language and --target-language" in result.err
    assert call(*words, "--source-language", "sw", "--target-language", "yo").status == 0
    assert (tmp_path / "out" / "translate-sw_yo-1_0.argosmodel").is_file()


@pytest.mark.parametrize("format", ["ctranslate2", "transformers", "onnx"])
def test_a_line_longer_than_the_positions_is_left_out(
    trained: Path, tmp_path: Path, call: Callable[..., Any], format: str
) -> None:
    pytest.importorskip({"onnx": "onnxruntime"}.get(format, format))
    (tmp_path / "lines").write_text(f"eins\n{'zwei ' * 1024}\ndrei zwei\n", encoding="utf-8")
    words = ("--format", format, "-o", tmp_path / "out", "--lines", tmp_path / "lines", "--beam", 2)
    result = call("export", trained, *words)
    assert result.status == 0, result.err
    found = json.loads((tmp_path / "out" / "certificate.json").read_text(encoding="utf-8"))
    assert (found["state"], found["lines"]) == ("passed", 2)
    assert found["origin"] == "the first 2 lines of lines, without 1 of more than 1,024 tokens"


def test_another_length_penalty_is_replaced_on_request(
    tmp_path: Path, tokenizer: Tokenizer, call: Callable[..., Any]
) -> None:
    size = {"source_vocab": len(tokenizer), "target_vocab": len(tokenizer), "width": 16, "heads": 2, "inner": 8}
    config = TransformerConfig(**size, encoder_layers=1, decoder_layers=1)
    bundle = Bundle(build_network(config), tokenizer, tokenizer, Search(alpha=0.6, length_penalty="wu"))
    save_bundle(tmp_path / "model", bundle, {}, "A test wrote it.")
    words = ("export", tmp_path / "model", "--format", "transformers", "-o", tmp_path / "out", "--no-certificate")
    result = call(*words)
    assert (result.status, len(result.err.splitlines())) == (2, 1), result.err
    assert "a search that divides by ((5 + |y|) / 6)^0.6" in result.err
    assert "--length-penalty power" in result.err
    assert not (tmp_path / "out").exists()
    assert call(*words, "--length-penalty", "power", "--alpha", 0.9).status == 0
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text(encoding="utf-8"))
    assert written["length_penalty"] == 0.9


def test_a_search_for_a_format_without_one_is_refused(trained: Path, tmp_path: Path) -> None:
    for format in ("argos", "sentencepiece"):
        with pytest.raises(ConfigurationError, match=f"{format} has no settings of a search"):
            export_model(trained, format, tmp_path / "out", ExportOptions(alpha=0.5))
    with pytest.raises(ConfigurationError, match="the search that is written: alpha"):
        export_model(trained, "ctranslate2", tmp_path / "out", ExportOptions(alpha=-1.0))
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten(exported: Path, trained: Path) -> None:
    before = {path: path.read_bytes() for path in exported.iterdir()}
    with pytest.raises(ConfigurationError, match="exists already; nothing was overwritten"):
        export_model(trained, "ctranslate2", exported, OPTIONS)
    assert {path: path.read_bytes() for path in exported.iterdir()} == before


def test_unknown_names_are_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no format 'tensorflow': choose ctranslate2, argos"):
        find_format("tensorflow")
    with pytest.raises(ConfigurationError, match="no quantization 'int4': choose float32, int8"):
        export_model(trained, "ctranslate2", tmp_path / "out", ExportOptions("int4"))


def test_the_command_offers_the_formats_that_there_are() -> None:
    assert FORMATS == exporting.FORMATS
    assert CertificateError.exit_status == 1


def test_without_a_certificate_it_says_so(trained: Path, tmp_path: Path) -> None:
    options = ExportOptions(certificate=False)
    found = export_model(trained, "ctranslate2", tmp_path / "out", options, say=lambda _: None)
    assert (found.state, found.reason) == ("not run", "not requested")
