"""Similar pairs: sketches estimate the similarity, and the pairs found on disk equal those of a full comparison."""

from __future__ import annotations

import random
import string
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from multihead.cleaning import copies, similar
from multihead.cleaning.clean import Outputs, clean
from multihead.cleaning.copies import Copies, Records, find_copies
from multihead.cleaning.filters import SKETCHED, Rules, Verdicts
from multihead.cleaning.measures import normalize
from multihead.cleaning.settings import REASONS, CleanSettings
from multihead.cleaning.sketches import GRAM, SKETCH, estimate, sketches

Pair = tuple[str, str]


def elements(pair: Pair) -> set[tuple[int, str]]:
    """The set of a pair, by its definition."""
    padded = [text.ljust(GRAM, "\0") for text in pair]
    return {(side, text[i : i + GRAM]) for side, text in enumerate(padded) for i in range(len(text) - GRAM + 1)}


def jaccard(one: Pair, other: Pair) -> float:
    first, second = elements(one), elements(other)
    return len(first & second) / len(first | second)


def sentences(count: int, seed: int, words: int = 12) -> list[Pair]:
    draw = random.Random(seed)
    made = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 9))) for _ in range(600)]
    return [(" ".join(draw.choices(made, k=words)), " ".join(draw.choices(made, k=words))) for _ in range(count)]


def changed(pair: Pair, words: int, draw: random.Random) -> Pair:
    """A pair with this many words replaced on both sides."""
    sides = [text.split() for text in pair]
    for side in sides:
        for place in draw.sample(range(len(side)), words):
            side[place] = "".join(draw.choices(string.ascii_uppercase, k=6))
    return " ".join(sides[0]), " ".join(sides[1])


def normalized(pairs: list[Pair]) -> list[Pair]:
    return [(normalize(source), normalize(target)) for source, target in pairs]


def test_sketches_estimate_the_similarity() -> None:
    draw, pairs = random.Random(1), sentences(240, 1)
    others = [changed(pair, number % 9, draw) for number, pair in enumerate(pairs)]
    one, other = normalized(pairs), normalized(others)
    exact = np.array([jaccard(*both) for both in zip(one, other, strict=True)])
    errors = estimate(sketches(one), sketches(other)) - exact
    assert exact.min() < 0.3 < 0.8 < exact.max()
    assert abs(errors.mean()) < 0.01
    deviation = np.sqrt(exact * (1 - exact) / SKETCH)
    assert (np.abs(errors) <= 4.5 * deviation + 0.01).all()
    assert (errors[exact == 1] == 0).all()


def test_a_sketch_depends_on_its_pair_alone() -> None:
    pairs = [
        ("a", "b"),
        ("", "x"),
        ("abcd", "e"),
        ("語學校", "한국어 문장"),
        ("👩\u200d🚀 flog", "ab" * 400),
        ("b", "a"),
    ]
    together = sketches(pairs)
    assert (together == np.concatenate([sketches([pair]) for pair in pairs])).all()
    assert (sketches(pairs[::-1]) == together[::-1]).all()
    assert len({row.tobytes() for row in together}) == len(pairs)  # also with the sides exchanged


def verdicts_of(pairs: list[Pair]) -> Verdicts:
    found = np.zeros(len(pairs), SKETCHED)
    found["line"], found["sketch"] = 2 * np.arange(len(pairs)) + 1, sketches(normalized(pairs))
    found["exact"] = found["near"] = np.arange(len(pairs))
    return found


def expected(verdicts: Verdicts, most: float) -> list[tuple[int, int]]:
    """(row, line of the first that it is similar to), by comparing all in order."""
    kept: list[int] = []
    found = []
    sketched = np.ascontiguousarray(verdicts["sketch"])
    bands = sketched.view(np.uint64)
    close = (bands[:, None] == bands[None]).any(-1) & (estimate(sketched[:, None], sketched[None]) > most)
    for row in np.flatnonzero(verdicts["reason"] == 0).tolist():
        near = [other for other in kept if close[row, other]]
        if near:
            found.append((row, int(verdicts["line"][near[0]])))
        else:
            kept.append(row)
    return found


