"""Tiny models of other programs with random weights: folders as `transformers` writes them, SentencePiece models."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from multihead.data.batching import collate_source
from multihead.decoding.beam import beam_search
from multihead.decoding.search import Search
from multihead.decoding.task import SearchTask
from multihead.engine.search import Engine
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.models.transformer import Transformer
from multihead.translating.searching import symbols_of

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
"""Lines that are hard to tokenize: typed control symbols, word marks, emoji, spaces, unknown characters."""


def _sentences(count: int, words: dict[str, list[str]] = GERMAN, seed: int = 0) -> list[str]:
    """Sentences of a small language; those of two languages with the same seed are translations of each other."""
    draw = random.Random(seed)
    return [" ".join(part[draw.randrange(len(part))] for part in words.values()) for _ in range(count)]


def _train_sentencepiece(lines: Sequence[str], **options: Any) -> bytes:
    """A small SentencePiece model; unigram with 200 pieces by default."""
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=written,
        minloglevel=2,
        num_threads=1,
        **{"vocab_size": 200, "hard_vocab_limit": False, **options},
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
    both: bytes
    """Unigram, of both."""
    bytes_too: bytes
    """Unigram, of the source language, with bytes for unknown characters."""


def _pieces_of(model: bytes) -> list[str]:
    """The pieces of a SentencePiece model, by its ids."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def _randomize(model: nn.Module, seed: int) -> nn.Module:
    """Draw all parameters at random, including biases, norms and the output bias."""
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator) * scale

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name and not parameter.requires_grad:
                continue  # sinusoids
            norm = "norm" in name and name.endswith("weight")
            parameter.copy_(draw(parameter, 0.2) + norm)
        bias = getattr(model, "final_logits_bias", None)
        if bias is not None:
            bias.copy_(draw(bias, 0.5))
    return model.eval()


def _learn(model: Any, folder: Path, languages: dict[str, str], updates: int) -> None:
    """Train a model on the small language, so that its translations end and have different lengths."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, **languages)
    batch = tokenizer(_sentences(96), text_target=_sentences(96, ENGLISH), return_tensors="pt", padding=True)
    labels, config = batch.pop("labels"), model.config
    begin = torch.full((len(labels), 1), config.decoder_start_token_id)
    given = torch.cat([begin, labels[:, :-1]], 1)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=5e-3, fused=True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(updates):
        rows = torch.randperm(len(labels), generator=generator)[:16]
        logits = model(**{name: one[rows] for name, one in batch.items()}, decoder_input_ids=given[rows]).logits
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[rows].flatten(), ignore_index=config.pad_token_id
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


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
    """Write the folder of a MarianMT model like those of OPUS-MT.

    Args:
        folder: an existing folder.
        pieces: its SentencePiece models.
        languages: for each, the vocabulary has a token such as ``>>de<<``.
        separate: whether source and target have vocabularies of their own.
        settings: fields of MarianConfig, ``seed``, and ``updates`` to train for.

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
    seed, updates = settings.pop("seed", 0), settings.pop("updates", 0)
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
    return _written(MarianMTModel(config), folder, seed, updates)


def _build_m2m100(folder: Path, pieces: SentencePieces, **settings: Any) -> Any:
    """Write the folder of an M2M-100 model with the 100 languages of its tokenizer; returns the model."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer

    (folder / "sentencepiece.bpe.model").write_bytes(pieces.joint)
    own = [piece for piece in _pieces_of(pieces.joint) if piece not in ("<s>", "</s>", "<unk>")]
    words = ["<s>", "<pad>", "</s>", "<unk>", *own]
    _write_json(folder / "vocab.json", {word: i for i, word in enumerate(words)})
    tokenizer = M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"))
    tokenizer.save_pretrained(folder)
    seed, updates = settings.pop("seed", 0), settings.pop("updates", 0)
    config = M2M100Config(**{"vocab_size": len(words) + 100 + 8, **SIZES, **settings})
    return _written(M2M100ForConditionalGeneration(config), folder, seed, updates, {"src_lang": "de", "tgt_lang": "en"})


def _build_nllb(folder: Path, pieces: SentencePieces, **settings: Any) -> Any:
    """Write the folder of an NLLB-200 model; returns the model."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

    (folder / "sentencepiece.bpe.model").write_bytes(pieces.joint)
    tokenizer = NllbTokenizer.from_pretrained(
        folder, extra_special_tokens=["ace_Arab", "deu_Latn", "eng_Latn", "zho_Hans", "zho_Hant"]
    )
    tokenizer.save_pretrained(folder)
    seed, updates = settings.pop("seed", 0), settings.pop("updates", 0)
    config = M2M100Config(**{"vocab_size": len(tokenizer), **SIZES, **settings})
    return _written(
        M2M100ForConditionalGeneration(config), folder, seed, updates, {"src_lang": "deu_Latn", "tgt_lang": "eng_Latn"}
    )


