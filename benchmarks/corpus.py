"""A generated corpus of any size with known translations, and the cost of preparing and reading it.

    python benchmarks/corpus.py [--pairs 1000000] [--seed 1] [--output FOLDER] [--only write|prepare|batches]

Words are drawn from 200,000 by Zipf's law, sentences have 2 to 80 words with a median of 15, and each side has some 110
bytes per line, much like a crawl of the web. A translation is exact: every frequent word has an entry in a dictionary,
rare words are transliterated syllable by syllable, some become two words, and an adjective moves behind the noun that
follows it. So the correct translation of every sentence is known (`Language.translate`), and BLEU can reach 100. A
smaller corpus with the same seed is the beginning of a larger one.

"write" writes train, valid and test (1,000 pairs each) into the folder, a temporary one by default; a folder of another
corpus is refused. "prepare" runs `multihead prepare` and samples the resident memory of all its processes: their sum
(which counts shared pages once per process) and their proportional shares. If it is stopped, it continues the next
time. Flags that are not listed below are passed on to it. "batches" opens the prepared text as a run does, takes
batches, and reports the seconds to the first batch and the memory, without and with the mapped pages of the store.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from common import parser, write_figures

WORDS = 200_000
CHUNK = 20_000
"""Number of pairs drawn at a time."""
HELD_OUT = {"valid": 1_000, "test": 1_000}
SIDES = "source", "target"

_ONSETS = "b ch d f g h j k l m n p r s sch t v w z br gr kl st tr", "b c d f g l m n p qu r s t v x ch pr cr pl th"
_VOWELS = "a e i o u au ei ie", "a e i o u ea oi ou"


class Language:
    """Two languages and the translation from the first to the second.

    Args:
        seed: seed of the words and the dictionary.
        words: number of words; the most frequent tenth are in the dictionary, the others are transliterated.
    """

    def __init__(self, seed: int, words: int = WORDS) -> None:
        known = words // 10
        random = np.random.default_rng([seed, 0])
        syllables = [[o + v for o in _ONSETS[side].split() for v in _VOWELS[side].split()] for side in (0, 1)]
        count = min(map(len, syllables))
        own, other = ([part[place] for place in random.permutation(len(part))[:count]] for part in syllables)
        spelled = self._spellings(random, count, words)
        entries = random.permutation(known)
        self.source = ["".join(own[s] for s in word) for word in spelled]
        self.target = ["".join(other[s] for s in word) for word in spelled]
        self.target[:known] = [self.target[entry] for entry in entries]
        for number in range(7, known, 10):
            self.target[number] = f"{other[number % count]} {self.target[number]}"
        kinds = random.integers(0, 4, words)
        self._is_adjective, self._is_noun = kinds == 0, (kinds == 1) | (kinds == 2)
        frequencies = 1 / (np.arange(words) + 2.7) ** 1.05
        self._cumulated = np.cumsum(frequencies / frequencies.sum())

    @staticmethod
    def _spellings(random: np.random.Generator, syllables: int, words: int) -> list[tuple[int, ...]]:
        """The syllables of each word, all different; frequent words are shorter."""
        spelled: dict[tuple[int, ...], None] = {}
        while len(spelled) < words:
            length = 1 + int(np.log10(10 + len(spelled)) / 2.5 - 0.4 + 1.3 * random.random())
            spelled.setdefault(tuple(random.integers(0, syllables, length).tolist()))
        return list(spelled)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.source)}

    def draw(self, random: np.random.Generator, pairs: int) -> list[tuple[str, str]]:
        """Random sentences and their translations."""
        lengths = np.clip(np.exp(random.normal(np.log(15), 0.6, pairs)), 2, 80).astype(np.int64)
        words = np.searchsorted(self._cumulated, random.random(int(lengths.sum())))
        words = np.minimum(words, len(self.source) - 1)
        ends = np.cumsum(lengths)
        sources, targets = words.tolist(), self._reordered(words, ends).tolist()
        bounds = pairwise([0, *ends.tolist()])
        return [
            (" ".join([self.source[n] for n in sources[i:j]]), " ".join([self.target[n] for n in targets[i:j]]))
            for i, j in bounds
        ]

    def _reordered(self, words: Any, ends: Any) -> Any:
        """The words in the order of the translation: an adjective and a noun after it change places."""
        swapped = self._is_adjective[words[:-1]] & self._is_noun[words[1:]]
        swapped[ends[:-1] - 1] = False  # not across sentences
        places = np.flatnonzero(swapped)
        moved = words.copy()
        moved[places], moved[places + 1] = words[places + 1], words[places]
        return moved

    def translate(self, text: str) -> str:
        """The translation of a sentence made of words of the language."""
        words = np.array([self._numbers[word] for word in text.split()])
        return " ".join(self.target[n] for n in self._reordered(words, np.array([len(words)])))


def pairs_of(language: Language, seed: int, part: int, count: int) -> Iterator[list[tuple[str, str]]]:
    """Chunks of the pairs of a part: 0 for training, 1 for validation, 2 for testing."""
    for number, start in enumerate(range(0, count, CHUNK)):
        random = np.random.default_rng([seed, 1, part, number])
        yield language.draw(random, CHUNK)[: count - start]


def claim(folder: Path, corpus: dict[str, int]) -> None:
    """Record which corpus a folder holds; exit if it already holds another one."""
    note = folder / "corpus.json"
    there = json.loads(note.read_text(encoding="utf-8")) if note.exists() else None
    if there != corpus and any(folder.glob("*.source")):
        sys.exit(f"{folder}: holds {there or 'a corpus without corpus.json'}, not {corpus}; choose another --output")
    folder.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(corpus) + "\n", encoding="utf-8")


def write(folder: Path, pairs: int, seed: int, words: int) -> dict[str, Any]:
    """Write the corpus, unless it is there."""
    begin = time.perf_counter()
    language = Language(seed, words)
    for part, (name, count) in enumerate({"train": pairs, **HELD_OUT}.items()):
        paths = [folder / f"{name}.{side}" for side in SIDES]
        if all(path.exists() for path in paths):
            continue
        drafts = [path.with_suffix(f".{path.suffix[1:]}.part") for path in paths]
        with drafts[0].open("w", encoding="utf-8") as source, drafts[1].open("w", encoding="utf-8") as target:
            for chunk in pairs_of(language, seed, part, count):
                source.write("".join(pair[0] + "\n" for pair in chunk))
                target.write("".join(pair[1] + "\n" for pair in chunk))
        for draft, path in zip(drafts, paths, strict=True):
            draft.replace(path)
    size = sum((folder / f"train.{side}").stat().st_size for side in SIDES)
    return {"seconds": time.perf_counter() - begin, "megabytes": size / 1e6}


# --------------------------------------------------------------------------- memory


def processes_below(process: int) -> list[int]:
    """A process and all its descendants."""
    found = [process]
    for parent in found:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found.extend(map(int, (task / "children").read_text().split()))
    return found


def memory_of(process: int) -> dict[str, float]:
    """Resident memory in MiB: the total, the proportional share, and the part outside of mapped files."""
    fields = {"Rss": 0.0, "Pss": 0.0, "Anonymous": 0.0}
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]:
            name, value, *_ = line.split()
            if name[:-1] in fields:
                fields[name[:-1]] = int(value) / 1024
    return {"resident": fields["Rss"], "proportional": fields["Pss"], "anonymous": fields["Anonymous"]}


class Watch:
    """Samples the memory of a process and its descendants, and keeps the maxima."""

    def __init__(self, process: int) -> None:
        self.peak: dict[str, float] = {}
        self._process, self._ended = process, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._ended.wait(0.25):
            self.look()

    def look(self) -> None:
        """Take a sample."""
        samples = [memory_of(process) for process in processes_below(self._process)]
        for name in samples[0]:
            self.peak[name] = max(self.peak.get(name, 0.0), sum(sample[name] for sample in samples))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


# --------------------------------------------------------------------------- measurements


def prepare(folder: Path, arguments: list[str], here: bool) -> dict[str, Any]:
    """Run `multihead prepare`; returns seconds, CPU seconds, and the memory of all its processes."""
    given = [f"--{name}={folder / f'train.{name}'}" for name in SIDES]
    given += [f"--valid-{name}={folder / f'valid.{name}'}" for name in SIDES]
    command = ["prepare", *given, f"--output={folder / 'prepared'}", *arguments]
    begin, before = time.perf_counter(), os.times()
    if here:
        from multihead.cli.main import main as run

        with Watch(os.getpid()) as watch:
            status = run(command)
            watch.look()
    else:
        started = subprocess.Popen([sys.executable, "-m", "multihead", *command])
        with Watch(started.pid) as watch:
            status = started.wait()
    if status:
        sys.exit(status)
    after = os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    return {"seconds": time.perf_counter() - begin, "cpu_seconds": cpu, "peak_mib": watch.peak}


def batches(folder: Path, count: int) -> dict[str, Any]:
    """Open the prepared text and take batches; returns seconds to the first one, batches per second, and memory."""
    from multihead.preparing.prepared import open_prepared, read_manifest
    from multihead.training.config import TrainingConfig

    training = TrainingConfig(updates=1)
    before, begin = memory_of(os.getpid()), time.perf_counter()
    with Watch(os.getpid()) as watch:
        prepared = open_prepared(folder / "prepared", read_manifest(folder / "prepared").data)
        opened = time.perf_counter() - begin
        stream = prepared.batches(training, (0, 0))
        stream.take()
        first = time.perf_counter() - begin
        early = memory_of(os.getpid())
        start = time.perf_counter()
        for _ in range(count):
            stream.take()
        pace = count / (time.perf_counter() - start)
        late = memory_of(os.getpid())
        watch.look()
    return {
        "order": prepared.config.order,
        "seconds_to_open": opened,
        "seconds_to_first_batch": first,
        "batches_per_second": pace,
        "mib_before": before,
        "mib_after_first_batch": early,
        "mib_after_last_batch": late,
        "peak_mib": watch.peak,
    }


def show(name: str, figures: Any, indent: str = "") -> None:
    """Print figures, nested ones indented below their name."""
    if isinstance(figures, dict):
        print(f"{indent}{name}")
        for key, value in figures.items():
            show(key, value, indent + "  ")
    else:
        print(f"{indent}{name:<24} {figures:,.1f}" if isinstance(figures, float) else f"{indent}{name:<24} {figures}")


def main() -> None:
    """Write the corpus, measure and print."""
    accepted = parser(__doc__, threads=None)
    accepted.add_argument("--output", type=Path, help="folder of the corpus and the prepared text")
    accepted.add_argument("--pairs", type=int, default=1_000_000)
    accepted.add_argument("--seed", type=int, default=1)
    accepted.add_argument("--words", type=int, default=WORDS, help=f"words of the language ({WORDS})")
    accepted.add_argument("--only", choices=("write", "prepare", "batches"), help="run only this step (default: all)")
    accepted.add_argument("--batches", type=int, default=2_000, help="batches to take (2000)")
    accepted.add_argument("--here", action="store_true", help="prepare in this process instead of a new one")
    arguments, more = accepted.parse_known_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.output or Path(temporary)
        claim(folder, {name: getattr(arguments, name) for name in ("pairs", "seed", "words")})
        steps: dict[str, Callable[[], dict[str, Any]]] = {
            "write": lambda: write(folder, arguments.pairs, arguments.seed, arguments.words),
            "prepare": lambda: prepare(folder, more, arguments.here),
            "batches": lambda: batches(folder, arguments.batches),
        }
        for name, step in steps.items():
            if arguments.only in (None, name):
                figures = step()
                show(name, figures)
                rows.append({"case": name, **figures})
    write_figures(arguments, {"pairs": arguments.pairs, "seed": arguments.seed, "rows": rows})


if __name__ == "__main__":
    main()
