"""The text checks find every planted fault on its lines, and nothing else."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multihead.diagnosis.corpus import NUL, ParallelReader
from multihead.diagnosis.doctor import doctor
from multihead.diagnosis.findings import FINDING_KINDS, Diagnosis, make_finding
from multihead.diagnosis.model_checks import check_tokens
from multihead.diagnosis.text_checks import TextPass
from multihead.errors import ConfigurationError, DataError, FormatError
from multihead.text.placeholders import learn_with_placeholders, parse_rules
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

PAIRS = """der/the und/and ist/is ein/a nicht/not mit/with auf/on von/of zu/to im/inthe Hund/dog Haus/house
Straße/street läuft/runs Mädchen/girl schnell/quickly Wasser/water singt/sings Brücke/bridge groß/big"""
WORDS = dict(word.split("/") for word in PAIRS.split())
TINY: dict[str, Any] = {"preset": "tiny", "width": 32, "inner": 32, "encoder_layers": 1, "decoder_layers": 1}
TINY |= {"vocab_size": 420, "seed": 1}
Sides = tuple[list[str], list[str]]


def sentences(count: int, seed: int = 0) -> Sides:
    """Distinct sentences of 4 to 14 words with word-by-word translations."""
    draw, words = random.Random(seed), list(WORDS)
    rows: dict[str, str] = {}
    while len(rows) < count:
        row = draw.choices(words, k=draw.randint(4, 14))
        rows[" ".join(row)] = " ".join(WORDS[word] for word in row)
    return list(rows), list(rows.values())


def write(folder: Path, sides: Sides, name: str = "train") -> dict[str, Path]:
    """Write both sides; returns arguments for `doctor`."""
    prefix = "" if name == "train" else f"{name}_"
    paths = {f"{prefix}{side}": folder / f"{name}.{code}" for side, code in (("source", "de"), ("target", "en"))}
    for path, lines in zip(paths.values(), sides, strict=True):
        path.write_bytes("".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape"))
    return paths


def lines_of(diagnosis: Diagnosis) -> dict[str, list[int]]:
    """The findings by code; each code occurs once."""
    every = {one.code: list(one.lines) for one in diagnosis.findings}
    assert len(every) == len(diagnosis.findings)
    return every


def test_clean_text_has_no_fault(tmp_path: Path) -> None:
    valid = write(tmp_path, sentences(40, 1), "valid")
    diagnosis = doctor(**write(tmp_path, sentences(400)), **valid, **TINY)
    assert (diagnosis.findings, diagnosis.worst, diagnosis.status) == ([], None, 0)
    assert str(diagnosis).endswith("nothing to mend")
    assert diagnosis.figures["learned_loss"] < 0.1


def _swap(sides: Sides, lines: list[int]) -> None:
    for line in lines:
        sides[0][line - 1], sides[1][line - 1] = sides[1][line - 1], sides[0][line - 1]


def _set(sides: Sides, side: int, line: int, text: str) -> None:
    sides[side][line - 1] = text


FAULTS: dict[str, tuple[Callable[[Sides], object], dict[str, list[int]]]] = {
    "a line too few": (lambda s: s[1].pop(), {"unequal-lines": [400]}),
    "not UTF-8": (lambda s: _set(s, 1, 17, "the \udcff dog"), {"not-utf8": [17]}),
    "an empty side": (lambda s: _set(s, 0, 5, " \u3000"), {"empty": [5]}),
    "both empty": (lambda s: [_set(s, side, 9, "") for side in (0, 1)], {"empty-both": [9]}),
    "a copied source": (lambda s: _set(s, 1, 33, s[0][32]), {"equal-sides": [33]}),
    "exchanged": (lambda s: _swap(s, [12, 200, 301]), {"swapped-pairs": [12, 200, 301]}),
    "far too long": (lambda s: _set(s, 1, 50, f"{s[1][49]} " * 6), {"length-ratio": [50]}),
    "a pair again": (lambda s: [_set(s, side, 100, s[side][2]) for side in (0, 1)], {"duplicates": [100]}),
    "two translations": (lambda s: _set(s, 0, 101, s[0][3]), {"many-targets": [4]}),
    "a rare character": (lambda s: _set(s, 0, 77, s[0][76] + " ☃"), {"byte-characters": [77]}),
    "mojibake": (
        lambda s: _set(s, 0, 88, s[0][87].encode().decode("cp1252") + " MÃ¤dchen"),
        {"mojibake": [88], "byte-characters": [88]},
    ),
    "NUL": (lambda s: _set(s, 0, 8, s[0][7] + "\0"), {"nul": [8], "byte-characters": [8]}),
}
"""Faults planted in 400 pairs, and the expected findings."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_nothing_else(fault: str, tmp_path: Path) -> None:
    plant, expected = FAULTS[fault]
    sides = sentences(400)
    plant(sides)
    diagnosis = doctor(**write(tmp_path, sides), **TINY, quick=True)
    assert lines_of(diagnosis) == expected
    assert all(one.remedy and one.count == len(one.lines) for one in diagnosis.findings)


