"""Small good folders of every kind, and how each is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from multihead.bundle import Bundle, build_network, load_bundle, save_bundle
from multihead.decoding.search import Search
from multihead.files import write_tensors
from multihead.models.bert.config import BertConfig
from multihead.models.bert.network import Bert
from multihead.models.classifier.config import BertClassifierConfig, HierarchicalConfig
from multihead.models.classifier.network import build_classifier
from multihead.models.config import TransformerConfig
from multihead.models.decoder.config import DecoderConfig
from multihead.models.decoder.network import DecoderLM
from multihead.models.pointer.config import PointerConfig
from multihead.models.pointer.network import PointerNetwork
from multihead.planning.settings import Choices, PrepareSettings
from multihead.preparing.prepare import prepare
from multihead.preparing.prepared import use_folder
from multihead.runs.bert.fill_mask import MaskFiller
from multihead.runs.bert.model import PretrainedBert
from multihead.runs.classifier.model import DocumentClassifier
from multihead.runs.classifier.settings import DocumentFormat
from multihead.runs.language_model.model import LanguageModel
from multihead.runs.language_model.settings import Reading
from multihead.runs.pointer.model import Pointer
from multihead.runs.pointer.settings import Task
from multihead.sealed import seal
from multihead.text.bert_words import BERT_SPECIALS, BpeWords, WordPieces
from multihead.text.tokenizer import Tokenizer
from multihead.training.config import TrainingConfig
from multihead.translating.shortlist import FILE as SHORTLIST
from multihead.translating.shortlist import read as read_shortlist
from planting import LINES

SIZES: dict[str, Any] = {"width": 16, "heads": 2, "inner": 32}


def make_translator(folder: Path) -> None:
    """A model folder of a translator."""
    tokenizer = Tokenizer.learn(LINES, 330)
    sizes = {**SIZES, "encoder_layers": 1, "decoder_layers": 1}
    config = TransformerConfig(source_vocab=len(tokenizer), target_vocab=len(tokenizer), **sizes)
    torch.manual_seed(1)
    save_bundle(folder, Bundle(build_network(config).eval(), tokenizer, tokenizer, Search()), {}, "a test")


def make_shortlist(folder: Path) -> None:
    """A model folder with a shortlist."""
    make_translator(folder)
    tokenizer = load_bundle(folder).source_tokenizer
    write_tensors(folder / SHORTLIST, shortlist_of(tokenizer))
    seal(folder)


def shortlist_of(tokenizer: Tokenizer, **changed: Any) -> dict[str, torch.Tensor]:
    """The tensors of a shortlist for one tokenizer on both sides."""
    digest, count = torch.tensor(list(bytes.fromhex(tokenizer.digest)), dtype=torch.uint8), len(tokenizer)
    lists = {"always": torch.arange(20), "starts": torch.arange(count + 1), "candidates": torch.arange(count)}
    return {**lists, "source": digest, "target": digest, **changed}


def make_pointer(folder: Path) -> None:
    """A model folder of a pointer network."""
    torch.manual_seed(1)
    Pointer(PointerNetwork(PointerConfig(width=16)), Task(problem="sort", smallest=2, largest=5)).save(folder, {})


def make_classifier(folder: Path) -> None:
    """A model folder of a hierarchical classifier."""
    words = BpeWords(Tokenizer.learn(LINES, 330, specials=BERT_SPECIALS))
    torch.manual_seed(1)
    model = build_classifier(HierarchicalConfig(vocab=len(words), classes=2, width=16))
    DocumentClassifier(model, words, DocumentFormat(labels=("bad", "good"), language="en")).save(folder, {})


def make_bert_classifier(folder: Path) -> None:
    """A model folder of a BERT that classifies."""
    words = BpeWords(Tokenizer.learn(LINES, 330, specials=BERT_SPECIALS))
    torch.manual_seed(1)
    encoder = BertConfig(vocab=len(words), layers=1, max_positions=40, **SIZES)
    model = build_classifier(BertClassifierConfig(encoder=encoder, classes=2))
    reading = DocumentFormat(labels=("bad", "good"), language="en", max_tokens=40)
    DocumentClassifier(model, words, reading).save(folder, {})


def make_bert(folder: Path) -> None:
    """A model folder of a BERT."""
    words = BpeWords(Tokenizer.learn(LINES, 330, specials=BERT_SPECIALS))
    torch.manual_seed(1)
    PretrainedBert(Bert(BertConfig(vocab=len(words), layers=1, max_positions=40, **SIZES)), words).save(folder)


def make_published_bert(folder: Path) -> None:
    """A BERT in the format of Hugging Face, without a manifest."""
    words = WordPieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", "##a", "##b"], lowercase=True)
    torch.manual_seed(1)
    PretrainedBert(Bert(BertConfig(vocab=len(words), layers=1, max_positions=40, **SIZES)), words).export(folder)


def make_language_model(folder: Path) -> None:
    """A model folder of a language model."""
    tokenizer = Tokenizer.learn(LINES, 330)
    torch.manual_seed(1)
    model = DecoderLM(DecoderConfig(vocab=len(tokenizer), decoder_layers=1, **SIZES))
    LanguageModel(model, tokenizer, Reading(max_tokens=40)).save(folder, {})


def make_prepared(folder: Path) -> None:
    """A folder of `multihead prepare`."""
    lines = [f"{first} {second}" for first in ("eins", "zwei", "drei", "vier") for second in "abcdefghij"]
    for side in ("source", "target"):
        (folder.parent / f"text.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = {side: folder.parent / f"text.{side}" for side in ("source", "target")}
    prepare(output=folder, say=lambda _: None, held_out=4, vocab_size=300, **files)


def use_prepared(folder: Path) -> object:
    """An epoch of batches."""
    prepared = use_folder(folder, Choices(PrepareSettings()))
    stream = prepared.batches(TrainingConfig(updates=10, batch_tokens=100), (0, 0))
    found = [[tensor.tolist() for tensor in stream.take().inputs] for _ in range(stream.batches_in_epoch)]
    return found, prepared.valid_sources, prepared.valid_targets


GOOD: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "shortlist": (make_shortlist, lambda folder: read_shortlist(folder, load_bundle(folder)).of([30, 31, 32]).tolist()),
    "pointer": (make_pointer, lambda folder: Pointer.load(folder).answers([[3, 1, 2], [1, 2]])),
    "classifier": (make_classifier, lambda folder: DocumentClassifier.load(folder).classify(["A cat. A dog.\tTwo."])),
    "BERT classifier": (
        make_bert_classifier,
        lambda folder: DocumentClassifier.load(folder).classify(["A cat. A dog.\tTwo." * 9]),
    ),
    "BERT": (make_bert, lambda folder: MaskFiller.load(folder).fill(["A cat [MASK] on 12."])),
    "language model": (make_language_model, lambda folder: LanguageModel.load(folder).generate(["A cat"])),
    "published BERT": (make_published_bert, lambda folder: MaskFiller.load(folder).fill(["ab [MASK] c"])),
    "prepared text": (make_prepared, use_prepared),
}
"""For each kind of folder, how to make it and how to use it."""
