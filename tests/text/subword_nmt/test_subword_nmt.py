"""Codes are applied as the subword-nmt package applies them, line for line; files are read and written."""

from __future__ import annotations

import gzip
import io
import math
import random
import re
from collections import Counter
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from subword_nmt import apply_bpe, get_vocab

from multihead.errors import ConfigurationError, DataError, FormatError
from multihead.text.subword_nmt.codes import EDGES, Codes
from multihead.text.subword_nmt.learning import learn
from multihead.text.subword_nmt.segmenting import SubwordNMT, read_vocabulary, undo

MULTI30K = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "multi30k"

TEXT = [
    "A man in an orange hat, starring at something.",
    "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche, um 12:30 Uhr.",
    "  two\tspaces \u00a0 no-break\u00a0space \u2028 separators\u3000and  ends \r",
    "我们在北京吃饭。 我们在上海吃饭。",
    "a@@ b @@ c@@ </w> <unk> aaaa aaaaa abababab",
    "",
    "   ",
] * 2


def package(text: str, **options: object) -> apply_bpe.BPE:
    return apply_bpe.BPE(io.StringIO(text, newline="\n"), **options)


# ------------------------------------------------------------------------------------------ applying


Given = tuple[list[tuple[str, str]], str, str, list[str]]


@st.composite
def codes_and_lines(draw: st.DrawFn) -> Given:
    """Merges for both versions, some in an order that cannot be learned, some twice, and text of the same letters."""
    letters = draw(st.sampled_from(["ab", "aU S", "ab\u00a0", "ab\t@", "a</w>"])).replace(" ", "")
    version = draw(st.sampled_from(["0.1", "0.2"]))
    ends = [f"{letter}</w>" for letter in letters] if version == "0.2" else ["</w>"]
    symbols, merges = list(letters), []
    for _ in range(draw(st.integers(1, 15))):
        left, right = draw(st.sampled_from(symbols)), draw(st.sampled_from([*symbols, *ends]))
        merges.append((left, right))
        (ends if right in ends else symbols).append(left + right)
    merges += draw(st.lists(st.sampled_from(merges), max_size=2))
    merges = draw(st.permutations(merges)) if draw(st.booleans()) else merges
    line = st.text(st.sampled_from(f"{letters}{letters}  \r\n"), max_size=20)
    return merges, version, letters, draw(st.lists(line, min_size=1, max_size=6))


@settings(max_examples=150)
@given(given=codes_and_lines(), separator=st.sampled_from(["@@", "￭", "@"]), most=st.sampled_from([None, 0, 3]))
def test_lines_are_the_package_s(given: Given, separator: str, most: int | None) -> None:
    merges, version, _, lines = given
    codes = Codes(tuple(merges), version)
    theirs = package(codes.text(), merges=-1 if most is None else most, separator=separator)
    ours = SubwordNMT(Codes.read(codes.text().split("\n"), most=most), separator=separator)
    for line in lines * 2:  # the second time from memory
        assert ours.apply(line) == theirs.process_line(line)


@settings(max_examples=100)
@given(given=codes_and_lines(), frequent=st.randoms(use_true_random=False))
def test_a_vocabulary_filters_as_the_package_s(given: Given, frequent: random.Random) -> None:
    merges, version, letters, lines = given
    codes = Codes(tuple(merges), version)
    units = sorted({(left + right).replace("</w>", "") for left, right in codes.merges} | set(letters))
    vocabulary = {unit + end for unit, end in product(units, ("", "@@")) if frequent.random() < 0.5}
    assume(vocabulary)
    theirs = package(codes.text(), vocab=vocabulary)
    ours = SubwordNMT(codes, vocabulary=vocabulary)
    for line in lines:
        assert ours.apply(line) == theirs.process_line(line)


def test_an_alternative_of_a_glossary_that_a_word_begins_with() -> None:
    """The package's expressions for ``an|e`` do not split a word that begins with the first alternative."""
    codes = Codes((("a", "n"), ("an", "s</w>")))
    theirs, ours = package(codes.text(), glossaries=["an|e"]), SubwordNMT(codes, glossaries=["an|e"])
    for word, cut in (("ans", "ans"), ("ens", "e@@ n@@ s"), ("eans", "e@@ an@@ s")):
        assert ours.apply(word) == theirs.process_line(word) == cut


GLOSSARIES = [["USA"], ["a+", "U"], ["U|S", "b"], ["b$", "^a"], ["x*"], ["[aU]{2}"], [r"<\w+>"]]


@settings(max_examples=100)
@given(given=codes_and_lines(), glossaries=st.sampled_from(GLOSSARIES))
def test_glossaries_are_the_package_s(given: Given, glossaries: list[str]) -> None:
    merges, version, _, lines = given
    codes = Codes(tuple(merges), version)
    theirs, ours = package(codes.text(), glossaries=glossaries), SubwordNMT(codes, glossaries=glossaries)
    for line in lines:
        line = line.replace("\r", " ").replace("\n", " ")  # the package loses them: see below
        assert ours.apply(line) == theirs.process_line(line)


