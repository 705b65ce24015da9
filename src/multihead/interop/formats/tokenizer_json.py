"""Tokenizer files for ``AutoTokenizer`` and transformers.js.

`tokenizer.json` of the library ``tokenizers`` has everything, but two things differ from our own file of that name:

* The word mark is the space itself instead of U+2581. The library then cuts every text as we do, also one with a
  literal U+2581, for which no entry is left, so that it is spelled in bytes.
* The special symbols are added tokens, because programs look for them there, and a template puts the prefix of the
  tokenizer before a text and the end symbol behind it.

User-defined symbols cannot be written: the library puts a word mark before the text behind each of them.

A user's ``</s>`` is text for ``transformers``, because of ``split_special_tokens`` in tokenizer_config.json;
transformers.js does not have that setting and finds the end symbol in such a text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from multihead.errors import InputError
from multihead.interop.formats import sentencepiece_json
from multihead.text.foreign import SpecialIds
from multihead.text.hugging_face import HuggingFaceTokenizer
from multihead.text.language_tokens import LanguageTokenizer
from multihead.text.sentencepiece import SentencePieceTokenizer
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer
from multihead.text.vocabulary import FIRST_BYTE, FIRST_CHARACTER, MARK

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"


def is_supported(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer can be written."""
    return isinstance(tokenizer, (BytePairTokenizer, HuggingFaceTokenizer, SentencePieceTokenizer))


def write_tokenizer(tokenizer: Tokenizer, folder: Path, longest: int) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``.

    Args:
        tokenizer: a supported one.
        folder: an existing folder.
        longest: number of tokens that the model can read.

    Raises:
        InputError: the tokenizer is of another kind.
    """
    write_json(folder / FILE, content_of(tokenizer))
    write_json(folder / SETTINGS, settings_of(tokenizer, longest))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write an object as JSON."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8", newline="\n")


def content_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of ``tokenizer.json``.

    Raises:
        InputError: the tokenizer is neither ours, nor SentencePiece's, nor one that came as such a file.
        MissingDependencyError: the tokenizer is SentencePiece's, and protobuf is not installed.
    """
    if isinstance(tokenizer, BytePairTokenizer):
        content = _with_spaces(json.loads(tokenizer.to_json()))
        content["added_tokens"] = [_added(tokenizer, i) for i in range(FIRST_BYTE)]
    elif isinstance(tokenizer, HuggingFaceTokenizer):
        content = dict(tokenizer.content)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        content = sentencepiece_json.content_of(tokenizer)
    else:
        raise InputError(f"a {type(tokenizer).__name__} cannot be written as a {FILE}")
    return content | {"truncation": None, "padding": None, "post_processor": _template(tokenizer)}


def as_library_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """A vocabulary with symbols of languages as the library has it: with added tokens. Any other as it is."""
    if not isinstance(tokenizer, LanguageTokenizer) or not is_supported(tokenizer.inner):
        return tokenizer
    symbols, content = range(len(tokenizer.inner), len(tokenizer)), content_of(tokenizer.inner)
    content["added_tokens"] = [*content["added_tokens"], *(_added(tokenizer, i) for i in symbols)]
    specials = SpecialIds(tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
    return HuggingFaceTokenizer(content, specials, symbols, tokenizer.prefix)


def settings_of(tokenizer: Tokenizer, longest: int) -> dict[str, Any]:
    """The content of ``tokenizer_config.json``."""
    ids = {"pad": tokenizer.pad_id, "unk": tokenizer.unk_id, "bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": tokenizer.vocabulary[i] for name, i in ids.items()},
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "padding_side": "right",
        "model_max_length": longest,
        "model_input_names": ["input_ids", "attention_mask"],
    }


def _with_spaces(content: dict[str, Any]) -> dict[str, Any]:
    """Our file with the space as word mark."""
    model, cut = content["model"], content["pre_tokenizer"]
    names = {i: token.replace(MARK, " ") if i >= FIRST_CHARACTER else token for token, i in model["vocab"].items()}
    merges = [[side.replace(MARK, " ") for side in pair] for pair in model["merges"]]
    pattern = {"Regex": cut["pattern"]["Regex"].replace(MARK, " ")}
    first, *rest = content["decoder"]["decoders"]
    assert first["type"] == "Replace"
    return content | {
        "normalizer": {"type": "Prepend", "prepend": " "},
        "pre_tokenizer": cut | {"pattern": pattern},
        "model": model | {"vocab": {token: i for i, token in names.items()}, "merges": merges},
        "decoder": content["decoder"] | {"decoders": rest},
    }


def _added(tokenizer: Tokenizer, index: int) -> dict[str, Any]:
    """A special symbol as an added token."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": tokenizer.vocabulary[index], **flags, "special": True}


def _template(tokenizer: Tokenizer) -> dict[str, Any]:
    """Prefix, text, end symbol."""
    names = {i: tokenizer.vocabulary[i] for i in (*tokenizer.prefix, tokenizer.eos_id)}
    before = [{"SpecialToken": {"id": names[i], "type_id": 0}} for i in tokenizer.prefix]
    end = [{"SpecialToken": {"id": names[tokenizer.eos_id], "type_id": 0}}]
    one, two = ([{"Sequence": {"id": name, "type_id": 0}}] for name in ("A", "B"))
    return {
        "type": "TemplateProcessing",
        "single": before + one + end,
        "pair": before + one + end + two + end,
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in names.items()},
    }
