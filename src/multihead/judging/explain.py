"""Explain a translation: attention, alternatives, search tree, shapes.

The sentence is translated step by step with a recorder (`decoding.recording`), which finds what `Translator.translate`
finds. The pair is then run once more to record words, tokens and their alternatives (`judging.analysis`), the attention
of every head (`translating.attention`), and the shapes of all tensors (`inspection.shapes`). `Explanation.content`
returns everything as plain data, in the schema of docs/explain.md; `inspection.explanation` renders it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch

from multihead.data.batching import collate_source
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.recording import Recorder, Tree
from multihead.decoding.search import Search, divisor
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, InputError
from multihead.inspection.explanation import explanation_page, format_percent
from multihead.inspection.plots import attention_map
from multihead.inspection.shapes import Trace, trace
from multihead.judging.align import AlignmentSettings
from multihead.judging.analysis import PairAnalysis, analyze_tokens, with_copies
from multihead.judging.heads import Head, without_heads
from multihead.models.network import Network
from multihead.text.backwards import require_forwards
from multihead.text.tokenizer import Tokenizer
from multihead.translating.attention import AttentionMap, Kind
from multihead.translating.forced import forced_log_probabilities
from multihead.translating.request import check_n_best
from multihead.translating.searching import (
    Constraints,
    Translation,
    build_restrictions,
    lacking,
    search_batch,
    symbols_of,
)
from multihead.translating.translator import Translator

VERSION = 1
"""Version of the schema; fields may be added to it, but none changes its meaning."""


@dataclass(frozen=True)
class WholeModel:
    """What the model does with the heads that an explanation leaves out."""

    translation: str
    """The first translation of its own search."""
    log_probability: float
    """log p(y | x) of the translation that is explained."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """A sentence, its translation, and what the model computed."""

    source: str
    translation: str
    given: bool
    """Whether the translation was passed in; otherwise it is the first of ``found``."""
    log_probability: float
    """log p(y | x)."""
    score: float
    """The same divided by the length penalty, by which a search ranks."""
    analysis: PairAnalysis
    """Words and tokens with their probabilities and alternatives."""
    attention: AttentionMap
    """The weights of every head."""
    found: list[Translation]
    """Translations found by the model's own search, best first."""
    tree: Tree
    """The search tree."""
    pieces: list[str]
    """The last token of each tree node, in readable form."""
    texts: list[str | None]
    """The text of each tree node that is finished or was returned; None for the others."""
    shapes: Trace
    """The shapes of all tensors."""
    search_settings: Search
    model: str
    """One-line description of the model."""
    languages: tuple[str | None, str | None]
    left_out: tuple[Head, ...] = ()
    """Heads that were left out."""
    whole: WholeModel | None = None
    """None if no heads were left out."""

    def content(self) -> dict[str, Any]:
        """Everything as JSON data, in the schema of docs/explain.md."""
        nodes = [
            {**asdict(node), "piece": piece, "text": text}
            for node, piece, text in zip(self.tree.nodes, self.pieces, self.texts, strict=True)
        ]
        analysis = asdict(self.analysis)
        attention = {kind: _layers(self.attention, kind) for kind in get_args(Kind)}
        content = {
            "multihead_explanation": VERSION,
            "model": self.model,
            "languages": self.languages,
            "left_out": [str(head) for head in self.left_out],
            "whole": None if self.whole is None else asdict(self.whole),
            "source": self.source,
            "translation": self.translation,
            "given": self.given,
            "log_probability": self.log_probability,
            "score": self.score,
            "source_words": analysis["source_words"],
            "words": analysis["words"],
            "links": analysis["links"],
            "word_attention": analysis["weights"],
            "source_pieces": self.attention.source,
            "pieces": analysis["pieces"],
            "attention": attention,
            "found": [asdict(one) for one in self.found],
            "search": {"settings": self.search_settings.model_dump(), "nodes": nodes},
            "shapes": {"rows": [asdict(row) for row in self.shapes.rows], "table": str(self.shapes)},
        }
        plain: dict[str, Any] = _to_json(content)
        return plain

    def page(self) -> str:
        """A self-contained HTML page; its main content needs no JavaScript."""
        return explanation_page(self.content())

    def picture(self, path: str | Path) -> None:
        """Draw the attention between words into a PNG, SVG or PDF file.

        Raises:
            InputError: the model has no attention to the source, there are no words, or the file name is invalid.
            MissingDependencyError, SurroundingsError: as `inspection.plots.attention_map`.
        """
        weights, words = self.analysis.weights, self.analysis.words
        if not weights or not self.analysis.source_words:
            raise InputError("nothing to draw: there are no words, or the model has no attention to the source")
        # Joined by a dot, because a space would be drawn like that of a token.
        rows = [f"{word.text}·{format_percent(word.probability)}" for word in words]
        attention_map(torch.tensor(weights), self.analysis.source_words, rows, path, title=self.source)


