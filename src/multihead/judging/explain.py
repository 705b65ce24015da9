"""Why a sentence was translated so: one `Explanation` with all that can be looked at, for people and for programs.

The translation is searched step by step with a recorder (`decoding.recording`), which finds what `Translator.translate`
finds, compiled or not. Then the pair is run once more with everything written down: words, tokens and what else they
could have been (`judging.analysis`), the attention of every head (`translating.attention`), and the way of the
tensors (`inspection.shapes`). `Explanation.content` is the whole as plain data, in the schema of docs/explain.md;
`inspection.explanation` makes a page of it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from multihead.data.batching import collate_source
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.recording import Recorder, Tree
from multihead.errors import ConfigurationError, InputError
from multihead.inspection.explanation import explanation_page, format_percent
from multihead.inspection.plots import attention_map
from multihead.inspection.shapes import Trace, trace
from multihead.judging.align import AlignmentSettings
from multihead.judging.analysis import PairAnalysis, analyze_tokens
from multihead.judging.score import forced_log_probabilities
from multihead.text.tokenizer import Tokenizer
from multihead.translating.attention import AttentionMap, Kind
from multihead.translating.search_settings import SearchSettings, completed
from multihead.translating.searching import Demands, check_n_best, find, penalty_of, restrictions_of, symbols_of
from multihead.translating.translation import Translation
from multihead.translating.translator import Translator

VERSION = 1
"""Of the schema: a field may be added to it, but none changes its meaning."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """A sentence, its translation, and what the model did."""

    source: str
    translation: str
    given: bool
    """Whether the translation was handed in; otherwise it is the first of ``found``."""
    log_probability: float
    """log p(y | x)."""
    score: float
    """What a search ranks by: the same, divided by the length penalty."""
    inspected: PairAnalysis
    """Its words and tokens, how probable they were, and what else they could have been."""
    attention: AttentionMap
    """Every head's weights."""
    found: list[Translation]
    """What the model's own search found, best first."""
    tree: Tree
    """What that search did."""
    pieces: list[str]
    """The last token of each node of the tree, to be read by people."""
    texts: list[str | None]
    """What each node of the tree reads that ended or was handed back; None for the others."""
    shapes: Trace
    """The way of the tensors."""
    searched: SearchSettings
    model: str
    """In a line."""
    languages: tuple[str | None, str | None]

    def content(self) -> dict[str, Any]:
        """All of it as what JSON has, in the schema of docs/explain.md."""
        nodes = [
            {**asdict(node), "piece": piece, "text": text}
            for node, piece, text in zip(self.tree.nodes, self.pieces, self.texts, strict=True)
        ]
        inspected = asdict(self.inspected)
        attention = {kind: _layers(self.attention, kind) for kind in get_args(Kind)}
        content = {
            "multihead_explanation": VERSION,
            "model": self.model,
            "languages": self.languages,
            "source": self.source,
            "translation": self.translation,
            "given": self.given,
            "log_probability": self.log_probability,
            "score": self.score,
            "source_words": inspected["source_words"],
            "words": inspected["words"],
            "links": inspected["links"],
            "word_attention": inspected["weights"],
            "source_pieces": self.attention.source,
            "pieces": inspected["pieces"],
            "attention": attention,
            "found": [asdict(one) for one in self.found],
            "search": {"settings": self.searched.model_dump(), "nodes": nodes},
            "shapes": {"rows": [asdict(row) for row in self.shapes.rows], "table": str(self.shapes)},
        }
        plain: dict[str, Any] = _plain(content)
        return plain

    def page(self) -> str:
        """A page of HTML that needs nothing else: no network, and for the main content no script."""
        return explanation_page(self.content())

    def picture(self, path: str | Path) -> None:
        """Draws which word looked at which, into a PNG, SVG or PDF file.

        Raises:
            InputError: there is no attention to the source, or no word; a file that no picture can be.
            MissingDependencyError, SurroundingsError: as `inspection.plots.attention_map`.
        """
        weights, words = self.inspected.weights, self.inspected.words
        if not weights or not self.inspected.source_words:
            raise InputError("there is nothing to draw: no word of the translation looks at one of the source")
        rows = [
            f"{word.text}·{format_percent(word.probability)}" for word in words
        ]  # a blank would be drawn as a token's
        attention_map(torch.tensor(weights), self.inspected.source_words, rows, path, title=self.source)


