"""How well the guard works: false alarms, planted faults found, and the effect of searching again.

    python benchmarks/guard.py --run RUN --source test.de --target test.en [--threads 1] [--json FILE]

Translates a test set with a run, plants faults in the translations (scored by the model with forced decoding), and
counts how many of each kind are marked: by the signs that cost nothing, and with the closer look. Each number is a
share of the sentences in which the fault can be planted. Marked ordinary translations are false alarms; they are
counted among all translations, and among those that are good by their reference (chrF of 60 or more). ``--tiny`` first
trains a small model on generated sentences: everything runs, but the figures mean nothing.
"""

from __future__ import annotations

import random
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import parser, write_figures

from multihead import Translator, train
from multihead.data.text_files import read_lines
from multihead.data.toy.numbers import generate
from multihead.judging.guard import GuardedTranslation, assess, retry
from multihead.judging.guard_signs import GuardSettings
from multihead.judging.score import score as forced
from multihead.metrics.scores import score, sentence_chrf
from multihead.translating.request import TranslationRequest
from multihead.translating.searching import Translation

GOOD = 60.0
"""The minimum chrF of a good translation: marking one is certainly a false alarm."""

Plant = Callable[[int, random.Random], str | None]
"""The damaged translation of a sentence; None if this fault cannot be planted in it."""


