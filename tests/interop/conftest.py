"""Tiny models of other programs with random weights: folders as `transformers` writes them, SentencePiece models."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

GERMAN = {
    "subjects": ["Ein Hund", "Die kleine Katze", "Der Bäcker", "Eine alte Frau", "Das Mädchen", "Mein Bruder"],
    "verbs": ["läuft über", "sieht", "kauft", "sucht", "fährt an", "zählt"],
    "objects": ["die Straße.", "17 Äpfel!", "den großen Fluss.", "das Haus (heute)?", "zwei Brücken.", "viel Brot;"],
}
ENGLISH = {
    "subjects": ["A dog", "The little cat", "The baker", "An old woman", "The girl", "My brother"],
    "verbs": ["walks across", "sees", "buys", "looks for", "drives past", "counts"],
    "objects": ["the street.", "17 apples!", "the great river.", "the house (today)?", "two bridges.", "much bread;"],
}

HOSTILE = [
    "",
    " ",
    "   ",
    "</s>",
    "Ein Hund </s> und <pad> oder <unk>",
    ">>de<< Hallo",
    "Hallo >>de<< Hund",
    "__de__ Haus",
    "deu_Latn und de_DE und eng_Latn",
    "<0x0A><0x41>",
    "▁ ▁Haus▁",
    "🐕 rennt 👩‍👩‍👧",
    "漢字 und 日本語",
    "a\tb\u00a0c\u3000d",
    "ﬁnden Ｈａｕｓ",
    "\u200b\u00ad",
    "x" * 200,
]
"""Lines that try a tokenizer: typed control symbols, word marks, emoji, spaces, unknown characters."""


def _sentences(count: int, words: dict[str, list[str]] = GERMAN, seed: int = 0) -> list[str]:
    """Some sentences of a small language."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(part) for part in words.values()) for _ in range(count)]


def _train_sentencepiece(lines: Sequence[str], **options: Any) -> bytes:
    """A small SentencePiece model; unigram with 120 pieces by default."""
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=written,
        minloglevel=2,
        num_threads=1,
        **{"vocab_size": 120, "hard_vocab_limit": False, **options},
    )
    return written.getvalue()


@dataclass(frozen=True)
class SentencePieces:
    """Serialized SentencePiece models."""

    source: bytes
    """Unigram, of the source language."""
    target: bytes
    """Unigram, of the target language."""
    joint: bytes
    """BPE, of both."""
    bytes_too: bytes
    """Unigram, of the source language, with bytes for unknown characters."""


def _pieces_of(model: bytes) -> list[str]:
    """The pieces of a SentencePiece model, by its ids."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def _randomize(model: nn.Module, seed: int, end: int) -> nn.Module:
    """Draw all parameters, also biases and norms, and the bias of the output; the end symbol becomes likely."""
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator) * scale

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name and not parameter.requires_grad:
                continue  # sinusoids
            norm = "norm" in name and name.endswith("weight")
            parameter.copy_(draw(parameter, 0.3) + norm)
        bias = getattr(model, "final_logits_bias", None)
        if bias is not None:
            bias.copy_(draw(bias, 0.5))
            bias[0, end] += 2.0
    return model.eval()


SIZES = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _build_marian(
    folder: Path, pieces: SentencePieces, *, languages: Sequence[str] = (), separate: bool = False, **settings: Any
) -> Any:
    """A folder of a MarianMT model, as OPUS-MT has them.

    Args:
        folder: an existing folder.
        pieces: its SentencePiece models.
        languages: for each, the vocabulary has a token such as ``>>de<<``.
        separate: whether source and target have vocabularies of their own.
        settings: fields of MarianConfig, and ``seed``.

    Returns:
        The model of `transformers`.
    """
    from transformers import MarianConfig, MarianMTModel

    (folder / "source.spm").write_bytes(pieces.source)
    (folder / "target.spm").write_bytes(pieces.target)
    source = [piece for piece in _pieces_of(pieces.source) if piece not in ("<s>", "</s>", "<unk>")]
    target = [piece for piece in _pieces_of(pieces.target) if piece not in ("<s>", "</s>", "<unk>")]
    tokens = [f">>{language}<<" for language in languages]
    if separate:
        size = max(len(source), len(target))
        lists = [[*tokens, *source, *_rest(size - len(source))], [*tokens, *target, *_rest(size - len(target))]]
    else:
        lists = [[*tokens, *dict.fromkeys(source + target)]]
    for name, words in zip(("vocab.json", "target_vocab.json"), lists, strict=False):
        words = ["</s>", "<unk>", *words, "<pad>"]
        _write_json(folder / name, {word: i for i, word in enumerate(words)})
    _write_json(
        folder / "tokenizer_config.json", {"source_lang": "de", "target_lang": "en", "separate_vocabs": separate}
    )
    seed = settings.pop("seed", 0)
    config = MarianConfig(
        **{
            "vocab_size": len(words),
            "pad_token_id": len(words) - 1,
            "decoder_start_token_id": len(words) - 1,
            "activation_function": "swish",
            "scale_embedding": True,
            "share_encoder_decoder_embeddings": not separate,
            **SIZES,
            **settings,
        }
    )
    return _written(MarianMTModel(config), folder, seed)


def _build_m2m100(folder: Path, pieces: SentencePieces, **settings: Any) -> Any:
    """A folder of an M2M-100 model, whose languages are the 100 that its tokenizer has; returns the model."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer

    (folder / "sentencepiece.bpe.model").write_bytes(pieces.joint)
    own = [piece for piece in _pieces_of(pieces.joint) if piece not in ("<s>", "</s>", "<unk>")]
    words = ["<s>", "<pad>", "</s>", "<unk>", *own]
    _write_json(folder / "vocab.json", {word: i for i, word in enumerate(words)})
    tokenizer = M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"))
    tokenizer.save_pretrained(folder)
    seed = settings.pop("seed", 0)
    config = M2M100Config(**{"vocab_size": len(words) + 100 + 8, **SIZES, **settings})
    return _written(M2M100ForConditionalGeneration(config), folder, seed)


