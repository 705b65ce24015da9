"""The flags of ``multihead translate`` that choose a search: each does what the same setting does in Python."""

import pytest

from multihead import Translator

GIVEN = ["eins zwei drei", "", "vier fünf", "sieben"]
BYTES = "".join(line + "\n" for line in GIVEN).encode()


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        (("--length-penalty", "wu", "--alpha", 0.6), {"length_penalty": "wu", "alpha": 0.6}),
        (("--stopping", "ahead"), {"stopping": "ahead"}),
        (("--stopping", "patience", "--patience", 0.5), {"stopping": "patience", "patience": 0.5}),
        (("--no-repeat", 1), {"no_repeat": 1}),
        (("--without", "one", "--without", "four five"), {"without": ["one", "four five"]}),
        (("--groups", 2, "--diversity", 3), {"groups": 2, "diversity": 3.0}),
    ],
)
def test_a_flag_is_the_setting_of_that_name(call, trained, flags, settings):
    translator = Translator.load(trained).searching(beam=4, **settings)
    ended = call("translate", trained, "--beam", 4, "--n-best", 2, *flags, given=BYTES)
    assert ended.status == 0
    expected = [
        f"{number}\t{translation.score:.4f}\t{translation.text}"
        for number, found in enumerate(translator.n_best(GIVEN, 2), start=1)
        for translation in found
    ]
    assert ended.text.split("\n")[:-1] == expected


def test_a_file_is_searched_in_the_same_way(call, trained, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_bytes(BYTES)
    files = ("--input", source, "--output", output, "--beam", 2)
    assert call("translate", trained, *files, "--no-repeat", 1).status == 0
    expected = Translator.load(trained).searching(beam=2, no_repeat=1).translate(GIVEN)
    assert output.read_text(encoding="utf-8").split("\n")[:-1] == expected


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--beam", 4, "--groups", 3), ["groups must divide the beam", "3 groups and a beam of 4"]),
        (("--patience", 0), ["patience", "greater than 0"]),
        (("--no-repeat", -1), ["no_repeat", "got -1"]),
        (("--without", " "), ["without", "no characters"]),
        (("--diversity", "nan"), ["diversity", "finite"]),
        (("--stopping", "soon"), ["soon", "exact"]),
    ],
)
def test_what_cannot_be_asked(call, trained, flags, words):
    ended = call("translate", trained, *flags, given=b"eins\n")
    assert ended.status == 2
    for word in words:
        assert word in ended.err


def test_a_draft_gives_the_same_lines(call, trained):
    plain = call("translate", trained, "--beam", 1, given=BYTES)
    drafted = call("translate", trained, "--beam", 1, "--draft", trained, given=BYTES)
    assert (drafted.status, drafted.text) == (0, plain.text)
    for flags in ((), ("--beam", 1, "--no-repeat", 2), ("--sample", 2)):
        ended = call("translate", trained, "--draft", trained, *flags, given=BYTES)
        assert (ended.status, ended.text, ended.err.count("\n")) == (2, "", 1)
        assert "add --beam 1, or leave it out" in ended.err
    ended = call("translate", trained, "--draft", trained, "--engine", "local:2", "--input", "x", "--output", "y")
    assert "--draft is for this process alone" in ended.err