def faults(sources: list[str], texts: list[str]) -> dict[str, Plant]:
    """The faults by name."""

    def repeated(place: int, draw: random.Random) -> str | None:
        words = texts[place].split()
        unit, times = draw.randint(2, 4), draw.randint(3, 8)
        start = draw.randrange(max(len(words) - unit + 1, 1))
        found = words[start : start + unit]
        return " ".join([*words[:start], *found * times, *words[start + unit :]]) if len(words) > unit else None

    def halved(place: int, _: random.Random) -> str | None:
        words = texts[place].split()
        return " ".join(words[: len(words) // 2]) if len(words) > 3 else None

    def other(place: int, draw: random.Random) -> str:
        return texts[(place + draw.randrange(1, len(texts))) % len(texts)]

    def longer(place: int, draw: random.Random) -> str:
        return " ".join([texts[place], *(other(place, draw) for _ in range(3))])

    def replaced(place: int, draw: random.Random) -> str:
        """Improbable, but of the right length and without repetition: only the probability shows the fault."""
        words = texts[place].split()
        strange = other(place, draw).split() or ["?"]
        return " ".join(draw.choice(strange) if number % 3 == 1 else word for number, word in enumerate(words))

    return {
        "two to four words said 3 to 8 times": repeated,
        "the second half missing": halved,
        "the source copied": lambda place, _: sources[place],
        "the translation of another sentence": other,
        "three other sentences behind it": longer,
        "one word in three of another sentence": replaced,
        "nothing": lambda *_: "",
    }


def planted(translator: Translator, sources: list[str], texts: list[str]) -> list[Translation]:
    """These texts as a search would return them."""
    scored = forced(translator, sources, texts)
    return [
        Translation(text, one.score(1.0), True, None, one.log_probability, len(one.tokens))
        for text, one in zip(texts, scored, strict=True)
    ]


def marked(
    translator: Translator, sources: list[str], found: list[Translation]
) -> tuple[list[GuardedTranslation], list[GuardedTranslation]]:
    """The judgments by the signs that cost nothing, and with the closer look."""
    plain, closer = (assess(translator, sources, found, GuardSettings(closer=closer)) for closer in (False, True))
    return plain, closer


def share(judged: list[GuardedTranslation]) -> float:
    """The percentage that is marked."""
    return 100 * sum(each.marked for each in judged) / max(len(judged), 1)


def measure(translator: Translator, sources: list[str], references: list[str]) -> list[dict[str, Any]]:
    """Translate, plant faults, and print and return the rows of the table."""
    start = time.process_time()
    found = translator.translations(sources)
    searched = time.process_time() - start
    texts = [translation.text for translation in found]
    plain, closer = marked(translator, sources, found)
    good = [place for place, chrf in enumerate(sentence_chrf(texts, references)) if chrf >= GOOD]
    rows: list[dict[str, Any]] = []

    def add(case: str, plain: list[GuardedTranslation], closer: list[GuardedTranslation]) -> None:
        rows.append({"case": case, "sentences": len(plain), "marked": share(plain), "closer": share(closer)})
        print(f"{case:<40} {len(plain):>6} {share(plain):>9.1f}% {share(closer):>9.1f}%")

    print(f"{'':<40} {'of':>6} {'marked':>10} {'closer':>10}")
    add("ordinary translations", plain, closer)
    add("those with chrF of 60 or more", [plain[place] for place in good], [closer[place] for place in good])
    for number, (name, plant) in enumerate(faults(sources, texts).items()):
        draw = random.Random(number)
        damaged = [(source, plant(place, draw)) for place, source in enumerate(sources)]
        pairs = [(source, text) for source, text in damaged if text is not None]
        given = [source for source, _ in pairs]
        add(name, *marked(translator, given, planted(translator, given, [text for _, text in pairs])))
    rows.append(retried(translator, sources, references, plain) | {"search_seconds": searched})
    return rows


def retried(
    translator: Translator, sources: list[str], references: list[str], plain: list[GuardedTranslation]
) -> dict[str, Any]:
    """Search the marked ones again; returns their scores before and after, and those of the whole test set."""
    start = time.process_time()
    results = retry(
        translator, TranslationRequest(translator.search_settings(), sources), plain, GuardSettings(mode="retry")
    )
    seconds = time.process_time() - start
    assert all(after.score <= before.score for before, after in zip(plain, results, strict=True))
    places = [place for place, each in enumerate(plain) if each.marked]
    row: dict[str, Any] = {"case": "searched again", "sentences": len(places), "retry_seconds": seconds}
    row["still_marked"] = sum(results[place].marked for place in places)
    for name, chosen in (("marked", places), ("all", list(range(len(sources))))):
        for when, judged in (("before", plain), ("after", results)):
            if chosen:
                texts = [judged[place].translation.text for place in chosen]
                scores = score(texts, [references[place] for place in chosen], translator.bundle.target_language)
                row[f"{name}_{when}"] = {"bleu": scores.bleu, "chrf": scores.chrf}
    print(f"searched again: {row}")
    return row


def made(folder: Path) -> tuple[Translator, list[str], list[str]]:
    """A small model trained on generated sentences, and sentences that it has not seen."""
    pairs = [(one.source, one.target) for one in generate("de", "en", 200, seed=0)]
    for side, name in enumerate(("train.de", "train.en")):
        (folder / name).write_text("".join(pair[side] + "\n" for pair in pairs[:-4]), encoding="utf-8")
    sizes: dict[str, Any] = {
        "width": 32,
        "heads": 2,
        "inner": 64,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "vocab_size": 500,
    }
    result = train(
        source=folder / "train.de",
        target=folder / "train.en",
        output=folder / "run",
        held_out=4,
        updates=10,
        batch_tokens=256,
        say=lambda _: None,
        **sizes,
    )
    return result.translator(), [source for source, _ in pairs[-4:]], [target for _, target in pairs[-4:]]


def data(arguments: Namespace, folder: Path) -> tuple[Translator, list[str], list[str]]:
    """The model and the test set."""
    if arguments.tiny:
        return made(folder)
    if not (arguments.run and arguments.source and arguments.target):
        raise SystemExit("give --run, --source and --target, or --tiny")
    return Translator.load(arguments.run), list(read_lines(arguments.source)), list(read_lines(arguments.target))


def main() -> None:
    """Measure and print."""
    accepted = parser(__doc__)
    accepted.add_argument("--tiny", action="store_true", help="train a small model on generated sentences")
    for name in ("run", "source", "target"):
        accepted.add_argument(f"--{name}", type=Path)
    arguments = accepted.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(*data(arguments, Path(folder)))
    write_figures(arguments, {"rows": rows})


if __name__ == "__main__":
    main()
