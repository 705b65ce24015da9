"""The vocabulary of a BERT: text to ids and back, and where words begin.

There are two kinds: `BpeWords`, multihead's byte-pair encoding, which restores every text exactly, and `WordPieces`,
the ``vocab.txt`` of published models (Devlin et al. 2019, section 3). The segmentation itself is done by
`text.tokenizer` and by the ``tokenizers`` library. Which words are hidden in training is decided in
`data.bert.batches`.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from multihead.errors import FormatError
from multihead.sealed import OpenFolder
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer
from multihead.text.vocabulary import BYTE_TOKENS, FIRST_BYTE, MARK, Specials, check_unicode

HIDDEN = "[MASK]"
"""How a hidden word is written in texts."""

BERT_SPECIALS = Specials(pad="[PAD]", unk=HIDDEN, bos="[CLS]", eos="[SEP]")
"""The special symbols of `BpeWords`. The symbol for unknown words, which the file format requires, is never produced
(`text.vocabulary.Specials`), so the hidden word takes its place; the file format is the same as for translators."""


class Symbols(NamedTuple):
    """The ids of a model's special symbols."""

    pad: int
    first: int
    """[CLS]: begins every row; its state represents the row."""
    end: int
    """[SEP]: ends each of the two parts of a row."""
    hidden: int
    """[MASK]: replaces a word to be predicted."""


class BertWords(ABC):
    """A vocabulary of words or subwords, applied to texts and undone."""

    symbols: Symbols
    special: tuple[int, ...]
    """Ids that are not words: never hidden, never drawn, never predicted."""

    @abstractmethod
    def __len__(self) -> int:
        """Size of the vocabulary."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special symbols.

        Raises:
            DataError: a text has a lone surrogate.
        """

    @abstractmethod
    def encode_with_hidden(self, text: str) -> list[int]:
        """The ids of a text in which each "[MASK]" is one hidden subword.

        Raises:
            DataError: as `encode`.
        """

    @abstractmethod
    def fill(self, text: str, ids: Sequence[int]) -> str:
        """A text with its hidden subwords replaced, one by each id."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special symbols are skipped."""

    @abstractmethod
    def show(self, index: int) -> str:
        """An entry for display: a word, or a part of one, marked as such."""

    @property
    @abstractmethod
    def begins_word(self) -> NDArray[np.bool_]:
        """For each entry, whether it begins a word; False for special symbols."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of the vocabulary: equal digests give equal ids."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the files that `read_words` reads; not atomic, so for folders that are being prepared."""


class BpeWords(BertWords):
    """multihead's byte-pair encoding, learned with `BERT_SPECIALS`.

    Args:
        tokenizer: the tokenizer.

    Raises:
        FormatError: the tokenizer has other special symbols, such as those of translators.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer, BytePairTokenizer) or tokenizer.specials != BERT_SPECIALS:
            raise FormatError(
                f"the special symbols of this tokenizer are {' '.join(tokenizer.vocabulary[:FIRST_BYTE])}, not "
                f"{' '.join(BERT_SPECIALS.strings)}: it is not a BERT's; `multihead pretrain` learns one"
            )
        self.tokenizer = tokenizer
        self.symbols = Symbols(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
        self.special = tuple(range(FIRST_BYTE))

    def __len__(self) -> int:
        return len(self.tokenizer)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.encode_batch(texts)

    def encode_with_hidden(self, text: str) -> list[int]:
        # A space in front of a hidden word is part of the word.
        first, *rest = text.split(HIDDEN)
        ids = self.tokenizer.encode(first.removesuffix(" ") if rest else first)
        for number, part in enumerate(rest, start=1):
            ended = part if number == len(rest) else part.removesuffix(" ")
            ids += [self.symbols.hidden, *self.tokenizer.encode_rest(ended)]
        return ids

    def fill(self, text: str, ids: Sequence[int]) -> str:
        # Decoding restores the rest exactly, and subwords know whether a space is in front of them.
        found, hidden = iter(ids), self.symbols.hidden
        return self.decode([next(found) if index == hidden else index for index in self.encode_with_hidden(text)])

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def show(self, index: int) -> str:
        # Entries that continue a word are prefixed with "##", like word pieces.
        piece = self.tokenizer.pieces([index])[0]
        return piece.removeprefix(MARK) or piece if self.begins_word[index] else f"{_CONTINUES}{piece}"

    @cached_property
    def begins_word(self) -> NDArray[np.bool_]:
        # A word begins at a word mark; punctuation is a word of its own.
        entries = self.tokenizer.parts.vocabulary
        begins = np.array([entry.startswith(MARK) or _is_punctuation(entry) for entry in entries])
        begins[list(self.special)] = False
        return begins

    @property
    def digest(self) -> str:
        return self.tokenizer.digest

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, and tokenizer_config.json, which names the special symbols for other programs."""
        self.tokenizer.save(folder / SUBWORDS)
        pad, _, first, end = BERT_SPECIALS.strings
        hidden: dict[str, Any] = {"__type": "AddedToken", "content": HIDDEN, "special": True, "normalized": False}
        hidden |= {"single_word": False, "lstrip": True, "rstrip": True}  # spaces beside it are word marks
        names = {"pad_token": pad, "cls_token": first, "sep_token": end, "mask_token": hidden}
        _write_description(folder, {"tokenizer_class": "PreTrainedTokenizerFast", **names})


