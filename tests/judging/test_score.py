"""Scores equal those of the search, in any batch, and sum to 1."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from multihead import Translator
from multihead.bundle import load_bundle, save_bundle
from multihead.data.batching import collate_source
from multihead.decoding.beam import beam_search
from multihead.decoding.search import Search, wu
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError, InputError
from multihead.judging.score import Perplexity, ScoredPair, score
from multihead.lines import windows
from multihead.models.transformer import Transformer
from multihead.text.tokenizer import BytePairTokenizer
from multihead.translating import forced
from multihead.translating.forced import LONGEST, forced_log_probabilities
from multihead.translating.searching import symbols_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def recurrent(numbers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few updates: its output is nonsense, but has probabilities."""
    output = tmp_path_factory.mktemp("score") / "run"
    settings = {name: value for name, value in numbers.settings.items() if name not in ("heads", "inner")}
    network = {"model": "recurrent", "cell": "gru", "attend": "before", "score": "additive"}
    short = {"updates": 6, "validate_every": 6, "log_every": 6}
    numbers.learn(output, **{**settings, **network, **short, **numbers.train, **numbers.valid})
    return output


@pytest.fixture(scope="module", params=["transformer", "recurrent"])
def run(request: pytest.FixtureRequest, trained: Path) -> Path:
    return trained if request.param == "transformer" else request.getfixturevalue("recurrent")


@pytest.fixture(scope="module")
def translator(run: Path) -> Translator:
    return Translator.load(run)


def test_a_hypothesis_scores_what_its_search_said(translator: Translator, numbers: Any) -> None:
    """For any token sequence, finished or cut; for the tokenizer's own sequence, its text gives the same."""
    bundle, sources = translator.bundle, [source for source, _ in numbers.pairs(10, 70)]
    tokenizer, read = bundle.target_tokenizer, bundle.source_tokenizer.encode_batch(sources)
    padded, lengths = collate_source(read, BytePairTokenizer.pad_id, BytePairTokenizer.eos_id)
    task = SearchTask(symbols_of(tokenizer), max_lengths=12, n_best=4)
    search = Search(beam=4, alpha=1.5, length_penalty="wu")
    usual = 0
    for source, ids, hypotheses in zip(
        sources, read, beam_search(bundle.model, padded, lengths, task, search), strict=True
    ):
        values = forced_log_probabilities(bundle.model, tokenizer, [ids] * 4, [list(one.tokens) for one in hypotheses])
        for one, found in zip(hypotheses, values, strict=True):
            assert sum(found if one.finished else found[:-1]) == pytest.approx(one.log_probability, abs=1e-4)
            text = tokenizer.decode(one.tokens)
            if one.finished and tuple(tokenizer.encode(text)) == one.tokens:
                usual += 1
                (scored,) = score(translator, [source], [text])
                assert scored.score(1.5, wu) == pytest.approx(one.score, abs=1e-4)
    assert usual > 10 or not isinstance(bundle.model, Transformer)


def test_scores_are_those_of_the_whole_forward_pass(translator: Translator, numbers: Any) -> None:
    """The definition, without cache and steps."""
    bundle = translator.bundle
    for source, target in [*numbers.pairs(5, 71), ("", "one"), ("eins", ""), ("\u2028", "Ωmega \t ")]:
        (scored,) = score(translator, [source], [target])
        ids = [*bundle.target_tokenizer.encode(target), 3]
        read = torch.tensor([[*bundle.source_tokenizer.encode(source), 3]])
        with torch.no_grad():
            logits = bundle.model(read, torch.tensor([read.shape[1]]), torch.tensor([[2, *ids[:-1]]])).logits[0]
        wanted = logits.log_softmax(-1)[torch.arange(len(ids)), ids].tolist()
        assert scored.log_probabilities == pytest.approx(wanted, abs=1e-4)
        assert scored.tokens == bundle.target_tokenizer.pieces(ids)


def test_what_is_in_the_batch_never_matters(translator: Translator, numbers: Any) -> None:
    pairs = [*numbers.pairs(12, 72), ("", ""), ("", "one two"), ("sechs", ""), (" ", "\t"), ("eins " * 12, "one")]
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    told: list[int] = []
    together = score(translator, sources, targets, progress=told.append)
    assert sum(told) == len(pairs)
    for budget in (1, 40):
        for one, other in zip(together, score(translator, sources, targets, batch_tokens=budget), strict=True):
            assert one.tokens == other.tokens
            assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-5)
    for (source, target), one in zip(pairs, together, strict=True):
        (alone,) = score(translator, [source], [target])
        assert alone.log_probabilities == pytest.approx(one.log_probabilities, abs=1e-5)
    assert [one.tokens for one in together].count([]) == 2
    assert together[12] == together[15] == ScoredPair([], [])
    assert together[12].score(1.0) == 0


