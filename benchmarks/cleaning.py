"""Precision, recall and speed of `multihead clean`, on Multi30k with planted faults.

    python benchmarks/cleaning.py [--pairs 29000] [--share 0.01] [--model RUN] [--json FILE]
    python benchmarks/cleaning.py --pairs 1000000 --share 0.001                # speed and memory
    python benchmarks/cleaning.py --corpus val --share 0.05 --model run        # pairs that the model has not learned

Faults of each kind are planted in a share of the lines, and the corpus is cleaned with the default settings. For each
kind the table shows how many were planted, how many were removed for any reason, and how many for the right reason;
then how many of the other lines were removed, by reason. If ``--pairs`` exceeds the corpus, its pairs are repeated with
a number added to both sides, so that they are not duplicates. Only a model can detect "other target", the target of
another line: with ``--model`` (one that has not seen the text) it is filtered, without it the table shows it as missed.
The claims: faults of every other kind are found, and less than 1% of the other lines are removed. ``--toy`` needs no
corpus.

``--similar 0.8`` also removes similar pairs, and plants pairs with a wrong letter, with one word replaced and with two
words appended on both sides. For each kind the table shows how many are above that similarity by exact counting, and
how many of these were found; then how many of all pairs removed as similar are above it (precision).

Lines with the same number or address on both sides are planted too, since Multi30k has few. They must be kept.
"""

from __future__ import annotations

import gzip
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import MULTI30K, multi30k, parser, write_figures

from multihead.cleaning.measures import normalize
from multihead.cleaning.settings import UNUSABLE

Pair = tuple[str, str]
Fault = Callable[[random.Random, Pair], Pair]

FOREIGN = """Un homme en chemise bleue est debout sur une échelle et nettoie une fenêtre.
Deux jeunes filles jouent au bord de la mer pendant que leur mère les regarde.
Un chien noir et blanc court dans l'herbe avec un bâton dans la gueule.
Un hombre con una camisa roja está sentado en un banco leyendo el periódico.
Dos niños juegan en la arena mientras sus padres hablan en la playa.
Una mujer mayor vende flores en un mercado lleno de gente.
Un uomo con gli occhiali sta cucinando qualcosa in una grande cucina.
Tre ragazze camminano lungo una strada affollata con delle borse in mano.
Een man met een hoed speelt gitaar op de hoek van een drukke straat.
Twee kinderen fietsen met hun vader langs het water naar de stad.
Muž v červené bundě sjíždí na lyžích ze zasněženého kopce.
Dvě ženy sedí u stolu v kavárně a povídají si o počasí.
Mężczyzna w niebieskiej koszuli stoi na drabinie i myje okno.
Dwoje dzieci bawi się w parku podczas gdy ich matka czyta książkę.
En man i svart jacka står vid en busshållplats och läser en tidning.
Mies istuu puistossa penkillä ja lukee sanomalehteä ystävänsä kanssa.
Egy férfi kék ingben áll egy létrán és az ablakot tisztítja.
Мужчина в синей рубашке стоит на лестнице и моет окно.
一个穿蓝色衬衫的男人站在梯子上擦窗户，旁边有一只狗。
青いシャツを着た男性がはしごに立って窓を掃除しています。""".splitlines()


MEASURED = """
import pathlib, re, sys
from multihead.cli.main import main
status = main(["clean", *sys.argv[1:]])
print(re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
sys.exit(status)
"""
"""Runs the command and prints its peak memory in KB, as Linux counts it (ru_maxrss would include this process)."""

TOY = """der/the und/and ist/is ein/a nicht/not mit/with auf/on von/of zu/to im/inthe für/for sich/itself sie/she er/he
Hund/dog Haus/house Straße/street läuft/runs Mädchen/girl schnell/quickly Wasser/water singt/sings Brücke/bridge
groß/big Katze/cat Garten/garden Fenster/window öffnet/opens Kind/child spielt/plays Mann/man Frau/woman liest/reads
Zeitung/newspaper Baum/tree steht/stands neben/beside Kirche/church alt/old jung/young schreibt/writes Brief/letter"""
"""Words of generated pairs."""


def _with_target(change: Callable[[random.Random, str], str]) -> Fault:
    return lambda draw, pair: (pair[0], change(draw, pair[1]))


def _insert(draw: random.Random, text: str, word: str) -> str:
    words = text.split(" ")
    words.insert(draw.randint(1, len(words)), word)
    return " ".join(words)


