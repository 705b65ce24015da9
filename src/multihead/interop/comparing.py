"""What a certificate compares: probabilities, translations, texts, BLEU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from multihead.decoding.search import Search
from multihead.interop.lines import Lines
from multihead.interop.our_side import OurSide
from multihead.interop.pieces import in_pieces
from multihead.interop.runtimes import Rules, Runtime, TextRuntime, TokenizerRuntime
from multihead.metrics.scores import bleu_metric

_CUT = "the length limit cuts their translation, which our model scores higher, too; our search prefers finished ones"

_SHOWN = 20
"""Differences that are listed."""


@dataclass(frozen=True)
class TokenizerCheck:
    """How many lines become the same ids, and how many translations the same text."""

    lines: int
    equal_ids: int
    translations: int
    equal_texts: int
    first_difference: str | None = None


@dataclass(frozen=True)
class ScoreCheck:
    """Differences of forced log-probabilities."""

    tokens: int
    largest: float
    mean: float
    allowed: float
    """The largest difference with which the check passes."""


@dataclass(frozen=True)
class Difference:
    """A line with two translations."""

    line: int
    """Counted from 1."""
    source: str
    ours: str
    theirs: str
    explained: bool
    explanation: str


@dataclass(frozen=True)
class BleuCheck:
    """BLEU of both sides' translations of the same lines, from 0 to 100."""

    ours: float
    theirs: float
    signature: str

    def __str__(self) -> str:
        ours, theirs = f"{self.ours:.2f}", f"{self.theirs:.2f}"
        return f"BLEU {ours} on both sides" if ours == theirs else f"BLEU {ours} here, {theirs} there"


@dataclass(frozen=True)
class SearchCheck:
    """Equal translations of one search."""

    beam: int
    lines: int
    equal: int
    near_ties: int
    """Explained differences, also those at the length limit."""
    unexplained: int
    settings: dict[str, Any]
    """The rules that both sides followed."""
    differences: tuple[Difference, ...] = ()
    """The first ones, unexplained ones first."""
    bleu: BleuCheck | None = None
    """Where the lines have references."""


def join_tokenizers(checks: Sequence[TokenizerCheck]) -> TokenizerCheck:
    """The same of all lines of several checks."""
    return TokenizerCheck(
        lines=sum(one.lines for one in checks),
        equal_ids=sum(one.equal_ids for one in checks),
        translations=sum(one.translations for one in checks),
        equal_texts=sum(one.equal_texts for one in checks),
        first_difference=next((one.first_difference for one in checks if one.first_difference), None),
    )


def join_scores(checks: Sequence[ScoreCheck]) -> ScoreCheck:
    """The same of all tokens of several checks; a largest difference that is no number stays one."""
    tokens = sum(one.tokens for one in checks)
    mean = sum(one.mean * one.tokens for one in checks) / max(tokens, 1)
    largest = max((one.largest for one in checks), key=lambda gap: (gap != gap, gap))
    return ScoreCheck(tokens, largest, mean, checks[0].allowed)


def join_searches(checks: Sequence[SearchCheck]) -> SearchCheck:
    """The same of all lines of several checks of one search; of several languages, so without BLEU."""
    differences = sorted((found for one in checks for found in one.differences), key=lambda found: found.explained)
    return replace(
        checks[0],
        lines=sum(one.lines for one in checks),
        equal=sum(one.equal for one in checks),
        near_ties=sum(one.near_ties for one in checks),
        unexplained=sum(one.unexplained for one in checks),
        differences=tuple(differences[:_SHOWN]),
        bleu=None,
    )


@dataclass(frozen=True)
class RoundingCheck:
    """What rounding costs: our model in float32 against the file in the precision in which it is used."""

    arithmetic: str
    """The other program's name of its precision."""
    largest: float
    """Difference of a forced log-probability."""
    mean: float
    lines: int
    equal_greedy: int
    equal_beam: int
    bleu: BleuCheck | None = None
    """Of the beam search, where the lines have references."""


def measure_rounding(
    ours: OurSide,
    other: Runtime,
    lines: Lines,
    search: Search,
    arithmetic: str,
    language: str | None,
    say: Callable[[str], None] = lambda _: None,
) -> RoundingCheck:
    """Differences that are no errors: rounding may turn any decision.

    Args:
        ours: the model with its weights in float32.
        other: the program, computing as it does by default.
        lines: source lines and their references.
        search: of the beam search.
        arithmetic: the precision in which the program computes.
        language: the target's code.
        say: called with lines about the progress.
    """
    sources = [ours.ended(ids) for ids in ours.encode(lines.texts)]
    equal, translations, theirs = [], [], []
    for beam in (1, search.beam):
        asked = search.model_copy(update={"beam": beam})
        translations = in_pieces(partial(ours.translate, rules=other.rules(asked)), sources, "multihead", say)
        theirs = in_pieces(partial(other.translate, search=asked), sources, other.name, say)
        equal.append(sum(list(one) == list(its) for one, its in zip(translations, theirs, strict=True)))
    targets = [ours.finished(row) for row in translations]
    scores = compare_scores(ours, other, sources, targets, float("inf"))
    bleu = compare_bleu_of_rows(ours, other, translations, theirs, lines, language)
    return RoundingCheck(arithmetic, scores.largest, scores.mean, len(lines.texts), equal[0], equal[1], bleu)


