"""Whole pre-training runs: resumed runs equal uninterrupted ones, and predictable words are learned."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from multihead import model_folder
from multihead.cli import process
from multihead.cli.fill_mask import fill_mask
from multihead.cli.pretrain import pretrain as command
from multihead.configuration import build
from multihead.data.bert.batches import MaskedBatch
from multihead.errors import ConfigurationError, DataError, FormatError, InputError, Interrupted
from multihead.models.bert.config import BertConfig
from multihead.models.bert.network import Bert
from multihead.models.pointer.config import PointerConfig
from multihead.models.pointer.network import PointerNetwork
from multihead.planning.settings import Choices
from multihead.runs.bert.fill_mask import MaskFiller
from multihead.runs.bert.model import PretrainedBert
from multihead.runs.bert.settings import (
    PretrainFacts,
    PretrainRunConfig,
    PretrainSettings,
    PretrainText,
    choose_rows,
    decide,
)
from multihead.runs.bert.train import pretrain
from multihead.text.bert_words import WordPieces
from multihead.training.config import TrainingConfig
from multihead.training.splitting import Examples, Trainable

TINY = {
    "width": 16,
    "layers": 1,
    "heads": 2,
    "inner": 16,
    "vocab_size": 300,
    "max_tokens": 40,
    "batch_tokens": 400,
    "updates": 20,
    "validate_every": 8,
    "log_every": 3,
    "precision": "float32",
    "threads": 1,
}
TOPICS = 12


def text(count, seed, topics=TOPICS):
    """Documents of three to eight sentences of four words, each word telling the topic of the document."""
    draw, names = random.Random(seed), [chr(97 + topic) for topic in range(topics)]
    documents = []
    for _ in range(count):
        name = draw.choice(names)
        sentence = " ".join(f"{first}{name}" for first in ("no", "ve", "ob", "pla"))
        documents.append(f"{sentence}\n" * draw.randint(3, 8))
    return "\n".join(documents)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(text(80, 0))
    return path


def run(corpus, folder, **wishes):
    """Call `pretrain` without output, on one thread."""
    threads = torch.get_num_threads()
    try:
        quiet = {"say": lambda _: None, "use_threads": torch.set_num_threads, "text": corpus}
        return pretrain(output=folder, **{**quiet, **TINY, **wishes})
    finally:
        torch.set_num_threads(threads)


def after(updates):
    """A signal after a number of updates; while the text is stored it is polled once per document."""
    state = {"left": None}

    def ask():
        if state["left"] is None:
            return None
        state["left"] -= 1
        return 2 if state["left"] < 0 else None

    def heard(line):
        if "going on" in line or re.match(r" +threads", line):
            state["left"] = updates

    return {"stop_signal": ask, "say": heard}


# --------------------------------------------------------------------------- runs


@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"whole_words": True, "next_sentence": False, "dropout": 0.2, "attention_dropout": 0.1, "accumulate": 2},
        {"average": 0.0, "precision": "bfloat16"},
    ],
)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(wishes, corpus, numbers, tmp_path):
    """Stopped twice between validations; all files but timings and printed logs are equal, byte for byte."""
    run(corpus, tmp_path / "whole", **wishes)
    for updates in (5, 6):
        with pytest.raises(Interrupted, match="run the same command again to continue"):
            run(corpus, tmp_path / "stopped", **wishes, **after(updates))
    said = []
    run(corpus, tmp_path / "stopped", say=said.append, **wishes)
    assert said[0] == "going on after update 11 of 20"
    assert kept(numbers, tmp_path / "stopped") == kept(numbers, tmp_path / "whole")


def kept(numbers, folder):
    """The files of a run, without timings, printed logs and earlier checkpoints."""
    contents = numbers.contents(folder, without=("timing.jsonl", "log.txt"))
    return {name: digest for name, digest in contents.items() if "checkpoints/" not in name or "00000020" in name}


def test_a_run_that_broke_off_goes_on_from_its_checkpoint(tiny, corpus, numbers, tmp_path):
    """Without a checkpoint at the break, the updates since the last validation are repeated and equal."""

    def break_off(line):
        if line.strip().startswith("15/20"):
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        run(corpus, tmp_path / "run", say=break_off)
    said = []
    run(corpus, tmp_path / "run", say=said.append)
    assert said[0] == "going on after update 8 of 20"
    assert kept(numbers, tmp_path / "run") == kept(numbers, tiny)


@pytest.fixture(scope="module")
def tiny(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that has learned almost nothing."""
    folder = tmp_path_factory.mktemp("tiny") / "run"
    run(corpus, folder)
    return folder


