"""`DocumentClassifier`: classify documents with a trained model.

A model folder holds config.json (sizes, labels, how texts are segmented), model.safetensors, the vocabulary and
metrics.json. Training is in `runs.classifier.train`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from multihead import model_folder
from multihead.configuration import require_device
from multihead.data.nested import DocumentBatch, Parts, StoredDocument, collate_nested, collate_segmented
from multihead.data.order import Array, batches_by_tokens
from multihead.errors import ConfigurationError, FormatError, InputError
from multihead.inspection.shades import ShadedDocument, WeightedText
from multihead.models.bert.config import BertConfig
from multihead.models.classifier.config import BertClassifierConfig, HierarchicalConfig
from multihead.models.classifier.network import Classifier, build_classifier
from multihead.runs.classifier.data import parts_of
from multihead.runs.classifier.settings import DocumentFormat
from multihead.text.bert_words import BertWords, read_words

_AT_ONCE = 1 << 14
"""Subwords per batch, including padding."""
_CONFIGS: dict[str, type[HierarchicalConfig] | type[BertClassifierConfig]] = {
    "hierarchical": HierarchicalConfig,
    "bert-classifier": BertClassifierConfig,
}


@dataclass(frozen=True)
class Classification:
    """The predicted label of a document."""

    probabilities: dict[str, float]
    """The probability of each label, the most probable first."""

    @property
    def label(self) -> str:
        """The most probable label."""
        return next(iter(self.probabilities))

    @property
    def probability(self) -> float:
        """Its probability."""
        return self.probabilities[self.label]


class DocumentClassifier:
    """A trained classifier with its vocabulary and its labels.

    Args:
        model: the network.
        words: its vocabulary.
        reading: how texts are segmented, and the names of the classes.

    Example:
        ``DocumentClassifier.load("run").classify(["It was a bad film."])[0].label`` is ``'negative'``
    """

    def __init__(self, model: Classifier, words: BertWords, reading: DocumentFormat) -> None:
        self.model, self.words, self.reading = model, words, reading

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> DocumentClassifier:
        """Read a model folder, or the best model of a run folder.

        Raises:
            FormatError: the folder is neither, is damaged, or holds another kind of network.
            ConfigurationError: the device does not exist.
        """
        require_device(device)
        with model_folder.open_model(Path(path)) as folder:
            config = model_folder.read_config(folder)
            architecture = model_folder.require_architecture(
                folder, config, _CONFIGS, "classifier", "multihead classify train"
            )
            file = folder.path / model_folder.CONFIG
            reading = model_folder.parse_settings(DocumentFormat, config.get("reading"), file)
            sizes = model_folder.parse_settings(_CONFIGS[architecture], config["model"], file)
            words = read_words(folder)
            if (problem := _disagreement(sizes, reading, words)) is not None:
                raise FormatError(f"{file}: damaged: {problem}; {model_folder.COPY_AGAIN}")
            if words.digest != config.get("words"):
                raise FormatError(
                    f"{folder.path}: these are not the words that this model was trained with; "
                    f"{model_folder.COPY_AGAIN}"
                )
            model = model_folder.load_network(sizes, lambda: build_classifier(sizes), folder, config)
        return cls(model.eval().to(device), words, reading)

    def save(self, folder: Path, metrics: dict[str, Any]) -> None:
        """Write a model folder atomically.

        Raises:
            FormatError: the folder holds something other than a model; it is left alone.
            SurroundingsError: the folder cannot be written.
        """

        def parts(draft: Path) -> dict[str, Any]:
            self.words.save(draft)
            model_folder.write_json(draft / "metrics.json", metrics)
            return {"reading": self.reading.model_dump(mode="json"), "words": self.words.digest}

        model_folder.save_folder(folder, self.model, self.model.config, parts)

    @property
    def explains(self) -> bool:
        """Whether attention weights explain the network's answers; only those of hierarchical networks do."""
        return isinstance(self.model.config, HierarchicalConfig)

    def batch(self, documents: Sequence[StoredDocument], indices: Array | None = None) -> DocumentBatch:
        """A batch of documents, as the network reads them."""
        return collate_documents(self.model.config, self.words, self.reading, documents, indices)

    def classify(self, texts: Sequence[str], progress: Callable[[int], None] = lambda _: None) -> list[Classification]:
        """Classify texts; a tab ends a paragraph.

        Args:
            texts: documents.
            progress: called with the number of newly classified documents.

        Raises:
            InputError: a text has no words; the message gives its number, counted from 1.
        """
        answers: list[Classification | None] = [None] * len(texts)
        parts = self._parts(texts)
        for group in self._groups(parts):
            found, _ = self._run([parts[place] for place in group])
            for place, answer in zip(group, found, strict=True):
                answers[place] = answer
            progress(len(group))
        return [answer for answer in answers if answer is not None]

    def explain(self, text: str) -> tuple[Classification, WeightedText]:
        """Classify a text and return the attention weights of its parts.

        Raises:
            InputError: the text has no words.
            ConfigurationError: the network is not hierarchical.
        """
        config = self.model.config
        if not isinstance(config, HierarchicalConfig):
            raise ConfigurationError(
                "explain: only a hierarchical network weighs sentences and words; train with --model hierarchical"
            )
        (parts,) = self._parts([text])
        (answer,), weights = self._run([parts])
        document = _merged(parts, config.depth)
        return answer, _shade(document, [level[0] for level in weights], 1.0, self._words_of)

    def explained(self, text: str) -> ShadedDocument:
        """The result of `explain`, ready to be rendered."""
        answer, document = self.explain(text)
        return ShadedDocument(f"{answer.label} {answer.probability:.1%}", document)

    def predictions(self, batch: DocumentBatch) -> list[int]:
        """The index of the most probable class of each document of a batch."""
        with torch.no_grad():
            places: list[int] = self.model.eval()(*batch.encoder_inputs).log_probabilities.argmax(1).tolist()
        return places

    def _parts(self, texts: Sequence[str]) -> list[Parts]:
        parts = parts_of(texts, self.reading, self.words)
        for number, document in enumerate(parts, start=1):
            if not document:
                raise InputError(f"text {number} of {len(texts)} has no words; leave it out")
        return parts

    def _groups(self, parts: Sequence[Parts]) -> list[list[int]]:
        lengths = [sum(len(ids) for paragraph in document for ids in paragraph) for document in parts]
        if isinstance(self.model.config, BertClassifierConfig):  # which does not read the rest
            lengths = [min(length, self.reading.max_tokens) for length in lengths]
        return batches_by_tokens(lengths, _AT_ONCE)

    @torch.no_grad()
    def _run(self, parts: Sequence[Parts]) -> tuple[list[Classification], tuple[torch.Tensor, ...]]:
        batch = self.batch([StoredDocument(0, document) for document in parts]).to(self.model.output.weight.device)
        found = self.model.eval()(*batch.encoder_inputs)
        labels, answers = self.reading.labels, []
        for row in found.log_probabilities.exp().tolist():
            ranked = sorted(range(len(labels)), key=lambda place: (-row[place], place))
            answers.append(Classification({labels[place]: row[place] for place in ranked}))
        return answers, found.weights

    def _words_of(self, ids: list[int]) -> list[tuple[str, int]]:
        """The words of a sentence, each with the white space before it and its number of subwords."""
        begins = self.words.begins_word[ids].nonzero()[0].tolist()
        starts = sorted({0, *begins})
        shown = ["", *(self.words.decode(ids[:stop]) for stop in [*starts[1:], len(ids)])]
        texts = [after.removeprefix(before) for before, after in pairwise(shown)]
        return [(text, stop - start) for text, start, stop in zip(texts, starts, [*starts[1:], len(ids)], strict=True)]