def test_a_missing_line_is_found_though_the_counts_are_equal(tmp_path: Path) -> None:
    source, target = sentences(2000)
    del target[700]
    target.append("the dog runs")
    found_lines = lines_of(doctor(**write(tmp_path, (source, target)), **TINY, quick=True))
    assert list(found_lines) == ["misaligned"]
    assert found_lines["misaligned"][0] == 701


def test_a_block_that_is_shifted_is_found_though_lines_before_and_behind_it_are_not(tmp_path: Path) -> None:
    source, target = sentences(2000)
    target[900:1100] = [*target[901:1100], target[900]]
    (one,) = doctor(**write(tmp_path, (source, target)), **TINY, quick=True).findings
    assert (one.code, one.severity, one.count, one.lines) == ("misaligned", "error", 200, (901,))
    assert "from about line 901 to 1100 the target of line n seems to stand on line n-1" in one.what
    source, target = sentences(2000)
    target[930:1130] = [*target[931:1130], target[930]]
    (one,) = doctor(**write(tmp_path, (source, target)), **TINY, quick=True).of("misaligned")
    assert one.lines in ((901,), (1001,))


def test_json_has_every_line_and_the_report_the_first_ten(tmp_path: Path) -> None:
    sides, lines = sentences(400), list(range(5, 400, 9))
    for line in lines:
        _set(sides, 1, line, sides[0][line - 1])
    diagnosis = doctor(**write(tmp_path, sides), **TINY, quick=True)
    (found,) = [one for one in diagnosis.as_dict()["findings"] if one["code"] == "equal-sides"]
    assert (list(found["lines"]), found["count"]) == (lines, len(lines))
    (shown,) = [row for row in str(diagnosis).splitlines() if "equal-sides" in row]
    assert shown.endswith(f" (lines {', '.join(map(str, lines[:10]))}, ...)")


def test_the_whole_file_in_the_wrong_language_is_one_finding(tmp_path: Path) -> None:
    """Detected by the file names, and for validation files by the training text, whatever their names."""
    source, target = sentences(400)
    (one,) = doctor(**write(tmp_path, (target, source)), **TINY, quick=True).findings
    assert (one.code, one.severity) == ("swapped-files", "error")
    (one,) = doctor(**write(tmp_path, (source, source[::-1])), **TINY, quick=True, target_language="en").findings
    assert (one.code, "'en'" in one.what, "de" in one.what) == ("wrong-language", True, True)
    train = write(tmp_path, (source, target))
    valid = write(tmp_path, sentences(40, 1)[::-1], "valid")
    codes = {"source_language": "xx", "target_language": "yy"}
    (one,) = doctor(**train, **valid, **codes, **TINY, quick=True).findings
    assert (one.code, str(tmp_path / "valid.de") in one.where) == ("swapped-files", True)


UNKNOWN = {"source_language": "xx", "target_language": "yy"}
"""Languages that are not guessed: only the training text tells the sides apart."""


def corpus_of(folder: Path, sides: Sides, name: str, *, turned: bool = False, **languages: str) -> dict[str, Any]:
    """Write both sides; returns them as one of several corpora, the first side as its target if it is turned."""
    files = list(write(folder, sides, name).values())
    return dict(zip(("source", "target"), files[::-1] if turned else files, strict=True)) | languages


def swapped(diagnosis: Diagnosis) -> list[str]:
    """The names of what seems to be in another language or order than it should be."""
    codes = ("swapped-files", "swapped-pairs", "wrong-language")
    return [Path(one.where.split(" + ")[0]).stem for one in diagnosis.findings if one.code in codes]