def test_a_finished_run_says_so_and_changes_nothing(tiny, numbers):
    before, said = numbers.contents(tiny), []
    result = pretrain(output=tiny, say=said.append)
    assert said[0].startswith("this run is finished: 20 updates")
    assert (result.updates, numbers.contents(tiny)) == (20, before)
    assert result.bert().words.digest == PretrainedBert.load(tiny / "best").words.digest


def test_a_run_says_what_it_is_made_of(tiny, corpus):
    config = PretrainRunConfig.model_validate_json((tiny / "run.json").read_text())
    assert config.asked == {"text": str(corpus), **TINY}
    stated = config.text
    assert (stated.documents, stated.held_out, stated.next_sentence, stated.left_out) == (80, 2, True, 0)
    assert (config.model.vocab, config.model.max_positions) == (stated.vocab_size, 40)
    assert config.model.initial_deviation == pytest.approx(0.02 * (768 / 16) ** 0.5, abs=1e-4)
    records = [json.loads(line) for line in (tiny / "log.jsonl").read_text().splitlines()]
    found = [record for record in records if record["kind"] == "validation"]
    assert [record["step"] for record in found] == [8, 16, 20]
    assert set(found[-1]) == {"kind", "step", "loss", "accuracy", "next_sentence"}


def test_a_model_and_a_batch_are_what_training_asks_for():
    assert isinstance(Bert(BertConfig(vocab=9, width=4, layers=1, heads=1, inner=4)), Trainable)
    row = torch.ones(1, 2, dtype=torch.long)
    batch = MaskedBatch(row, row[:, 0], row, row > 0, row, row[:, 0], np.zeros(1, np.int64), 2)
    assert isinstance(batch, Examples)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [({"width": 32}, "width was 16, now 32"), ({"whole_words": True}, "whole_words was not given, now True")],
)
def test_other_settings_do_not_go_on_with_a_run(wishes, words, tiny, corpus):
    with pytest.raises(ConfigurationError, match=words):
        run(corpus, tiny, **wishes)


def test_other_runs_and_folders_are_not_touched(tiny, numbers, corpus, tmp_path):
    before = numbers.contents(tiny)
    with pytest.raises(ConfigurationError, match="a run of `multihead pretrain`, not of a translator"):
        numbers.learn(tiny)
    assert numbers.contents(tiny) == before
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(ConfigurationError, match="not a run"):
        run(corpus, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


# --------------------------------------------------------------------------- text and decisions


@pytest.mark.parametrize(
    ("content", "wishes", "words"),
    [
        ("a b\n", {}, "nothing would be left to learn from"),
        ("a b\n" * 9, {"held_out": 9}, "9 sentences, and 9 would be held out"),
        ("a b\n" * 9, {"next_sentence": True}, "only one document"),
        ("a b\n\n" * 9, {"max_tokens": 4}, "max_tokens: input should be greater"),
        ("a b\n\n" * 9, {"max_positions": 30}, "max_positions is 30, but rows have up to 40"),
        ("a b\n\n" * 9, {"preset": "huge"}, "no preset 'huge' of a BERT"),
        ("a b\n\n" * 9, {"valid_text": "x", "held_out": 3}, "leave out valid_text or held_out"),
    ],
)
def test_what_cannot_be_leaves_nothing_behind(content, wishes, words, tmp_path):
    corpus = tmp_path / "text"
    corpus.write_text(content)
    with pytest.raises(InputError, match=words):
        run(corpus, tmp_path / "run", **{**wishes, "vocab_size": 270})
    assert not (tmp_path / "run").exists()


def test_what_is_not_named_is_asked_for(tmp_path):
    with pytest.raises(ConfigurationError, match="output missing"):
        pretrain()
    with pytest.raises(ConfigurationError, match="text missing"):
        pretrain(output=tmp_path / "run")
    with pytest.raises(DataError, match="no such file"):
        pretrain(output=tmp_path / "run", text=tmp_path / "nothing")


def test_the_end_of_a_single_document_or_another_text_validates(tmp_path):
    """A line that is not UTF-8 is reported."""
    corpus, said = tmp_path / "text", []
    corpus.write_bytes(("a b c\n" * 150).encode() + b"\xff\n" + b"d e\n" * 4)
    few = {"vocab_size": 270, "updates": 1, "validate_every": 1}
    run(corpus, tmp_path / "one", **few, say=said.append)
    config = PretrainRunConfig.model_validate_json((tmp_path / "one" / "run.json").read_text())
    assert (config.text.held_out, config.text.next_sentence, config.text.left_out) == (3, False, 1)
    assert any("text:151: not valid UTF-8" in line for line in said)
    run(corpus, tmp_path / "two", **few, valid_text=corpus)
    config = PretrainRunConfig.model_validate_json((tmp_path / "two" / "run.json").read_text())
    assert config.text.held_out == 0
    assert config.text.valid == config.text.text


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"held_out": 1}, "text: only one document to validate on"),
        ({"held_out": 5}, "text: only one document to learn from"),
        ({"valid_text": "other"}, "other: only one document to validate on"),
    ],
)
def test_pairs_need_two_documents_on_each_side(wishes, words, tmp_path):
    """If requested, they are refused before anything is stored; otherwise there are none."""
    corpus, said = tmp_path / "text", []
    corpus.write_text("a b c\nd e\nf g h\n\n" * 6)
    (tmp_path / "other").write_text("a b\nd e f\n" * 3)
    wishes = {name: tmp_path / value if name == "valid_text" else value for name, value in wishes.items()}
    wishes |= {"vocab_size": 270, "updates": 1, "validate_every": 1}
    with pytest.raises(DataError, match=words):
        run(corpus, tmp_path / "run", **wishes, next_sentence=True, say=said.append)
    assert said == []
    assert not (tmp_path / "run").exists()
    run(corpus, tmp_path / "run", **wishes)
    config = PretrainRunConfig.model_validate_json((tmp_path / "run" / "run.json").read_text())
    assert not config.text.next_sentence
    assert "one document" in config.reasons["next_sentence"]


