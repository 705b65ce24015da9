"""Duplicates on disk are those of a dictionary in memory, however the corpus is cut into files."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from multihead.cleaning import copies
from multihead.cleaning.copies import Records, find_copies
from multihead.cleaning.filters import VERDICT, Rules, Verdicts
from multihead.cleaning.settings import REASONS, CleanSettings

DUPLICATE, NEAR = REASONS.index("duplicate"), REASONS.index("near-duplicate")


def drawn(rows: int, seed: int) -> Verdicts:
    """Verdicts with many equal hashes, some pairs removed before, lines that are not rows."""
    draw = random.Random(seed)
    made = np.zeros(rows, VERDICT)
    for row in range(rows):
        near = draw.randrange(rows // 3)
        made[row]["near"], made[row]["exact"] = near * 2**40 + 7, near * 10 + draw.randrange(3)
        made[row]["line"], made[row]["reason"] = 3 * row + 2, draw.random() < 0.1
    return made


def expected(verdicts: Verdicts, most: int, most_near: int) -> list[tuple[int, int, int, int]]:
    """(row, reason, count, line of the first), by counting in order."""
    exact: dict[int, list[int]] = {}
    near: dict[int, list[int]] = {}
    found = []
    for row, one in enumerate(verdicts):
        if one["reason"]:
            continue
        for reason, seen, key, limit in ((DUPLICATE, exact, "exact", most), (NEAR, near, "near", most_near)):
            lines = seen.setdefault(int(one[key]), [])
            lines.append(int(one["line"]))
            if len(lines) > limit:
                found.append((row, reason, len(lines), lines[0]))
                break
    return found


@pytest.mark.parametrize(("pairs", "rows"), [(1 << 19, 1 << 18), (50, 64), (7, 16)])
@pytest.mark.parametrize(("most", "most_near"), [(1, 1), (2, 1), (1, 3), (2, 4)])
def test_copies_are_those_that_counting_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: int, rows: int, most: int, most_near: int
) -> None:
    monkeypatch.setattr(copies, "PAIRS", pairs)
    monkeypatch.setattr(copies, "ROWS", rows)
    verdicts = drawn(500, most)
    (tmp_path / "verdicts").write_bytes(verdicts.tobytes())
    settings = CleanSettings(max_copies=most, max_near_copies=most_near)
    (tmp_path / "sorted").mkdir()
    found = find_copies(tmp_path / "verdicts", 500, Rules(settings), tmp_path / "sorted")
    blocks = [found.of(block) for block in range(-(-500 // rows))]
    every = [tuple(map(int, (one["row"], one["reason"], one["score"], one["first"]))) for b in blocks for one in b]
    assert every == expected(verdicts, most, most_near)
    assert all(rows * number <= one["row"] < rows * (number + 1) for number, b in enumerate(blocks) for one in b)


def test_the_copies_of_one_pair_are_not_held_in_memory_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "PAIRS", 10)
    sizes, occurrence = list[int](), copies._occurrence

    def watched(keys: Records, by: str, seen: Records) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        sizes.append(len(keys) + len(seen))
        return occurrence(keys, by, seen)

    monkeypatch.setattr(copies, "_occurrence", watched)
    verdicts = drawn(300, 3)
    verdicts["reason"], verdicts["exact"], verdicts["near"] = 0, 5, 6
    (tmp_path / "verdicts").write_bytes(verdicts.tobytes())
    (tmp_path / "sorted").mkdir()
    found = find_copies(tmp_path / "verdicts", 300, Rules(CleanSettings(max_copies=2)), tmp_path / "sorted").of(0)
    every = [tuple(map(int, (one["row"], one["reason"], one["score"], one["first"]))) for one in found]
    assert every == expected(verdicts, 2, 1)
    assert len(every) == 299
    assert 0 < max(sizes) <= 21


@pytest.mark.parametrize(
    ("skip", "reasons"),
    [
        (("duplicate",), {NEAR}),
        (("near-duplicate",), {DUPLICATE}),
        (("duplicate", "near-duplicate"), set()),
    ],
)
def test_either_can_be_switched_off(tmp_path: Path, skip: tuple[str, ...], reasons: set[int]) -> None:
    verdicts = drawn(200, 5)
    (tmp_path / "verdicts").write_bytes(verdicts.tobytes())
    rules = Rules(CleanSettings.model_validate({"skip": skip}))
    (tmp_path / "sorted").mkdir()
    found = find_copies(tmp_path / "verdicts", 200, rules, tmp_path / "sorted").of(0)
    assert set(found["reason"].tolist()) == reasons
    most = [200 if "duplicate" in skip else 1, 200 if "near-duplicate" in skip else 1]
    assert found["row"].tolist() == [row for row, *_ in expected(verdicts, *most)]