def compare_bleu_of_rows(
    ours: OurSide,
    other: TokenizerRuntime,
    mine: Sequence[Sequence[int]],
    theirs: Sequence[Sequence[int]],
    lines: Lines,
    language: str | None,
) -> BleuCheck | None:
    """BLEU of translations in ids, theirs detokenized by their own tokenizer if they have one."""
    if not lines.references:
        return None
    texts = other.decode(ours.without_symbols(theirs)) or ours.decode(theirs)
    return compare_bleu(ours.decode(mine), texts, lines.references, language)


def compare_bleu(
    ours: Sequence[str], theirs: Sequence[str], references: Sequence[str], language: str | None
) -> BleuCheck | None:
    """None without references."""
    if not references:
        return None
    metric = bleu_metric(language)
    mine, its = (float(metric.corpus_score(list(side), [list(references)]).score) for side in (ours, theirs))
    return BleuCheck(mine, its, str(metric.get_signature()))


def compare_scores(
    ours: OurSide,
    other: Runtime,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    allowed: float,
) -> ScoreCheck:
    pairs = zip(ours.score(sources, targets), other.score(sources, targets), strict=True)
    gaps = [abs(one - their) for row, theirs in pairs for one, their in zip(row, theirs, strict=True)]
    # A NaN on either side must not pass: max and comparisons would hide it.
    largest = float("inf") if any(gap != gap for gap in gaps) else max(gaps)
    return ScoreCheck(len(gaps), largest, sum(gaps) / len(gaps), allowed)


def compare_searches(
    ours: OurSide,
    rules: Rules,
    mine: Sequence[Sequence[int]],
    theirs: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]],
    texts: Sequence[str],
    delta: float,
) -> SearchCheck:
    differences: list[Difference] = []
    for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if list(one) == list(other):
            continue
        decision = ours.decision(sources[place], one, other, rules)
        explained = decision is not None and decision.is_near_tie(delta)
        if not explained and ours.ranks_cut_higher(sources[place], one, other, rules):
            explained, text = True, _CUT
        elif decision is None:
            text = "no decision of the search can be turned by rounding"
        else:
            text = decision.explain(delta) if explained else f"no {decision.explain(delta)}"
        words = ours.decode([one, other])
        differences.append(Difference(place + 1, texts[place], words[0], words[1], explained, text))
    return _search_check(rules, len(sources), differences)


def compare_tokenizers(
    ours: OurSide,
    other: TokenizerRuntime,
    texts: Sequence[str],
    encoded: Sequence[Sequence[int]],
    translations: Sequence[Sequence[int]],
) -> TokenizerCheck | None:
    """None if the other side has no tokenizer. Translations whose bytes are no UTF-8 have no text to compare."""
    readable = [row for row in translations if "\ufffd" not in ours.decode([row])[0]]
    theirs, decoded = other.encode(texts), other.decode(readable)
    if theirs is None or decoded is None:
        return None
    mine = ours.decode(readable)
    rows = list(zip(texts, encoded, theirs, strict=True))
    different = [f"{text!r} becomes {ids} there" for text, own, ids in rows if list(own) != list(ids)]
    different += [f"{one!r} becomes {its!r} there" for one, its in zip(mine, decoded, strict=True) if one != its]
    return TokenizerCheck(
        lines=len(texts),
        equal_ids=sum(list(own) == list(ids) for _, own, ids in rows),
        translations=len(mine),
        equal_texts=sum(one == its for one, its in zip(mine, decoded, strict=True)),
        first_difference=different[0] if different else None,
    )


def compare_texts(ours: OurSide, other: TextRuntime, lines: Lines, delta: float, language: str | None) -> SearchCheck:
    """Whole texts, sentence by sentence as the other side cuts them, and joined as it joins them."""
    rules, differences, texts = other.text_rules, [], lines.texts
    both: list[tuple[str, str]] = []
    for place, (sentences, theirs) in enumerate(other.translate_texts(texts)):
        encoded = other.encode(sentences) or ours.encode(sentences)
        sources = [ours.ended(ids) for ids in encoded if ids]
        rows = ours.translate(sources, rules) if sources else []
        mine = other.finished_text(ours.decode([[i for row in rows for i in row]])[0]) if rows else ""
        both.append((mine, theirs))
        if mine == theirs:
            continue
        decisions = [ours.decision(source, row, (), rules) for source, row in zip(sources, rows, strict=True)]
        near = [one.explain(delta) for one in decisions if one is not None and one.is_near_tie(delta)]
        explanation = near[0] if near else "no decision of the search is a near tie"
        differences.append(Difference(place + 1, texts[place], mine, theirs, bool(near), explanation))
    bleu = compare_bleu([one for one, _ in both], [its for _, its in both], lines.references, language)
    return replace(_search_check(rules, len(texts), differences), bleu=bleu)


def _search_check(rules: Rules, lines: int, differences: list[Difference]) -> SearchCheck:
    differences.sort(key=lambda one: one.explained)
    ties, search = sum(one.explained for one in differences), rules.search
    return SearchCheck(
        beam=search.beam,
        lines=lines,
        equal=lines - len(differences),
        near_ties=ties,
        unexplained=len(differences) - ties,
        settings={
            **{name: getattr(search, name) for name in ("alpha", "length_penalty", "max_length", "min_length")},
            **{name: getattr(search, name) for name in ("stopping", "patience")},
            "forbidden": len(rules.forbidden),
            "unfinished_compete": rules.unfinished_compete,
        },
        differences=tuple(differences[:_SHOWN]),
    )