def _build_nllb(folder: Path, pieces: SentencePieces, **settings: Any) -> Any:
    """A folder of an NLLB-200 model; returns the model."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

    (folder / "sentencepiece.bpe.model").write_bytes(pieces.joint)
    tokenizer = NllbTokenizer.from_pretrained(
        folder, extra_special_tokens=["ace_Arab", "deu_Latn", "eng_Latn", "zho_Hans", "zho_Hant"]
    )
    tokenizer.save_pretrained(folder)
    seed = settings.pop("seed", 0)
    config = M2M100Config(**{"vocab_size": len(tokenizer), **SIZES, **settings})
    return _written(M2M100ForConditionalGeneration(config), folder, seed)


def _build_mbart50(folder: Path, pieces: SentencePieces, **settings: Any) -> Any:
    """A folder of an mBART-50 model; returns the model."""
    from transformers import MBart50Tokenizer, MBartConfig, MBartForConditionalGeneration

    (folder / "sentencepiece.bpe.model").write_bytes(pieces.source)
    tokenizer = MBart50Tokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(folder)
    seed = settings.pop("seed", 0)
    config = MBartConfig(
        **{
            "vocab_size": len(tokenizer),
            "decoder_start_token_id": 2,
            "scale_embedding": True,
            "activation_function": "relu",
            **SIZES,
            **settings,
        }
    )
    return _written(MBartForConditionalGeneration(config), folder, seed)


def _rest(count: int) -> list[str]:
    return [f"rest{i}" for i in range(count)]


def _written(model: Any, folder: Path, seed: int) -> Any:
    from transformers import GenerationConfig

    config = model.config
    _randomize(model, seed, config.eos_token_id)
    model.generation_config = GenerationConfig(
        num_beams=4,
        max_length=64,
        bad_words_ids=[[config.pad_token_id]],
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )
    model.save_pretrained(folder)
    return model


@dataclass(frozen=True)
class Foreign:
    """Builders of other programs' models; each takes an existing folder and returns the model of the other program."""

    pieces: SentencePieces
    hostile: tuple[str, ...] = tuple(HOSTILE)
    """Lines that try a tokenizer."""

    @staticmethod
    def sentences(count: int, seed: int = 0, *, english: bool = False) -> list[str]:
        """Some sentences of a small language."""
        return _sentences(count, ENGLISH if english else GERMAN, seed)

    def marian(self, folder: Path, **settings: Any) -> Any:
        """A MarianMT model as OPUS-MT has them: `_build_marian`."""
        return _build_marian(folder, self.pieces, **settings)

    def m2m100(self, folder: Path, **settings: Any) -> Any:
        """An M2M-100 model, whose languages are the 100 that its tokenizer has."""
        return _build_m2m100(folder, self.pieces, **settings)

    def nllb(self, folder: Path, **settings: Any) -> Any:
        """An NLLB-200 model with five languages."""
        return _build_nllb(folder, self.pieces, **settings)

    def mbart50(self, folder: Path, **settings: Any) -> Any:
        """An mBART-50 model."""
        return _build_mbart50(folder, self.pieces, **settings)


@pytest.fixture(scope="session")
def foreign() -> Foreign:
    """Builders of other programs' models, with SentencePiece models of a few sentences."""
    source, target = _sentences(200), _sentences(200, ENGLISH)
    return Foreign(
        SentencePieces(
            _train_sentencepiece(source),
            _train_sentencepiece(target),
            _train_sentencepiece(source + target, model_type="bpe", vocab_size=200),
            _train_sentencepiece(source, byte_fallback=True, vocab_size=360),
        )
    )
