"""The parts of the text checks against plain definitions."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multihead.data.corpus import Report, check_parallel
from multihead.diagnosis.corpus import (
    MAX_CHARACTERS,
    Characters,
    Chunk,
    ParallelReader,
    Sample,
    find_repeated,
    hash_pairs,
    hash_texts,
    multiple_targets,
    normalize_text,
)
from multihead.diagnosis.heuristics import (
    SideClassifier,
    find_misalignments,
    guess_languages,
    known_code,
    length_correlation,
    length_outliers,
)

LINES = st.lists(
    st.tuples(*[st.sampled_from([b"", b" ", b"a b", b"\xff", b"\xe3\x80\x80", "ü".encode(), b"x\0y", b"c"])] * 2),
    min_size=1,
    max_size=12,
)


@settings(max_examples=30)
@given(rows=LINES)
def test_usable_pairs_are_those_of_the_reader(
    rows: list[tuple[bytes, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The pairs are those of `ParallelScan.read` where it does not raise; every line is a pair or a fault."""
    folder = tmp_path_factory.mktemp("sides")
    paths = folder / "a", folder / "b"
    for side, path in enumerate(paths):
        path.write_bytes(b"".join(row[side] + b"\n" for row in rows))
    both = ParallelReader(*paths)
    pairs = [pair for chunk in both.chunks() for pair in zip(*map(list, chunk), strict=True)]
    bad = {line for spots in both.faults.locations.values() for line in spots.lines}
    assert both.lines == (len(rows), len(rows))
    assert both.complete

    def text(raw: bytes) -> str | None:
        try:
            return raw.decode().strip()
        except UnicodeDecodeError:
            return None

    expected = [(n, text(s), text(t)) for n, (s, t) in enumerate(rows, 1) if text(s) and text(t)]
    assert pairs == expected
    assert set(range(1, len(rows) + 1)) == {n for n, *_ in pairs} | bad


def test_files_that_are_fine_are_read_as_for_training(tmp_path: Path) -> None:
    paths = tmp_path / "a", tmp_path / "b"
    for path in paths:
        path.write_text("".join(f"{n} {path.name}\r\n" for n in range(20_000)), encoding="utf-8", newline="")
    chunks = list(ParallelReader(*paths).chunks())
    ours = [pair for chunk in chunks for pair in zip(*map(list, chunk), strict=True)]
    assert len(chunks) > 1
    assert ours == [tuple(pair) for pair in check_parallel(*paths).read(Report())]


@settings(max_examples=50)
@given(pairs=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), max_size=12))
def test_repetitions_equal_counting(pairs: list[tuple[str, str]]) -> None:
    source, target = (hash_texts([pair[side] for pair in pairs]) for side in (0, 1))
    again = [place for place, pair in enumerate(pairs) if pair in pairs[:place]]
    assert find_repeated(hash_pairs(source, target)).tolist() == again
    several = multiple_targets(source, target)
    counts = Counter(s for s, _ in set(pairs))
    first = [pairs.index(next(p for p in pairs if p[0] == s)) for s in counts if counts[s] > 1]
    assert several.places.tolist() == sorted(first)
    assert several.targets.tolist() == [counts[pairs[place][0]] for place in sorted(first)]
    assert several.sources == len(counts)


def test_the_normal_form() -> None:
    assert normalize_text("  «Ein HUND», 2-mal … ") == normalize_text("ein hund 2 mal") == "einhund2mal"
    assert normalize_text("...") == "..."
    assert normalize_text("हिन्दी") != normalize_text("हन्द")  # vowel signs are no punctuation


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 30), max_size=20), most=st.integers(1, 9))
def test_a_sample_is_every_nth_pair(sizes: list[int], most: int) -> None:
    sample, line = Sample(most), 0
    for size in sizes:
        texts = [str(number) for number in range(line, line + size)]
        sample.add(Chunk(np.arange(line, line + size), texts, texts))
        line += size
    assert len(sample) <= most
    assert sample.sources == sample.targets == list(map(str, sample.lines))
    step = next(2**n for n in range(20) if len(range(0, line, 2**n)) <= most)
    assert sample.lines == list(range(0, line, step))


def test_of_a_long_line_a_sample_has_the_beginning() -> None:
    sample, text = Sample(), "ab " * MAX_CHARACTERS
    sample.add(Chunk(np.array([1]), [text], [text[:MAX_CHARACTERS]]))
    assert text.startswith(sample.sources[0])
    assert sample.sources[0] == text[:MAX_CHARACTERS].strip()
    assert sample.targets[0] == text[:MAX_CHARACTERS]