def test_held_out_text_is_judged_by_training_text_from_which_something_is_learned(tmp_path: Path) -> None:
    corpora = corpus_of(tmp_path, sentences(50, 5), "few"), corpus_of(tmp_path, sentences(400), "many")
    valid = corpus_of(tmp_path, sentences(40, 1)[::-1], "valid")
    assert swapped(doctor(corpus=corpora, valid=(valid,), **UNKNOWN, **TINY, quick=True)) == ["valid"]


def test_held_out_text_of_the_opposite_direction_is_judged_by_its_own_order(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, sentences(400), "train", **UNKNOWN)
    opposite = {"source_language": "yy", "target_language": "xx"}
    valid = (
        corpus_of(tmp_path, sentences(40, 1), "right", **UNKNOWN),
        corpus_of(tmp_path, sentences(40, 2), "right-opposite", turned=True, **opposite),
        corpus_of(tmp_path, sentences(40, 3), "wrong", turned=True, **UNKNOWN),
        corpus_of(tmp_path, sentences(40, 4), "wrong-opposite", **opposite),
    )
    found = doctor(corpus=(corpus,), valid=valid, **TINY, quick=True)
    assert swapped(found) == ["wrong", "wrong-opposite"]
    assert {one.code for one in found.findings} == {"swapped-files"}


def test_names_of_files_tell_the_directions_of_several_corpora(tmp_path: Path) -> None:
    corpora = corpus_of(tmp_path, sentences(400), "a"), corpus_of(tmp_path, sentences(400, 1), "b", turned=True)
    valid = (corpus_of(tmp_path, sentences(40, 2), "valid", turned=True),)
    assert swapped(doctor(corpus=corpora, valid=valid, **TINY, quick=True)) == []
    assert swapped(doctor(corpus=corpora[:1], valid=valid, **TINY, quick=True)) == ["valid"]


def test_sides_that_have_nothing_to_do_with_each_other_are_found(tmp_path: Path) -> None:
    source, target = sentences(1000)
    random.Random(3).shuffle(target)
    (one,) = doctor(**write(tmp_path, (source, target)), **TINY, quick=True).of("unrelated")
    assert (one.severity, one.count) == ("error", 1000)
    source.sort(key=len)
    target.sort(key=len)
    assert not doctor(**write(tmp_path, (source, target)), **TINY, quick=True).of("unrelated")


def test_utf_16_is_named_as_such(tmp_path: Path) -> None:
    """Its lines are not UTF-8, hold NUL, or both; the few lines that look like text are not judged."""
    files = write(tmp_path, sentences(400))
    files["source"].write_bytes(files["source"].read_text(encoding="utf-8").encode("utf-16"))
    diagnosis = doctor(**files, **TINY, quick=True)
    named = [one for one in diagnosis.findings if one.where == str(files["source"])]
    assert {one.code for one in named} == {"not-utf8", "nul"}
    assert all("UTF-16" in one.remedy for one in named)
    assert not {"wrong-language", "swapped-files", "swapped-pairs"} & {one.code for one in diagnosis.findings}


def test_a_few_words_are_no_evidence(tmp_path: Path) -> None:
    diagnosis = doctor(**write(tmp_path, (["Guten Morgen, Welt!"], ["Good morning, world!"])), **TINY, quick=True)
    assert (diagnosis.findings, "1 usable pair" in diagnosis.looked[0]) == ([], True)


def test_leaks_are_told_apart(tmp_path: Path) -> None:
    train, valid, test = sentences(400), sentences(40, 1), sentences(40, 2)
    for side in (0, 1):
        valid[side][1] = train[side][9]
        valid[side][3] = f" «{train[side][19].upper().replace(' ', '  ')}»!"
        test[side][6] = valid[side][30]
    valid[0][5] = train[0][29].replace("ein", "EIN")
    files = {**write(tmp_path, train), **write(tmp_path, valid, "valid"), **write(tmp_path, test, "test")}
    diagnosis = doctor(**files, **TINY, quick=True)
    places = {(one.code, Path(one.where.split(" + ")[0]).stem): one.lines for one in diagnosis.findings}
    assert places == {
        ("leaked-pairs", "valid"): (2,),
        ("leaked-variants", "valid"): (4,),
        ("leaked-sources", "valid"): (6,),
        ("leaked-pairs", "test"): (7,),
    }
    (one,) = [one for one in diagnosis.of("leaked-pairs") if one.lines == (2,)]
    assert "line 2 is line 10 of" in one.what
    assert diagnosis.worst == "error"