def explain(
    translator: Translator | str | Path,
    text: str,
    translation: str | None = None,
    *,
    alternatives: int = 5,
    n_best: int = 1,
    aligning: AlignmentSettings | None = None,
    left_out: Sequence[Head] = (),
) -> Explanation:
    """Explain the translation of a sentence: the model's own, or a given one.

    Args:
        translator: a translator, or a model or run folder; it searches with its own settings (`Translator.searching`).
        text: the sentence.
        translation: explain this translation; the search shown is still the model's own.
        alternatives: number of alternatives per word and per token.
        n_best: number of translations the search returns; more make it run longer.
        aligning: how links between words are extracted from attention.
        left_out: heads to leave out (`judging.heads`): everything is then that of the model without them.

    Example:
        ``Path("page.html").write_text(explain("run", "Ein Hund rennt.").page(), encoding="utf-8")``

    Raises:
        InputError: the sentence is empty, or a text contains a lone surrogate.
        ConfigurationError: the model writes from right to left, ``n_best`` exceeds the beam, the layer or a head does
            not exist, ``alternatives`` is negative, the search is less precise than float32, or it has a datastore.
        FormatError: the folder contains no model.
    """
    if not text.strip():
        raise InputError("an empty sentence has nothing to explain")
    if not isinstance(translator, Translator):
        translator = Translator.load(translator)
    require_forwards(translator.bundle.target_tokenizer, "explanations")
    whole, left_out = translator, tuple(dict.fromkeys(left_out))
    if left_out:
        translator = without_heads(whole, left_out)
    settings = translator.search_settings()
    if settings.precision != "float32":
        raise ConfigurationError(
            f"precision {settings.precision} cannot be explained: compiled code does not record a search; use float32"
        )
    if whole.datastore is not None:
        raise ConfigurationError(
            "a datastore cannot be explained: compiled code does not record its search; leave it out"
        )
    bundle = translator.bundle
    tokenizer = bundle.target_tokenizer
    read = bundle.source_tokenizer.encode(text)
    hypotheses, tree = _search_with_recorder(translator, read, settings, n_best, tokenizer.copies(text))
    found = [translator.translation_of(hypothesis, len(read) + 1, text) for hypothesis in hypotheses]
    if translation is None:
        written = list(hypotheses[0].tokens)
        log_probability, score = found[0].log_probability, found[0].score
    else:
        (written,) = tokenizer.answers([translation], [text])
        log_probability = _log_probability(translator, read, written)
        score = log_probability / divisor(settings.penalty, len(written) + 1, settings.alpha)
    (analysis,) = analyze_tokens(translator, [read], [written], alternatives, alignment=aligning)
    return Explanation(
        source=text,
        translation=found[0].text if translation is None else translation,
        given=translation is not None,
        log_probability=log_probability,
        score=score,
        analysis=with_copies(analysis, tokenizer, text),
        attention=translator.attention_of(read, written),
        found=found,
        tree=tree,
        pieces=tokenizer.pieces([node.symbol for node in tree.nodes]),
        texts=[
            None
            if node.score is None
            else tokenizer.filled(tokenizer.decode(tree.path(place)), text, whole=node.symbol == tokenizer.eos_id)
            for place, node in enumerate(tree.nodes)
        ],
        shapes=_trace_shapes(bundle.model, bundle.target_tokenizer, read, written),
        search_settings=settings,
        model=", ".join([bundle.model.config.summary, *(f"without {head}" for head in left_out)]),
        languages=(bundle.source_language, bundle.target_language),
        left_out=left_out,
        whole=_of_the_whole(whole, text, read, written) if left_out else None,
    )


def _of_the_whole(translator: Translator, text: str, read: list[int], written: list[int]) -> WholeModel:
    return WholeModel(translator.translate([text])[0], _log_probability(translator, read, written))


def _log_probability(translator: Translator, read: list[int], written: list[int]) -> float:
    """log p(y | x) of a given translation."""
    bundle = translator.bundle
    return math.fsum(forced_log_probabilities(bundle.model, bundle.target_tokenizer, [read], [written])[0])


def _search_with_recorder(
    translator: Translator, read: list[int], settings: Search, n_best: int, wanted: list[int]
) -> tuple[list[Hypothesis], Tree]:
    """The hypotheses of the model's own search for one sentence, and the search tree."""
    check_n_best(n_best, settings.beam)
    tokenizer = translator.bundle.target_tokenizer
    translator.bundle.model.eval()
    recorder = Recorder(symbols_of(tokenizer))
    source, lengths = collate_source([read], tokenizer.pad_id, tokenizer.eos_id)
    device = translator.bundle.model.output.weight.device
    restrictions = build_restrictions(settings, tokenizer, Constraints())
    task = SearchTask(recorder.symbols, n_best=n_best, restrictions=restrictions, recorder=recorder)
    (found,) = search_batch(translator.stepper, source.to(device), lengths.to(device), task, settings)
    if tokenizer.copied:
        from multihead.translating.copying import search_again

        if lacking(tokenizer, found, wanted):
            recorder = Recorder(symbols_of(tokenizer))
            task = replace(task, recorder=recorder)
            stepper, given = translator.searching(shortlist=False).stepper, (source.to(device), lengths.to(device))
            (found,) = search_again(stepper, *given, task, settings, tokenizer, Constraints(), [wanted])
    return found, recorder.tree(found, parties=settings.groups)


def _trace_shapes(model: Network, tokenizer: Tokenizer, read: list[int], written: list[int]) -> Trace:
    """The shapes of all tensors of a teacher-forced pass."""
    source, target = (
        torch.tensor([ids], device=model.output.weight.device)
        for ids in ([*read, tokenizer.eos_id], [tokenizer.bos_id, *written])
    )
    return trace(model, source, torch.tensor([source.shape[1]], device=source.device), target)


def _to_json(value: Any) -> Any:
    """Turn tuples into lists, recursively."""
    if isinstance(value, dict):
        return {key: _to_json(one) for key, one in value.items()}
    return [_to_json(one) for one in value] if isinstance(value, (list, tuple)) else value


def _layers(attention: AttentionMap, kind: Kind) -> dict[str, Any] | None:
    """The weights of every layer and head with row and column labels; None if the model has no such attention."""
    weights = attention.weights
    recorded = {"cross": weights.cross, "encoder": weights.encoder, "decoder": weights.decoder}[kind]
    views = [attention.view(kind, layer) for layer in range(1, len(recorded) + 1)]
    if not views:
        return None
    layers = [view.weights.tolist() for view in views]
    return {"rows": views[0].rows, "columns": views[0].columns, "layers": layers}
