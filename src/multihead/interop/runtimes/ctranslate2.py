"""CTranslate2 as the other side of a certificate.

It computes in float32 with the weights as the file has them, so that only rounding of sums differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tokenizers

from multihead.decoding.search import Search
from multihead.errors import require_package
from multihead.interop.formats.ctranslate2 import POSITIONS
from multihead.interop.formats.ctranslate2_card import tokenizer_files
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.runtimes import Rules
from multihead.text.tokenizer import Tokenizer
from multihead.text.vocabulary import MARK

_BATCH = 32


class Pieces:
    """A tokenizer's file, read by ``tokenizers`` or ``sentencepiece`` without our code.

    Args:
        file: it.
        tokenizer: ours, whose vocabulary gives the ids of names.
    """

    def __init__(self, file: Path, tokenizer: Tokenizer) -> None:
        self._names, self._prefix = tokenizer.vocabulary, list(tokenizer.prefix)
        self._ids = {name: i for i, name in enumerate(self._names)}
        self._unknown = tokenizer.unk_id
        self._of_sentencepiece = file.suffix != ".json"
        if self._of_sentencepiece:
            require_package("sentencepiece", "interop", "comparing SentencePiece's pieces")
            import sentencepiece

            self._library: Any = sentencepiece.SentencePieceProcessor(model_file=str(file))
        else:
            self._library = tokenizers.Tokenizer.from_file(str(file))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts, after the prefix."""
        if self._of_sentencepiece:
            rows = self._library.encode(list(texts), out_type=str)
        else:
            rows = [one.tokens for one in self._library.encode_batch(list(texts), add_special_tokens=False)]
        return [[*self._prefix, *(self._ids.get(name, self._unknown) for name in row)] if row else [] for row in rows]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The texts of ids, without the prefix.

        sentencepiece leaves the word marks of pieces that it does not have: in Marian's models those of the other
        language.
        """
        before = self._prefix
        plain = [row[len(before) :] if list(row[: len(before)]) == before else row for row in rows]
        if self._of_sentencepiece:
            texts = [str(self._library.decode([self._names[i] for i in row])) for row in plain]
            return [text.replace(MARK, " ").strip() if MARK in text else text for text in texts]
        ids = [[self._library.token_to_id(self._names[i]) for i in row] for row in plain]
        found: list[str] = self._library.decode_batch(ids)
        return found


class CTranslate2Runtime:
    """A CTranslate2 folder.

    Args:
        folder: it.
        parts: the translator in it, whose vocabulary turns names of entries into ids.
        pieces: the file of both tokenizers, if it is not in the folder.
        compute_type: precision of the computation, as CTranslate2 names it.

    Raises:
        MissingDependencyError: ctranslate2 is not installed.
    """

    name = "CTranslate2"

    def __init__(
        self, folder: Path, parts: TranslatorParts, pieces: Path | None = None, compute_type: str = "float32"
    ) -> None:
        require_package("ctranslate2", "ctranslate2", "running a CTranslate2 folder")
        import ctranslate2

        self.version = version("ctranslate2")
        self.positions = None if parts.config.positions == "rotary" else POSITIONS
        self._translator = ctranslate2.Translator(str(folder), device="cpu", compute_type=compute_type)
        self._source, self._target = parts.source_tokenizer.vocabulary, parts.target_tokenizer.vocabulary
        self._ids = {name: i for i, name in enumerate(self._target)}
        self._prefix = [self._target[i] for i in parts.target_tokenizer.prefix]
        files = [folder / name for name in tokenizer_files(parts.source_tokenizer, parts.target_tokenizer)]
        self._source_pieces = Pieces(pieces or files[0], parts.source_tokenizer)
        self._target_pieces = Pieces(pieces or files[1], parts.target_tokenizer)

    @property
    def compute_type(self) -> str:
        """The precision of the computation."""
        return str(self._translator.compute_type)

    def encode(self, texts: Sequence[str]) -> list[list[int]] | None:
        """By the library that reads the file in the folder."""
        return self._source_pieces.encode(texts)

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str] | None:
        """By the library that reads the file in the folder."""
        return self._target_pieces.decode(rows)

    def rules(self, search: Search) -> Rules:
        """A search ends when as many hypotheses as the beam has are finished, or with alpha 0 when the best one is."""
        form = "CTranslate2 divides by |y|^alpha, the model's own search by ((5 + |y|) / 6)^alpha (Wu et al. 2016)"
        return Rules(
            search.model_copy(
                update={
                    "length_penalty": "power",
                    "stopping": "patience" if search.alpha else "exact",
                    "patience": 1.0,
                }
            ),
            unfinished_compete=True,
            differences=(
                *(() if search.divides_by_power else (form,)),
                "CTranslate2 stops when as many hypotheses as the beam has are finished (`patience=1`); multihead goes "
                "on until no other one can score more",
                "CTranslate2 may emit any token unless `disable_unk` and `suppress_sequences` forbid it, and then "
                "distributes the probability of a forbidden one to the others; multihead never emits padding, unknown, "
                "begin and line breaks, and keeps the probabilities",
                "CTranslate2 cuts at `max_decoding_length` (256) and ranks cut hypotheses with finished ones; the "
                "limit of multihead grows with the source, and finished ones come first",
                "CTranslate2 returns at least one token (`min_decoding_length=1`), and reads at most 1,024 "
                "(`max_input_length`)",
            ),
        )

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """``score_batch``, which appends the end symbol itself."""
        rows = [[self._target[i] for i in target[:-1]] for target in targets]
        found = self._translator.score_batch(self._tokens(sources), rows, max_batch_size=_BATCH, max_input_length=0)
        return [list(one.log_probs) for one in found]

    def translate(self, sources: Sequence[Sequence[int]], search: Search) -> list[list[int]]:
        """``translate_batch``."""
        found = self._translator.translate_batch(
            self._tokens(sources),
            target_prefix=[self._prefix] * len(sources) if self._prefix else None,
            max_batch_size=_BATCH,
            beam_size=search.beam,
            length_penalty=search.alpha,
            max_decoding_length=search.max_length,
            min_decoding_length=search.min_length,
            max_input_length=0,
            return_end_token=True,
        )
        return [[self._ids[token] for token in one.hypotheses[0]] for one in found]

    def _tokens(self, sources: Sequence[Sequence[int]]) -> list[list[str]]:
        """Without the end symbol, which CTranslate2 appends."""
        return [[self._source[i] for i in source[:-1]] for source in sources]


def open_folder(folder: Path, parts: TranslatorParts, _quantization: str) -> CTranslate2Runtime:
    """The runtime of a CTranslate2 folder, in float32 whatever the type of its weights.

    Raises:
        MissingDependencyError: ctranslate2 is not installed.
    """
    return CTranslate2Runtime(folder, parts)


def open_as_used(folder: Path, parts: TranslatorParts) -> tuple[CTranslate2Runtime, str]:
    """The runtime of a CTranslate2 folder in the precision that CTranslate2 chooses here, and its name."""
    runtime = CTranslate2Runtime(folder, parts, compute_type="default")
    return runtime, runtime.compute_type