def explain(
    translator: Translator | str | Path,
    text: str,
    translation: str | None = None,
    *,
    alternatives: int = 5,
    n_best: int = 1,
    aligning: AlignmentSettings | None = None,
) -> Explanation:
    """Explains the translation of a sentence: the model's own, or a given one.

    Args:
        translator: any, or the folder of a model or run; how it searches is its own (`Translator.searching`).
        text: the sentence.
        translation: explain this one; the search that is shown is the model's own all the same.
        alternatives: how many of each word and token.
        n_best: how many translations the search hands back; more let it go on for longer.
        aligning: how links between words are read from the weights.

    Example:
        ``Path("page.html").write_text(explain("run", "Ein Hund rennt.").page(), encoding="utf-8")``

    Raises:
        InputError: an empty sentence; a lone surrogate.
        ConfigurationError: more translations than the beam; a layer that there is not; fewer than no alternatives; a
            search in less than float32.
        FormatError: no model there.
    """
    if not text.strip():
        raise InputError("an empty sentence has nothing to explain")
    if not isinstance(translator, Translator):
        translator = Translator.load(translator)
    settings = completed(translator.search_settings())
    if settings.precision != "float32":
        raise ConfigurationError(
            f"precision {settings.precision} cannot be explained: compiled code writes nothing down; write float32"
        )
    bundle = translator.bundle
    tokenizer = bundle.target_tokenizer
    read = bundle.source_tokenizer.encode(text)
    hypotheses, tree = _searched(translator, read, settings, n_best)
    found = [translator.translation_of(hypothesis, len(read) + 1) for hypothesis in hypotheses]
    if translation is None:
        written = list(hypotheses[0].tokens)
        log_probability, score = found[0].log_probability, found[0].score
    else:
        written = tokenizer.encode(translation)
        log_probability = math.fsum(forced_log_probabilities(bundle.model, tokenizer, [read], [written])[0])
        score = log_probability / penalty_of(settings)(len(written) + 1, settings.alpha)
    (inspected,) = analyze_tokens(translator, [read], [written], alternatives, aligning=aligning)
    source, target = (
        torch.tensor([ids], device=bundle.model.output.weight.device)
        for ids in ([*read, Tokenizer.eos_id], [Tokenizer.bos_id, *written])
    )
    return Explanation(
        source=text,
        translation=found[0].text if translation is None else translation,
        given=translation is not None,
        log_probability=log_probability,
        score=score,
        inspected=inspected,
        attention=translator.attention_of(read, written),
        found=found,
        tree=tree,
        pieces=tokenizer.pieces([node.symbol for node in tree.nodes]),
        texts=[
            None if node.score is None else tokenizer.decode(tree.path(place)) for place, node in enumerate(tree.nodes)
        ],
        shapes=trace(bundle.model, source, torch.tensor([source.shape[1]], device=source.device), target),
        searched=settings,
        model=bundle.model.config.summary,
        languages=(bundle.source_language, bundle.target_language),
    )


def _searched(
    translator: Translator, read: list[int], settings: SearchSettings, n_best: int
) -> tuple[list[Hypothesis], Tree]:
    """What the model's own search finds for one sentence, and what it did on the way."""
    check_n_best(n_best, settings.beam)
    tokenizer = translator.bundle.target_tokenizer
    translator.bundle.model.eval()
    recorder = Recorder(symbols_of(tokenizer))
    source, lengths = collate_source([read], Tokenizer.pad_id, Tokenizer.eos_id)
    device = translator.bundle.model.output.weight.device
    (found,) = find(
        translator.stepper,
        source.to(device),
        lengths.to(device),
        recorder.symbols,
        settings,
        n_best,
        restrictions_of(settings, tokenizer, Demands()),
        recorder=recorder,
    )
    return found, recorder.tree(found, parties=settings.groups)


def _plain(value: Any) -> Any:
    """As JSON has it: tuples are lists."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _layers(seen: AttentionMap, kind: Kind) -> dict[str, Any] | None:
    """Every layer's weights of every head, and what the rows and columns are; None where the model has none."""
    recorded = {"cross": seen.weights.cross, "encoder": seen.weights.encoder, "decoder": seen.weights.decoder}[kind]
    views = [seen.view(kind, layer) for layer in range(1, len(recorded) + 1)]
    if not views:
        return None
    layers = [view.weights.tolist() for view in views]
    return {"rows": views[0].rows, "columns": views[0].columns, "layers": layers}
