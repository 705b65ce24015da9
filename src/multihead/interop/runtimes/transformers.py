"""``transformers`` as the other side of a certificate.

It runs any sequence-to-sequence folder that ``AutoModelForSeq2SeqLM`` loads, in float32 and on the processor. Its
``generate`` is given our rules: ``early_stopping="never"`` is our exact stopping rule, ``suppress_tokens`` are our
forbidden ids, ``length_penalty`` is the power of the length by which our scores are divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multihead.decoding.search import Search
from multihead.errors import ConfigurationError, SurroundingsError, require_package, shortened
from multihead.interop.formats import marian_tokenizer, t5, t5_tokenizer
from multihead.interop.formats.bart_folder import tokenizer_settings
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.formats.transformers import TARGET
from multihead.interop.runtimes import Rules
from multihead.interop.runtimes.batches import batches, chosen, pad
from multihead.text.sentencepiece import SentencePieceTokenizer

_OF_LANGUAGES = ("MBart50Tokenizer", "NllbTokenizer")
"""Tokenizers that put a language before every text, of families whose usual tokenizer is another."""

_TABLES = ("bart", "marian", "mbart", "pegasus")
"""Kinds of models whose positions are a table; others compute as many as a text needs, or distances."""


class TransformersRuntime:
    """A folder, loaded by ``transformers``.

    Args:
        folder: with config.json and weights; tokenizers if ``with_tokenizers``.
        parts: our side, for the ids of the special symbols.
        with_tokenizers: whether ``AutoTokenizer`` reads the folder and gives our ids.
        tokenizer_options: languages, for the tokenizer of a model that has several.

    Raises:
        MissingDependencyError: transformers is not installed.
        SurroundingsError: a package that the tokenizer needs there is not installed.
    """

    name = "transformers"

    def __init__(
        self,
        folder: Path,
        parts: TranslatorParts,
        with_tokenizers: bool = True,
        tokenizer_options: Mapping[str, str] | None = None,
    ) -> None:
        require_package("transformers", "transformers", "running this model there")
        import transformers

        self.version = str(transformers.__version__)
        self._target, self._pad = parts.target_tokenizer, parts.source_tokenizer.pad_id
        self._typed = _typed_prefix(folder, parts)
        self._new_config: Any = transformers.GenerationConfig
        load = transformers.AutoModelForSeq2SeqLM.from_pretrained
        with _without_progress_bar():
            self.model: Any = load(folder, dtype=torch.float32, local_files_only=True).eval()
        config = self.model.config
        self.positions: int | None = config.max_position_embeddings if config.model_type in _TABLES else None
        self._tokenizers: tuple[Any, Any] | None = None
        if with_tokenizers:
            target = folder / TARGET
            options = tokenizer_options or {}
            own = _tokenizer(folder, options)
            self._tokenizers = (own, _tokenizer(target, options) if target.is_dir() else own)

    def encode(self, texts: Sequence[str]) -> list[list[int]] | None:
        """The ids that ``AutoTokenizer`` gives, without the end symbol."""
        if self._tokenizers is None:
            return None
        rows: list[list[int]] = self._tokenizers[0]([self._typed + text for text in texts])["input_ids"]
        return [row[:-1] for row in rows]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str] | None:
        """The texts that ``AutoTokenizer`` gives; the ids of the language before them are no text.

        White space around a text is left out where we leave it out, too.
        """
        if self._tokenizers is None:
            return None
        before = list(self._target.prefix)
        plain = [list(row)[len(before) :] if list(row)[: len(before)] == before else list(row) for row in rows]
        texts = [str(self._tokenizers[1].decode(row, skip_special_tokens=True)) for row in plain]
        return [text.strip() for text in texts] if isinstance(self._target, SentencePieceTokenizer) else texts

    def rules(self, search: Search) -> Rules:
        """``generate`` follows our rules, except for hypotheses that reach the limit.

        Raises:
            ConfigurationError: a length penalty of another form than the power of the length, as no export has it.
        """
        if not search.divides_by_power:
            raise ConfigurationError("transformers divides by a power of the length: take the length_penalty 'power'")
        return Rules(
            search.model_copy(update={"stopping": "exact"}),
            self._target.forbidden_in_output,
            unfinished_compete=search.beam > 1,
            differences=(
                "transformers stops a beam search by `early_stopping`; the certificate has 'never', which is the exact "
                "rule of multihead; generation_config.json has False, which is its rule 'ahead'",
                "transformers cuts at `max_length` and ranks cut hypotheses with finished ones; the limit of multihead "
                "grows with the source, and finished ones come first",
            ),
        )

    @torch.no_grad()
    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """The logits of a forward pass with the targets as decoder inputs, normalized."""
        scores: list[list[float]] = [[] for _ in sources]
        for batch in batches(sources, self._pad):
            inputs = pad([[self._target.bos_id, *targets[place][:-1]] for place in batch.places], self._pad)
            given = {"input_ids": batch.ids, "attention_mask": batch.mask, "decoder_input_ids": inputs}
            logits = self.model(**given, use_cache=False).logits  # with a cache, FSMT leaves out the causal mask
            for place, row in zip(batch.places, logits.float().log_softmax(-1), strict=True):
                scores[place] = chosen(row, targets[place])
        return scores

    @torch.no_grad()
    def translate(self, sources: Sequence[Sequence[int]], search: Search) -> list[list[int]]:
        """``generate``, which begins with our prefix if there is one."""
        target, found = self._target, [[0] for _ in sources]
        settings = self._new_config(
            num_beams=search.beam,
            length_penalty=search.alpha,
            early_stopping="never" if search.beam > 1 else False,
            max_new_tokens=search.max_length,
            min_new_tokens=search.min_length or None,
            suppress_tokens=[i for i in target.forbidden_in_output if i not in target.prefix],
            do_sample=False,
            pad_token_id=target.pad_id,
            bos_token_id=target.bos_id,
            eos_token_id=target.eos_id,
            decoder_start_token_id=target.bos_id,
        )
        self.model.generation_config = settings
        processors = [_Prefix(target.prefix)] if target.prefix else []
        for batch in batches(sources, self._pad):
            rows = self.model.generate(
                batch.ids, attention_mask=batch.mask, generation_config=settings, logits_processor=processors
            )
            for place, row in zip(batch.places, rows[:, 1:].tolist(), strict=True):
                found[place] = row[: row.index(target.eos_id) + 1] if target.eos_id in row else row
        return found


class _Prefix:
    """Lets every translation begin with the same ids, which do not occur again.

    They cost nothing, as with ``forced_bos_token_id``, which is for a single one.
    """

    def __init__(self, prefix: Sequence[int]) -> None:
        self._prefix = prefix

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        place = ids.shape[1] - 1  # the decoder's first input is no part of the translation
        if place >= len(self._prefix):
            return scores.index_fill(1, torch.tensor(self._prefix), -torch.inf)
        wanted = self._prefix[place]
        only = torch.full_like(scores, -torch.inf)
        only[:, wanted] = 0.0
        return only


def _typed_prefix(folder: Path, parts: TranslatorParts) -> str:
    """What is typed before every text, where the program's tokenizer does not put it there."""
    if t5.recognizes(folder):
        return t5_tokenizer.typed_prefix(parts)
    return marian_tokenizer.typed_prefix(parts) if (folder / "source.spm").exists() else ""


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    from transformers.utils import logging as library_logging

    logging: Any = library_logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _tokenizer(folder: Path, options: Mapping[str, str]) -> Any:
    """The tokenizer in a folder.

    Before transformers 5.6, ``AutoTokenizer`` ignores the class that a folder names if models of this family usually
    have another one, and what it takes instead ignores languages.

    Raises:
        SurroundingsError: this tokenizer needs a package that is not installed.
    """
    import transformers

    try:
        found = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)
        named = tokenizer_settings(folder).get("tokenizer_class")
        if options and named in _OF_LANGUAGES and type(found).__name__ != named:
            found = getattr(transformers, named).from_pretrained(folder, local_files_only=True, **options)
    except ImportError as error:  # transformers itself has been imported
        reason = shortened(" ".join(str(error).split()), 200)
        raise SurroundingsError(f"transformers cannot load the tokenizer in {folder}: {reason}") from None
    return found


def open_folder(folder: Path, parts: TranslatorParts, _quantization: str) -> TransformersRuntime:
    """The runtime of an exported folder.

    Raises:
        MissingDependencyError: transformers is not installed.
    """
    return TransformersRuntime(folder, parts)