def test_leaks_of_every_validation_file_are_found(tmp_path: Path) -> None:
    train, first, second, test = (sentences(count, seed) for seed, count in enumerate((400, 40, 40, 40)))
    for side in (0, 1):
        second[side][1] = train[side][9]
        test[side][6] = second[side][30]
    valid = corpus_of(tmp_path, first, "first"), corpus_of(tmp_path, second, "second")
    diagnosis = doctor(**write(tmp_path, train), valid=valid, **write(tmp_path, test, "test"), **TINY, quick=True)
    places = {(one.code, Path(one.where.split(" + ")[0]).stem): one.lines for one in diagnosis.findings}
    assert places == {("leaked-pairs", "second"): (2,), ("leaked-pairs", "test"): (7,)}
    assert [line.split(": ")[0] for line in diagnosis.looked[:4]] == ["text", *["validation pairs"] * 2, "test pairs"]


@pytest.mark.parametrize("form", ["gz", "tsv", "jsonl"])
def test_other_formats_have_the_same_faults(form: str, tmp_path: Path) -> None:
    sides = sentences(400)
    for fault in ("exchanged", "a copied source", "far too long", "a pair again", "two translations"):
        FAULTS[fault][0](sides)
    plain = doctor(**write(tmp_path, sides), **TINY, quick=True)
    assert len(lines_of(plain)) == 5
    if form == "gz":
        files = {name: Path(f"{path}.gz") for name, path in write(tmp_path, sides).items()}
        for path in files.values():
            path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
    else:
        files = {"source": tmp_path / f"pairs.{form}"}
        rows = zip(*sides, strict=True)
        make: dict[str, Callable[[str, str], str]] = {
            "tsv": lambda s, t: f"{s}\t{t}\n",
            "jsonl": lambda s, t: json.dumps({"source": s, "target": t}) + "\n",
        }
        files["source"].write_text("".join(make[form](*row) for row in rows), encoding="utf-8")
    assert lines_of(doctor(**files, **TINY, quick=True)) == lines_of(plain)


def test_what_cannot_be_read_is_a_finding_and_what_is_not_there_an_error(tmp_path: Path) -> None:
    files = write(tmp_path, sentences(100))
    files["target"].write_bytes(gzip.compress(files["target"].read_bytes())[:-20])
    (one,) = doctor(**files).findings
    assert (one.code, one.severity) == ("unreadable", "error")
    files["target"].unlink()
    with pytest.raises(DataError, match="no such file"):
        doctor(**files)
    with pytest.raises(ConfigurationError, match="nothing to check"):
        doctor()
    with pytest.raises(ConfigurationError, match="source is given without target"):
        doctor(source=files["source"])
    with pytest.raises(ConfigurationError, match="test_source is given without test_target"):
        doctor(**write(tmp_path, sentences(100)), test_source=files["source"])
    with pytest.raises(FormatError):
        doctor(tmp_path)


def test_what_is_held_out_is_read_twice_so_it_is_no_pipe(tmp_path: Path) -> None:
    files = {**write(tmp_path, sentences(100)), **write(tmp_path, sentences(9, 1), "valid")}
    files["valid_target"].unlink()
    os.mkfifo(files["valid_target"])
    with pytest.raises(DataError, match=r"valid\.en: is a pipe"):
        doctor(**files, **TINY, quick=True)


def test_quick_reads_the_beginning(tmp_path: Path) -> None:
    files = write(tmp_path, sentences(300))
    corpus = ParallelReader(files["source"], files["target"], limit=120)
    assert (len(TextPass(corpus)), corpus.complete, corpus.lines) == (120, False, (120, 120))
    corpus = ParallelReader(files["source"], files["target"], limit=300)
    assert (len(TextPass(corpus)), corpus.complete) == (300, True)


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
def test_quick_reads_the_beginning_of_a_file_of_pairs(form: str, tmp_path: Path) -> None:
    """Shares are those of what is read, and the rest may be anything."""
    path, sides = tmp_path / f"pairs.{form}", sentences(300)
    sides[0][4] = " "
    pairs = zip(*sides, strict=True)
    rows = ["\t".join(pair) if form == "tsv" else json.dumps({"source": pair[0], "target": pair[1]}) for pair in pairs]
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    for limit in (300, 301):
        corpus = ParallelReader(path, None, limit=limit)
        assert (len(TextPass(corpus)), corpus.complete, corpus.lines) == (299, True, (300, 300))
    with path.open("ab") as stream:
        stream.write(b"\xff\n" * 300)
    corpus = ParallelReader(path, None, limit=120)
    one = TextPass(corpus)
    assert (len(one), corpus.complete, corpus.lines) == (119, False, (120, 120))
    found = {finding.code: (finding.count, finding.total) for finding in one.findings(("en", "de"))}
    assert found["empty"] == (1, 120)
    assert "swapped-files" in found
    with pytest.raises(DataError, match="not valid UTF-8"):
        TextPass(ParallelReader(path, None))