@pytest.mark.parametrize(("pairs", "rows"), [(1 << 19, 1 << 18), (40, 64)])
@pytest.mark.parametrize("most", [0.5, 0.8])
def test_found_on_disk_as_by_comparing_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: int, rows: int, most: float
) -> None:
    for module in (copies, similar):
        monkeypatch.setattr(module, "PAIRS", pairs)
        monkeypatch.setattr(module, "ROWS", rows)
    monkeypatch.setattr(similar, "_BLOCK", max(rows >> 4, 1))
    draw, text = random.Random(2), sentences(120, 2, words=24)
    text += [changed(draw.choice(text), draw.randint(1, 3), draw) for _ in range(80)]
    verdicts = verdicts_of(draw.sample(text, len(text)))
    verdicts["reason"][::17] = 1
    verdicts["exact"][5] = verdicts["near"][5] = 4  # a copy, which takes no part
    (tmp_path / "verdicts").write_bytes(verdicts.tobytes())
    rules = Rules(CleanSettings(max_similar=most))
    (tmp_path / "sorted").mkdir()
    found = find_copies(tmp_path / "verdicts", len(verdicts), rules, tmp_path / "sorted")
    similar.add_similar(tmp_path / "verdicts", len(verdicts), rules, tmp_path / "sorted", found)
    every = [one for block in range(-(-len(verdicts) // rows)) for one in found.of(block)]
    others = [one for one in every if one["reason"] == REASONS.index("similar")]
    assert [int(one["row"]) for one in every if one not in others] == [5]
    verdicts["reason"][5] = 1
    assert [(int(one["row"]), int(one["first"])) for one in others] == expected(verdicts, most)
    assert len(others) > 20
    assert all(one["score"] > most for one in others)


@pytest.mark.parametrize("size", [1, 7, 50])
def test_candidates_do_not_depend_on_the_parts(size: int) -> None:
    draw = np.random.default_rng(5)
    records = np.empty(400, similar._PLACE)
    records["band"], records["row"] = draw.integers(0, 30, 400) ** 2 // 30, np.arange(400)  # small numbers are frequent

    def candidates(parts: list[Records]) -> set[tuple[int, int]]:
        found = similar._candidates((part, True) for part in parts)
        return {both for rows, others in found for both in zip(rows.tolist(), others.tolist(), strict=True)}

    whole = candidates([records])
    assert candidates([records[start : start + size] for start in range(0, 400, size)]) == whole
    assert all(records["band"][row] == records["band"][other] and other < row for row, other in whole)


def test_a_large_cluster_leaves_one(tmp_path: Path) -> None:
    """Although each pair is compared with only a few others."""
    draw = random.Random(3)
    (pair,) = sentences(1, 3, words=60)
    verdicts = verdicts_of([pair, *(changed(pair, 1, draw) for _ in range(400))])
    (tmp_path / "verdicts").write_bytes(verdicts.tobytes())
    (tmp_path / "sorted").mkdir()
    found = Copies(tmp_path / "sorted", len(verdicts))
    similar.add_similar(
        tmp_path / "verdicts", len(verdicts), Rules(CleanSettings(max_similar=0.8)), tmp_path / "sorted", found
    )
    assert found.of(0)["row"].tolist() == list(range(1, 401))


def test_a_corpus_is_cleaned_of_similar_pairs(tmp_path: Path) -> None:
    draw, pairs = random.Random(4), sentences(150, 4, words=24)
    pairs += [changed(pairs[place], 1, draw) for place in range(0, 150, 5)]
    for side, name in enumerate(("train.xx", "train.yy")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    removed: dict[float, dict[int, str]] = {}
    for most, name in product((1.0, 0.75), ("out",)):
        outputs = Outputs.named(tmp_path / f"{name}{most}.xx", tmp_path / f"{name}{most}.yy", None, None)
        settings = CleanSettings.model_validate({"max_similar": most, "skip": ("swapped", "language")})
        found = clean(tmp_path / "train.xx", tmp_path / "train.yy", outputs, settings=settings)
        rows = [row.split("\t") for row in outputs.removed.read_text(encoding="utf-8").splitlines()[1:]]
        removed[most] = {int(row[0]): row[3] for row in rows if row[1] == "similar"}
        assert found.counts["similar"] == len(removed[most])
        assert "share of the sequences of four characters" in outputs.report.read_text(encoding="utf-8")
    assert removed[1.0] == {}
    assert removed[0.75] == {151 + number: f"line {5 * number + 1}" for number in range(30)}
