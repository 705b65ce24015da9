"""Files of the library ``tokenizers`` that would end the process, exhaust memory, or take forever."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from multihead.errors import FormatError
from multihead.text.components import check_content, check_size
from multihead.text.foreign import SpecialIds
from multihead.text.hugging_face import HuggingFaceTokenizer


def content() -> dict[str, Any]:
    """A tokenizer.json with a pattern, replacements, and a table that makes b of a."""
    made = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Replace(" ", "_"), normalizers.Prepend("_")])
    made.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("_+"), "isolated")
    found: dict[str, Any] = json.loads(made.to_str())
    return found


def table(units: list[int], texts: bytes, size: int | None = None) -> str:
    """A table of characters as SentencePiece writes it."""
    packed = b"".join(unit.to_bytes(4, "little") for unit in units)
    return base64.b64encode((len(packed) if size is None else size).to_bytes(4, "little") + packed + texts).decode()


def build(found: dict[str, Any]) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(found, SpecialIds(0, 0, 0, 0))


def normalizer(*parts: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        found["normalizer"] = {"type": "Sequence", "normalizers": list(parts)}

    return change


def precompiled(encoded: Any) -> Callable[[dict[str, Any]], None]:
    return normalizer({"type": "Precompiled", "precompiled_charsmap": encoded})


def pattern(expression: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        found["pre_tokenizer"]["pattern"] = {"Regex": expression}

    return change


def last_id(index: int) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        found["model"]["vocab"]["b"] = index

    return change


REPLACEMENT = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
LEAF = 1 << 31
PREFIXED = {
    "type": "BPE",
    "continuing_subword_prefix": "##",
    "vocab": {"a": 0, "b": 1, "ab": 2},
    "merges": [["a", "b"]],
}

BAD = [
    (pattern("(x+x+)+y"), "too many ways"),
    (pattern(["x"]), "expected text"),
    (pattern("(" * 100_000), "a parenthesis too few|too many groups"),
    (normalizer(*[REPLACEMENT] * 50), "more than 256 characters of one"),
    (normalizer({"type": "Prepend", "prepend": "a" * 1000}), "more than 256 characters of one"),
    (precompiled("/////w=="), "charsmap"),
    (precompiled(["a"]), "charsmap"),
    (precompiled("a\\b"), "charsmap"),
    (precompiled(""), "charsmap"),
    (precompiled(table([0], b"")), "charsmap"),
    (precompiled(table([1 << 30] * 256, b"")), "charsmap"),
    (precompiled(table([0] * 255 + [LEAF | 100], b"x\0")), "charsmap"),
    (precompiled(table([0] * 255 + [LEAF | 1], "é\0".encode())), "charsmap"),
    (precompiled(table([0] * 256, b"\xff\0")), "charsmap"),
    (precompiled(table([0] * 256, b"x" * 1000 + b"\0")), "more than 256 characters of one"),
    (lambda found: found.update(model={"type": "WordPiece", "max_input_chars_per_word": 10**9}), "max_input_chars"),
    (lambda found: found.update(model=PREFIXED), "a merge lacks it"),
    (last_id(2**32 - 1), "ids up to 4,294,967,295"),
    (last_id(10**18), "cannot read"),
]


@pytest.mark.parametrize(("change", "why"), BAD)
def test_a_file_that_is_refused(change: Callable[[dict[str, Any]], None], why: str) -> None:
    found = content()
    change(found)
    with pytest.raises(FormatError, match=why) as refused:
        build(found)
    assert len(str(refused.value)) < 500


def test_usual_files_are_read() -> None:
    found = content()
    assert build(found).encode("a b") == [0, 1, 0, 2]
    precompiled(table([0] * 256, b"\0"))(found)
    assert build(found).encode("a") == [1]
    check_size(128_112, 128_000)
    check_size(10**6, 600_000)


def test_the_table_of_sentencepiece_is_read() -> None:
    spm = pytest.importorskip("sentencepiece")
    import io

    written = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(["Ein Hund rennt."] * 20), model_writer=written, minloglevel=2, vocab_size=30,
        hard_vocab_limit=False,
    )  # fmt: skip
    model = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto()
    model.ParseFromString(written.getvalue())
    encoded = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    check_content({"normalizer": {"type": "Precompiled", "precompiled_charsmap": encoded}}, ())
    made = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    assert made.normalize_str("ﬁ") == "fi"
