"""The words of a BERT: text to ids and back, where words begin, and the four symbols that no text contains.

Two kinds: `BpeWords`, our byte-pair encoding, which gives every text back exactly, and `WordPieces`, the ``vocab.txt``
of the published models (Devlin et al. 2019, section 3). Cutting itself is done by `text.tokenizer` and by the
``tokenizers`` library. Which words are hidden is for `data.bert.batches` to say.
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
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import BYTE_TOKENS, FIRST_BYTE, MARK, Specials, check_unicode

HIDDEN = "[MASK]"
"""How a hidden word is written by people."""

BERT_SPECIALS = Specials(pad="[PAD]", unk=HIDDEN, bos="[CLS]", eos="[SEP]")
"""The four special symbols of our subwords for a BERT. What stands for an unknown word in the file format is never
produced (`text.vocabulary.Specials`), so a hidden word takes its place: old tokenizer files are read as they were."""


class Symbols(NamedTuple):
    """The ids of the special symbols that a model reads."""

    pad: int
    first: int
    """[CLS]: begins every row; its state stands for the row."""
    end: int
    """[SEP]: ends each of the two parts of a row."""
    hidden: int
    """[MASK]: stands in the place of a word that is to be told."""


class BertWords(ABC):
    """A vocabulary, and how to apply and undo it."""

    symbols: Symbols
    special: tuple[int, ...]
    """Ids that are no words: never hidden, never drawn, never an answer."""

    @abstractmethod
    def __len__(self) -> int:
        """Entries of the vocabulary."""

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without symbols.

        Raises:
            DataError: a text has a lone surrogate.
        """

    @abstractmethod
    def encode_with_hidden(self, text: str) -> list[int]:
        """The ids of a text in which each "[MASK]" is one hidden piece of a word.

        Raises:
            DataError: as in `encode`.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; symbols are skipped."""

    @abstractmethod
    def show(self, index: int) -> str:
        """An entry as people read it: a word, or the part of one with what marks it so."""

    @property
    @abstractmethod
    def begins_word(self) -> NDArray[np.bool_]:
        """Of each entry, whether a word begins with it; none does with a symbol."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """SHA-256: equal digests, equal ids."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes the files that `read_words` reads; meant for drafts of folders."""


