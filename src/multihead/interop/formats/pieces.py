"""Files of vocabularies that several toolkits have: lists, codes, models"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal, overload

from multihead.errors import FormatError, shown
from multihead.interop.formats.restricting import restrict
from multihead.interop.formats.yaml_files import parse_settings_file
from multihead.sealed import read_file
from multihead.text.foreign import SpecialIds
from multihead.text.sentencepiece import SentencePieceTokenizer, read_model
from multihead.text.subword_nmt.codes import Codes


@overload
def find(folder: Path, names: Sequence[str], what: str, *, optional: Literal[False] = ...) -> Path: ...


@overload
def find(folder: Path, names: Sequence[str], what: str, *, optional: bool) -> Path | None: ...


def find(folder: Path, names: Sequence[str], what: str, *, optional: bool = False) -> Path | None:
    """The first file of a folder with one of these names or patterns.

    Raises:
        FormatError: there is none, and it is not ``optional``.
    """
    for name in names:
        for path in sorted(folder.glob(inside(folder, name).name)):
            if path.is_file():
                return path
    if optional:
        return None
    raise FormatError(f"{folder}: {what} is missing: expected {' or '.join(names)}; copy the whole folder of the model")


def inside(folder: Path, name: str) -> Path:
    """The path of a file that settings name.

    Raises:
        FormatError: it is not in the folder.
    """
    if Path(name).name != name:
        raise FormatError(f"{folder}: its settings name {shown(name)}, which is no file of this folder")
    return folder / name


def read_lines(path: Path) -> list[str]:
    """The lines of a vocabulary file, without LF.

    Raises:
        FormatError: there is no such file, it cannot be read, or is not UTF-8 text.
    """
    if not path.exists():
        raise FormatError(f"{path}: the vocabulary is missing; copy the whole folder of the model")
    try:
        text = read_file(path).decode("utf-8")
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not a vocabulary, as it is not UTF-8 text") from None
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def read_codes(path: Path) -> Codes:
    """The codes of subword-nmt, or of fastBPE, which has a count as third column and counts as version 0.2.

    Raises:
        FormatError: a line is not a merge.
    """
    lines = read_lines(path)
    if lines and _is_counted(lines[0]):
        wrong = next((number for number, line in enumerate(lines, 1) if not _is_counted(line)), None)
        if wrong is not None:
            raise FormatError(f"{path}:{wrong}: expected two symbols and a count, got {lines[wrong - 1][:80]!r}")
        return Codes.read(["#version: 0.2", *(line.rstrip().rpartition(" ")[0] for line in lines)], path)
    return Codes.read(lines, path)


def _is_counted(line: str) -> bool:
    """Whether a line of codes is one of fastBPE."""
    columns = line.rstrip().split(" ")
    return len(columns) == 3 and columns[2].isdecimal()


def with_sentencepiece(
    path: Path,
    vocabulary: Sequence[str],
    specials: SpecialIds,
    control: Collection[int] = (),
    prefix: Sequence[int] = (),
    *,
    restricted: bool = False,
) -> SentencePieceTokenizer:
    """The tokenizer of a SentencePiece model whose pieces have the ids of a list.

    Args:
        path: the model.
        vocabulary: the piece of each id.
        specials: ids of the special symbols.
        control: ids of other control symbols.
        prefix: ids before every text.
        restricted: cut texts into pieces of the vocabulary only, instead of taking the others for unknown.

    Raises:
        FormatError: the model is damaged.
        MissingDependencyError: ``sentencepiece`` is not installed.
    """
    model = read_model(path)
    model = restrict(model, vocabulary) if restricted else model
    return SentencePieceTokenizer(model, vocabulary, specials, control, prefix)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, in which only plain data is allowed.

    Raises:
        FormatError: there is no such file, or it is no such mapping.
        MissingDependencyError: ``PyYAML`` is not installed.
    """
    return parse_settings_file("\n".join(read_lines(path)), path)
