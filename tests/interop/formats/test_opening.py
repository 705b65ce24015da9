"""Reading folders of other programs: any damage in the settings ends in a one-line error."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from multihead import bundle
from multihead.bundle import (
    SHORTLIST,
    load_bundle,
    model_digest,
    model_digests,
    weights_digest,
    weights_digests,
)
from multihead.errors import FormatError, MultiheadError
from multihead.files import sha256_of
from multihead.interop.formats import opening
from multihead.interop.formats.opening import FORMATS, read_foreign, recognize
from multihead.interop.formats.parts import Languages

JUNK: list[Any] = [None, 0, -1, 3.5, "x", "", [], ["a"], {}, {"a": 1}, True, 10**30]


@pytest.fixture
def eole(tmp_path: Path) -> Path:
    """A folder that Eole's reader recognizes, with settings of several kinds."""
    settings = {
        "model": {
            "architecture": "transformer",
            "heads": 2,
            "norm_eps": 1e-6,
            "embeddings": {"position_encoding_type": "SinusoidalInterleaved", "word_vec_size": 8},
            "encoder": {"encoder_type": "transformer", "layers": 1},
            "decoder": {"decoder_type": "transformer", "layers": 1},
        },
        "transforms": ["filtertoolong"],
        "transforms_configs": {"filtertoolong": {"src_seq_length": 9}},
    }
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    pieces = ["<unk>", "<blank>", "<s>", "</s>", "a"]
    vocabulary = {"src": pieces, "tgt": pieces, "specials": {"pad_token": "<blank>"}}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    from safetensors.torch import save_file

    save_file({"src_emb.embeddings.weight": nn.Embedding(5, 8).weight.detach()}, tmp_path / "model.00.safetensors")
    return tmp_path


def places(content: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths to all values in nested dictionaries."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield (*above, name)
            yield from places(value, (*above, name))


@pytest.mark.parametrize("file", ["config.json", "vocab.json"])
def test_settings_of_any_type_are_one_line(eole: Path, file: str) -> None:
    draw = random.Random(1)
    content = json.loads((eole / file).read_text(encoding="utf-8"))
    for place in list(places(content)) * 4:
        changed = copy.deepcopy(content)
        inner = changed
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = draw.choice(JUNK)
        (eole / file).write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(MultiheadError) as caught:  # at the latest because weights are missing
            read_foreign(eole, Languages())
        assert "\n" not in str(caught.value)


def test_one_format_recognizes_a_folder(eole: Path) -> None:
    assert [one.name for one in FORMATS if one.recognizes(eole)] == ["Eole"]
    found = recognize(eole)
    assert found is not None
    assert found.module == "eole"
    assert recognize(eole / "config.json") is None


def test_the_error_names_the_program(eole: Path) -> None:
    content = json.loads((eole / "config.json").read_text(encoding="utf-8"))
    (eole / "config.json").write_text(json.dumps(content | {"transforms": True}), encoding="utf-8")
    with pytest.raises(
        FormatError, match=r"settings that Eole does not write \(TypeError: .*\); the folder is damaged"
    ):
        read_foreign(eole, Languages())


def test_a_folder_is_recognized_once_a_load(eole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(opening, "recognize", lambda folder: asked.append(folder) or recognize(folder))
    with pytest.raises(FormatError):
        load_bundle(eole)
    assert asked == [eole]


def test_the_digest_of_a_folder_covers_the_folders_in_it(eole: Path) -> None:
    before = model_digest(eole)
    (eole / "target_tokenizer").mkdir()
    (eole / "target_tokenizer" / "vocab.json").write_text("{}")
    between = weights_digest(eole)
    (eole / "target_tokenizer" / "vocab.json").write_text("[]")
    assert len({before[17:], between[:16], weights_digest(eole)[:16]}) == 3
    assert model_digest(eole)[:16] == before[:16]


def of_all_files(folder: Path) -> str:
    """The digest that multihead recorded up to version 0.6."""
    files = {path.relative_to(folder).as_posix(): sha256_of(path) for path in folder.rglob("*") if path.is_file()}
    return hashlib.sha256("".join(files[name] for name in sorted(files)).encode()).hexdigest()


def test_the_digest_of_a_folder_is_of_the_files_that_readers_may_open(eole: Path) -> None:
    """Not of a shortlist, of notes, of what version control and downloads keep, or of drafts."""
    weights, model = weights_digest(eole), model_digest(eole)
    assert weights_digests(eole) == [weights] == [of_all_files(eole)]
    assert model_digests(eole) == [model]
    git, download = ".git/objects/pack/model.bin", ".cache/huggingface/download/config.json.metadata"
    for name in (SHORTLIST, f".{SHORTLIST}.unfinished-12", "README.md", ".gitattributes", git, download):
        (eole / name).parent.mkdir(parents=True, exist_ok=True)
        (eole / name).write_text(name, encoding="utf-8")
        assert weights_digests(eole) == [weights, of_all_files(eole)]
        assert model_digests(eole) == [model, f"{model[:16]}-{of_all_files(eole)[:16]}"]
    found = {weights}
    for name in ("model.01.safetensors", "notes.md", ".codes", "._model.pt", "target_tokenizer/vocab.txt", "README"):
        (eole / name).parent.mkdir(exist_ok=True)
        (eole / name).write_text(name, encoding="utf-8")
        found.add(weights_digest(eole))
    assert len(found) == 7


def test_a_file_that_comes_while_others_are_read_is_part_of_the_digest(
    eole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path) -> str:
        if not late.exists():
            late.write_bytes(b"more weights")
        return sha256_of(path)

    before, late = weights_digest(eole), eole / "model.01.safetensors"
    monkeypatch.setattr(bundle, "sha256_of", read)
    during = weights_digest(eole)
    monkeypatch.undo()
    assert during == weights_digest(eole) != before


def test_a_folder_without_config_json_has_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "best.ckpt").write_bytes(b"weights")
    monkeypatch.setattr(opening, "recognize", lambda _: FORMATS[-1])
    assert model_digest(tmp_path) == f"-{weights_digest(tmp_path)[:16]}"
