"""Vocabularies that are lists of words: words, characters, subword-nmt.

Toolkits such as fairseq, OpenNMT and JoeyNMT look up the pieces of a line in a list. The line is cut at its spaces,
into characters, or by codes of subword-nmt (Sennrich, Haddow and Birch 2016) and fastBPE, which agree on how codes are
applied. Runs of white space count as one space, so encoding is not exact; a piece that is not in the list becomes the
unknown symbol.

Lowercasing and the Moses tokenizer, which some models expect before this, are steps of `preparation`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

from multihead.errors import FormatError
from multihead.text.foreign import ForeignTokenizer, SpecialIds, damaged, read_fields
from multihead.text.spans import Span
from multihead.text.subword_nmt.codes import Codes
from multihead.text.subword_nmt.segmenting import SEPARATOR, SubwordNMT, undo
from multihead.text.vocabulary import MARK

Unit = Literal["words", "characters"]


class WordPieceTokenizer(ForeignTokenizer):
    """A list of pieces, one for each id.

    Args:
        vocabulary: the piece of each id.
        specials: ids of the special symbols.
        control: ids that no text is encoded into and no search emits, besides the special ones.
        prefix: ids before every text, such as the token of a language.
        unit: cut texts at white space, or into characters, of which U+2581 is the space.
        codes: cut the words further with these codes; None: words are whole, or cut already.
        separator: ends a piece that does not end its word.
        restricted: split units that are not in the vocabulary again (subword-nmt's ``--vocabulary``).

    Raises:
        FormatError: an id is not in the vocabulary, or codes are given for characters.
    """

    kind = "words"

    def __init__(
        self,
        vocabulary: Sequence[str],
        specials: SpecialIds,
        control: Collection[int] = (),
        prefix: Sequence[int] = (),
        *,
        unit: Unit = "words",
        codes: Codes | None = None,
        separator: str = SEPARATOR,
        restricted: bool = False,
    ) -> None:
        super().__init__(vocabulary, specials, control, prefix)
        if codes is not None and unit == "characters":
            raise FormatError("codes of subword-nmt cut words, but this vocabulary is one of characters")
        self.unit, self.codes, self.separator, self.restricted = unit, codes, separator, restricted
        self._names = {piece: i for i, piece in enumerate(self._vocabulary) if i not in self.control}
        known = self._names.keys() if restricted else None
        self._cutter = None if codes is None else SubwordNMT(codes, separator=separator, vocabulary=known)

    @classmethod
    def from_json(cls, text: str) -> WordPieceTokenizer:
        """The tokenizer of a string written by `to_json`.

        Raises:
            FormatError: the string is damaged.
        """
        match read_fields(text, cls.kind):
            case {
                "vocabulary": list(pieces),
                "unit": str(unit),
                "separator": str(separator),
                "restricted": bool(restricted),
                "codes": str() | None as codes,
                **fields,
            } if unit in get_args(Unit) and separator and all(type(piece) is str for piece in pieces):
                return cls(
                    pieces,
                    fields["specials"],
                    fields["control"],
                    fields["prefix"],
                    unit=unit,  # type: ignore[arg-type]
                    codes=None if codes is None else Codes.read(codes.split("\n")),
                    separator=separator,
                    restricted=restricted,
                )
        raise damaged(cls.kind)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids: pieces are joined to words, and words with spaces. Control symbols are skipped.

        Raises:
            InputError: an id is not in the vocabulary.
        """
        self._check_range(ids)
        pieces = [self._vocabulary[i] for i in ids if i not in self.control]
        if self.unit == "characters":
            return "".join(pieces).replace(MARK, " ").strip()
        return undo(" ".join(pieces), self.separator)

    def spell(self, ids: Iterable[int]) -> str:
        """The ids as a line of pieces that begin with ``▁`` where a word begins."""
        spelled, begins = [], True
        for index in ids:
            raw = self.entries[index].decode()
            text = raw.removesuffix(" ") if self.unit == "words" else raw.replace(" ", MARK)
            spelled.append(self._vocabulary[index] if index in self.control else MARK * begins + text)
            begins = self.unit == "words" and raw.endswith(" ")
        return " ".join(spelled)

    def _segment(self, texts: Sequence[str]) -> list[list[int]]:
        names, unknown = self._names, self.unk_id
        return [[names.get(piece, unknown) for piece in self._pieces(text)] for text in texts]

    def _pieces(self, text: str) -> list[str]:
        line = " ".join(text.split())
        if self.unit == "characters":
            return list(line.replace(" ", MARK))
        return line.split() if self._cutter is None else self._cutter.apply(line).split()

    def _segment_spans(self, text: str) -> list[Span]:
        return list(self._spans_of_pieces(text))

    def _spans_of_pieces(self, text: str) -> Iterator[Span]:
        """The pieces spell the text, apart from white space and separators."""
        start = 0
        for piece in self._pieces(text):
            space = self.unit == "characters" and piece == MARK and text[start : start + 1].isspace()
            while not space and text[start : start + 1].isspace():
                start += 1
            length = len(piece.removesuffix(self.separator) if self._is_open(piece) else piece)
            yield start, start + length
            start += length

    def _bytes_of_entries(self) -> list[bytes]:
        """A piece that ends its word adds a space after it: whether one begins a word, the piece before it says."""
        if self.unit == "characters":
            return [piece.replace(MARK, " ").encode() for piece in self._vocabulary]
        return [
            (piece.removesuffix(self.separator) if self._is_open(piece) else f"{piece} ").encode()
            for piece in self._vocabulary
        ]

    def _is_open(self, piece: str) -> bool:
        """Whether more of the word follows."""
        return self.unit == "words" and piece.endswith(self.separator)

    def _own_fields(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "separator": self.separator,
            "restricted": self.restricted,
            "codes": None if self.codes is None else self.codes.text(),
            "vocabulary": self._vocabulary,
        }
