"""A corpus of distinct German and English sentences, and faults of each kind on known lines."""

from __future__ import annotations

import random
from pathlib import Path

PAIRS = """der/the und/and ist/is ein/a nicht/not mit/with auf/on von/of zu/to im/inthe Hund/dog Haus/house
Straße/street läuft/runs Mädchen/girl schnell/quickly Wasser/water singt/sings Brücke/bridge groß/big"""
WORDS = dict(word.split("/") for word in PAIRS.split())
FRENCH = "Un homme en chemise bleue est debout sur une échelle et nettoie une fenêtre."
TEST = "Der Hund rennt durch das hohe Gras", "The dog runs through the high grass"


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Distinct pairs of 7 to 14 words."""
    draw, rows = random.Random(seed), dict[tuple[str, str], None]()
    while len(rows) < count:
        words = draw.choices(list(WORDS), k=draw.randint(7, 14))
        rows[" ".join(words), " ".join(WORDS[word] for word in words)] = None
    return list(rows)


def faulty() -> tuple[list[tuple[str, str]], dict[int, str]]:
    """300 pairs with a fault of each kind, and the reason by line."""
    rows = sentences(300)
    reasons = {
        20: ("unusable", ("", rows[19][1])),
        30: ("broken", (rows[29][0], rows[29][1] + "\ufffd")),
        40: ("length", (" ".join([rows[39][0]] * 40), " ".join([rows[39][1]] * 40))),
        50: ("ratio", (rows[49][0], rows[49][1][:8])),
        60: ("copy", (rows[59][0], rows[59][0])),
        70: ("urls", (rows[69][0] + " www.example.org/a", rows[69][1] + " www.example.org/b")),
        80: ("numbers", (rows[79][0] + " 1984", rows[79][1] + " 1985")),
        90: ("swapped", (rows[89][1], rows[89][0])),
        100: ("leak", TEST),
        110: ("language", (rows[109][0], FRENCH)),
        120: ("duplicate", rows[2]),
        130: ("near-duplicate", (rows[3][0].upper(), rows[3][1] + "!")),
    }
    for line, (_, pair) in reasons.items():
        rows[line - 1] = pair
    return rows, {line: reason for line, (reason, _) in reasons.items()}


def write_sides(folder: Path, rows: list[tuple[str, str]], name: str = "train") -> tuple[Path, Path]:
    """Two files of lines."""
    paths = folder / f"{name}.de", folder / f"{name}.en"
    for side, path in enumerate(paths):
        path.write_bytes("".join(row[side] + "\n" for row in rows).encode())
    return paths
