"""A cleaning that is killed at random moments ends with the files of one that was not."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faulty_pairs import sentences, write_sides

KILLS = 20

PROGRAM = """
import sys
from multihead.cleaning import candidates, clean, copies
candidates.CHUNK, copies.ROWS, copies.PAIRS = 64, 256, 1000
from multihead.cli.main import main
sys.exit(main(["clean", *sys.argv[1:]]))
"""
"""The command with small chunks, so that a kill finds each stage."""


def start(folder: Path, sides: tuple[Path, Path]) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    words = ["--source", sides[0], "--target", sides[1], "--skip", "language"]
    words += ["--output", folder / "kept.de.gz", "--output-target", folder / "kept.en.gz"]
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *map(str, words)], stderr=subprocess.DEVNULL)


@pytest.mark.proof
def test_a_killed_cleaning_ends_as_one_that_was_not(tmp_path: Path) -> None:
    rows = sentences(20_000)
    sides = write_sides(tmp_path, rows + random.Random(1).choices(rows, k=2000))
    begun = time.monotonic()
    assert start(tmp_path / "whole", sides).wait() == 0
    usual = time.monotonic() - begun
    draw, killed = random.Random(2), 0
    for _ in range(KILLS):
        process = start(tmp_path / "killed", sides)
        try:
            status = process.wait(draw.uniform(0.2, 1.0) * usual)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
            continue
        assert status in (0, 2)  # 2: everything is written
    if not (tmp_path / "killed" / "kept.de.gz").exists():
        assert start(tmp_path / "killed", sides).wait() == 0
    folders = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("whole", "killed"))
    whole, other = folders
    assert other == whole
    assert killed > 0