def test_a_glossary_stays_whole_and_loses_nothing() -> None:
    codes = Codes((("U", "S"), ("US", "A</w>"), ("1", "9")))
    plain, kept = SubwordNMT(codes), SubwordNMT(codes, glossaries=["US(A)"])
    assert plain.apply("19USABUSA") == "19@@ US@@ A@@ B@@ USA"
    assert kept.apply("19USABUSA") == "1@@ 9@@ USA@@ B@@ USA"
    assert undo(kept.apply("x USAb\r y")) == "x USAb\r y"


def test_text_like_text(learned: Codes) -> None:
    theirs, ours = package(learned.text()), SubwordNMT(learned)
    for line in TEXT:
        assert ours.apply(line) == theirs.process_line(line)


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="Multi30k is not beside the repository (../shared/data/multi30k)")
def test_multi30k() -> None:
    text = gzip.decompress((MULTI30K / "val.de.gz").read_bytes()).decode()
    lines = text.split("\n")[:200]
    codes = learn(lines, 200)
    plain = [SubwordNMT(codes).apply(line) for line in lines]
    counted = io.StringIO()
    get_vocab.get_vocab(plain, counted)
    unfiltered = package(codes.text())
    theirs = package(codes.text(), vocab=apply_bpe.read_vocabulary(counted.getvalue().splitlines(), 8))
    ours = SubwordNMT(codes, vocabulary=read_vocabulary(counted.getvalue().split("\n")[:-1], 8))
    filtered = [ours.apply(line) for line in lines]
    assert plain == [unfiltered.process_line(line) for line in lines]
    assert filtered == [theirs.process_line(line) for line in lines]
    assert filtered != plain, "a vocabulary that changes nothing shows nothing"
    assert [undo(line) for line in filtered] == [re.sub(" +", " ", line) for line in lines]


@pytest.fixture(scope="module")
def learned() -> Codes:
    return learn(TEXT, 150)


# ------------------------------------------------------------------------------------------ undoing


@settings(max_examples=100)
@given(line=st.text(st.sampled_from("aestmnä# </w>\t\u00a0中"), max_size=30))
def test_undoing_gives_the_words_back(learned: Codes, line: str) -> None:
    single = " ".join(word for word in line.strip(EDGES).split(" ") if word)
    assert undo(SubwordNMT(learned).apply(line)).strip(EDGES) == single
    assert undo(SubwordNMT(learned, separator="￭").apply(line), "￭").strip(EDGES) == single


def test_what_is_undone_is_what_the_package_s_expression_takes_away() -> None:
    for line, text in (
        ("lo@@ w er@@", "low er"),
        ("a@@ @@ b", "ab"),
        ("a@@b @@", "a@@b "),
        ("x@@@ @", "x@@"),
        ("", ""),
    ):
        assert undo(line) == text


# ------------------------------------------------------------------------------------------ dropout