def test_every_setting_is_part_of_a_decision():
    """One that was read by nothing would be ignored without a word."""
    decided = {*TrainingConfig.model_fields, *BertConfig.model_fields, *PretrainText.model_fields}
    assert {*PretrainSettings.model_fields} - decided == {"output", "preset", "valid_text"}


def test_every_choice_has_a_reason():
    facts = PretrainFacts(
        sentences=10_000, vocab=8000, padding_id=0, batches=50, threads=2, device="cpu", fast_bfloat16=False
    )
    choices = Choices(build(PretrainSettings, {"layers": 3}, "the settings"))
    model, training = decide(choices, facts, 128)
    reasons = choices.reasons
    assert (model.width, model.layers, training.updates, training.warmup) == (128, 3, 2000, 200)
    assert reasons["layers"] == "as asked"
    assert {"width", "learning_rate", "initial_deviation", "preset"} < set(reasons)
    for documents, sentences, fewer, paired in (
        (1, 100, 1, False),
        (100, 100, 2, False),
        (50, 200, 2, True),
        (50, 200, 1, False),
    ):
        assert choose_rows(choices, documents, sentences, fewer)[1] is paired


# --------------------------------------------------------------------------- what is learned


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, without_checks: Any) -> Path:
    """A run on a language in which each hidden word and the next sentence can be predicted."""
    folder = tmp_path_factory.mktemp("learned")
    (folder / "corpus.txt").write_text(text(400, 0))
    (folder / "valid.txt").write_text(text(40, 1))
    sizes = {
        "width": 32,
        "layers": 2,
        "inner": 64,
        "max_tokens": 32,
        "batch_tokens": 512,
        "dropout": 0.0,
        "learning_rate": 0.01,
    }
    long = {"valid_text": folder / "valid.txt", "vocab_size": 360, "updates": 240, "validate_every": 120}
    with without_checks():
        run(folder / "corpus.txt", folder / "run", **sizes, **long)
    return folder / "run"


def test_it_learns_what_can_be_known(learned):
    """One in twelve random documents has the same topic, so next sentences cannot always be told."""
    metrics = json.loads((learned / "best" / "metrics.json").read_text())
    assert metrics["accuracy"] > 0.97
    assert metrics["next_sentence"] > 0.88


def test_it_tells_the_hidden_words_of_every_sentence(learned):
    filler = MaskFiller.load(learned)
    for name in (chr(97 + topic) for topic in range(TOPICS)):
        whole = f"no{name} ve{name} ob{name} pla{name}"
        for word in whole.split():
            (filled,) = filler.fill([whole.replace(word, "[MASK]")])
            assert filled.text == whole
            assert filled.candidates[0][0].word == word