def test_the_probabilities_of_all_strings_add_up(translator: Translator) -> None:
    """The probabilities of all strings of at most one symbol and all prefixes of two sum to 1."""
    tokenizer, model = translator.bundle.target_tokenizer, translator.bundle.model
    size, source = model.config.target_vocab, translator.bundle.source_tokenizer.encode("eins zwei")
    symbols = [symbol for symbol in range(size) if symbol != tokenizer.eos_id]
    strings = [[], *([symbol] for symbol in symbols)]
    found = forced_log_probabilities(model, tokenizer, [source] * len(strings), strings, 40_000)
    ended = math.fsum(math.exp(math.fsum(values)) for values in found)
    # Prefixes y_1 y_2 that do not end have the total probability p(y_1) (1 - p(end | y_1)).
    going = math.fsum(math.exp(first) * -math.expm1(end) for first, end in found[1:])
    assert ended + going == pytest.approx(1, abs=1e-5)
    assert ended > 0 < going


def test_a_pair_whose_attention_would_take_gigabytes_is_refused(translator: Translator) -> None:
    short, long = "eins", "eins " * LONGEST
    with pytest.raises(InputError, match=r"pair 2 of 2 has .* split it into sentences"):
        score(translator, [short, long], [short, short])


def test_perplexity_is_its_equation(translator: Translator, numbers: Any) -> None:
    pairs = [*numbers.pairs(7, 73), ("", "")]
    scored = score(translator, *map(list, zip(*pairs, strict=True)))
    total = Perplexity()
    for part in (scored[:3], scored[3:]):
        total.add(part)
    values = [value for one in scored for value in one.log_probabilities]
    assert total.tokens == len(values)
    assert total.value == pytest.approx(math.exp(-sum(values) / len(values)))
    assert math.isnan(Perplexity().value)
    assert Perplexity(-1e9, 3).value == math.inf
    with pytest.raises(ConfigurationError, match=r"an alpha of 1000\.0 is too large"):
        ScoredPair(["a", "b", "c"], [-1.0, -1.0, -1.0]).score(1000.0)


def test_what_cannot_be_scored(translator: Translator) -> None:
    with pytest.raises(InputError, match="got 1 targets for 2 sources"):
        score(translator, ["a", "b"], ["c"])
    with pytest.raises(InputError, match="two lists"):
        score(translator, "a", "b")
    with pytest.raises(ConfigurationError, match="batch_tokens"):
        score(translator, ["a"], ["b"], batch_tokens=0)
    assert score(translator, [], []) == []


# ------------------------------------------------------------------------------------------ the command


@pytest.fixture
def files(numbers: Any, tmp_path: Path) -> dict[str, Path]:
    pairs = [*numbers.pairs(6, 74), ("", ""), ("eins", ""), ("", "two")]
    written: dict[str, Path] = numbers.write(tmp_path, "given", pairs)
    return written


def test_a_line_for_each_pair(call: Any, translator: Translator, run: Path, files: dict[str, Path]) -> None:
    sources, targets = (path.read_text("utf-8").split("\n")[:-1] for path in files.values())
    scored = score(translator, sources, targets)
    flags = [word for side, path in files.items() for word in (f"--{side}", path)]
    plain = call("score", run, *flags, "--perplexity")
    assert (plain.status, len(plain.text.split("\n"))) == (0, len(sources) + 1)
    assert [float(line) for line in plain.text.split()] == pytest.approx(
        [one.log_probability for one in scored], abs=1e-3
    )
    assert float(plain.text.split()[6]) == 0
    total = Perplexity()
    total.add(scored)
    word, value, *rest = plain.err.split()
    assert (word, float(value)) == ("perplexity", pytest.approx(total.value, abs=1e-3))
    assert rest[0] == f"({total.tokens}"
    piped = "".join(f"{source}\t{target}\n" for source, target in zip(sources, targets, strict=True)).encode()
    assert call("score", run, given=piped.replace(b"\n\t\n", b"\n\n")).out == plain.out


def test_empty_pairs_have_no_perplexity(call: Any, run: Path) -> None:
    scored = call("score", run, "--perplexity", given=b"\t\n\t\n")
    assert (scored.status, scored.text, scored.err) == (0, "0.0000\n0.0000\n", "no perplexity: every line is empty\n")