def exact(codes: Codes, word: str, p: float) -> dict[tuple[str, ...], float]:
    """The probability of each segmentation, by enumerating all choices of dropped merges."""
    ranks = {pair: rank for rank, pair in enumerate(codes.merges)}

    @cache
    def follow(symbols: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        possible = [(ranks[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in ranks]
        ways: Counter[tuple[str, ...]] = Counter()
        for choice in product([True, False], repeat=len(possible)):
            probability = math.prod(1 - p if kept else p for kept in choice)
            kept = [merge for merge, stays in zip(possible, choice, strict=True) if stays]
            if not kept:
                ways[symbols] += probability
                continue
            joined, end = [], 0
            for _, i in [merge for merge in kept if merge[0] == min(kept)[0]]:
                if i >= end:
                    joined += [*symbols[end:i], symbols[i] + symbols[i + 1]]
                    end = i + 2
            for final, probability_after in follow((*joined, *symbols[end:])).items():
                ways[final] += probability * probability_after
        return ways

    found = follow(tuple(codes.symbols(word)))
    return {tuple(s.replace("</w>", "") for s in symbols): probability for symbols, probability in found.items()}


@pytest.mark.parametrize("whose", ["ours", "the package's"])
@pytest.mark.parametrize(("word", "p"), [("banana", 0.1), ("ababab", 0.5), ("lower", 0.3)])
def test_segmentations_are_as_frequent_as_the_algorithm_has_them(
    monkeypatch: pytest.MonkeyPatch, word: str, p: float, whose: str
) -> None:
    codes = learn(["banana bananas ban ana", "ababab abab ab", "lower low newer new"] * 3, 40)
    expected = exact(codes, word, p)
    assert sum(expected.values()) == pytest.approx(1)
    count = 3000
    draw = random.Random(5).random
    if whose == "ours":
        ours = SubwordNMT(codes)
        lines = [ours.apply(word, p, draw) for _ in range(count)]
    else:  # checks the reference itself
        monkeypatch.setattr(random, "random", draw)
        theirs = package(codes.text())
        lines = [theirs.process_line(word, p) for _ in range(count)]
    observed = Counter(tuple(line.split("@@ ")) for line in lines)
    assert observed.keys() <= expected.keys()
    cells = [(observed[units], probability * count) for units, probability in expected.items()]
    often = [cell for cell in cells if cell[1] >= 5]
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in often)
    spread = 2 / (9 * len(often))  # Wilson and Hilferty's approximation of the quantile at 1 in 1,000
    assert len(often) > 3
    assert statistic < len(often) * (1 - spread + 3.09 * math.sqrt(spread)) ** 3


def test_dropout_at_its_ends() -> None:
    codes = learn(TEXT, 150)
    ours, draw = SubwordNMT(codes), random.Random(1).random
    for line in TEXT:
        assert ours.apply(line, 0.0, draw) == ours.apply(line)
        assert ours.apply(line, 1.0, draw) == SubwordNMT(Codes(())).apply(line)
    for dropout, message in ((0.1, "needs random numbers"), (1.5, "from 0 to 1"), (math.nan, "from 0 to 1")):
        with pytest.raises(ConfigurationError, match=message):
            ours.apply("a", dropout)


# ------------------------------------------------------------------------------------------ files


def test_a_file_is_read_as_it_was_written(tmp_path: Path, learned: Codes) -> None:
    for version in ("0.1", "0.2"):
        codes = Codes(learned.merges, version)
        codes.save(tmp_path / "codes")
        assert Codes.load(tmp_path / "codes") == codes
        assert Codes.load(tmp_path / "codes", most=5) == Codes(codes.merges[:5], version)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("#version: 0.2\na b\n# c\n", "0.2"),
        ("#version: 0.2.0\na b\n# c", "0.2"),
        ("#version: 0.1\r\na b\r\n# c\r\n\r\n", "0.1"),
        ("a b\n# c\n\n\n", "0.1"),
        ("#version: 0.2\n# made of some text\n#\na b\n# c\n", "0.2"),
    ],
)
def test_ways_to_write_the_same(text: str, version: str) -> None:
    assert Codes.read(text.split("\n")) == Codes((("a", "b"), ("#", "c")), version)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#version: 0.2\na b\na b c\n", "codes:3: expected two symbols .* got 'a b c'"),
        ("#version: 0.2\na b\n\nb c\n", "codes:3: empty"),
        ("#version: 0.2\na  b\n", "codes:2: expected two symbols"),
        ("one\n", "codes:1: expected two symbols"),
        ("#version: 0.3\n", "codes:1: codes of version '0.3'; .* 0.1 and 0.2"),
        ("#version:\na b\n", "codes:1: codes of version ''"),
    ],
)
def test_what_is_no_codes_file_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Codes.read(text.split("\n"))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin1").write_bytes("ä b\n".encode("latin-1"))
    for name, message in (("nowhere", "no such codes file"), (".", "no such codes file"), ("latin1", "not UTF-8")):
        with pytest.raises(FormatError, match=message):
            Codes.load(tmp_path / name)
    with pytest.raises(ConfigurationError, match="merges is -1"):
        Codes.read([], most=-1)


def test_a_byte_order_mark_does_not_hide_the_version(tmp_path: Path) -> None:
    (tmp_path / "codes").write_text("#version: 0.2\na b\n", encoding="utf-8-sig", newline="\n")
    assert Codes.load(tmp_path / "codes") == Codes((("a", "b"),), "0.2")


def test_a_vocabulary_is_read_with_its_threshold() -> None:
    lines = ["the 10", "lo@@ 3", "w 2 ", "\u00a0 1\r"]
    assert read_vocabulary(lines) == {"the", "lo@@", "w", "\u00a0"}
    assert read_vocabulary(lines, 3) == {"the", "lo@@"} == apply_bpe.read_vocabulary(lines, 3)
    with pytest.raises(DataError, match="v:2: expected a unit, a space and its frequency, got 'b'"):
        read_vocabulary(["a 1", "b"], None, "v")
    with pytest.raises(DataError, match="v: no unit has a frequency of 99 or more"):
        read_vocabulary(lines, 99, "v")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"separator": ""}, "separator is ''"),
        ({"separator": "@ @"}, "separator is '@ @'"),
        ({"vocabulary": set()}, "vocabulary is empty"),
        ({"glossaries": ["("]}, "glossary '\\(' is not a regular expression"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SubwordNMT(Codes(()), **options)