@pytest.mark.parametrize("limit", [None, 9])
def test_a_nul_in_a_file_of_pairs_is_found(limit: int | None, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\nc\0\td\ne\tf\n", encoding="utf-8")
    corpus = ParallelReader(path, None, limit=limit)
    assert sum(len(chunk.lines) for chunk in corpus.chunks()) == 3
    assert {code: fault.lines for code, fault in corpus.faults.locations.items()} == {(path, NUL): [2]}


def test_a_file_without_pairs_is_an_error_however_much_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("source\ttarget\n", encoding="utf-8")
    for limit in (None, 9):
        with pytest.raises(DataError, match=r"pairs\.tsv: (no pair can be used|has nothing that could be a pair)"):
            list(ParallelReader(path, None, limit=limit).chunks())


class _Lossy(BytePairTokenizer):
    """A tokenizer that loses upper case."""

    def encode_batch(self, texts: Any) -> list[list[int]]:
        return super().encode_batch([text.lower() for text in texts])


def test_a_tokenizer_that_loses_text_is_found(tmp_path: Path) -> None:
    source, target = sentences(200)
    files = write(tmp_path, (source, target))
    whole = TextPass(ParallelReader(files["source"], files["target"]))
    good = Tokenizer.learn([*source, *target], 420)
    sound, figures = check_tokens((good, good), whole.characters, whole.sample, "text")
    assert sound == []
    assert figures["source_tokens_per_word"] == sum(map(len, good.encode_batch(source))) / len(" ".join(source).split())
    (one,) = check_tokens((_Lossy(good.parts), good), whole.characters, whole.sample, "text")[0]
    upper = [line for line, text in enumerate(source, 1) if text != text.lower()]
    assert (one.code, one.count, list(one.lines)) == ("round-trip", len(upper), upper)


def test_subwords_of_another_script_are_found(tmp_path: Path) -> None:
    source, target = sentences(200)
    files = write(tmp_path, (source, target))
    whole = TextPass(ParallelReader(files["source"], files["target"]))
    greek = Tokenizer.learn(["αβγδεζηθικλμνξοπρστυφχψω"] * 9, 300)
    own = Tokenizer.learn([*source, *target], 420)
    findings, figures = check_tokens((own, greek), whole.characters, whole.sample, "text")
    assert {one.code for one in findings} == {"byte-characters", "many-tokens"}
    letters = sum(len(text) - text.count(" ") for text in target)
    (one,) = [one for one in findings if one.code == "byte-characters"]
    assert (one.count, one.total, one.severity) == (
        letters,
        sum(map(len, target)),
        "warning",
    )
    assert figures["target_bytes_share"] == letters / sum(map(len, target))


def test_severity_is_a_matter_of_shares() -> None:
    shares = {0.001: "note", 0.01: "warning", 0.5: "error"}
    assert {
        share: make_finding("equal-sides", "x", round(1000 * share), 1000, "").severity for share in shares
    } == shares
    assert all(kind.remedy for kind in FINDING_KINDS.values())


def test_what_is_copied_is_not_missed_in_the_subwords(tmp_path: Path) -> None:
    """Numbers are one symbol, so their digits need no entries; a number on one side alone does."""
    rules = parse_rules(["numbers"])
    source, target = ([f"{text} {number}" for number, text in enumerate(side, 1000)] for side in sentences(200))
    own = learn_with_placeholders([*sentences(200)[0], *sentences(200)[1]], 420, symbols=["☃"], rules=rules)
    for last, counts in ((target[-1], []), ("12", [4, 2])):  # without a partner, 1199 and 12 stay as they are
        files = write(tmp_path, (source, [*target[:-1], last]))
        whole = TextPass(ParallelReader(files["source"], files["target"]))
        findings, _ = check_tokens((own, own), whole.characters, whole.sample, "text")
        found = [one.count for one in findings if one.code == "byte-characters"]
        assert found == counts
        assert not any(one.code == "round-trip" for one in findings)