def test_rows_of_tokens_and_normalised_scores(call: Any, translator: Translator, run: Path) -> None:
    given = b"eins zwei\tone \\ two\ndrei\tthree\n\t\n"
    scored = score(translator, ["eins zwei", "drei"], ["one \\ two", "three"])
    rows = [line.split("\t") for line in call("score", run, "--tokens", given=given).text.split("\n")[:-1]]
    assert [row[1::2] for row in rows] == [*(one.tokens for one in scored), []]
    for row in rows:
        assert sum(map(float, row[2::2])) == pytest.approx(float(row[0]), abs=1e-3)
    for flags, wanted in (
        (("--normalize",), lambda one: one.score(translator.search_settings().alpha)),
        (("--alpha", 0.5), lambda one: one.log_probability / len(one.tokens) ** 0.5),
        (("--alpha", 0.5, "--length-penalty", "wu"), lambda one: one.score(0.5, wu)),
    ):
        found = [float(line) for line in call("score", run, *flags, given=given).text.split()]
        assert found == pytest.approx([*map(wanted, scored), 0], abs=1e-3)


@pytest.mark.parametrize("form", ["power", "wu"])
def test_the_command_scores_what_the_command_wrote(
    call: Any, numbers: Any, trained: Path, tmp_path: Path, form: str
) -> None:
    """Scores use the model's length penalty: its alpha and its form."""
    bundle, model = load_bundle(trained), tmp_path / "model"
    search = Search(**{**bundle.generation.model_dump(), "alpha": 0.7, "length_penalty": form})
    save_bundle(model, replace(bundle, generation=search), {}, "Made by a test.")
    sources = [source for source, _ in numbers.pairs(8, 75)]
    given = "".join(source + "\n" for source in sources).encode()
    ended = call("translate", model, "--scores", "--max-source", 0, given=given)  # not split, as in scoring
    rows = [line.split("\t", 2) for line in ended.text.split("\n")[:-1]]
    piped = "".join(f"{source}\t{row[2]}\n" for source, row in zip(sources, rows, strict=True)).encode()
    again = call("score", model, "--normalize", given=piped).text.split()
    assert list(map(float, again)) == pytest.approx([float(row[1]) for row in rows], abs=2e-4)
    assert call("score", model, "--alpha", 0.7, given=piped).text.split() == again
    assert call("score", model, "--length-penalty", form, given=piped).text.split() == again


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"eins\tone\nzwei\n", "standard input:2: expected source TAB target, got a line with 0 TABs"),
        (b"eins\tone\nzwei\ttwo\tzwo\n", "standard input:2: expected source TAB target, got a line with 2 TABs"),
        (b"eins\tone\nf\xfcnf\tfive\n", "standard input:2: not valid UTF-8"),
    ],
)
def test_lines_before_a_fault_are_written(call: Any, trained: Path, given: bytes, said: str) -> None:
    ended = call("score", trained, given=given)
    assert (ended.status, ended.out) == (2, call("score", trained, given=b"eins\tone\n").out)
    assert said in ended.err
    assert ended.err.count("\n") == 1


def test_what_the_command_cannot_be_asked(call: Any, trained: Path, files: dict[str, Path], tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(b"eins\n")
    broken = tmp_path / "broken"
    broken.write_bytes(b"eins\n" * 300 + b"f\xfcnf\n")
    whole = tmp_path / "whole"
    whole.write_bytes(b"one\n" * 301)
    for words, said in (
        (("--source", files["source"]), "--target is missing"),
        (("--source", short, "--target", files["target"]), "has 1 lines but"),
        (("--source", broken, "--target", whole), "broken:301: not valid UTF-8"),
        (("--source", tmp_path / "no", "--target", whole), "no: there is no such file"),
        (("--threads", 0), "--threads: expected at least 1"),
        (("--alpha", -1), "alpha"),
    ):
        ended = call("score", trained, *words)
        assert (ended.status, ended.out) == (2, b"")
        assert said in ended.err


@pytest.mark.parametrize("command", ["score", "align"])
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_pair_that_is_too_long_is_named_by_its_line(
    call: Any, trained: Path, numbers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, side: str
) -> None:
    """After another window, an empty pair, and for `align` a pair with an empty side, which it omits."""
    monkeypatch.setattr(forced, "LONGEST", 8)
    monkeypatch.setattr(windows, "WINDOW", 3)
    usual, many = ("eins", "one"), " ".join(["eins"] * 20)
    long = (many, "one") if side == "source" else ("eins", many)
    skipped = (many, "") if command == "align" else usual
    rows = [usual, usual, usual, skipped, ("", ""), long, usual]
    files = numbers.write(tmp_path, "pairs", rows)
    ended = call(command, trained, *(word for name, path in files.items() for word in (f"--{name}", path)))
    assert (ended.status, ended.text.count("\n")) == (2, 3)
    assert f"{files[side]}:6: has " in ended.err
    ended = call(command, trained, given="".join(f"{source}\t{target}\n" for source, target in rows).encode())
    assert (ended.status, ended.text.count("\n")) == (2, 3)
    assert "standard input:6: has " in ended.err
