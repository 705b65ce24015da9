"""tokenizer.json: loading returns what was saved, the library reads it, other tokenizers are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models

from multihead.errors import FormatError, InputError, SurroundingsError
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import FIRST_CHARACTER, MARK, Specials

LINES = [
    "The cat sat on the mat, 12 times.",
    "Die Katze saß auf der Matte – ¡olé! 中文",
    "  a   b\t\u00a0",
] * 4
TEXTS = [*LINES, "", " ", "  x ", "</s> <0x41> <blank>", "🏴‍☠️ é 𠀀", "unseen ж\n", "2016"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn(LINES, 400)


def test_loading_gives_what_was_saved(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(str(path))
    assert loaded.to_json() == tokenizer.to_json() == path.read_text(encoding="utf-8")
    assert loaded.digest == tokenizer.digest
    assert loaded.encode_batch([*TEXTS, MARK]) == tokenizer.encode_batch([*TEXTS, MARK])
    assert len(loaded) == len(tokenizer)
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"], "no leftovers"


def test_special_symbols_are_a_setting_that_the_file_keeps() -> None:
    specials = Specials(pad="[PAD]", unk="[UNK]", bos="[BEGIN]", eos="[END]")
    tokenizer = Tokenizer.learn([*LINES, "[PAD] [END]"], 400, specials=specials)
    loaded = Tokenizer.from_json(tokenizer.to_json())
    assert loaded.specials == specials
    assert loaded.pieces([loaded.pad_id, loaded.unk_id, loaded.bos_id, loaded.eos_id]) == list(specials.strings)
    assert loaded.decode(loaded.encode("[PAD] [END]")) == "[PAD] [END]"
    assert loaded.digest != Tokenizer.learn([*LINES, "[PAD] [END]"], 400).digest


def test_the_library_reads_the_file_and_gives_the_same_ids(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    plain = tokenizers.Tokenizer.from_file(str(path))
    assert plain.get_vocab_size() == len(tokenizer)
    for text in TEXTS:
        ids = plain.encode(text).ids
        assert ids == tokenizer.encode(text)
        assert plain.decode(ids, skip_special_tokens=False) == text


def test_the_rare_path_segments_like_the_library(tokenizer: Tokenizer) -> None:
    for text in filter(None, TEXTS):
        with_mark = tokenizer.encode(text + MARK)
        assert with_mark == tokenizer.encode(text) + [4 + byte for byte in MARK.encode()]


def test_the_digest_ignores_the_layout_of_the_file(tokenizer: Tokenizer) -> None:
    compact = json.dumps(json.loads(tokenizer.to_json()))
    assert compact != tokenizer.to_json()
    assert Tokenizer.from_json(compact).digest == tokenizer.digest


def test_the_digest_is_the_same_in_another_process(tokenizer: Tokenizer) -> None:
    code = f"from multihead.text.tokenizer import Tokenizer; print(Tokenizer.learn({LINES!r}, 400).digest)"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONHASHSEED": "7",
        "PYTHONUTF8": "1",
    }
    # With one thread: the result must not depend on how the counting was divided.
    environment |= {"RAYON_NUM_THREADS": "1"}
    output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == tokenizer.digest
    assert output.stderr == ""


def swap(content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    vocab["<0x41>"], vocab["<0x42>"] = vocab["<0x42>"], vocab["<0x41>"]


def gap(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["zzz"] = 10_000


def no_mark(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["zzz"] = content["model"]["vocab"].pop(MARK)


def short_special(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["?"] = content["model"]["vocab"].pop("</s>")


def special_token(content: dict[str, Any]) -> None:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    content["added_tokens"] = [{"id": 3, "content": "</s>", **flags}]


def special_merge(content: dict[str, Any]) -> None:
    vocab = content["model"]["vocab"]
    vocab["<"] = len(vocab)
    vocab["/s>"] = len(vocab)
    content["model"]["merges"].append(["<", "/s>"])


def truncation(content: dict[str, Any]) -> None:
    limits = {"max_length": 5, "stride": 0}
    content["truncation"] = {"strategy": "LongestFirst", "direction": "Right", **limits}


def set_part(*path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap, "byte tokens"),
        (gap, "without gaps"),
        (no_mark, "word mark"),
        (short_special, "special symbols"),
        (special_token, "added_tokens"),
        (special_merge, "merge of '<' and '/s>'"),
        (set_part("model", "vocab", value={}), "byte tokens"),
        (set_part("model", "vocab", value={"a": "b"}), "without gaps"),
        (set_part("model", "type", value="Unigram"), "BPE"),
        (set_part("model", "merges", value=[["nowhere", "to be found"]]), "library cannot read"),
        (set_part("model", "dropout", value=0.5), "dropout is 0.5"),
        (set_part("model", "byte_fallback", value=False), "byte_fallback is False"),
        (set_part("model", "ignore_merges", value=True), "ignore_merges is True"),
        (set_part("model", "unk_token", value=None), "unk_token is None, expected '<unk>'"),
        (set_part("normalizer", value={"type": "NFKC"}), "normalizer"),
        (set_part("normalizer", value=None), "normalizer"),
        (set_part("pre_tokenizer", value=None), "pre_tokenizer"),
        (set_part("pre_tokenizer", value={"type": "Whitespace"}), "pre_tokenizer"),
        (set_part("pre_tokenizer", "behavior", value="Removed"), "pre_tokenizer"),
        (set_part("pre_tokenizer", "pattern", value={"String": "x"}), "pre_tokenizer"),
        (set_part("pre_tokenizer", "pattern", value={"Regex": "("}), "a parenthesis too few"),
        (set_part("pre_tokenizer", "pattern", value={"Regex": "(x+x+)+y"}), "too many ways"),
        (set_part("normalizer", value={"type": "Precompiled", "precompiled_charsmap": "/////w=="}), "charsmap"),
        (set_part("decoder", value=None), "decoder"),
        (truncation, "it has truncation"),
    ],
)
def test_a_tokenizer_that_is_not_ours_is_refused(
    tokenizer: Tokenizer, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    content = json.loads(tokenizer.to_json())
    change(content)
    with pytest.raises(FormatError, match=message):
        Tokenizer.from_json(json.dumps(content))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '"text"', "{}", '{"model": null}', "[" * 100_000])
def test_what_is_no_tokenizer_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        Tokenizer.from_json(text)


def test_another_byte_pair_tokenizer_is_refused() -> None:
    other = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    with pytest.raises(FormatError, match="byte tokens"):
        Tokenizer.from_json(other.to_str())


def test_an_older_pattern_stays_as_it_was_saved(tokenizer: Tokenizer) -> None:
    content = json.loads(tokenizer.to_json())
    content["pre_tokenizer"]["pattern"]["Regex"] = "."
    older = Tokenizer.from_json(json.dumps(content))
    assert older.digest != tokenizer.digest
    assert all(len(piece) == 1 for piece in older.pieces(older.encode("The cat")))
    assert older.to_json() != tokenizer.to_json()


def test_files_that_cannot_be_loaded_are_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}", encoding="utf-8")
    for path, message in [
        (tmp_path / "none.json", "no such"),
        (tmp_path, "no such"),
        (binary, "UTF-8"),
        (wrong, "BPE"),
    ]:
        with pytest.raises(FormatError, match=message) as caught:
            Tokenizer.load(path)
        assert str(caught.value).startswith(str(path))


def test_saving_replaces_the_file_or_leaves_it_alone(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("before", encoding="utf-8")

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(SurroundingsError, match="No space left"):
            tokenizer.save(path)
    assert path.read_text(encoding="utf-8") == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]
    tokenizer.save(path)
    assert Tokenizer.load(path).digest == tokenizer.digest


def test_saving_to_a_place_that_is_none_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        tokenizer.save(tmp_path / "missing" / "tokenizer.json")
    with pytest.raises(InputError, match="is a folder"):
        tokenizer.save(tmp_path)


def test_importing_the_tokenizer_does_not_import_torch() -> None:
    code = "import sys, multihead.text.tokenizer; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_ids_are_laid_out_as_documented(tokenizer: Tokenizer) -> None:
    entries = tokenizer.pieces(range(len(tokenizer)))
    assert entries[:4] == ["<blank>", "<unk>", "<s>", "</s>"]
    assert (entries[4], entries[FIRST_CHARACTER - 1]) == ("<0x00>", "<0xFF>")
    assert MARK in entries[FIRST_CHARACTER:]
