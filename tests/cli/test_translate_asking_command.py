"""Flags of ``multihead translate`` beyond the search: each equals the Python call; impossible ones fail at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from multihead import Translator
from multihead.decoding.sharpening import Sharpening
from multihead.judging.guard import translate_guarded
from multihead.judging.guard_signs import GuardSettings
from multihead.translating.consensus import consensus

GIVEN = ["eins zwei drei", "", "vier fünf", "sieben"]
BYTES = "".join(line + "\n" for line in GIVEN).encode()

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(trained)


def lines(ended):
    assert ended.status == 0, ended.err
    return ended.text.split("\n")[:-1]


def rows(found):
    return [f"{number}\t{t.score:.4f}\t{t.text}" for number, row in enumerate(found, start=1) for t in row]


def test_samples(call, trained, translator):
    flags = ("--top-k", 9, "--top-p", 0.95, "--min-p", 0.001, "--epsilon", 0.0001, "--temperature", 1.5, "--seed", 3)
    sharpening = Sharpening(1.5, 9, 0.95, 0.001, 0.0001)
    expected = translator.sample(GIVEN, 4, seed=3, sharpening=sharpening)
    assert lines(call("translate", trained, "--sample", 4, *flags, given=BYTES)) == rows(expected)
    one = call("translate", trained, "--sample", 1, *flags, given=BYTES)
    assert lines(one) == [row[0].text for row in expected]
    chosen = call("translate", trained, "--sample", 4, *flags, "--mbr", "bleu", given=BYTES)
    assert lines(chosen) == [consensus(row, "bleu").text for row in expected]


def test_the_consensus_of_a_beam(call, trained, translator):
    expected = [[consensus(row, drawn=False)] for row in translator.n_best(GIVEN, 4, beam=4)]
    assert lines(call("translate", trained, "--mbr", "chrf", "--beam", 4, "--scores", given=BYTES)) == rows(expected)


def test_several_models(call, trained, translator, noisy):
    """Each flag matters: without any one of them, the scores differ."""
    alone = Translator.load(noisy)

    def found(count, mean):
        return rows(translator.ensemble([alone] * count, mean).n_best(GIVEN, 1, beam=2))

    expected = found(2, "log-probabilities")
    assert expected not in (found(1, "log-probabilities"), found(2, "probabilities"))
    flags = ("--with", noisy, "--with", noisy, "--mean", "log-probabilities")
    assert lines(call("translate", trained, *flags, "--beam", 2, "--scores", given=BYTES)) == expected


@pytest.mark.parametrize("mode", ["mark", "retry"])
def test_the_guard_marks_with_line_numbers(call, trained, translator, mode):
    flags = ("--guard", mode, "--guard-threshold", 0.01, "--guard-closer", "--beam", 1, "--scores")
    given = ["eins zwei", "", "Xylophon"]
    ended = call("translate", trained, *flags, given="".join(line + "\n" for line in given).encode())
    settings = GuardSettings(mode=mode, threshold=0.01, closer=True)
    found = translate_guarded(translator.searching(beam=1), given, settings=settings)
    expected = [
        f"{number}\t{g.translation.score:.4f}\t{g.score:.2f}\t{g.translation.text}" for number, g in enumerate(found, 1)
    ]
    assert lines(ended) == expected
    said = [f"line {number}: {g.remark}" for number, g in enumerate(found, start=1) if g.remark is not None]
    assert [line for line in ended.err.splitlines() if "suspicious" in line] == said
    assert any(remark.startswith("line 3: ") for remark in said)


def test_demands_from_files(call, trained, translator, tmp_path):
    (tmp_path / "prefixes").write_text("two\n\n\nnine\n")
    (tmp_path / "phrases").write_text("zero\n\nsix ||| ten\n\n")
    flags = ("--prefixes", tmp_path / "prefixes", "--phrases", tmp_path / "phrases", "--max-length", 7, "--beam", 2)
    expected = translator.translate(
        GIVEN,
        beam=2,
        max_length=7,
        prefixes=["two", "", "", "nine"],
        phrases=[["zero"], [], [("six", "ten")], []],
    )
    assert lines(call("translate", trained, *flags, given=BYTES)) == expected
    short = call("translate", trained, *flags, given=BYTES + b"eins\n")
    assert (short.status, short.err.count("\n")) == (2, 1)
    assert "prefixes:5: ends here, but the text goes on" in short.err
    bad = call("translate", trained, *flags, given=BYTES[:-7] + b"\xff\n")
    assert (bad.status, bad.text.split("\n")[:-1]) == (2, expected[:3])
    assert "standard input:4: " in bad.err
    assert "prefixes" not in bad.err


def test_every_kind_of_line(call, trained, tmp_path):
    """Empty, CR LF, U+2028, NUL, ten thousand words, no line feed at the end: as many lines come out, in order."""
    long = " ".join(["Eins zwei drei vier."] * 2500)
    given = f"eins\r\n\n \r\nzwei\u2028drei\x0bvier\n\0\n{long}\n\r\nsieben\n\u2029\nzehn".encode()
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_bytes(given)
    ended = call("translate", trained, "--beam", 1, given=given)
    found = lines(ended)
    assert len(found) == given.count(b"\n") + 1 == 10
    assert b"\r" not in ended.out
    assert not any(found[place] for place in (1, 2, 6, 8))
    assert [found[place] for place in (0, 7, 9)] == ["one", "seven", "ten"]
    assert len(found[5].split()) > 5000
    assert "line 6: " in ended.err
    assert "translated in 2,500 parts" in ended.err
    assert call("translate", trained, "--beam", 1, "--input", source, "--output", output).status == 0
    assert output.read_bytes() == ended.out
    few = given.replace(long.encode(), " ".join(["Eins zwei drei vier."] * 3).encode())
    whole = call("translate", trained, "--beam", 1, "--max-source", 0, given=few)
    assert len(lines(whole)) == 10
    assert "parts" not in whole.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--temperature", 2), "--temperature needs --sample"),
        (("--sample", 0), "sample: input should be greater than or equal to 1, got 0"),
        (("--sample", 2, "--top-p", 2), "top_p"),
        (("--sample", 2, "--beam", 3), "--beam does nothing for samples"),
        (("--sample", 2, "--n-best", 2), "--n-best does nothing for samples"),
        (("--sample", 2, "--phrases", "x"), "--phrases does nothing for samples"),
        (("--sample", 2, "--beam", 4, "--groups", 2), "--beam does nothing for samples"),
        (("--diversity", 1), "--diversity needs --groups, of 2 or more"),
        (("--groups", 1, "--diversity", 0), "--diversity needs --groups, of 2 or more"),
        (("--patience", 2), "--patience needs --stopping patience"),
        (("--beam", 4, "--groups", 2, "--phrases", "x"), "--phrases does not work with --groups"),
        (("--sample", 2, "--precision", "int8", "--no-repeat", 2), "no_repeat and without are not compiled"),
        (("--sample", 1, "--mbr", "chrf"), "chooses among several"),
        (("--n-best", 2, "--mbr", "chrf"), "n_best applies to a search"),
        (("--guard-closer",), "--guard-closer needs --guard mark or --guard retry"),
        (("--guard", "mark", "--guard-threshold", 2), "threshold"),
        (("--guard", "retry", "--n-best", 2), "not for several"),
        (("--mean", "probabilities"), "--mean needs --with"),
        (("--with", "nowhere"), "nowhere"),
        (("--resume",), "--resume needs --output"),
        (("--max-source", -1), "max_source"),
        (("--prefixes", "nowhere"), "nowhere: there is no such file"),
    ],
)
def test_what_cannot_be_asked(call, trained, flags, said):
    ended = call("translate", trained, *flags, given=b"eins\n")
    assert ended.status == 2
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert ended.out == b""
