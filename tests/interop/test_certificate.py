"""Certificates: equal sides pass, and each fault that they check for makes them fail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from multihead.bundle import load_bundle
from multihead.decoding.search import Search
from multihead.interop.card import section
from multihead.interop.certificate import Certificate, Terms, certify, not_run, search_of
from multihead.interop.exporting import parts_of
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.lines import Lines
from multihead.interop.our_side import OurSide
from multihead.interop.runtimes import Rules

LINES = Lines(("eins zwei drei", "neun", "vier vier null", "zehn acht sieben sechs"), "four lines")
TERMS = Terms("test", LINES, beam=3)


class Twin:
    """A program that runs parts with our own code, and may search by rules other than it states."""

    name, version = "twin", "1"
    positions: int | None = None

    def __init__(self, parts: TranslatorParts, **other_rules: object) -> None:
        self.ours, self.other_rules, self.forbidden = OurSide(parts), other_rules, (0, 1, 2)

    def rules(self, search: Search) -> Rules:
        return Rules(search, self.forbidden, differences=("it is a twin",))

    def encode(self, texts: Sequence[str]) -> list[list[int]] | None:
        return self.ours.encode(texts)

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str] | None:
        return self.ours.decode(rows)

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        return self.ours.score(sources, targets)

    def translate(self, sources: Sequence[Sequence[int]], search: Search) -> list[list[int]]:
        return self.ours.translate(sources, self.rules(search.model_copy(update=self.other_rules)))


@pytest.fixture(scope="module")
def parts(trained: Path) -> TranslatorParts:
    return parts_of(load_bundle(trained), "")


def changed(parts: TranslatorParts, name: str, change: torch.Tensor) -> TranslatorParts:
    return replace(parts, weights={**parts.weights, name: parts.weights[name] + change})


def noisy(parts: TranslatorParts, size: float) -> TranslatorParts:
    """With other weights of the last norm."""
    width = parts.config.width
    return changed(parts, "decoder_norm.weight" if parts.config.has_final_norm else
                   "decoder.0.feed_forward_residual.norm.weight", size * torch.linspace(-1, 1, width))  # fmt: skip


def test_a_twin_passes(parts: TranslatorParts) -> None:
    found = certify(parts, Twin(parts), TERMS)
    assert (found.state, found.reason, found.lines) == ("passed", "", 4)
    assert found.scores is not None
    assert found.scores.largest == 0
    assert found.scores.tokens >= 4 * 2
    assert [(one.beam, one.equal, one.near_ties) for one in found.searches] == [(1, 4, 0), (3, 4, 0)]
    assert found.tokenizer is not None
    assert found.tokenizer.equal_ids == found.tokenizer.equal_texts == 4


def test_with_references_it_has_the_bleu_of_both_sides(parts: TranslatorParts) -> None:
    """Our BLEU is that of our translations, theirs that of a program which may search by other rules than it states."""
    twin = Twin(parts, max_length=3)
    sources = [twin.ours.ended(ids) for ids in twin.ours.encode(LINES.texts)]
    references = tuple(twin.ours.decode(twin.ours.translate(sources, twin.rules(search_of(parts, sources, 3)))))
    found = certify(parts, twin, replace(TERMS, lines=replace(LINES, references=references)))
    bleu = found.searches[1].bleu
    assert bleu is not None
    assert bleu.ours == pytest.approx(100)
    assert bleu.theirs < 90
    assert bleu.signature.startswith("nrefs:1")
    assert f"BLEU 100.00 here, {bleu.theirs:.2f} there" in found.summary()
    assert f"| BLEU, beam 3: multihead, twin | 100.00, {bleu.theirs:.2f} (`{bleu.signature}`) |" in section(found)
    assert certify(parts, Twin(parts), TERMS).searches[1].bleu is None  # no references


def test_translations_fit_into_the_positions_of_the_program(parts: TranslatorParts) -> None:
    """A cut one is scored with an end symbol."""

    class Short(Twin):
        positions = 4

        def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
            assert max(map(len, targets)) <= 4
            return super().score(sources, targets)

    found = certify(parts, Short(parts), TERMS)
    assert found.state == "passed", found.reason
    assert [one.settings["max_length"] for one in found.searches] == [3, 3]


def test_other_weights_fail(parts: TranslatorParts) -> None:
    found = certify(parts, Twin(noisy(parts, 0.1)), TERMS)
    assert found.state == "failed"
    assert "log-probability of a token differs" in found.reason


def test_weights_that_are_not_numbers_fail(parts: TranslatorParts) -> None:
    class Broken(Twin):
        def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
            return [[float("nan")] * len(target) for target in targets]

    assert certify(parts, Broken(parts), TERMS).state == "failed"


def test_another_search_than_stated_fails(parts: TranslatorParts) -> None:
    found = certify(parts, Twin(parts, min_length=9), TERMS)
    assert found.state == "failed"
    assert "differ and are no near ties" in found.reason
    for one in found.searches:
        assert one.unexplained >= 1
        assert not one.differences[0].explained


def test_tokens_with_equal_weights_are_a_near_tie(parts: TranslatorParts) -> None:
    """Two symbols with the same embedding are equally probable; a program may choose the other one."""
    ours = OurSide(parts)
    sources = [[*ids, parts.source_tokenizer.eos_id] for ids in ours.encode(LINES.texts)]
    twin = Twin(parts)
    token = ours.translate(sources, twin.rules(Search(beam=1, max_length=20)))[0][0]
    other = next(i for i in range(4, len(parts.target_tokenizer)) if parts.target_tokenizer.entries[i] == b"\t")
    (name,) = [n for n in parts.weights if n.endswith("embedding.table.weight")]
    table = parts.weights[name].clone()
    table[other] = table[token]
    same = replace(parts, weights={**parts.weights, name: table})

    class Swapping(Twin):
        def translate(self, sources: Sequence[Sequence[int]], search: Search) -> list[list[int]]:
            rows = super().translate(sources, search)
            return [[{token: other, other: token}.get(i, i) for i in row] for row in rows]

    found = certify(same, Swapping(same), TERMS)
    assert found.state == "passed", found.reason
    for one in found.searches:
        assert one.near_ties >= 1
        assert one.equal + one.near_ties == 4
        assert one.differences[0].explanation.startswith("near tie at token")


def test_another_tokenizer_fails_unless_the_format_has_no_better_one(parts: TranslatorParts) -> None:
    class Lowercase(Twin):
        def encode(self, texts: Sequence[str]) -> list[list[int]]:
            return self.ours.encode([text.replace("eins", "Eins") for text in texts])

    found = certify(parts, Lowercase(parts), TERMS)
    assert found.state == "failed"
    assert "its tokenizer gives other ids on 1 of 4 lines" in found.reason
    known = certify(parts, Lowercase(parts), replace(TERMS, inexact_tokenizer="it has no capitals"))
    assert known.state == "passed"
    assert known.remarks == ("it has no capitals",)


def test_a_program_that_only_cuts_text_is_compared_in_that(parts: TranslatorParts) -> None:
    class Cutter:
        name, version = "cutter", "1"

        def encode(self, texts: Sequence[str]) -> list[list[int]] | None:
            return parts.source_tokenizer.encode_batch(texts)

        def decode(self, rows: Sequence[Sequence[int]]) -> list[str] | None:
            return parts.target_tokenizer.decode_batch(rows)

    found = certify(parts, Cutter(), TERMS)
    assert (found.state, found.scores, found.searches) == ("passed", None, ())


class TextTwin(Twin):
    """Translates texts of several sentences, and writes them in capitals."""

    text_rules = Rules(Search(beam=2, max_length=20))

    def translate_texts(self, texts: Sequence[str]) -> list[tuple[list[str], str]]:
        return [self._translate(text.split()) for text in texts]

    def _translate(self, sentences: list[str]) -> tuple[list[str], str]:
        rows = self.ours.translate([self.ours.ended(ids) for ids in self.ours.encode(sentences)], self.text_rules)
        return sentences, self.finished_text(self.ours.decode([[i for row in rows for i in row]])[0])

    def finished_text(self, text: str) -> str:
        return text.upper()


def test_whole_texts_are_compared_as_the_program_cuts_and_joins_them(parts: TranslatorParts) -> None:
    found = certify(parts, TextTwin(parts), TERMS)
    assert found.texts is not None
    assert (found.state, found.texts.equal, found.texts.beam) == ("passed", 4, 2)
    assert "| equal texts | 4 of 4, and 0 near ties |" in section(found)

    class Careless(TextTwin):
        def translate_texts(self, texts: Sequence[str]) -> list[tuple[list[str], str]]:
            return [(sentences, text.replace("NINE", "9")) for sentences, text in super().translate_texts(texts)]

    found = certify(parts, Careless(parts), TERMS)
    assert found.state == "failed"
    assert "line 2 is 'NINE' here and '9' there" in found.reason


def test_the_card_and_the_file_say_the_same(parts: TranslatorParts) -> None:
    found = certify(parts, Twin(parts), TERMS)
    written = json.loads(found.to_json())
    assert written["searches"][1]["equal"] == 4
    text = section(found)
    assert "| equal translations, beam 3 | 4 of 4, and 0 near ties |" in text
    assert "* it is a twin" in text
    assert "twin 1 on 4 lines" in found.summary()


def test_a_certificate_that_was_not_run_says_why() -> None:
    found: Certificate = not_run("test", "int8", "install it")
    assert section(found) == "## Certificate\n\nNot run: install it.\n"
    assert found.summary() == "certificate not run: install it"