def _build_mbart50(folder: Path, pieces: SentencePieces, **settings: Any) -> Any:
    """Write the folder of an mBART-50 model; returns the model."""
    from transformers import MBart50Tokenizer, MBartConfig, MBartForConditionalGeneration

    (folder / "sentencepiece.bpe.model").write_bytes(pieces.both)
    tokenizer = MBart50Tokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(folder)
    seed, updates = settings.pop("seed", 0), settings.pop("updates", 0)
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
    return _written(
        MBartForConditionalGeneration(config), folder, seed, updates, {"src_lang": "de_DE", "tgt_lang": "en_XX"}
    )


def _rest(count: int) -> list[str]:
    return [f"rest{i}" for i in range(count)]


def _written(model: Any, folder: Path, seed: int, updates: int, languages: dict[str, str] | None = None) -> Any:
    """Draw the parameters of a model, train it for some updates, and write it into its folder of tokenizers."""
    from transformers import GenerationConfig

    config = model.config
    _randomize(model, seed)
    model.save_pretrained(folder)
    if updates:
        _learn(model, folder, languages or {}, updates)
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
    """Lines that are hard to tokenize."""
    train_pieces = staticmethod(_train_sentencepiece)
    written = staticmethod(_written)

    @staticmethod
    def sentences(count: int, seed: int = 0, *, english: bool = False) -> list[str]:
        """Some sentences of a small language."""
        return _sentences(count, ENGLISH if english else GERMAN, seed)

    def marian(self, folder: Path, **settings: Any) -> Any:
        """A MarianMT model like those of OPUS-MT: `_build_marian`."""
        return _build_marian(folder, self.pieces, **settings)

    def m2m100(self, folder: Path, **settings: Any) -> Any:
        """An M2M-100 model with the 100 languages of its tokenizer."""
        return _build_m2m100(folder, self.pieces, **settings)

    def nllb(self, folder: Path, **settings: Any) -> Any:
        """An NLLB-200 model with five languages."""
        return _build_nllb(folder, self.pieces, **settings)

    def mbart50(self, folder: Path, **settings: Any) -> Any:
        """An mBART-50 model."""
        return _build_mbart50(folder, self.pieces, **settings)


