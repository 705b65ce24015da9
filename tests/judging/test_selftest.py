"""The self-test passes sound models and names batch-dependent lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from multihead import Translator
from multihead.decoding.greedy import greedy_search
from multihead.decoding.task import SearchTask
from multihead.errors import ConfigurationError
from multihead.judging import selftest as module
from multihead.judging.selftest import NetworkWrapper, PathFavoringNetwork, check_batches
from multihead.translating.searching import symbols_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator.load(trained)


@pytest.fixture(scope="module")
def texts(numbers: Any) -> list[str]:
    return [*sorted((source for source, _ in numbers.pairs(12, 90)), key=len)[:4], "", "eins foo"]


class BatchDependent(NetworkWrapper):
    """Adds an amount per row to a symbol's log-probability if there are other rows: results depend on the batch."""

    def __init__(self, inner: Any, amount: float) -> None:
        super().__init__(inner)
        self.amount = amount

    def step(self, tokens: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        log_probabilities, state = self.inner.step(tokens, state)
        rows = torch.arange(len(tokens))[:, None]
        symbols = torch.arange(log_probabilities.shape[1])
        return log_probabilities + self.amount * torch.sin(1.0 + 7 * rows + rows * symbols) * (rows > 0), state


def within(translator: Translator, model: Any, **settings: Any) -> Translator:
    return Translator(replace(translator.bundle, model=model)).searching(**settings)


@pytest.mark.parametrize("plain", [True, False])
def test_a_learned_run_passes(translator: Translator, texts: list[str], plain: bool) -> None:
    told: list[int] = []
    report = check_batches(translator.searching(beam=3), texts, sizes=(2,), plain=plain, progress=told.append)
    assert report.unproved == []
    assert sum(told) == 4 * len(texts)
    assert list(report.passes) == ["in batches of 2", "all together", "all in another order"]
    assert not (plain and report.compiled)
    if report.compiled:  # compiled code is equal bit by bit
        assert report.differing == []


@pytest.mark.parametrize("beam", [1, 3])
def test_a_planted_dependence_is_caught(translator: Translator, texts: list[str], beam: int) -> None:
    noisy = within(translator, BatchDependent(translator.bundle.model, 6.0), beam=1, max_length=8)
    report = check_batches(noisy.searching(beam=beam), texts, sizes=(2,))
    assert report.passes["in batches of 2"] > 0
    assert len(report.unproved) > 2
    assert set(report.unproved) <= set(report.differing) <= set(range(1, len(texts) + 1))
    assert 5 not in report.differing  # the empty line
    for one in report.differences:
        first, second = one.scores
        assert one.proof is not None or abs(first - second) > report.bound


def test_noise_is_a_near_tie_or_not_by_the_bound(translator: Translator, texts: list[str]) -> None:
    """With a bound of twice the noise, every difference is proved to be a near tie; with a bound of zero, none is."""
    amount = 6.0
    noisy = within(translator, BatchDependent(translator.bundle.model, amount), beam=1, max_length=8)
    generous = check_batches(noisy, texts, sizes=(2,), bound=2 * amount)
    strict = check_batches(noisy, texts, sizes=(2,), bound=0.0)
    assert generous.differing == strict.differing != []
    assert generous.unproved == []
    assert strict.unproved == strict.differing
    assert {one.proof for one in generous.differences} <= {"equal scores", "close decision"}


@torch.no_grad()
def test_greedy_search_is_turned_by_exactly_the_gap(translator: Translator) -> None:
    """The smallest bound with which the path wins is the largest gap between the best symbol and the path's."""
    bundle = translator.bundle
    source = torch.tensor([[*bundle.source_tokenizer.encode("eins zwei"), 3]])
    lengths, symbols = torch.tensor([source.shape[1]]), symbols_of(bundle.target_tokenizer)
    other = [*bundle.target_tokenizer.encode("one three"), symbols.end]
    path, state, gap = [symbols.begin, *other], bundle.model.start(source, lengths), 0.0
    for fed, following in zip(path, other, strict=False):
        log_probabilities, state = bundle.model.step(torch.tensor([fed]), state)
        permitted = log_probabilities[0].index_fill(0, torch.tensor(symbols.forbidden), -torch.inf)
        gap = max(gap, float(permitted.max() - permitted[following]))
    assert gap > 0.5
    for bound, reached in ((gap - 0.01, False), (gap + 0.01, True)):
        helped = PathFavoringNetwork(bundle.model, path, bound)
        (found,) = greedy_search(helped, source, lengths, SearchTask(symbols, max_lengths=20))
        assert ([*found.tokens, symbols.end] == other) == reached


@torch.no_grad()
def test_rows_keep_their_place_on_the_path(translator: Translator) -> None:
    """Rows are selected and joined, leave the path and pass its end."""
    model = translator.bundle.model
    source = torch.tensor([[*translator.bundle.source_tokenizer.encode("eins"), 3]])
    helped = PathFavoringNetwork(model, [2, 70, 3], 1.0)
    state = helped.start(source, torch.tensor([source.shape[1]]))
    plain, _ = model.step(torch.tensor([2]), model.start(source, torch.tensor([source.shape[1]])))
    lowered, state = helped.step(torch.tensor([2]), state)
    difference = (plain - lowered)[0]
    assert float(difference[70]) == 0
    assert difference.round(decimals=4).unique().tolist() == [0, 1]
    state = state.select(torch.tensor([0, 0]))
    _, state = helped.step(torch.tensor([70, 71]), state)
    assert state.reached.tolist() == [2, -1]
    both = state.join(state.select(torch.tensor([1, 0])))
    assert (both.rows, both.reached.tolist()) == (4, [2, -1, -1, 2])
    _, after = helped.step(torch.tensor([3, 3, 3, 70]), both)
    assert after.reached.tolist() == [3, -1, -1, -1]
    _, after = helped.step(torch.tensor([3, 3, 3, 3]), after)
    assert after.reached.tolist() == [-1] * 4


@pytest.mark.parametrize("wrong", [{"sizes": (2, 0)}, {"bound": -1.0}, {"bound": float("nan")}], ids=str)
def test_what_cannot_be_asked(translator: Translator, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="sizes of at least 1 and a bound of at least 0"):
        check_batches(translator, ["eins"], **wrong)


# ------------------------------------------------------------------------------------------ the command


def test_the_command_prints_the_number(call: Any, trained: Path, texts: list[str], tmp_path: Path) -> None:
    source = tmp_path / "in.de"
    source.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    words = ("selftest", "batch", trained, "--source", source, "--size", 3, "--beam", 2)
    ended = call(*words)
    assert (ended.status, ended.err) == (0, "")
    found = json.loads(call(*words, "--json").out)
    assert (found["lines"], found["unproved"]) == (len(texts), [])
    assert ended.text.splitlines()[-1] == (
        f"{len(found['differing'])} of {len(texts)} lines differ, {len(found['differing'])} of them near ties"
    )
    plain = json.loads(call(*words, "--json", "--plain").out)
    assert plain["compiled"] is False


def test_the_command_fails_with_the_lines_named(
    call: Any, trained: Path, translator: Translator, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.de"
    source.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    noisy = within(translator, BatchDependent(translator.bundle.model, 6.0), max_length=8)
    monkeypatch.setattr(module.Translator, "load", lambda *_: noisy)
    lines = check_batches(noisy.searching(beam=1), texts, sizes=(2,)).unproved
    ended = call("selftest", "batch", trained, "--source", source, "--size", 2, "--beam", 1)
    assert ended.status == 1
    assert ended.err.endswith(f"depend on the batch by more than rounding: {', '.join(map(str, lines))}\n")
    assert ended.text.count("not a near tie") >= len(lines) > 0
    for words, said in (
        (("--size", 0), "--size: expected at least 1"),
        (("--bound", -1), "a bound of at least 0"),
    ):
        ended = call("selftest", "batch", trained, "--source", source, *words)
        assert (ended.status, ended.out) == (2, b"")
        assert said in ended.err
    source.write_text("")
    assert "is empty" in call("selftest", "batch", trained, "--source", source).err
