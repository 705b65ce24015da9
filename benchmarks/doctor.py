"""Time of `multihead doctor` on synthetic text, in CPU seconds.

    python benchmarks/doctor.py [--pairs 1000000] [--threads 1] [--json FILE]

The text is generated: sentences of 4 to 28 words out of 50,000, about 120 bytes per side (more than in most corpora),
with a validation set that leaks. "text" is the part that grows with the corpus: reading, decoding, hashes, lengths,
languages, characters. "everything" includes tokenizers and the network. The claim: a million pairs take less than 60
seconds of one core. No other program does the same, so there is no comparison.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import parser, write_figures

from multihead.diagnosis.corpus import ParallelReader
from multihead.diagnosis.doctor import doctor
from multihead.diagnosis.text_checks import TextPass, read_held_out

_LETTERS = "aeioubcdfghklmnprst", "äeiouöszschwtrnmlgk"


def words(letters: str, count: int, draw: random.Random) -> list[str]:
    """Random words of 2 to 11 letters."""
    return ["".join(draw.choices(letters, k=draw.randint(2, 11))) for _ in range(count)]


def make(folder: Path, pairs: int) -> dict[str, Path]:
    """Write the files; returns arguments for `doctor`."""
    draw = random.Random(0)
    source, target = words(_LETTERS[1], 50_000, draw), words(_LETTERS[0], 50_000, draw)
    names = ("source", "target", "valid_source", "valid_target")
    paths = {name: folder / f"{name}.txt" for name in names}
    rows = []
    with paths["source"].open("w", encoding="utf-8") as first, paths["target"].open("w", encoding="utf-8") as second:
        for number in range(pairs):
            places = [int(50_000 * draw.random() ** 3) for _ in range(4 + int(25 * draw.random()))]
            row = " ".join(source[place] for place in places), " ".join(target[place] for place in places)
            first.write(row[0] + "\n")
            second.write(row[1] + "\n")
            if number % max(pairs // 100, 1) == 0:
                rows.append(row)
    for side, name in enumerate(("valid_source", "valid_target")):
        paths[name].write_text("".join(row[side] + "\n" for row in rows), encoding="utf-8")
    return paths


def main() -> None:
    """Measure and print."""
    accepted = parser(__doc__)
    accepted.add_argument("--pairs", type=int, default=1_000_000)
    arguments = accepted.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        files = make(Path(folder), arguments.pairs)
        size = sum(path.stat().st_size for path in files.values()) / 1e6
        apart = ParallelReader(files["valid_source"], files["valid_target"])

        def text() -> list[Any]:
            pairs = read_held_out(apart)
            return TextPass(ParallelReader(files["source"], files["target"]), [pairs]).findings()

        cases: dict[str, Callable[[], object]] = {
            "text": text,
            "everything": lambda: doctor(**files, preset="tiny"),
        }
        rows = []
        print(f"{arguments.pairs:,} pairs, {size:,.0f} MB, {torch.get_num_threads()} threads")
        for name, call in cases.items():
            start, wall = time.process_time(), time.perf_counter()
            call()
            seconds = time.process_time() - start
            row = {"case": name, "processor_seconds": seconds, "seconds": time.perf_counter() - wall}
            rows.append(row | {"pairs_per_second": arguments.pairs / seconds})
            print(f"{name:<12} {seconds:>8.1f} s of one core {arguments.pairs / seconds:>12,.0f} pairs/s")
    write_figures(arguments, {"pairs": arguments.pairs, "megabytes": size, "rows": rows})


if __name__ == "__main__":
    main()