class BpeWords(BertWords):
    """Our byte-pair encoding, learned with `BERT_SPECIALS`.

    Args:
        tokenizer: so learned.

    Raises:
        FormatError: it has other special symbols, as those of translators have.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        if tokenizer.specials != BERT_SPECIALS:
            raise FormatError(
                f"the special symbols of this tokenizer are {' '.join(tokenizer.specials.strings)}, not "
                f"{' '.join(BERT_SPECIALS.strings)}: it is not a BERT's; `multihead pretrain` learns one"
            )
        self.tokenizer = tokenizer
        self.symbols = Symbols(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
        self.special = tuple(range(FIRST_BYTE))

    def __len__(self) -> int:
        return len(self.tokenizer)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """As `BertWords.encode`."""
        return self.tokenizer.encode_batch(texts)

    def encode_with_hidden(self, text: str) -> list[int]:
        """As `BertWords.encode_with_hidden`; a space in front of a hidden word is part of it."""
        first, *rest = text.split(HIDDEN)
        ids = self.tokenizer.encode(first.removesuffix(" ") if rest else first)
        for number, part in enumerate(rest, start=1):
            ended = part if number == len(rest) else part.removesuffix(" ")
            ids += [self.symbols.hidden, *self.tokenizer.encode_rest(ended)]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """As `BertWords.decode`."""
        return self.tokenizer.decode(ids)

    def show(self, index: int) -> str:
        """As `BertWords.show`: what goes on with a word has "##" in front, as a word piece has."""
        piece = self.tokenizer.pieces([index])[0]
        return piece.removeprefix(MARK) or piece if self.begins_word[index] else f"##{piece}"

    @cached_property
    def begins_word(self) -> NDArray[np.bool_]:
        """As `BertWords.begins_word`: with a word mark or a symbol one begins; punctuation is a word of its own."""
        entries = self.tokenizer.parts.vocabulary
        begins = np.array([entry.startswith(MARK) or _is_punctuation(entry) for entry in entries])
        begins[list(self.special)] = False
        return begins

    @property
    def digest(self) -> str:
        """As `BertWords.digest`."""
        return self.tokenizer.digest

    def save(self, folder: Path) -> None:
        """Writes tokenizer.json, and tokenizer_config.json, which tells other programs what the symbols are for."""
        self.tokenizer.save(folder / SUBWORDS)
        pad, _, first, end = BERT_SPECIALS.strings
        hidden: dict[str, Any] = {"__type": "AddedToken", "content": HIDDEN, "special": True, "normalized": False}
        hidden |= {"single_word": False, "lstrip": True, "rstrip": True}  # the spaces beside it are marks of words
        names = {"pad_token": pad, "cls_token": first, "sep_token": end, "mask_token": hidden}
        _describe(folder, {"tokenizer_class": "PreTrainedTokenizerFast", **names})


def _is_punctuation(entry: str) -> bool:
    return entry not in BYTE_TOKENS and unicodedata.category(entry[0])[0] in "PS"


class WordPieces(BertWords):
    """The vocabulary of a published model: words, and pieces within words, which begin with "##".

    The longest piece that fits is taken, again and again, from the left (Wu et al. 2016, section 4.1).

    Args:
        vocabulary: the entries in the order of their ids.
        lowercase: texts are written small, and without accents, before they are cut.

    Raises:
        FormatError: a special symbol is missing, or an entry stands there twice.
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
        """As `BertWords.encode`."""
        for number, text in enumerate(texts, start=1):
            check_unicode(text, f"text {number} of {len(texts)}")
        return [encoding.ids for encoding in self._backend.encode_batch(list(texts))]

    def encode_with_hidden(self, text: str) -> list[int]:
        """As `BertWords.encode_with_hidden`; a hidden piece is a word, as spaces are not seen."""
        first, *rest = self.encode(text.split(HIDDEN))
        return [*first, *(index for part in rest for index in (self.symbols.hidden, *part))]

    def decode(self, ids: Sequence[int]) -> str:
        """As `BertWords.decode`; letters that were written small stay small."""
        found: str = self._backend.decode([index for index in ids if index not in self.special])
        return found

    def show(self, index: int) -> str:
        """As `BertWords.show`."""
        return self.vocabulary[index]

    @cached_property
    def begins_word(self) -> NDArray[np.bool_]:
        """As `BertWords.begins_word`."""
        begins = np.array([not entry.startswith("##") for entry in self.vocabulary])
        begins[list(self.symbols)] = False
        return begins

    @cached_property
    def digest(self) -> str:
        """As `BertWords.digest`."""
        canonical = json.dumps([self.vocabulary, self.lowercase], ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Writes vocab.txt and tokenizer_config.json, as published models have them."""
        (folder / WORD_PIECES).write_text("".join(f"{entry}\n" for entry in self.vocabulary), encoding="utf-8")
        _describe(folder, {"tokenizer_class": "BertTokenizer", "do_lower_case": self.lowercase})


SUBWORDS, WORD_PIECES, DESCRIPTION = "tokenizer.json", "vocab.txt", "tokenizer_config.json"


def _describe(folder: Path, values: dict[str, Any]) -> None:
    (folder / DESCRIPTION).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def read_words(folder: Path) -> BertWords:
    """The words of a model folder: ours, or a published model's ``vocab.txt`` or ``tokenizer.json``.

    Raises:
        FormatError: there are none, or they are damaged.
    """
    if (folder / WORD_PIECES).is_file():
        try:
            entries = (folder / WORD_PIECES).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(f"{folder / WORD_PIECES}: cannot be read ({error})") from None
        described = _json(folder / DESCRIPTION) if (folder / DESCRIPTION).is_file() else {}
        # Models that do not say so are the first ones, which were all uncased.
        return _word_pieces(folder / WORD_PIECES, entries, described.get("do_lower_case", True))
    content = _json(folder / SUBWORDS)
    match content:
        case {"model": {"type": "WordPiece", "vocab": dict(ids)}}:
            entries = sorted(ids, key=lambda entry: int(ids[entry]))
            lowercase = (content.get("normalizer") or {}).get("lowercase", True)
            return _word_pieces(folder / SUBWORDS, entries, lowercase)
    return BpeWords(Tokenizer.load(folder / SUBWORDS))


def _word_pieces(path: Path, entries: Sequence[str], lowercase: bool) -> WordPieces:
    try:
        return WordPieces(entries, lowercase=bool(lowercase))
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: there are no words to be read here ({error})") from None
    return content if isinstance(content, dict) else {}