def _disagreement(
    sizes: HierarchicalConfig | BertClassifierConfig, reading: DocumentFormat, words: BertWords
) -> str | None:
    """Why a network cannot classify what is read like this, in words; None if it can."""
    encoder = sizes if isinstance(sizes, HierarchicalConfig) else sizes.encoder
    if len(reading.labels) != sizes.classes:
        return f"{len(reading.labels):,} labels, but the network has {sizes.classes:,} classes"
    if len(words) > encoder.vocab:
        return f"{len(words):,} words, but the network has {encoder.vocab:,}"
    if isinstance(encoder, BertConfig) and reading.max_tokens > encoder.max_positions:
        return f"rows of max_tokens = {reading.max_tokens:,}, but the network has {encoder.max_positions:,} positions"
    return None


def collate_documents(
    config: HierarchicalConfig | BertClassifierConfig,
    words: BertWords,
    reading: DocumentFormat,
    documents: Sequence[StoredDocument],
    indices: Array | None = None,
) -> DocumentBatch:
    """A batch of documents, as a network with this configuration reads them."""
    if isinstance(config, HierarchicalConfig):
        return collate_nested(documents, config.depth, config.padding_id, indices)
    return collate_segmented(documents, reading.max_tokens, words.symbols, indices, config.encoder.segments)


Words = Callable[[list[int]], list[tuple[str, int]]]


def _merged(parts: Parts, depth: int) -> list[Any]:
    """The document as nested lists of ids, with as many levels as the network."""
    if depth == 3:
        return list(parts)
    sentences = [ids for paragraph in parts for ids in paragraph]
    return sentences if depth == 2 else [token for ids in sentences for token in ids]


def _shade(part: list[Any], weights: list[torch.Tensor], weight: float, words_of: Words) -> WeightedText:
    """A part with its parts; ``weights`` holds, for this part, the weights of each level from its own downwards."""
    own, *below = weights
    if not below:
        shades, start = [], 0
        for text, size in words_of(part):
            shades.append(WeightedText(float(own[start : start + size].sum()), text))
            start += size
        return WeightedText(weight, parts=tuple(shades))
    return WeightedText(
        weight,
        parts=tuple(
            _shade(inner, [level[place] for level in below], float(own[place]), words_of)
            for place, inner in enumerate(part)
        ),
    )
