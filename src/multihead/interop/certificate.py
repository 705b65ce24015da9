"""The certificate of an import or export: both sides, line by line.

Three comparisons, of which each can fail:

    tokenizer           every line becomes the same ids, and every translation the same text
    log-probabilities   log p(y_t | y_<t, x) of every token of our translations (teacher forcing): largest and mean
                        difference; the largest is at most what the format allows. Both sides have the same rounded
                        weights and compute in float32, so the bound does not grow with a quantization; a program's
                        products of integers are checked one by one (`runtimes.onnx_integers`)
    translations        greedy and beam search by the other program's rules: equal, or a near tie (`near_ties`); whole
                        texts by a program whose search cannot be set; where there are references, BLEU of each side

Searches differ between programs by convention (stopping rule, forbidden tokens, limits). A certificate compares models,
so our side follows the other one's rules (`runtimes.Rules`), and the certificate lists how these differ from our own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import Any, Literal

from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search
from multihead.interop.comparing import (
    RoundingCheck,
    ScoreCheck,
    SearchCheck,
    TokenizerCheck,
    compare_bleu_of_rows,
    compare_scores,
    compare_searches,
    compare_texts,
    compare_tokenizers,
    join_scores,
    join_searches,
    join_tokenizers,
)
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.lines import Lines
from multihead.interop.our_side import OurSide
from multihead.interop.pieces import in_pieces
from multihead.interop.runtimes import EngineRuntime, IntegerRuntime, Rules, Runtime, TextRuntime, TokenizerRuntime

FILE = "certificate.json"

State = Literal["passed", "failed", "not run"]

_LONGEST = 256
"""Maximum number of tokens of a translation; CTranslate2's default."""


