"""The ecosystem's ``tokenizer.json``: read it with every check, write it whole or not at all.

The library reads any tokenizer; this package promises more (exact round trips, no text that becomes a control
symbol), which holds only for files with the parts of ``pipeline``. So a file is compared with the one that we
would have written, and refused with the name of the first part that differs.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from multihead.errors import FormatError, InputError, SurroundingsError
from multihead.text.pipeline import BYTE_TOKENS, FIRST_BYTE, FIRST_CHARACTER, MARK, Parts, Specials, assemble


def read(text: str) -> Parts:
    """The parts of a tokenizer from the text of its file.

    Raises:
        FormatError: it is not JSON, not a byte-pair encoding, or not one with our special symbols, byte
            tokens, normaliser, pattern or decoder; the message names what is missing.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"this is not a tokenizer.json, as it is not JSON ({error})") from error
    vocabulary = read_vocabulary(content)
    try:
        # Through the library, so that files of its older and newer versions look alike.
        content = json.loads(tokenizers.Tokenizer.from_str(text).to_str())
    except Exception as error:  # the library raises nothing more specific
        raise refusal(f"the tokenizers library cannot read it ({error})") from error
    splitting = content["pre_tokenizer"] or {}
    if "Regex" not in splitting.get("pattern", {}):
        raise refusal(f"its pre_tokenizer is {shown(splitting)}, expected a Split by a regular expression")
    merges = tuple((left, right) for left, right in content["model"]["merges"])
    parts = Parts(vocabulary, merges, splitting["pattern"]["Regex"])
    check_merges(parts)
    check_rest(content, json.loads(assemble(parts).to_str()))
    return parts


def read_vocabulary(content: object) -> tuple[str, ...]:
    """The entries by id, after checking those that must be there."""
    match content:
        case {"model": {"type": "BPE", "vocab": dict(ids)}}:
            tokens = {index: token for token, index in ids.items() if isinstance(index, int)}
        case _:
            raise refusal("it has no model of the type BPE with a vocabulary")
    if tokens.keys() != set(range(len(ids))):
        raise refusal("the ids of its vocabulary are not 0, 1, 2, ... without gaps")
    vocabulary = tuple(tokens[index] for index in range(len(ids)))
    if vocabulary[FIRST_BYTE:FIRST_CHARACTER] != BYTE_TOKENS:
        raise refusal(
            f"it has no byte tokens {BYTE_TOKENS[0]} to {BYTE_TOKENS[-1]} with the ids {FIRST_BYTE} to "
            f"{FIRST_CHARACTER - 1}"
        )
    if MARK not in vocabulary[FIRST_CHARACTER:]:
        raise refusal(f"its vocabulary has no word mark {MARK!r} (U+2581)")
    try:
        Specials(*vocabulary[:FIRST_BYTE])
    except InputError as error:
        raise refusal(f"it has no special symbols with the ids 0 to 3 ({error})") from error
    return vocabulary


def check_merges(parts: Parts) -> None:
    """No merge may take part of a special symbol or byte token, or spell one: text would turn into it."""
    reserved = frozenset(parts.vocabulary[:FIRST_CHARACTER])
    for left, right in parts.merges:
        if not reserved.isdisjoint((left, right, left + right)):
            raise refusal(f"its merge of {left!r} and {right!r} touches a special symbol or byte token")


def check_rest(content: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Everything else must be as we write it."""
    for part in ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if content[part] != expected[part]:
            raise refusal(f"its {part} is {shown(content[part])}, expected {shown(expected[part])}")
    for part in ("truncation", "padding"):
        if content[part] is not None:
            raise refusal(f"it has {part} ({shown(content[part])}), which cuts or fills texts silently")
    for setting in expected["model"].keys() - {"vocab", "merges"}:
        got, wanted = content["model"][setting], expected["model"][setting]
        if got != wanted:
            raise refusal(f"its setting {setting} is {got!r}, expected {wanted!r}")


def refusal(reason: str) -> FormatError:
    """The error for a file that is somebody else's."""
    return FormatError(f"this tokenizer.json was not written by multihead: {reason}; learn one with Tokenizer.learn")


def shown(part: object) -> str:
    """A part of the file, short enough for a message."""
    text = json.dumps(part, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + "..."


def load(path: Path) -> Parts:
    """The parts of a tokenizer from its file.

    Raises:
        FormatError: as ``read``, with the file's name, or no file of this name.
        SurroundingsError: the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise FormatError(f"{path}: there is no such tokenizer file; give the path of a tokenizer.json") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: this is not a tokenizer.json, as it is not UTF-8 text") from error
    except OSError as error:
        raise SurroundingsError(f"{path}: the tokenizer cannot be read ({error.strerror})") from error
    try:
        return read(text)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def save(text: str, path: Path) -> None:
    """Write the file whole or not at all: into a neighbour first, which then takes its name.

    Raises:
        InputError: the folder does not exist, or the path is a folder.
        SurroundingsError: no space left, no permission.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the path of the file to write, such as {path / 'tokenizer.json'}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}; create it first")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise SurroundingsError(f"{path}: the tokenizer cannot be written ({error.strerror})") from error
    finally:
        part.unlink(missing_ok=True)