def test_characters_are_counted_and_found() -> None:
    characters = Characters()
    texts = [["ab", "b😀"], ["zz", "cab"]]
    for number, chunk in enumerate(texts):
        characters.add(Chunk(np.array([2 * number + 1, 2 * number + 2]), chunk, ["-", "-"]))
    counts = {chr(code): int(characters.counts[0, code]) for code in np.flatnonzero(characters.counts[0])}
    assert counts == Counter("abb😀zzcab")
    assert {chr(code): line for code, line in characters.first[0].items()} == {"a": 1, "b": 1, "😀": 2, "z": 3, "c": 4}


def test_lengths() -> None:
    draw = np.random.default_rng(0)
    source = draw.integers(5, 120, 3000).astype(np.float64)
    target = np.maximum(1, source * 1.2 + draw.normal(0, 1, 3000) * np.sqrt(source))
    assert not length_outliers(source, target).any()
    assert find_misalignments(source, target) == []
    planted = target.copy()
    planted[[7, 900]] = planted[[7, 900]] * 4 + 40
    assert np.flatnonzero(length_outliers(source, planted)).tolist() == [7, 900]
    for offset in (-2, 1, 5):
        slipped = np.concatenate((target[:1000], np.roll(target[1000:], offset)))
        (one,) = find_misalignments(source, slipped)
        assert one == (1000, 3000, offset)
    for start in (0, 50, 1234, 2800):  # 200 lines, wherever a block begins
        slipped = target.copy()
        slipped[start : start + 200] = np.roll(target[start : start + 200], 3)
        (one,) = find_misalignments(source, slipped)
        assert one.offset == 3
        assert max(abs(one.start - start), abs(one.stop - start - 200)) <= 100
    shuffled = draw.permutation(target)
    assert find_misalignments(source, shuffled) == []  # shuffled lines have no offset
    assert length_correlation(source, target) == pytest.approx(np.corrcoef(np.log(source), np.log(target))[0, 1])
    assert abs(length_correlation(source, shuffled) or 1.0) < 0.1
    assert length_correlation(source[:499], target[:499]) is None
    assert length_correlation(np.full(3000, 9.0), target) is None
    alike = 20.0 + draw.integers(0, 2, (2, 3000))
    alike[0, 1050], alike[1, 1051] = 300, 300
    assert find_misalignments(*alike) == []  # one long line decides nothing


def test_likeness_tells_the_sides_apart() -> None:
    draw = random.Random(0)
    words = ["der mann ist nicht groß", "eine frau läuft"], ["the man is not tall", "a woman runs"]
    sides = [[" ".join(draw.choices(texts, k=3)) for _ in range(300)] for texts in words]
    classifier = SideClassifier()
    classifier.learn(*sides)
    assert (classifier.score(sides[0]) > 0.4).all()
    assert (classifier.score(sides[1]) < -0.4).all()
    together, alone = classifier.score(sides[0]), [float(classifier.score([text])[0]) for text in sides[0]]
    assert together.tolist() == pytest.approx(alone)
    assert classifier.exchanged().score(sides[0]).tolist() == (-together).tolist()


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("der Mann ist nicht in dem Haus und die Frau ist auf der Straße mit dem Hund", {"de"}),
        ("the man is not in the house and the woman is on the street with a dog", {"en"}),
        ("le chat est dans la maison et les enfants sont sur une table avec du pain", {"fr"}),
        ("кошка сидит на столе", {"ru", "uk", "bg"}),
        ("猫がテーブルの上にいます", {"ja"}),
        ("猫坐在桌子上", {"zh"}),
        ("고양이가 앉아 있다", {"ko"}),
        ("12 34 ...", set()),
        ("Xyzzy plugh qux", set()),
        ("noch 3 Briefe an x@y.de", set()),
    ],
    ids=["de", "en", "fr", "cyrillic", "ja", "zh", "ko", "numbers", "nonsense", "few"],
)
def test_a_language_is_guessed_or_not(text: str, codes: set[str]) -> None:
    guessed = guess_languages([text] * 3)
    assert codes <= guessed
    assert bool(codes) == bool(guessed)
    assert all(known_code(code) == code for code in guessed)


def test_codes() -> None:
    """Languages written in two scripts are unknown."""
    codes = {"de-AT": "de", "no": "nb", "EN_us": "en", "in": None, "sr": None, None: None}
    assert {code: known_code(code) for code in codes} == codes
