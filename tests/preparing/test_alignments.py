"""Guided alignment: links come from a file or from IBM Model 1, and a head learns them."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from multihead.bundle import load_bundle
from multihead.data.batching import Batch, collate
from multihead.data.store import ParallelStore
from multihead.data.word_links import WordLinks, WordNumbers
from multihead.errors import ConfigurationError, DataError, Interrupted
from multihead.judging.align import AlignmentSettings, align, word_matrix
from multihead.planning.settings import RunConfig
from multihead.preparing.alignments import StoredLinks, pair_links
from multihead.preparing.prepared import PreparedText, open_training_text
from multihead.text.tokenizer import Tokenizer
from multihead.training.context import RunContext
from multihead.translating.translator import Translator

if TYPE_CHECKING:
    from tests.conftest import Numbers

SIZES = {"width": 32, "heads": 2, "inner": 32, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
SHORT = {"batch_tokens": 512, "threads": 1, "precision": "float32", "log_every": 20, "keep_checkpoints": 9}
WISHES: dict[str, Any] = {**SIZES, **SHORT, "updates": 6, "validate_every": 3}
TEXT = "ein  zwei\u3000dreißig, (vier) Zahlen  und\u2028Ähnliches\tüber  ein Wort ein 12 €"


@pytest.fixture
def unchecked(without_checks) -> Iterator[None]:
    with without_checks():
        yield


# ------------------------------------------------------------------------------------------ from words to tokens


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn([TEXT, *("ein zwei und viele " * 3).split("|")], 300, min_frequency=1)


def test_words_are_numbered_as_align_numbers_them(tokenizer: Tokenizer) -> None:
    """Several texts at once, with words of several tokens, and several spaces."""
    draw = random.Random(1)
    words = [*TEXT.split(), "zweiundzwanzig", "x", "日本"]
    texts = [draw.choice((" ", "  ")).join(draw.choices(words, k=draw.randint(1, 7))) for _ in range(40)]
    texts = [*texts, f" {texts[0]} "]
    ids = tokenizer.encode_batch(texts)
    lengths = np.array([len(one) for one in ids])
    found = WordNumbers(tokenizer.entries)(np.concatenate(ids), lengths)
    for text, one, own in zip(texts, ids, np.split(found, np.cumsum(lengths)[:-1]), strict=True):
        matrix = word_matrix(tokenizer.entries, text, one)
        for token, number in enumerate(own.tolist()):
            if matrix[token].any():  # not a space between two others
                assert matrix[token, number] == 1


def test_tokens_before_the_first_word_have_none(tokenizer: Tokenizer) -> None:
    """Such as the symbol of a language."""
    own = tokenizer.encode("ein Wort")
    found = WordNumbers(tokenizer.entries)(np.array([2, *own]), np.array([1 + len(own)]))
    assert found[0] == -1
    assert found[1] == 0
    assert found.max() == 1


def test_pieces_that_end_words_are_numbered_by_what_precedes_them() -> None:
    """As in a list of pieces, after the symbol of a language; each text for itself."""
    entries = [b"", b"Ein ", b"Hu", b"nd ", b"."]
    texts = [[0, 1, 2, 3, 4], [2, 3], [], [4, 1, 3], [0]]
    ids, lengths = np.array([token for text in texts for token in text]), np.array([len(text) for text in texts])
    assert WordNumbers(entries)(ids, lengths).tolist() == [-1, 0, 1, 1, 2, 0, 0, 0, 0, 1, -1]


def batch_of(tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> Batch:
    sides = [tokenizer.encode_batch([pair[side] for pair in pairs]) for side in (0, 1)]
    return collate(ParallelStore.from_lists(*sides), np.arange(len(pairs)), **tokenizer.special_ids)


def test_links_of_words_are_links_of_all_their_tokens(tokenizer: Tokenizer) -> None:
    """Against a loop over matrices of tokens and words; a word with two links shares them."""
    pairs = [("ein Zahlen dreißig,", "und Wort"), ("x", "ein ein"), ("Ähnliches zwei", "zweiundzwanzig x")]
    words = [[(0, 0), (2, 1), (1, 1)], [], [(1, 1), (0, 1), (1, 0), (5, 0), (0, 9)]]
    rows = np.array([row for row, own in enumerate(words) for _ in own])
    both = np.array([link for own in words for link in own])
    numbers = WordNumbers(tokenizer.entries)
    batch = batch_of(tokenizer, pairs)
    links = WordLinks(lambda _: (rows, both[:, 0], both[:, 1]), numbers, numbers, 0.7).of(batch)
    expected = torch.zeros(len(pairs), batch.target_output.shape[1], batch.source.shape[1])
    for row, ((source, target), own) in enumerate(zip(pairs, words, strict=True)):
        matrices = [word_matrix(tokenizer.entries, text, tokenizer.encode(text)) for text in (source, target)]
        for i, j in own:
            if i < matrices[0].shape[1] and j < matrices[1].shape[1]:
                expected[row, : len(matrices[1]), : len(matrices[0])] += torch.outer(
                    matrices[1][:, j], matrices[0][:, i]
                )
    expected /= expected.sum(-1, keepdim=True).clamp(min=1)
    dense = torch.zeros_like(expected)
    dense[links.rows, links.targets, links.sources] = links.shares
    torch.testing.assert_close(dense, expected)
    assert len(links.rows) == int((expected > 0).sum())
    assert links.weight == 0.7
    part, rest = links.part(0, 2), links.part(2, 3)
    assert torch.equal(torch.cat((part.shares, rest.shares)), links.shares)
    assert rest.rows.tolist() == [0] * len(rest.rows)


def test_a_pair_that_is_read_backwards_has_its_links_exchanged() -> None:
    arrays = {"links.bin": np.array([0, 1, 1, 0, 2, 2], np.uint16), "offsets.bin": np.array([0, 2, 2, 3])}
    stored = StoredLinks(arrays, lambda pairs: np.array([2, 0, 0, 1])[pairs], lambda pairs: pairs == 2)
    rows, i, j = stored(np.array([0, 1, 2, 3]))
    assert list(zip(rows.tolist(), i.tolist(), j.tolist(), strict=True)) == [
        *((0, 2, 2), (1, 0, 1), (1, 1, 0)),
        *((2, 1, 0), (2, 0, 1)),
    ]


# ------------------------------------------------------------------------------------------ runs


def turned(numbers: Numbers, folder: Path, count: int, name: str, seed: int) -> dict[str, Path]:
    """Pairs whose target words come last first, and their links; some lines are not pairs."""
    pairs = [(source, " ".join(reversed(target.split()))) for source, target in numbers.pairs(count, seed)]
    lengths = [len(source.split()) for source, _ in pairs]
    links = [" ".join(f"{n - 1 - j}-{j}" for j in range(n)) for n in lengths]
    if name == "train":
        for place in range(5, count, 50):
            pairs[place], links[place] = (" ", "nothing"), "7-7 0-0"
    (folder / f"{name}.links").write_text("".join(f"{line}\n" for line in links), encoding="utf-8")
    return numbers.write(folder, name, pairs)


@pytest.fixture(scope="module")
def turned_text(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("turned")
    train, valid = (turned(numbers, folder, *which) for which in ((500, "train", 3), (8, "valid", 4)))
    turned(numbers, folder, 30, "test", 5)
    return {**train, "valid_source": valid["source"], "valid_target": valid["target"]}


def config_of(run: Path) -> RunConfig:
    return RunConfig.model_validate_json((run / "run.json").read_text(encoding="utf-8"))


def opened(run: Path) -> tuple[PreparedText, WordLinks]:
    config = config_of(run)
    prepared = open_training_text(run, config.data, None)
    assert config.alignments is not None
    return prepared, pair_links(run, config.alignments, 0.5, prepared, RunContext(say=lambda _: None))


def error_rate(run: Path, text: dict[str, Any], settings: AlignmentSettings | None = None) -> float:
    """The alignment error rate (Och & Ney 2003), with sure links alone, on text that the model has not seen."""
    folder = text["source"].parent
    lines = [(folder / f"test.{code}").read_text(encoding="utf-8").splitlines() for code in ("de", "en", "links")]
    found = align(Translator(load_bundle(run)), lines[0], lines[1], settings)
    gold = [{tuple(map(int, link.split("-"))) for link in line.split()} for line in lines[2]]
    hits = sum(len(one & set(other)) for one, other in zip(gold, found, strict=True))
    return 1 - 2 * hits / (sum(map(len, gold)) + sum(map(len, found)))


@pytest.mark.usefixtures("unchecked")
def test_align_uses_the_guided_head(turned_text, numbers, tmp_path) -> None:
    """It aligns better than the other layer long before the model translates."""
    short = {**WISHES, **turned_text, "updates": 60, "validate_every": 60, "learning_rate": 0.01, "warmup": 10}
    said: list[str] = []
    links = turned_text["source"].parent / "train.links"
    numbers.learn(tmp_path / "run", alignments=links, alignment_weight=1.0, say=said.append, **short)
    guided = error_rate(tmp_path / "run", turned_text)
    assert guided < error_rate(tmp_path / "run", turned_text, AlignmentSettings(layer=2)) - 0.1
    assert guided == error_rate(tmp_path / "run", turned_text, AlignmentSettings(layer=1, head=1))
    assert load_bundle(tmp_path / "run").model.config.alignment_layer == 1
    assert any("(alignments " in line for line in said)
    with pytest.raises(ConfigurationError, match="head: expected 1 to 2, got 3"):
        error_rate(tmp_path / "run", turned_text, AlignmentSettings(layer=1, head=3))


@pytest.mark.usefixtures("unchecked")
def test_a_stopped_run_with_cut_words_equals_an_uninterrupted_one(turned_text, numbers, tmp_path) -> None:
    """BPE-dropout segments words anew in each epoch; the file of links is not needed again."""
    links = tmp_path / "links"
    links.write_bytes((turned_text["source"].parent / "train.links").read_bytes())
    wishes = {**WISHES, **turned_text, "bpe_dropout": 0.2, "alignments": links}
    numbers.learn(tmp_path / "whole", **wishes)
    stops = iter((0, 0, 0, 1))
    with pytest.raises(Interrupted, match="after update"):
        numbers.learn(tmp_path / "run", stop_signal=lambda: signal.SIGINT if next(stops, 0) else None, **wishes)
    links.unlink()
    numbers.learn(tmp_path / "run", **wishes)
    whole, resumed = (numbers.contents(tmp_path / n, without=("log.txt", "timing.jsonl")) for n in ("whole", "run"))
    assert {name for name in whole if whole[name] != resumed.get(name)} == set()


@pytest.mark.usefixtures("unchecked")
def test_the_links_of_a_batch_are_those_of_its_lines(turned_text, numbers, tmp_path) -> None:
    numbers.learn(
        tmp_path / "run", alignments=turned_text["source"].parent / "train.links", **{**WISHES, **turned_text}
    )
    prepared, links = opened(tmp_path / "run")
    assert config_of(tmp_path / "run").training.alignment_weight == 0.05
    assert prepared.config.left_out == 10
    batch = links.attached(prepared.batches(config_of(tmp_path / "run").training, (0, 0)).take())
    assert batch.links is not None
    for row in range(len(batch)):
        words = [
            number(ids.numpy()[: length - 1], np.array([length - 1]))
            for number, ids, length in (
                (WordNumbers(prepared.source_tokenizer.entries), batch.source[row], int(batch.source_lengths[row])),
                (
                    WordNumbers(prepared.target_tokenizer.entries),
                    batch.target_output[row],
                    int(batch.target_lengths[row]),
                ),
            )
        ]
        own = batch.links.part(row, row + 1)
        found = {(words[0][s], words[1][t]) for t, s in zip(own.targets.tolist(), own.sources.tolist(), strict=True)}
        assert found == {(words[0].max() - j, j) for j in range(words[1].max() + 1)}


@pytest.mark.parametrize(("learned", "precision", "share"), [("ibm1", 0.8, 0.6), ("ibm1-grow", 0.7, 0.8)])
@pytest.mark.usefixtures("unchecked")
def test_ibm1_links_most_words_of_the_text(turned_text, numbers, tmp_path, learned, precision, share) -> None:
    said: list[str] = []
    numbers.learn(tmp_path / "run", alignments=learned, say=said.append, **{**WISHES, **turned_text})
    prepared, links = opened(tmp_path / "run")
    rows, i, j = links._find(np.arange(len(prepared.train)))
    lengths = [len(prepared.source_tokenizer.decode(prepared.train.source[n].tolist()).split()) for n in range(490)]
    right = sum(a == lengths[row] - 1 - b for row, a, b in zip(rows.tolist(), i.tolist(), j.tolist(), strict=True))
    assert right > precision * len(rows)
    assert right > share * sum(lengths)
    assert any("aligning the words of 490 pairs by IBM Model 1" in line for line in said)
    assert config_of(tmp_path / "run").alignments == learned


# ------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0-0\n" * 599, "has 599 lines of alignments, but the training text has 600"),
        ("0-0\n" * 599 + "0-0 1\n", "links:600: '0-0 1' is not an alignment; expected links such as 0-0 1-2"),
        ("0-0\n" * 599 + "0-70000\n", "links:600: '0-70000' is not an alignment"),
        ("0-0\n" * 300 + "9-0\n" * 300, "links:301: the link 9-0, but the pair has .* words, and 300 of 600 pairs"),
    ],
)
def test_what_is_no_alignment_is_refused(numbers, tmp_path, content, message) -> None:
    (tmp_path / "links").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        numbers.learn(tmp_path / "run", **numbers.train, **numbers.valid, alignments=tmp_path / "links", **WISHES)
    assert not (tmp_path / "run" / "alignments").exists()


def test_text_without_spaces_is_refused_by_ibm1(numbers, tmp_path) -> None:
    pairs = [(source.replace(" ", ""), target) for source, target in numbers.pairs(60, 1)]
    with pytest.raises(ConfigurationError, match=r"the source has 1\.00 words a sentence"):
        numbers.learn(
            tmp_path / "run", **numbers.write(tmp_path, "joined", pairs), **numbers.valid, alignments="ibm1", **WISHES
        )


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"alignments": None, "alignment_weight": 0.1}, "alignment_weight is given without alignments"),
        ({"alignments": None, "alignment_layer": 1}, "alignment_layer is given without alignments"),
        ({"compile": True}, "alignments and compile exclude each other"),
        ({"model": "recurrent"}, "only a Transformer has heads that learn them"),
        ({"alignment_layer": 3}, "alignment_layer must be a layer of the decoder, which has 2, got 3"),
    ],
)
def test_settings_that_do_not_fit_are_refused(numbers, tmp_path, wishes, message) -> None:
    small = SIZES if "model" not in wishes else {"width": 16}
    with pytest.raises(ConfigurationError, match=message):
        numbers.learn(
            tmp_path / "run", **numbers.train, **numbers.valid, **{"alignments": "ibm1", **SHORT, **small, **wishes}
        )
    assert not (tmp_path / "run").exists()


def test_the_command_refuses_a_wrong_line_in_one_line(call, numbers, tmp_path) -> None:
    for name, line in (("weights", "-1"), ("alignments", "0-x")):
        other = {"weights": "1", "alignments": "0-0"}[name]
        (tmp_path / name).write_text(f"{other}\n" * 41 + f"{line}\n" + f"{other}\n" * 558, encoding="utf-8")
        words = [f"--{key.replace('_', '-')}={path}" for key, path in {**numbers.train, **numbers.valid}.items()]
        result = call("train", *words, f"--{name}", tmp_path / name, "--output", tmp_path / "run")
        assert (result.status, result.err.count("\n")) == (2, 1)
        assert f"{tmp_path / name}:42: '{line}' is not a" in result.err