def _other_word(draw: random.Random, text: str) -> str:
    """A text with one of its words replaced."""
    words = text.split(" ")
    words[draw.randrange(len(words))] = draw.choice(["xylophon", "quarz", "zebra", "fjord"])
    return " ".join(words)


def _numbers(draw: random.Random, pair: Pair) -> Pair:
    number = draw.randint(2, 3000)
    return _insert(draw, pair[0], str(number)), _insert(draw, pair[1], str(number + draw.randint(1, 9)))


def _urls(draw: random.Random, pair: Pair) -> Pair:
    number = draw.randint(1, 999)
    one, other = (f"https://www.example.org/page/{number + more}" for more in (0, 1))
    return _insert(draw, pair[0], one), _insert(draw, pair[1], other)


def _equal_numbers(draw: random.Random, pair: Pair) -> Pair:
    number = draw.randint(2, 3000)
    formats = (f"{number:,}".replace(",", "."), f"{number:,}")
    return _insert(draw, pair[0], formats[0]), _insert(draw, pair[1], formats[1])


def _equal_urls(draw: random.Random, pair: Pair) -> Pair:
    url = f"www.example.org/page/{draw.randint(1, 999)}"
    return _insert(draw, pair[0], url), _insert(draw, pair[1], f"https://{url}")


