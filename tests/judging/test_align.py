"""Known alignments: planted, learned, and computed by loops."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from multihead import Translator
from multihead.errors import ConfigurationError, InputError
from multihead.judging.align import (
    AlignmentSettings,
    align,
    extract_links,
    pharaoh,
    span_matrix,
    word_attention,
    word_matrix,
)
from multihead.judging.selftest import NetworkWrapper
from multihead.models.network import AttentionWeights, Output
from multihead.text.vocabulary import bytes_of_entries

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(trained)


class Planted(NetworkWrapper):
    """Two layers of two heads, whose mean is the given cross-attention in the requested layer."""

    def __init__(self, inner: Any, weights: torch.Tensor, layer: int) -> None:
        super().__init__(inner)
        self.weights, self.layer = weights, layer

    def forward(self, source: Any, source_lengths: Any, target: Any, *, need_weights: bool = False) -> Output:
        found = torch.zeros(1, 2, target.shape[1], source.shape[1])
        found[0, :, : self.weights.shape[0], : self.weights.shape[1]] = self.weights
        noise = torch.rand(found.shape[2:])
        found += torch.stack((noise, -noise))
        other = found.flip(3)
        cross = (found, other) if self.layer == 1 else (other, found)
        return Output(super().forward(source, source_lengths, target).logits, AttentionWeights((), (), cross))


SOURCES = ["eins zwei drei vier", "acht", "  fünf\u3000ß  Ωmega \u2581x", "sieben,neun zehn!"]
TARGETS = ["one two three four five", "Ωmega\u2581 y", " ß", "seven nine ten eight  \u3000six."]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("source", "target"), [*zip(SOURCES, TARGETS, strict=True)], ids=["words", "one", "odd", "marks"]
)
def test_planted_weights_are_found(translator: Translator, source: str, target: str, seed: int) -> None:
    """Each target word attends to the tokens of one source word, and as much to the end symbol."""
    draw, bundle = random.Random(seed), translator.bundle
    words = len(source.split())
    wanted = [draw.randrange(words) for _ in target.split()]
    read, written = (
        word_matrix(list(bytes_of_entries(tokenizer.parts.vocabulary)), text, tokenizer.encode(text))
        for tokenizer, text in ((bundle.source_tokenizer, source), (bundle.target_tokenizer, target))
    )
    assert (read.shape[1], written.shape[1]) == (words, len(wanted))
    assert bool(read.any(0).all() and written.any(0).all())
    weights = written @ torch.eye(words)[wanted] @ (read / read.sum(0)).T
    weights = torch.cat([weights * 0.5, weights.sum(1, keepdim=True) * 0.5], dim=1)
    links = sorted((place, word) for word, place in enumerate(wanted))
    shifted = torch.cat([torch.rand(1, weights.shape[1]), weights])
    for layer in (1, 2):
        for planted, shift in ((weights, False), (shifted, True)):
            model = Planted(bundle.model, planted, layer)
            told = Translator(replace(bundle, model=model))
            assert align(told, [source], [target], AlignmentSettings(layer, shift)) == [links]
            if layer == 1:  # the last but one of two
                assert align(told, [source], [target], AlignmentSettings(shift=shift)) == [links]
    (mutual,) = align(Translator(replace(bundle, model=model)), [source], [target], AlignmentSettings(2, True, True))
    assert set(mutual) <= set(links)
    assert sorted({place for place, _ in mutual}) == sorted(set(wanted))
    assert len(mutual) == len(set(wanted))


def test_a_word_that_looked_nowhere_has_no_link(translator: Translator) -> None:
    nowhere = Translator(replace(translator.bundle, model=Planted(translator.bundle.model, torch.zeros(1, 1), 1)))
    assert align(nowhere, ["eins zwei"], ["one two"]) == [[]]


@pytest.mark.parametrize("mutual", [False, True])
def test_a_word_without_tokens_has_no_link_and_costs_no_other_its_own(mutual: bool) -> None:
    """Tokenizers that drop a character leave a word that consists only of it without tokens."""
    weights, source = torch.tensor([[0.7, 0.1], [0.2, 0.6]]), torch.eye(2)
    spans = [(0, 3), (3, 7)]
    for text in ("the dog", "the dog \u200b"):
        words = word_attention(weights, source, span_matrix(spans, text))
        assert words.shape == (len(text.split()), 2)
        assert bool(words.isfinite().all())
        assert extract_links(words, mutual) == [(0, 0), (1, 1)]


def test_a_space_belongs_to_the_word_that_its_token_spells() -> None:
    """Whether a token begins or ends with the space; a token that is only a space belongs to the next word."""
    text, alone = "ein Hund", torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    for spans in ([(0, 3), (3, 8)], [(0, 4), (4, 8)]):
        assert torch.equal(span_matrix(spans, text), torch.eye(2))
    assert torch.equal(span_matrix([(0, 3), (3, 4), (4, 8)], text), alone)
    for entries in ([b" ein", b" Hund"], [b" ein ", b"Hund"]):
        assert torch.equal(word_matrix(entries, text, [0, 1]), torch.eye(2))
    assert torch.equal(word_matrix([b" ein", b" ", b"Hund"], text, [0, 1, 2]), alone)


def test_learned_number_words_are_aligned_in_order(translator: Translator, numbers: Any) -> None:
    """The words differ, so only one position is right."""
    pairs = [pair for pair in numbers.pairs(120, 80) if len(set(pair[0].split())) == len(pair[0].split()) > 1]
    sources, targets = map(list, zip(*pairs, strict=True))
    right = {number: {(place, place) for place in range(len(text.split()))} for number, text in enumerate(sources)}
    words = sum(map(len, right.values()))
    every = align(translator, sources, targets)
    assert sum(map(len, every)) == words
    print(sum(len(right[number] & set(links)) for number, links in enumerate(every)), words)
    assert sum(len(right[number] & set(links)) for number, links in enumerate(every)) > 0.7 * words
    mutual = align(translator, sources, targets, AlignmentSettings(mutual=True))
    assert all(set(some) <= set(all_) for some, all_ in zip(mutual, every, strict=True))
    kept = sum(map(len, mutual))
    assert kept > 0.6 * words
    assert sum(len(right[number] & set(links)) for number, links in enumerate(mutual)) > 0.9 * kept


def test_it_is_the_equation_written_as_loops(translator: Translator, numbers: Any) -> None:
    """Independent of the batch size; the tokenizer knows the words."""
    pairs = numbers.pairs(12, 81)
    sources, targets = map(list, zip(*pairs, strict=True))
    wanted = []
    for source, target in pairs:
        seen = translator.attention(source, target)
        weights = seen.weights.cross[-1][0].mean(0)
        # A token belongs to the word of which it has a letter; every word here begins with a mark.
        of_source, of_target = ([*numbered(pieces)] for pieces in (seen.source[:-1], seen.target[:-1]))
        links = []
        for word in range(len(target.split())):
            rows = [t for t, number in enumerate(of_target) if number == word]
            total = [0.0] * len(source.split())
            for t in rows:
                for s, number in enumerate(of_source):
                    total[number] += float(weights[t, s]) / len(rows)
            links.append((total.index(max(total)), word))
        wanted.append(sorted(links))
    for budget in (1, 30, 4096):
        assert align(translator, sources, targets, batch_tokens=budget) == wanted


def numbered(pieces: list[str]) -> list[int]:
    starts = [piece.startswith("\u2581") for piece in pieces]
    return [sum(starts[: place + 1]) - 1 for place in range(len(pieces))]


def test_what_cannot_be_aligned(translator: Translator) -> None:
    with pytest.raises(InputError, match="got 1 targets for 2 sources"):
        align(translator, ["a", "b"], ["c"])
    for layer in (0, 2):
        with pytest.raises(ConfigurationError, match=f"layer: expected 1 to 1, got {layer}"):
            align(translator, ["a"], ["b"], AlignmentSettings(layer))
    blind = Planted(translator.bundle.model, torch.zeros(1, 1), 1)
    blind.forward = lambda *_, **__: Output(torch.zeros(1, 2, 3), AttentionWeights((), (), ()))  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="no attention to the source"):
        align(Translator(replace(translator.bundle, model=blind)), ["a"], ["b"])


def test_a_line_for_each_pair(call: Any, translator: Translator, trained: Path, numbers: Any, tmp_path: Path) -> None:
    pairs = [*numbers.pairs(5, 82), ("", ""), ("drei", ""), ("", "four"), (" \t".strip("\t"), "x"), ("acht neun", "9")]
    sources, targets = map(list, zip(*pairs, strict=True))
    told: list[int] = []
    found = align(translator, sources, targets, progress=told.append)
    assert sum(told) == len(pairs)
    files = numbers.write(tmp_path, "given", pairs)
    flags = [word for side, path in files.items() for word in (f"--{side}", path)]
    ended = call("align", trained, *flags)
    assert (ended.status, ended.err) == (0, "")
    lines = ended.text.split("\n")[:-1]
    assert lines == [pharaoh(links) for links in found]
    for (source, target), line in zip(pairs, lines, strict=True):
        assert re.fullmatch(r"(\d+-\d+( \d+-\d+)*)?", line)
        assert bool(line) == bool(source.strip() and target.strip())
        for link in line.split():
            place, word = map(int, link.split("-"))
            assert place < len(source.split())
            assert word < len(target.split())
    piped = "".join(f"{source}\t{target}\n" for source, target in pairs).encode()
    assert call("align", trained, given=piped).out == ended.out
    mutual = call("align", trained, "--mutual", "--shift", "--layer", 1, *flags)
    assert mutual.text.split("\n")[:-1] == [
        pharaoh(links) for links in align(translator, sources, targets, AlignmentSettings(1, True, True))
    ]