def _is_punctuation(entry: str) -> bool:
    return entry not in BYTE_TOKENS and unicodedata.category(entry[0])[0] in "PS"


_CONTINUES = "##"
"""Begins the pieces that continue a word."""


class WordPieces(BertWords):
    """The vocabulary of a published model: words, and pieces that continue words, which begin with "##".

    A word is segmented from the left, each time by its longest prefix in the vocabulary (Wu et al. 2016, section 4.1).

    Args:
        vocabulary: the entries in the order of their ids.
        lowercase: convert texts to lower case without accents first.

    Raises:
        FormatError: a special symbol is missing, or an entry is duplicated.
    """

    def __init__(self, vocabulary: Sequence[str], *, lowercase: bool) -> None:
        ids = {entry: index for index, entry in enumerate(vocabulary)}
        missing = [name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", HIDDEN) if name not in ids]
        if missing or len(ids) < len(vocabulary):
            what = f"has no {', '.join(missing)}" if missing else "has an entry twice"
            raise FormatError(f"the vocabulary {what}: it is not that of a BERT; copy the whole model folder again")
        self.vocabulary, self.lowercase = tuple(vocabulary), lowercase
        self.symbols = Symbols(ids["[PAD]"], ids["[CLS]"], ids["[SEP]"], ids[HIDDEN])
        self.special = tuple(sorted((*self.symbols, ids["[UNK]"])))
        self._backend = Backend(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
        self._backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        self._backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._backend.decoder = decoders.WordPiece()

    def __len__(self) -> int:
        return len(self.vocabulary)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        for number, text in enumerate(texts, start=1):
            check_unicode(text, f"text {number} of {len(texts)}")
        return [encoding.ids for encoding in self._backend.encode_batch(list(texts))]

    def encode_with_hidden(self, text: str) -> list[int]:
        # A hidden subword is a whole word here, since word pieces ignore spaces.
        first, *rest = self.encode(text.split(HIDDEN))
        return [*first, *(index for part in rest for index in (self.symbols.hidden, *part))]

    def fill(self, text: str, ids: Sequence[int]) -> str:
        # The rest stays as it is: decoding would lose unknown words, upper case and spaces.
        filled, *rest = text.split(HIDDEN)
        for index, part in zip(ids, rest, strict=True):
            word = self.vocabulary[index]
            before = filled.rstrip() if word.startswith(_CONTINUES) else filled
            filled = before + word.removeprefix(_CONTINUES) + part
        return filled

    def decode(self, ids: Sequence[int]) -> str:
        # Lowercased texts stay in lower case.
        found: str = self._backend.decode([index for index in ids if index not in self.special])
        return found

    def show(self, index: int) -> str:
        return self.vocabulary[index]

    @cached_property
    def begins_word(self) -> NDArray[np.bool_]:
        begins = np.array([not entry.startswith(_CONTINUES) for entry in self.vocabulary])
        begins[list(self.symbols)] = False
        return begins

    @cached_property
    def digest(self) -> str:
        canonical = json.dumps([self.vocabulary, self.lowercase], ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write vocab.txt and tokenizer_config.json, as in published models."""
        (folder / WORD_PIECES).write_text(
            "".join(f"{entry}\n" for entry in self.vocabulary), encoding="utf-8", newline="\n"
        )
        _write_description(folder, {"tokenizer_class": "BertTokenizer", "do_lower_case": self.lowercase})


SUBWORDS, WORD_PIECES, DESCRIPTION = "tokenizer.json", "vocab.txt", "tokenizer_config.json"


def _write_description(folder: Path, values: dict[str, Any]) -> None:
    (folder / DESCRIPTION).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8", newline="\n")


def read_words(folder: OpenFolder) -> BertWords:
    """The vocabulary of a model folder: multihead's, or a published model's ``vocab.txt`` or ``tokenizer.json``.

    Raises:
        FormatError: the folder has no vocabulary, or it is damaged.
    """
    if WORD_PIECES in folder:
        # Git may have written CR LF. A CR alone could be an entry.
        entries = folder.read_text(WORD_PIECES).replace("\r\n", "\n").removesuffix("\n").split("\n")
        described = folder.read_json(DESCRIPTION) if DESCRIPTION in folder else {}
        # The first published models have no such setting, and were all uncased.
        return _word_pieces(folder.path / WORD_PIECES, entries, bool(described.get("do_lower_case", True)))
    content = folder.read_json(SUBWORDS)
    match content:
        case {"model": {"type": "WordPiece", "vocab": dict(ids)}}:
            if any(type(number) is not int for number in ids.values()) or sorted(ids.values()) != [*range(len(ids))]:
                raise FormatError(f"{folder.path / SUBWORDS}: damaged: the ids are not 0, 1, 2, ...; {folder.remedy}")
            normalizer = content.get("normalizer")
            lowercase = normalizer.get("lowercase", True) if isinstance(normalizer, dict) else True
            return _word_pieces(folder.path / SUBWORDS, sorted(ids, key=ids.__getitem__), bool(lowercase))
    return BpeWords(Tokenizer.read(folder, SUBWORDS))


def _word_pieces(path: Path, entries: Sequence[str], lowercase: bool) -> WordPieces:
    try:
        return WordPieces(entries, lowercase=lowercase)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