FAULTS: dict[str, tuple[str, Fault]] = {
    "empty side": (UNUSABLE, _with_target(lambda *_: "")),
    "lost characters": ("broken", _with_target(lambda draw, text: _insert(draw, text, "M\ufffdnner"))),
    "many sentences": ("length", lambda _, pair: (" ".join([pair[0]] * 40), " ".join([pair[1]] * 40))),
    "half a target": ("ratio", _with_target(lambda _, text: text[: len(text) // 3])),
    "untranslated": ("copy", lambda _, pair: (pair[0], pair[0])),
    "hardly translated": ("copy", lambda draw, pair: (pair[0], _other_word(draw, pair[0]))),
    "another number": ("numbers", _numbers),
    "another address": ("urls", _urls),
    "exchanged sides": ("swapped", lambda _, pair: (pair[1], pair[0])),
    "third language": ("language", _with_target(lambda draw, _: draw.choice(FOREIGN))),
}
"""Kinds of faults that are visible in a single pair: the filter that should find them, and how they are made."""


def _wrong_letter(draw: random.Random, text: str) -> str:
    place = draw.randrange(len(text))
    return f"{text[:place]}q{text[place + 1 :]}"


def _both(change: Callable[[random.Random, str], str]) -> Fault:
    return lambda draw, pair: (change(draw, pair[0]), change(draw, pair[1]))


SIMILAR: dict[str, Fault] = {
    "a wrong letter": _both(_wrong_letter),
    "another word": _both(_other_word),
    "two more words": _both(
        lambda draw, text: f"{text} {draw.choice(['quarz', 'fjord'])} {draw.choice(['ufo', 'gnu'])}"
    ),
}
"""How ``--similar`` makes similar pairs from other pairs."""


def plant(
    pairs: list[Pair], held_out: list[Pair], share: float, similar: bool = False
) -> tuple[list[Pair], dict[int, tuple[str, str]], dict[int, tuple[str, int]]]:
    """Plant faults of every kind.

    Returns:
        The corpus; the kind and filter of each planted place ("" if it must be kept); the kind and original of each
        similar pair.
    """
    draw, planted, origins = random.Random(0), dict[int, tuple[str, str]](), dict[int, tuple[str, int]]()
    pairs = list(pairs)
    count = max(round(share * len(pairs)), 1)
    free = draw.sample(range(1, len(pairs)), len(pairs) - 1)

    def change(kind: str, reason: str, fault: Fault) -> None:
        for _ in range(count):
            place = free.pop()
            pairs[place], planted[place] = fault(draw, pairs[place]), (kind, reason)

    def target(draw: random.Random) -> str:
        """The target of a line without a fault."""
        return pairs[draw.choice(free)][1]

    for kind, (reason, fault) in FAULTS.items():
        change(kind, reason, fault)
    appended = [
        ("appended text", "ratio", lambda draw, pair: (pair[0], f"{pair[1]} {target(draw)} {target(draw)}")),
        ("test pair", "leak", lambda draw, _: draw.choice(held_out)),
        ("test pair, changed", "leak", lambda draw, _: _changed(draw, draw.choice(held_out))),
        ("other target", "alignment", lambda draw, pair: (pair[0], target(draw))),
        ("equal numbers", "", _equal_numbers),
        ("equal addresses", "", _equal_urls),
    ]
    for kind, reason, fault in appended:
        change(kind, reason, fault)
    originals = [place for place in range(len(pairs)) if place not in planted]
    for kind, reason, copy in (
        ("copy", "duplicate", lambda pair: pair),
        ("copy, changed", "near-duplicate", lambda pair: (pair[0].upper(), pair[1].rstrip(".") + " !")),
    ):
        for _ in range(count):
            planted[len(pairs)] = kind, reason
            pairs.append(copy(pairs[draw.choice(originals)]))
    for kind, change_it in SIMILAR.items() if similar else ():
        for _ in range(count):
            origin = draw.choice(originals)
            planted[len(pairs)], origins[len(pairs)] = (kind, "similar"), (kind, origin)
            pairs.append(change_it(draw, pairs[origin]))
    return pairs, planted, origins


def _changed(draw: random.Random, pair: Pair) -> Pair:
    """A pair in lower case; if it is long enough, with one word replaced on each side."""
    source, target = (side.lower() for side in pair)
    long = min(source.count(" "), target.count(" ")) > 7
    return (_other_word(draw, source), _other_word(draw, target)) if long else (source, target)


def corpus(name: str, toy: bool) -> list[Pair]:
    """The pairs of Multi30k, or generated ones."""
    if not toy:
        sides = [multi30k(name, code) for code in ("de", "en")]
        found = [side for side in sides if side is not None]
        if len(found) < len(sides):
            raise SystemExit(f"{MULTI30K}: there are no {name}.de.gz and {name}.en.gz; --toy needs no corpus")
        return list(zip(*found, strict=True))
    draw, rows = random.Random(name), dict[Pair, None]()
    while len(rows) < 400:
        words = draw.choices([word.split("/") for word in TOY.split()], k=draw.randint(8, 16))
        rows[" ".join(word[0] for word in words), " ".join(word[1] for word in words)] = None
    return list(rows)


def repeated(pairs: list[Pair], count: int) -> list[Pair]:
    """``count`` pairs: those of a corpus, then the same pairs with a number on both sides."""
    rows = list(pairs[:count])
    while len(rows) < count:
        turn = len(rows) // len(pairs) + 1
        rows += [(f"{turn}: {source}", f"{turn}: {target}") for source, target in pairs[: count - len(rows)]]
    return rows


def main() -> None:
    """Plant faults, clean the corpus, compare and print."""
    accepted = parser(__doc__, threads=None)
    accepted.add_argument("--pairs", type=int, help="number of pairs [size of the corpus]")
    accepted.add_argument("--corpus", choices=("train", "val"), default="train", help="part of Multi30k [train]")
    accepted.add_argument("--share", type=float, default=0.01, help="share of lines with a fault of each kind [0.01]")
    accepted.add_argument("--model", type=Path, help="a run or model folder for the alignment filter")
    accepted.add_argument("--similar", type=float, help="also plant similar pairs, and clean with this --max-similar")
    accepted.add_argument("--toy", action="store_true", help="generated pairs instead of Multi30k")
    arguments = accepted.parse_args()
    train, test = (corpus(name, arguments.toy) for name in (arguments.corpus, "test_2016_flickr"))
    known = set(train)
    test = [pair for pair in test if pair not in known]
    similar: float | None = arguments.similar
    corpus_again = repeated(train, arguments.pairs or len(train))
    pairs, planted, origins = plant(corpus_again, test, arguments.share, similar is not None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {}
        for part, rows in (("train", pairs), ("test", test)):
            for side, code in enumerate(("de", "en")):
                files[part, code] = folder / f"{part}.{code}"
                files[part, code].write_text("".join(row[side] + "\n" for row in rows), encoding="utf-8")
        count = len(pairs)
        texts = pairs[:] if similar is not None else []
        pairs.clear()  # free memory: only that of the command, a process of its own, is measured
        words = ["--source", files["train", "de"], "--target", files["train", "en"]]
        words += ["--held-out", f"{files['test', 'de']} {files['test', 'en']}", "--removed", folder / "removed.tsv.gz"]
        words += ["--output", folder / "kept.de", "--output-target", folder / "kept.en"]
        words += [] if arguments.model is None else ["--model", arguments.model]
        words += [] if similar is None else ["--max-similar", similar]
        wall = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-c", MEASURED, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True
        )
        wall, used = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds, peak = used.ru_utime + used.ru_stime, 1024 * int(ended.stdout) / 1e6
        with gzip.open(folder / "removed.tsv.gz", "rt", encoding="utf-8", newline="\n") as stream:
            cells = [line.split("\t") for line in stream][1:]
        with (folder / "kept.de").open("rb") as lines:
            kept = sum(1 for _ in lines)
    reasons = {int(line) - 1: reason for line, reason, *_ in cells}
    assert kept + len(reasons) == count
    rows = compare(reasons, planted, count)
    if similar is not None:
        earlier = {int(cell[0]) - 1: int(cell[3].split()[1]) - 1 for cell in cells if cell[1] == "similar"}
        rows += compare_similar(similar, texts, origins, earlier, set(reasons))
    speed = count / seconds
    print(f"{count:,} pairs in {seconds:.1f} s of one core ({wall:.1f} s): {speed:,.0f} pairs/s, peak {peak:,.0f} MB")
    figures = {"pairs": count, "pairs_per_second": speed, "peak_megabytes": peak, "rows": rows}
    write_figures(arguments, figures)


def compare(reasons: dict[int, str], planted: dict[int, tuple[str, str]], count: int) -> list[dict[str, object]]:
    """Print and return what was removed of each kind, then of all other lines."""
    kinds: dict[str, list[int]] = {}
    for place, (kind, _) in planted.items():
        kinds.setdefault(kind, []).append(place)
    rows: list[dict[str, object]] = []
    for kind, places in kinds.items():
        right = planted[places[0]][1]
        removed = [place for place in places if place in reasons]
        named = sum(reasons[place] == right for place in removed)
        row = {"case": kind, "filter": right, "planted": len(places), "removed": len(removed), "named": named}
        rows.append(row)
        what = f"{named:>6,} as {right}" if right else "       must be kept"
        share = len(removed) / len(places)
        print(f"{kind:<20}{len(places):>8,} planted {len(removed):>8,} removed {share:>7.1%} {what}")
    others = [reason for place, reason in reasons.items() if place not in planted]
    total = count - len(planted)
    print(f"{'other lines':<20}{total:>8,}         {len(others):>8,} removed {len(others) / total:>7.2%}")
    for reason in sorted(set(others)):
        number = others.count(reason)
        print(f"    {reason:<16}{number:>8,} {number / total:>7.2%}")
    rows.append({"case": "other lines", "filter": "", "planted": total, "removed": len(others), "named": 0})
    return rows


def _jaccard(one: Pair, other: Pair) -> float:
    """The exact similarity of two pairs, by counting (`cleaning.sketches` estimates it)."""
    first, second = (
        {(side, text[i : i + 4]) for side, text in enumerate(map(normalize, pair)) for i in range(len(text) - 3)}
        for pair in (one, other)
    )
    return len(first & second) / max(len(first | second), 1)


def compare_similar(
    most: float, texts: list[Pair], origins: dict[int, tuple[str, int]], earlier: dict[int, int], removed: set[int]
) -> list[dict[str, object]]:
    """Print and return the recall of planted pairs, by exact similarity, and the precision of all removed pairs."""
    rows: list[dict[str, object]] = []
    for kind in SIMILAR:
        places = [place for place, (name, origin) in origins.items() if name == kind and origin not in removed]
        above = [place for place in places if _jaccard(texts[place], texts[origins[place][1]]) > most]
        found = sum(place in removed for place in above)
        share = found / max(len(above), 1)
        name = f"{kind}, above {most:g}"
        print(f"{name:<28}{len(above):>8,} by counting {found:>8,} removed {share:>7.1%}")
        rows.append({"case": name, "filter": "similar", "planted": len(above), "removed": found, "named": found})
    exact = [_jaccard(texts[place], texts[other]) for place, other in earlier.items()]
    right, close = (sum(value > least for value in exact) for least in (most, most - 0.05))
    shares = [100 * number / max(len(exact), 1) for number in (right, close)]
    print(f"{'removed as similar':<28}{len(exact):>8,}, by counting {shares[0]:.1f}% above {most:g}", end=", ")
    print(f"{shares[1]:.1f}% above {most - 0.05:g}")
    rows.append(
        {"case": "removed as similar", "filter": "similar", "planted": len(exact), "removed": right, "named": close}
    )
    return rows


if __name__ == "__main__":
    main()