@dataclass(frozen=True)
class Sides:
    """The same model on both sides, and lines for both.

    Args:
        theirs: the model of `transformers`.
        tokenizer: their tokenizer.
        parts: what we read.
        network: our network.
    """

    theirs: Any
    tokenizer: Any
    parts: TranslatorParts
    network: Transformer

    def check_source(self, lines: Sequence[str], before: str = "") -> None:
        """Check that our ids of texts without control symbols equal theirs; they prepend ``before`` to each text."""
        ours = self.parts.source_tokenizer
        theirs = self.tokenizer([before + line for line in lines])["input_ids"]
        assert [[*ids, ours.eos_id] for ids in ours.encode_batch(lines)] == theirs

    def check_target(self, lines: Sequence[str]) -> None:
        """Check that our ids and decoded texts of targets equal theirs."""
        ours = self.parts.target_tokenizer
        theirs = self.tokenizer(text_target=list(lines))["input_ids"]
        encoded = ours.encode_batch(lines)
        assert [[*ids, ours.eos_id] for ids in encoded] == theirs
        plain = [[i for i in ids if i not in ours.control] for ids in encoded]
        decoded = self.tokenizer.batch_decode(plain, skip_special_tokens=True)
        assert [ours.decode(ids) for ids in encoded] == [text.strip() for text in decoded]

    def batch(self, lines: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Padded sources and their lengths."""
        tokenizer = self.parts.source_tokenizer
        return collate_source(tokenizer.encode_batch(lines), tokenizer.pad_id, tokenizer.eos_id)

    @torch.no_grad()
    def check_logits(self, lines: Sequence[str], allowed: float = 1e-4) -> None:
        """Check that the logits for random targets after the begin symbol are equal."""
        source, lengths = self.batch(lines)
        generator = torch.Generator().manual_seed(0)
        target = torch.randint(4, self.parts.config.target_vocab, (len(lines), 9), generator=generator)
        target[:, 0] = self.parts.target_tokenizer.bos_id
        ours = self.network(source, lengths, target).logits
        mask = torch.arange(source.shape[1]) < lengths[:, None]
        theirs = self.theirs(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target).logits
        assert ours.abs().max() > 0.5
        assert (ours - theirs).abs().max() < allowed

    @torch.no_grad()
    def check_search(self, lines: Sequence[str], beams: Sequence[int] = (1, 4), longest: int = 48) -> None:
        """Check that translations are equal, by the plain and by the compiled search.

        At the length limit, `transformers` ranks unfinished hypotheses among the others, and we do not. The few lines
        for which either side returns an unfinished hypothesis are not compared.
        """
        tokenizer = self.parts.target_tokenizer
        source, lengths = self.batch(lines)
        mask = (torch.arange(source.shape[1]) < lengths[:, None]).long()
        task = SearchTask(symbols_of(tokenizer), max_lengths=longest)
        rows = [row[:length].tolist() for row, length in zip(source, lengths.tolist(), strict=True)]
        forced = {"forced_bos_token_id": tokenizer.prefix[0]} if tokenizer.prefix else {}
        for beam in beams:
            written = self.theirs.generate(
                input_ids=source,
                attention_mask=mask,
                num_beams=beam,
                max_length=longest + 1,
                early_stopping="never" if beam > 1 else False,
                bad_words_ids=[[i] for i in tokenizer.forbidden_in_output if i not in tokenizer.prefix],
                forced_eos_token_id=None,
                **forced,
            )
            theirs = [[i for i in row[1:] if i != tokenizer.pad_id] for row in written.tolist()]
            theirs = [row[: row.index(tokenizer.eos_id)] if tokenizer.eos_id in row else row for row in theirs]
            for found in (
                beam_search(self.network, source, lengths, task, Search(beam=beam)),
                Engine(self.network).search(rows, replace(task, max_lengths=[longest] * len(rows)), Search(beam=beam)),
            ):
                best = [hypotheses[0] for hypotheses in found]
                ended = [place for place, one in enumerate(best) if one.finished and len(theirs[place]) < longest]
                assert len(ended) >= 20
                assert [list(best[place].tokens) for place in ended] == [theirs[place] for place in ended]


@pytest.fixture(scope="session")
def both_sides() -> Callable[..., Sides]:
    """Read a folder on both sides: ``both_sides(model, folder, languages, **options of their tokenizer)``."""

    def read(model: Any, folder: Path, languages: Languages | None = None, **options: str) -> Sides:
        from transformers import AutoTokenizer

        parts = read_foreign(folder, languages or Languages())
        return Sides(model, AutoTokenizer.from_pretrained(folder, **options), parts, parts.build(folder))

    return read


@pytest.fixture(scope="session")
def foreign() -> Foreign:
    """Builders of other programs' models, with SentencePiece models of a few sentences."""
    source, target = _sentences(200), _sentences(200, ENGLISH)
    return Foreign(
        SentencePieces(
            _train_sentencepiece(source),
            _train_sentencepiece(target),
            _train_sentencepiece(source + target, model_type="bpe"),
            _train_sentencepiece(source + target),
            _train_sentencepiece(source, byte_fallback=True, vocab_size=360),
        )
    )


@pytest.fixture(scope="session")
def opus_mt(foreign: Foreign, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A MarianMT model that translates the small language, and its folder; tests must not change them."""
    folder = tmp_path_factory.mktemp("opus-mt")
    return foreign.marian(folder, updates=80), folder


@pytest.fixture(scope="session")
def nllb_200(foreign: Foreign, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """An NLLB-200 model that translates the small language, and its folder; tests must not change them."""
    folder = tmp_path_factory.mktemp("nllb-200")
    return foreign.nllb(folder, updates=70), folder
