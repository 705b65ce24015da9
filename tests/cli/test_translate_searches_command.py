"""The flags of ``multihead translate`` that choose a search: each does what the same setting does in Python."""

import pytest

from multihead import Translator
from multihead.engine.search import RunningSearch

GIVEN = ["eins zwei drei", "", "vier fünf", "sieben", "Xylophon qwertz", "eins Xylophon"]
BYTES = "".join(line + "\n" for line in GIVEN).encode()


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        (("--length-penalty", "wu", "--alpha", 0.6), {"length_penalty": "wu", "alpha": 0.6}),
        (("--stopping", "ahead", "--alpha", 2), {"stopping": "ahead", "alpha": 2.0}),
        (("--stopping", "patience", "--patience", 0.5), {"stopping": "patience", "patience": 0.5}),
        (("--no-repeat", 1), {"no_repeat": 1}),
        (("--without", "one", "--without", "four five"), {"without": ["one", "four five"]}),
        (("--groups", 2, "--diversity", 3), {"groups": 2, "diversity": 3.0}),
    ],
)
def test_a_flag_is_the_setting_of_that_name(call, trained, flags, settings):
    """No flag is ignored: without it, the rows differ."""
    translator = Translator.load(trained)

    def rows(wanted):
        found = translator.searching(beam=4, max_length=20, **wanted).n_best(GIVEN, 2)
        return [f"{number}\t{one.score:.4f}\t{one.text}" for number, row in enumerate(found, start=1) for one in row]

    expected = rows(settings)
    for name in settings:
        assert rows({other: value for other, value in settings.items() if other != name}) != expected, name
    ended = call("translate", trained, "--beam", 4, "--max-length", 20, "--n-best", 2, *flags, given=BYTES)
    assert ended.status == 0
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


def test_a_draft_gives_the_same_lines(call, trained, monkeypatch):
    guesses, end = [], RunningSearch.__exit__

    def counted(self, *args):
        guesses.append(self.guesses)
        end(self, *args)

    monkeypatch.setattr(RunningSearch, "__exit__", counted)
    plain = call("translate", trained, "--beam", 1, given=BYTES)
    assert {*guesses} == {(0, 0)}
    guesses.clear()
    drafted = call("translate", trained, "--beam", 1, "--draft", trained, given=BYTES)
    assert (drafted.status, drafted.text) == (0, plain.text)
    assert sum(right for _, right in guesses) > 0  # the draft is in use
    for flags, said in (
        ((), "and the beam is 5: add --beam 1, or leave out --draft"),
        (("--sample", 2), "and --sample was given: leave out --draft or --sample"),
        (("--beam", 1, "--no-repeat", 2), "and no_repeat and without are not compiled: leave out --draft"),
    ):
        ended = call("translate", trained, "--draft", trained, *flags, given=BYTES)
        assert (ended.status, ended.text, ended.err.count("\n")) == (2, "", 1)
        assert said in ended.err
    ended = call("translate", trained, "--draft", trained, "--engine", "local:2", "--input", "x", "--output", "y")
    assert "--draft works in this process only" in ended.err