# --------------------------------------------------------------------------- filling


def test_probabilities_are_those_of_the_model(tiny):
    filler = MaskFiller.load(tiny)
    bert, words = filler.bert, filler.words
    (filled,) = filler.fill(["noa [MASK] oba [MASK]"], top=10_000)
    ids = words.encode_with_hidden("noa [MASK] oba [MASK]")
    tokens, lengths = bert.rows([ids])
    with torch.no_grad():
        logits = bert.model(tokens, lengths).words[0, 1:-1][torch.tensor(ids) == words.symbols.hidden].double()
    logits[:, list(words.special)] = -torch.inf
    for candidates, expected in zip(filled.candidates, logits.softmax(-1), strict=True):
        assert len(candidates) == len(words) - len(words.special)
        assert sum(p for _, p in candidates) == pytest.approx(1.0, abs=1e-5)
        assert [p for _, p in candidates] == pytest.approx(
            expected.sort(descending=True).values.tolist()[:-4], abs=1e-6
        )


def test_texts_together_are_texts_alone(tiny):
    filler = MaskFiller.load(tiny)
    texts = ["noa [MASK]", "", "[MASK] vea oba plaa [MASK]", "no word hidden", "[MASK]"]
    for text, filled in zip(texts, filler.fill(texts, top=3), strict=True):
        (alone,) = filler.fill([text], top=3)
        assert filled.text == alone.text
        assert len(filled.candidates) == text.count("[MASK]")
        for one, other in zip(filled.candidates, alone.candidates, strict=True):
            assert [p for _, p in one] == pytest.approx([p for _, p in other], abs=1e-5)
    assert filler.fill(["no word hidden"])[0].text == "no word hidden"


def test_what_cannot_be_filled(tiny):
    filler = MaskFiller.load(tiny)
    with pytest.raises(InputError, match=r"text 2 has \d+ tokens, but this model reads 40 at most"):
        filler.fill(["a", "a [MASK] " * 40])
    with pytest.raises(ConfigurationError, match="top is 0"):
        filler.fill(["[MASK]"], top=0)
    with pytest.raises(FormatError, match="no head that tells words"):
        MaskFiller(PretrainedBert(filler.model, filler.words, ("words",)))


# --------------------------------------------------------------------------- folders


def test_a_foreign_folder_and_ours_fill_alike(tiny, tmp_path):
    ours = PretrainedBert.load(tiny)
    ours.export(tmp_path / "theirs")
    again = PretrainedBert.load(tmp_path / "theirs")
    assert (again.missing, again.model.config) == ((), ours.model.config)
    texts = ["noa [MASK] oba"]
    assert MaskFiller(again).fill(texts) == MaskFiller(ours).fill(texts)
    with pytest.raises(FormatError, match="exists already"):
        ours.export(tmp_path / "theirs")


@pytest.mark.parametrize(
    ("missing", "name"),
    [
        (("pooler", "words", "follows"), "BertModel"),
        (("pooler", "follows"), "BertForMaskedLM"),
        (("words",), "BertForNextSentencePrediction"),
        (("pooler",), "BertForPreTraining"),
    ],
)
def test_what_a_model_lacks_is_not_written(missing, name, tiny, tmp_path):
    """As if a folder of another program lacked it: it is drawn at random, and recorded as missing."""
    whole = PretrainedBert.load(tiny)
    lacking = PretrainedBert(whole.model, whole.words, missing)
    lacking.save(tmp_path / "own")
    lacking.export(tmp_path / "theirs")
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["architectures"] == [name]
    expected = {n: p for n, p in whole.model.named_parameters() if n.split(".")[0] not in missing}
    for folder in ("own", "theirs"):
        again = PretrainedBert.load(tmp_path / folder)
        assert again.missing == missing
        found = dict(again.model.named_parameters())
        assert found.keys() == dict(whole.model.named_parameters()).keys()
        assert all(torch.equal(found[n], parameter) for n, parameter in expected.items())
        again.save(tmp_path / f"{folder} again")
        assert PretrainedBert.load(tmp_path / f"{folder} again").missing == missing


def test_a_model_with_word_pieces_is_kept_with_them(tmp_path):
    torch.manual_seed(0)
    words = WordPieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s"], lowercase=True)
    model = Bert(BertConfig(vocab=10, width=8, layers=1, heads=2, inner=8, max_positions=9))
    bert = PretrainedBert(model, words)
    bert.save(tmp_path / "own")
    bert.export(tmp_path / "theirs")
    (one,), (other,) = (MaskFiller.load(tmp_path / name).fill(["A [MASK] dogs"], 99) for name in ("own", "theirs"))
    assert one == other
    assert len(one.candidates[0]) == 3  # surplus entries of the model are not candidates