@dataclass(frozen=True)
class Certificate:
    """What was compared, and what was found."""

    format: str
    state: State
    reason: str
    """Why it failed or was not run; empty if it passed."""
    multihead: str
    program: str = ""
    program_version: str = ""
    quantization: str = "float32"
    arithmetic: str = ""
    """The precision in which the other side computed."""
    lines: int = 0
    origin: str = ""
    """Where the lines are from."""
    tokenizer: TokenizerCheck | None = None
    scores: ScoreCheck | None = None
    searches: tuple[SearchCheck, ...] = ()
    texts: SearchCheck | None = None
    """Whole texts, translated by a program whose search cannot be set."""
    other_rules: tuple[str, ...] = ()
    """How the other program's search by default differs from ours by default."""
    remarks: tuple[str, ...] = field(default=())
    rounding: RoundingCheck | None = None
    """For rounded weights: what they change. This check cannot fail."""

    def to_json(self) -> str:
        """The content of certificate.json."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    def summary(self) -> str:
        """One line for the terminal."""
        if self.state == "not run":
            return f"certificate not run: {self.reason}"
        parts = [f"{self.program} {self.program_version} on {self.lines} lines"]
        if self.scores:
            parts.append(f"log-probabilities differ by at most {self.scores.largest:.2g}")
        for one in self.searches:
            ties = f", {one.near_ties} near ties" if one.near_ties else ""
            name = "greedy" if one.beam == 1 else f"beam {one.beam}"
            bleu = f", {one.bleu}" if one.bleu else ""
            parts.append(f"{name} {one.equal} of {one.lines} equal{ties}{bleu}")
        if self.texts:
            bleu = f", {self.texts.bleu}" if self.texts.bleu else ""
            parts.append(f"texts {self.texts.equal} of {self.texts.lines} equal{bleu}")
        if self.tokenizer:
            parts.append(f"tokenizer {self.tokenizer.equal_ids} of {self.tokenizer.lines} equal")
        return f"certificate {self.state}: " + ", ".join(parts) + (f"; {self.reason}" if self.reason else "")


def not_run(format: str, quantization: str, reason: str) -> Certificate:
    """The certificate of an export that could not be compared here."""
    return Certificate(format, "not run", reason, version("multihead"), quantization=quantization)


@dataclass(frozen=True)
class Terms:
    """On what a certificate is made.

    Args:
        format: name of the format.
        lines: the source lines.
        beam: of the beam search.
        allowed: largest difference of a forced log-probability.
        quantization: of the file.
        arithmetic: the precision in which the other side computes, in words.
        inexact_tokenizer: whether the format cannot carry the tokenizer exactly; differences are then only counted.
    """

    format: str
    lines: Lines
    beam: int = 5
    allowed: float = 1e-3
    quantization: str = "float32"
    arithmetic: str = "float32"
    inexact_tokenizer: str | None = None


def certify(
    parts: TranslatorParts, other: TokenizerRuntime, terms: Terms, say: Callable[[str], None] = lambda _: None
) -> Certificate:
    """Compare a translator with another program that runs the same one.

    Args:
        parts: our side; its weights are those that the file has, so rounded ones if the file is quantized.
        other: the other side; only its tokenizer is compared if it runs no model.
        terms: lines and bounds.
        say: called with a line about each step.
    """
    ours, texts = OurSide(parts), terms.lines.texts
    encoded = ours.encode(texts)
    checks: dict[str, Any] = {}
    problems: list[str] = []
    translations: list[list[int]] = []
    if isinstance(other, Runtime):
        sources = [ours.ended(ids) for ids in encoded]
        translations = _compare_models(parts, ours, other, sources, terms, checks, problems, say)
    elif isinstance(other, EngineRuntime):
        translations = _compare_engines(parts, ours, other, terms, checks, problems, say)
    plain = ours.without_symbols(translations) or parts.target_tokenizer.encode_batch(texts)
    checks["tokenizer"] = check = compare_tokenizers(ours, other, texts, encoded, plain)
    if check is not None and terms.inexact_tokenizer is not None:
        checks["remarks"] = (terms.inexact_tokenizer,)
    elif check is not None and (check.equal_ids, check.equal_texts) != (check.lines, check.translations):
        problems.append(
            f"its tokenizer gives other ids on {check.lines - check.equal_ids} of {check.lines} lines and other texts "
            f"on {check.translations - check.equal_texts} of {check.translations}: {check.first_difference}"
        )
    return Certificate(
        terms.format,
        "failed" if problems else "passed",
        "; ".join(problems),
        version("multihead"),
        other.name,
        other.version,
        terms.quantization,
        terms.arithmetic,
        len(texts),
        terms.lines.origin,
        **checks,
    )


def join_certificates(certificates: Mapping[str, Certificate]) -> Certificate:
    """The certificate of a model of several directions, from that of each by its name; it passes if all do."""
    found = [*certificates.values()]
    if len(found) == 1:
        return found[0]
    problems = [f"{name}: {one.reason}" for name, one in certificates.items() if one.reason]
    tokenizers = [one.tokenizer for one in found if one.tokenizer is not None]
    scores = [one.scores for one in found if one.scores is not None]
    return replace(
        found[0],
        state="failed" if problems else "passed",
        reason="; ".join(problems),
        lines=sum(one.lines for one in found),
        origin=f"{found[0].origin}, divided among {', '.join(certificates)}",
        tokenizer=join_tokenizers(tokenizers) if tokenizers else None,
        scores=join_scores(scores) if scores else None,
        searches=tuple(join_searches(checks) for checks in zip(*(one.searches for one in found), strict=True)),
    )


def search_of(
    parts: TranslatorParts, sources: Sequence[Sequence[int]], beam: int, positions: int | None = None
) -> Search:
    """The search of a certificate: the model's own, with one length limit for all sources.

    Args:
        parts: the model.
        sources: with their end symbols.
        beam: of the search.
        positions: of the other program. A translation that the limit cuts is scored with an end symbol.
    """
    own = parts.generation.model_copy(update={"beam": beam, "min_length": 0})
    longest = max(len(source) for source in sources)
    most = _LONGEST if positions is None else min(_LONGEST, positions - 1)
    return own.model_copy(update={"max_length": min(own.limit(longest), most)})


def _compare_models(
    parts: TranslatorParts,
    ours: OurSide,
    other: Runtime,
    sources: Sequence[Sequence[int]],
    terms: Terms,
    checks: dict[str, Any],
    problems: list[str],
    say: Callable[[str], None],
) -> list[list[int]]:
    """Fill ``checks`` and ``problems``; return our beam translations."""
    found: dict[int, tuple[Rules, list[list[int]], list[list[int]]]] = {}
    for beam in (1, terms.beam):
        search = search_of(parts, sources, beam, other.positions)
        rules = other.rules(search)
        how = "greedy" if beam == 1 else f"beam {beam}"
        say(f"translating {len(sources)} lines on both sides, {how}")
        mine = in_pieces(partial(ours.translate, rules=rules), sources, f"multihead, {how}", say)
        theirs = in_pieces(partial(other.translate, search=search), sources, f"{other.name}, {how}", say)
        found[beam] = rules, mine, theirs
    targets = [ours.finished(row) for row in found[terms.beam][1]]
    checks["scores"] = scores = compare_scores(ours, other, sources, targets, terms.allowed)
    checks["searches"] = tuple(
        replace(
            compare_searches(ours, rules, mine, theirs, sources, terms.lines.texts, scores.largest),
            bleu=compare_bleu_of_rows(ours, other, mine, theirs, terms.lines, parts.target_language),
        )
        for rules, mine, theirs in found.values()
    )
    checks["other_rules"] = found[terms.beam][0].differences
    if scores.largest > scores.allowed:
        problems.append(
            f"the log-probability of a token differs by {scores.largest:.3g}, of all on average by {scores.mean:.3g}; "
            f"at most {scores.allowed:g} is allowed"
        )
    if isinstance(other, IntegerRuntime):
        problems += other.wrong_products(sources, targets)[:1]
    searches = [*checks["searches"]]
    if isinstance(other, TextRuntime):
        say(f"translating {len(sources)} texts by {other.name}")
        checks["texts"] = compare_texts(ours, other, terms.lines, scores.largest, parts.target_language)
        searches.append(checks["texts"])
    for one in searches:
        if one.unexplained:
            first = one.differences[0]
            problems.append(
                f"{one.unexplained} of {one.lines} translations with a beam of {one.beam} differ and are no near ties: "
                f"line {first.line} is {first.ours!r} here and {first.theirs!r} there"
            )
    return found[terms.beam][1]


def _compare_engines(
    parts: TranslatorParts,
    ours: OurSide,
    runtime: EngineRuntime,
    terms: Terms,
    checks: dict[str, Any],
    problems: list[str],
    say: Callable[[str], None],
) -> list[list[int]]:
    """The same for a program with the arithmetic of our engine; return our beam translations."""
    texts = terms.lines.texts
    sources = [[*ids, parts.source_tokenizer.eos_id] for ids in ours.encode(texts)]
    end = parts.target_tokenizer.eos_id
    searches: list[SearchCheck] = []
    gaps: list[float] = []  # of whole translations
    found: list[Hypothesis] = []
    tokens = 0
    for beam in (1, terms.beam):
        how = "greedy" if beam == 1 else f"beam {beam}"
        say(f"translating {len(texts)} lines on both sides, {how}")
        rules = Rules(parts.generation.model_copy(update={"beam": beam}), parts.target_tokenizer.forbidden_in_output)
        found = ours.translate_int8(sources, rules.search)
        theirs = in_pieces(partial(runtime.translations, search=rules.search), texts, f"{runtime.name}, {how}", say)
        same = [one for one in zip(found, theirs, strict=True) if one[0].tokens == one[1].tokens]
        tokens += sum(len(one.tokens) + one.finished for one, _ in same)
        gaps += [abs(one.log_probability - other.log_probability) for one, other in same]
        mine, its = (
            [[*one.tokens, end] if one.finished else [*one.tokens] for one in side] for side in (found, theirs)
        )
        # Where sums round otherwise than here, bytes of int8 differ by a step: as much as rounding to int8 moves them.
        noise = ours.rounding(sources, found) if len(same) < len(texts) and any(gaps) else 0.0
        check = compare_searches(ours, rules, mine, its, sources, texts, noise)
        searches.append(
            replace(check, bleu=compare_bleu_of_rows(ours, runtime, mine, its, terms.lines, parts.target_language))
        )
    checks["searches"] = tuple(searches)
    checks["scores"] = scores = ScoreCheck(
        tokens, max(gaps, default=math.inf), sum(gaps) / max(len(gaps), 1), terms.allowed
    )
    if not scores.largest <= scores.allowed:
        problems.append(
            f"the log-probability of a translation differs by {scores.largest:.3g}, allowed {scores.allowed:g}"
        )
    problems += [
        f"{one.unexplained} of {one.lines} translations with a beam of {one.beam} differ, such as line "
        f"{one.differences[0].line}: {one.differences[0].ours!r} here and {one.differences[0].theirs!r} there"
        for one in searches
        if one.unexplained
    ]
    return [list(one.tokens) for one in found]
