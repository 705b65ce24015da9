"""``multihead tune``, and choosing in ``translate`` and ``evaluate`` with the flags that it prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

from multihead import Translator
from multihead.bundle import save_bundle
from multihead.cli.translate import ChoosingFlags
from multihead.judging import error_rate_training
from multihead.judging.tune import tune
from multihead.translating.companions import Companions
from multihead.translating.request import USUAL, Sampling, TranslationRequest, Weights

pytestmark = pytest.mark.usefixtures("one_thread", "fewer_splits", "fewer_lines")

BYTES = b"eins zwei\n\nsieben\n"


@pytest.fixture
def fewer_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search for weights along two random lines a round; how good they are is tested with `error_rate_training`."""
    monkeypatch.setattr(error_rate_training, "_LINES", 2)


@pytest.fixture(scope="module")
def back(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model itself, which claims to be one of the opposite direction."""
    folder, bundle = tmp_path_factory.mktemp("back") / "model", Translator.load(trained).bundle
    turned = replace(bundle, source_language=bundle.target_language, target_language=bundle.source_language)
    save_bundle(folder, turned, {}, "made for a test")
    return folder


@pytest.fixture
def valid(numbers: Any, tmp_path: Path) -> tuple[object, ...]:
    written = numbers.write(tmp_path, "given", numbers.pairs(8, 91))
    return tuple(word for side in ("source", "target") for word in (f"--{side}", written[side]))


def lines(ended: Any) -> list[str]:
    assert ended.status == 0, ended.err
    return ended.text.split("\n")[:-1]


def test_tuned_weights_are_at_least_as_good_as_each_feature_and_reach_evaluate(
    call: Any, trained: Path, back: Path, valid: tuple[Any, ...]
) -> None:
    flags = ("--beam", 4, "--reverse", back)
    found = json.loads(call("tune", trained, *valid, *flags, "--json").text)
    rows = {tuple(row["features"]): row for row in found["rows"] if not row["usual"]}
    assert len(rows) == 8
    for names, row in rows.items():
        for fewer, other in rows.items():
            if {*fewer} <= {*names}:
                assert row["at_equal_length"] >= other["at_equal_length"]
    everything = rows["forward", "reverse", "agreement", "length"]
    weights = str(Weights(**{**everything["weights"], "reverse": everything["weights"]["reverse"] or 1e-9}))
    again = json.loads(call("evaluate", trained, *valid, *flags, "--weights", weights, "--json").text)
    assert again["measures"][0]["score"] == pytest.approx(everything["bleu"], abs=1e-9)
    source, references = (Path(valid[place]).read_text().splitlines() for place in (1, 3))
    chosen = lines(call("translate", trained, *flags, "--weights", weights, given="\n".join([*source, ""]).encode()))
    counted = sacrebleu.corpus_bleu(chosen, [references])
    assert everything["length"] == counted.sys_len / counted.ref_len
    plain = json.loads(call("evaluate", trained, *valid, "--beam", 4, "--json").text)
    assert plain["measures"][0]["score"] == pytest.approx(rows["forward",]["bleu"], abs=1e-9)


def test_equal_calls_have_equal_results(call: Any, trained: Path, valid: tuple[Any, ...]) -> None:
    translator = Translator.load(trained).searching(beam=3)
    request = TranslationRequest(translator.search_settings(), metric="chrf")
    one, two = (tune(translator, valid[1], valid[3], request) for _ in range(2))
    assert one.as_dict() == two.as_dict()
    lines = str(call("tune", trained, *valid, "--beam", 3).text).split("\n")
    assert lines[: len(str(one).split("\n"))] == str(one).split("\n")
    assert "forward + agreement" in str(one)
    assert [row.features for row in one.rows][-1] == ("forward", "agreement")
    assert one.rows[0].gain == (0.0, 0.0)
    assert one.rows[0].bleu == one.rows[0].held_out
    assert one.rows[0].at_equal_length == one.rows[0].held_out_at_equal_length


def test_translate_chooses_by_weights(call: Any, trained: Path, noisy: Path, back: Path, tmp_path: Path) -> None:
    alone = Translator.load(trained)
    weights = Weights(forward=0.2, reverse=1.0, agreement=0.5, judge=0.3)

    def chosen(translator: Translator) -> list[str]:
        translator = translator.searching(beam=4).with_reverse(Translator.load(back)).with_judge(alone)
        texts = BYTES.decode().split("\n")[:-1]
        found = translator.run(TranslationRequest(translator.search_settings(), texts, weights=weights))
        return [f"{number}\t{one.score:.4f}\t{one.text}" for number, (one,) in enumerate(found, start=1)]

    expected = chosen(alone.ensemble([Translator.load(noisy)]))
    assert expected != chosen(alone)
    flags = ("--with", noisy, "--reverse", back, "--judge", trained, "--beam", 4, "--weights", weights)
    assert lines(call("translate", trained, *flags, "--scores", given=BYTES)) == expected
    text, output = tmp_path / "text", tmp_path / "output"
    text.write_bytes(BYTES)
    assert call("translate", trained, *flags, "--scores", "--input", text, "--output", output).status == 0
    assert output.read_text().split("\n")[:-1] == expected


def test_a_greedy_translation_is_a_candidate_beside_samples(call: Any, trained: Path, valid: tuple[Any, ...]) -> None:
    translator = Translator.load(trained).searching(beam=1)
    asked: dict[str, Any] = {"sampling": Sampling(sample=4), "metric": "chrf", "both": True}
    texts = BYTES.decode().split("\n")[:-1]
    found = translator.run(TranslationRequest(translator.search_settings(), texts, **asked))
    flags = ("--sample", 4, "--beam", 1)
    chosen = lines(call("translate", trained, *flags, "--mbr", "chrf", given=BYTES))
    assert chosen == [row[0].text for row in found]
    request = TranslationRequest(translator.search_settings(), **asked)
    ended = call("tune", trained, *valid, *flags, "--json")
    assert ended.status == 0, ended.err
    assert json.loads(ended.text)["candidates"] == tune(translator, valid[1], valid[3], request).candidates


def test_with_samples_the_own_choice_of_the_search_is_by_its_weight(call: Any, trained: Path) -> None:
    """Samples without a rule that chooses among them are written as rows, and cannot be evaluated."""
    own, flags = Weights(forward=1.0), ChoosingFlags(Sampling(sample=4), "chrf", USUAL, False, Companions())
    said = flags.flags_of_choice(own)
    assert said == f"--weights {own}"
    drawn = lines(call("translate", trained, "--sample", 4, *said.split(), given=BYTES))
    translator = Translator.load(trained)
    request = TranslationRequest(
        translator.search_settings(), BYTES.decode().split("\n")[:-1], sampling=flags.sampling, weights=own
    )
    assert drawn == [row[0].text for row in translator.run(request)]
    assert replace(flags, sampling=None).flags_of_choice(own).startswith("leave out --mbr")


def test_a_judge_is_tuned_like_a_reverse_model(call: Any, trained: Path, back: Path, valid: tuple[Any, ...]) -> None:
    """Alone and beside a reverse model; the flags to copy name the judge, and its usual weight is a reverse model's."""
    flags = ("--beam", 4, "--judge", trained)
    found = json.loads(call("tune", trained, *valid, *flags, "--json").text)
    sets = {tuple(row["features"]) for row in found["rows"]}
    assert sets >= {("forward", "judge"), ("forward", "judge", "agreement")}
    assert not any("reverse" in names for names in sets)
    both = json.loads(call("tune", trained, *valid, *flags, "--reverse", back, "--json").text)
    rows = {tuple(row["features"]): row for row in both["rows"] if not row["usual"]}
    assert len(rows) == 12
    (own,) = [row for row in both["rows"] if row["usual"]]
    assert own["weights"] == USUAL.model_dump()
    assert (own["held_out"], own["held_out_at_equal_length"]) == (own["bleu"], own["at_equal_length"])
    text = call("tune", trained, *valid, *flags).text
    assert "\nusual weights " in text
    assert f"{USUAL.model_copy(update={'reverse': 0.0})}" in text
    assert rows["forward", "reverse", "judge"]["at_equal_length"] >= rows["forward", "judge"]["at_equal_length"]
    usual = lines(call("translate", trained, *flags, "--reverse", back, given=BYTES))
    weights = ("--weights", "forward=1,reverse=0.2,agreement=1,judge=0.2")
    assert lines(call("translate", trained, *flags, "--reverse", back, *weights, given=BYTES)) == usual


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--weights", "reverse=1"), "reverse needs --reverse"),
        (("--reverse", "x", "--weights", "forward=1"), "--reverse does nothing without its weight"),
        (("--weights", "judge=1"), "judge needs --judge"),
        (("--judge", "x", "--weights", "forward=1"), "--judge does nothing without its weight"),
        (("--judge", "nowhere"), "nowhere"),
        (("--weights", "forward"), "--weights: expected text like"),
        (("--reverse", "nowhere"), "nowhere"),
        (("--weights", "forward=1", "--n-best", 2), "n_best applies to a search"),
        (("--weights", "forward=1", "--beam", 1), "the weights choose among several"),
        (("--sample", 2, "--beam", 2), "--beam does nothing for samples"),
        (("--sample", 2, "--mbr", "chrf", "--groups", 2), "--groups does nothing for samples"),
    ],
)
def test_what_cannot_be_asked(call: Any, trained: Path, flags: tuple[object, ...], said: str) -> None:
    ended = call("translate", trained, *flags, given=BYTES)
    assert ended.status == 2
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert ended.out == b""


def test_several_samples_cannot_be_evaluated_and_one_line_cannot_be_tuned(
    call: Any, trained: Path, valid: tuple[Any, ...], tmp_path: Path
) -> None:
    ended = call("evaluate", trained, *valid, "--sample", 3)
    assert (ended.status, "choose among several" in ended.err) == (2, True)
    (tmp_path / "one").write_text("eins\n")
    ended = call("tune", trained, "--source", tmp_path / "one", "--target", tmp_path / "one")
    assert (ended.status, "at least 2 lines" in ended.err) == (2, True)