@pytest.mark.parametrize(
    ("word", "filled"), [("dog", ["Ein  dog, Zebra dog!", "dog"]), ("##s", ["Eins, Zebras!", "s"])]
)
def test_the_rest_of_a_text_stays_as_it_was_given(word, filled):
    """Although the vocabulary has neither its words nor upper case; a piece continues the word before it."""
    words = WordPieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s"], lowercase=True)
    model = Bert(BertConfig(vocab=8, width=8, layers=1, heads=2, inner=8, max_positions=16))
    with torch.no_grad():
        model.words.bias[words.vocabulary.index(word)] = 1e3
    found = MaskFiller(PretrainedBert(model, words)).fill(["Ein  [MASK], Zebra [MASK]!", "[MASK]"])
    assert [one.text for one in found] == filled
    assert [[place[0].word for place in one.candidates] for one in found] == [[word, word], [word]]


def test_damaged_folders_are_named(tiny, tmp_path, numbers):
    bert = PretrainedBert.load(tiny)
    bert.save(tmp_path / "model")
    other = WordPieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], lowercase=True)
    other.save(tmp_path / "model")
    assert PretrainedBert.load(tmp_path / "model").words.digest == bert.words.digest  # its manifest lists other files
    numbers.without_manifest(tmp_path / "model")
    with pytest.raises(FormatError, match="not the words that this model was trained with"):
        PretrainedBert.load(tmp_path / "model")
    bert.save(tmp_path / "lacking")
    path = tmp_path / "lacking" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "missing": ["embedding"]}))
    numbers.seal_again(path.parent)
    with pytest.raises(FormatError, match=r"damaged: missing is .*, not a list of parts that a BERT may lack"):
        PretrainedBert.load(tmp_path / "lacking")
    pointer = PointerConfig(width=8)
    model_folder.save_folder(tmp_path / "pointer", PointerNetwork(pointer), pointer)
    with pytest.raises(FormatError, match="is 'pointer', not a BERT"):
        PretrainedBert.load(tmp_path / "pointer")


# --------------------------------------------------------------------------- commands


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Run a command in this process, without changing process-wide settings."""
    monkeypatch.setattr(process, "configure_process", lambda: None)
    monkeypatch.setattr(process, "StopSignal", lambda: lambda: None)
    threads = torch.get_num_threads()
    yield lambda name, *words, given=None: CliRunner().invoke(name, [str(word) for word in words], input=given)
    torch.set_num_threads(threads)


def test_the_commands(corpus, typed, tmp_path):
    flags = [part for name, value in TINY.items() for part in (f"--{name.replace('_', '-')}", value)]
    done = typed(command, "--text", corpus, "--output", tmp_path / "run", *flags)
    assert done.exit_code == 0
    assert "done: 20 updates; the best model" in done.stderr
    filler = MaskFiller.load(tmp_path / "run")
    shown = typed(fill_mask, tmp_path / "run", "--top", 2, "noa [MASK] oba [MASK]")
    (filled,) = filler.fill(["noa [MASK] oba [MASK]"], 2)
    rows = ["  ".join(["", *(f"{word} {p:.1%}" for word, p in place)]) for place in filled.candidates]
    assert shown.stdout.splitlines() == [filled.text, *rows]


def test_as_many_lines_come_out_as_go_in(tiny, typed):
    lines = ["noa [MASK]", "", "nothing hidden", "[MASK] [MASK]"]
    done = typed(fill_mask, tiny, "--top", 1, given="".join(f"{line}\n" for line in lines))
    out = done.stdout.splitlines()
    assert [row.count("\t") for row in out] == [1, 0, 0, 2]
    assert out[2] == "nothing hidden"
    long = typed(fill_mask, tiny, "--top", 1, given="noa [MASK]\n" + "noa " * 99 + "\nnob [MASK]\n")
    assert isinstance(long.exception, DataError)
    assert "standard input:2: " in str(long.exception)
    assert long.stdout.splitlines() == out[:1]
    nothing = typed(fill_mask, tiny, "nothing hidden")
    assert "there is no [MASK] in 'nothing hidden'" in str(nothing.exception)
