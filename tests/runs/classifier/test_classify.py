"""Whole runs of classifiers: resumed runs equal uninterrupted ones; weights find the decisive words."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from multihead import model_folder
from multihead.cli.classify import classify as command
from multihead.configuration import build
from multihead.data.labeled import LabeledDocument, read_labeled
from multihead.data.nested import read_documents
from multihead.errors import ConfigurationError, DataError, FormatError, InputError, Interrupted
from multihead.metrics.classification import score_predictions
from multihead.models.bert.config import BertConfig
from multihead.models.bert.network import Bert
from multihead.models.classifier.config import HierarchicalConfig
from multihead.planning.settings import GivenModel
from multihead.runs.bert.model import PretrainedBert
from multihead.runs.bert.train import pretrain
from multihead.runs.classifier.data import hold_out, parts_of
from multihead.runs.classifier.model import DocumentClassifier, collate_documents
from multihead.runs.classifier.settings import (
    ClassifyRunConfig,
    ClassifySettings,
    DocumentFormat,
    choose_format,
    choose_network,
)
from multihead.runs.classifier.train import NewClassifyRun, evaluate, train
from multihead.text.bert_words import BERT_SPECIALS, BpeWords, WordPieces
from multihead.text.tokenizer import Tokenizer
from multihead.training.progress import RunLog

if TYPE_CHECKING:
    from tests.conftest import CommandResult


TINY = {"width": 16, "batch_tokens": 256, "warmup": 3, "updates": 12, "validate_every": 5, "log_every": 2, "threads": 1}
BERT = {"model": "bert", "layers": 1, "heads": 2, "inner": 32, "max_tokens": 40}

FILLERS = [
    f"{first}{second}" for first in ("ba", "ke", "lo", "mi", "nu", "ra") for second in ("ren", "lat", "mos", "dip")
]
EVIDENCE = {"good": ("lovely", "splendid", "charming"), "bad": ("awful", "dreadful", "tedious")}


WithoutChecks = Callable[[], AbstractContextManager[None]]


def document(draw):
    """A label, sentences of which only one has a word that indicates it, and the index of that sentence."""
    label = draw.choice(sorted(EVIDENCE))
    sentences = [draw.choices(FILLERS, k=draw.randint(3, 6)) for _ in range(draw.randint(3, 6))]
    place = draw.randrange(len(sentences))
    sentences[place].insert(draw.randint(0, len(sentences[place])), draw.choice(EVIDENCE[label]))
    return label, [" ".join(words).capitalize() + "." for words in sentences], place


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training documents and test documents."""
    folder, draw = tmp_path_factory.mktemp("documents"), random.Random(5)
    for name, count in (("train", 400), ("test", 60)):
        rows = [document(draw) for _ in range(count)]
        text = "".join(f"{label}\t{' '.join(sentences)}\n" for label, sentences, _ in rows)
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")
    return folder


def run(output, **wishes):
    """Call `train` without output, on one thread."""
    threads = torch.get_num_threads()
    try:
        return train(output=output, **{"say": lambda _: None, "use_threads": torch.set_num_threads, **wishes})
    finally:
        torch.set_num_threads(threads)


@pytest.fixture
def unchecked(without_checks: WithoutChecks) -> Iterator[None]:
    """Without comparing calls with their signatures, which shorter trainings do."""
    with without_checks():
        yield


def after(updates):
    """A signal after a number of updates."""
    asked = iter(range(updates))
    return lambda: None if next(asked, None) is not None else 2


@pytest.fixture(scope="module")
def given(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained BERT, saved like a pre-trained one."""
    torch.manual_seed(3)
    texts = [document.text for document in read_labeled(files / "train.tsv")]
    words = BpeWords(Tokenizer.learn(texts, 400, specials=BERT_SPECIALS))
    sizes = {"width": 16, "layers": 1, "heads": 2, "inner": 32, "max_positions": 48}
    folder = tmp_path_factory.mktemp("given") / "bert"
    PretrainedBert(Bert(BertConfig(vocab=len(words), **sizes)), words).save(folder)
    return folder


# --------------------------------------------------------------------------- runs


@pytest.mark.parametrize("kind", ["gru", "transformer", "fresh bert", "given bert"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(kind, files, given, numbers, tmp_path):
    """Stopped twice between validations; all files but timings and printed logs are equal, byte for byte."""
    wishes = {
        "gru": {"encoder": "gru"},
        "transformer": {"encoder": "transformer", "heads": 2, "inner": 32, "average": 0},
        "fresh bert": BERT,
        "given bert": {"from_model": given},
    }[kind]
    wishes = {**TINY, "data": files / "train.tsv", "dropout": 0.3, **wishes}
    if kind == "given bert":
        del wishes["width"]
    run(tmp_path / "whole", **wishes)
    for updates in (3, 4):
        with pytest.raises(Interrupted, match="run the same command again to continue"):
            run(tmp_path / "stopped", stop_signal=after(updates), **wishes)
    said = []
    run(tmp_path / "stopped", say=said.append)  # the folder alone is enough
    assert said[0] == "going on after update 7 of 12"
    assert made_by(tmp_path / "stopped", numbers) == made_by(tmp_path / "whole", numbers)


class Killed(BaseException):
    """Simulates a killed process."""


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(files, numbers, tmp_path):
    wishes = {**TINY, "data": files / "train.tsv", "dropout": 0.3}
    run(tmp_path / "whole", **wishes)

    def die(line):
        if line.strip().startswith("8/12"):
            raise Killed

    with pytest.raises(Killed):
        run(tmp_path / "killed", say=die, **wishes)
    said = []
    run(tmp_path / "killed", say=said.append, **wishes)
    assert said[0] == "going on after update 5 of 12"
    assert made_by(tmp_path / "killed", numbers) == made_by(tmp_path / "whole", numbers)


@pytest.mark.parametrize("part", ["train", "valid"])
def test_a_stored_class_that_does_not_exist_is_named_before_anything_is_read(part, files, numbers, tmp_path):
    folder, said = tmp_path / "run", []
    with pytest.raises(Interrupted):
        run(folder, stop_signal=after(3), data=files / "train.tsv", **TINY)
    store = folder / "data" / part / "target"
    ids = np.fromfile(store / "ids.bin", dtype="<u4")
    starts = np.fromfile(store / "offsets.bin", dtype="<i8")
    ids[starts[-2]] = 2  # the class of the last document
    ids.tofile(store / "ids.bin")
    numbers.seal_again(folder)
    with pytest.raises(FormatError, match=f"{part}/target: a document of class 2, but the 2 classes"):
        run(folder, say=said.append)
    assert said == []


def made_by(folder, numbers):
    """The files of a finished run, without timings, printed logs and earlier checkpoints."""
    contents = numbers.contents(folder, without=("timing.jsonl", "log.txt"))
    return {name: text for name, text in contents.items() if "checkpoints/" not in name or "00000012" in name}


@pytest.fixture(scope="module")
def learned(files: Path, tmp_path_factory: pytest.TempPathFactory, without_checks: WithoutChecks) -> Path:
    """A run that has learned the planted words."""
    folder = tmp_path_factory.mktemp("learned") / "run"
    wishes = {"updates": 120, "warmup": 10, "validate_every": 60, "held_out": 40, "threads": 1}
    with without_checks():
        return run(folder, data=files / "train.tsv", **wishes).folder


def test_the_label_is_learned_and_the_weights_find_its_sentence_and_its_word(learned):
    draw, classifier = random.Random(9), DocumentClassifier.load(learned)
    rows = [document(draw) for _ in range(100)]
    right = found = named = 0
    for label, sentences, place in rows:
        answer, shade = classifier.explain(" ".join(sentences))
        right += answer.label == label
        weights = [part.weight for part in shade.parts]
        assert len(weights) == len(sentences)
        assert sum(weights) == pytest.approx(1, abs=1e-5)
        found += weights.index(max(weights)) == place
        words = shade.parts[place].parts
        assert "".join(word.text for word in words) == sentences[place]
        assert sum(word.weight for word in words) == pytest.approx(1, abs=1e-5)
        heaviest = max(words, key=lambda word: word.weight).text.strip().lower()
        named += heaviest in EVIDENCE[label]
    assert min(right, found, named) >= 95


@pytest.mark.proof
def test_a_transformer_in_each_level_learns_the_label_too(files, tmp_path):
    """Finds the label; its weights may miss the sentence, since every state depends on all others."""
    wishes = {"encoder": "transformer", "updates": 200, "warmup": 10, "held_out": 40, "threads": 1}
    found = evaluate(run(tmp_path / "run", data=files / "train.tsv", **wishes).classifier(), files / "test.tsv")
    assert found.accuracy >= 0.95


@pytest.mark.proof
def test_a_planted_paragraph_is_found_by_three_levels(tmp_path):
    """Two paragraphs: one indicates the topic of the document, the sentences of the other contradict it."""
    draw = random.Random(11)

    def whole():
        (label, sentences, _), (_, others, _) = document(draw), document(draw)
        sides = [f"Mark. {' '.join(sentences)}", " ".join(others)]
        place = draw.randrange(2)
        return label, sides if place == 0 else sides[::-1], place

    rows = [whole() for _ in range(900)]
    path = tmp_path / "data.tsv"
    lines = ("\t".join([label, *sides]) + "\n" for label, sides, _ in rows[:800])
    path.write_text("".join(lines), encoding="utf-8")
    classifier = run(tmp_path / "run", data=path, updates=300, validate_every=100, threads=1).classifier()
    assert classifier.model.config.depth == 3
    right = found = 0
    for label, sides, place in rows[800:]:
        answer, shade = classifier.explain("\t".join(sides))
        right += answer.label == label
        weights = [part.weight for part in shade.parts]
        found += weights.index(max(weights)) == place
    assert min(right, found) >= 90


def test_what_is_frozen_says_what_was_chosen_and_why(learned, files):
    config = ClassifyRunConfig.model_validate_json((learned / "run.json").read_text(encoding="utf-8"))
    assert config.reading.labels == ("bad", "good")
    assert (config.data.documents, config.data.held_out) == (360, 40)
    assert isinstance(config.model, HierarchicalConfig)
    assert (config.model.depth, config.model.encoder, config.training.updates) == (2, "gru", 120)
    assert config.reasons["updates"] == "as asked"
    assert "found by trial" in config.reasons["learning_rate"]
    assert "max_tokens" not in config.reasons


def test_a_finished_run_says_so_and_changes_nothing(learned, numbers):
    before, said = numbers.contents(learned), []
    result = run(learned, say=said.append)
    assert said[0].startswith("this run is finished: 120 updates")
    assert (result.updates, numbers.contents(learned)) == (120, before)
    with pytest.raises(ConfigurationError, match="updates was 120, now 64"):
        run(learned, updates=64)
    with pytest.raises(ConfigurationError, match="a run of `multihead classify train`, not of a translator"):
        numbers.learn(learned)
    assert numbers.contents(learned) == before


def test_a_given_encoder_is_where_training_begins(files, given, tmp_path):
    """The weights in the checkpoint of update 0, and those of a run with a tiny learning rate."""
    wishes = {
        "updates": 1,
        "learning_rate": 1e-12,
        "weight_decay": 0.0,
        "average": 0,
        "threads": 1,
        "batch_tokens": 256,
    }
    found = run(tmp_path / "run", data=files / "train.tsv", from_model=given, **wishes).classifier()
    start = PretrainedBert.load(given)
    assert found.words.digest == start.words.digest
    assert found.reading.max_tokens == 48
    config = ClassifyRunConfig.model_validate_json((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert config.reasons["width"] == "the given model's"
    assert "depth" not in config.reasons
    assert config.from_model is not None
    assert config.from_model.path == str(given)
    theirs = dict(start.model.named_parameters())
    for name, parameter in found.model.encoder.named_parameters():
        torch.testing.assert_close(parameter, theirs[name], rtol=0, atol=1e-6)
    shutil.rmtree(tmp_path / "run" / "data" / "words")
    with pytest.raises(FormatError, match="tokenizer"):
        run(tmp_path / "run")


def test_a_folder_of_another_program_is_where_training_begins(files, tmp_path):
    """As `PretrainedBert.export` writes it, with a vocab.txt; run.json has the SHA-256 of its weights."""
    torch.manual_seed(3)
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *letters, *(f"##{letter}" for letter in letters)]
    sizes = {"width": 16, "layers": 1, "heads": 2, "inner": 32, "max_positions": 48}
    start = PretrainedBert(Bert(BertConfig(vocab=len(pieces), **sizes)), WordPieces(pieces, lowercase=True))
    start.export(tmp_path / "theirs")
    wishes = {"updates": 1, "learning_rate": 1e-12, "weight_decay": 0.0, "average": 0, "threads": 1}
    wishes |= {"batch_tokens": 256, "held_out": 8}
    result = run(tmp_path / "run", data=files / "train.tsv", from_model=tmp_path / "theirs", **wishes)
    config = ClassifyRunConfig.model_validate_json((result.folder / "run.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256((tmp_path / "theirs" / "model.safetensors").read_bytes()).hexdigest()
    assert config.from_model == GivenModel(path=str(tmp_path / "theirs"), weights=digest)
    found, theirs = result.classifier(), dict(start.model.named_parameters())
    assert found.words.digest == start.words.digest
    for name, parameter in found.model.encoder.named_parameters():
        torch.testing.assert_close(parameter, theirs[name], rtol=0, atol=1e-6)


def test_what_a_bert_does_not_read_is_not_counted(tmp_path):
    """Documents of one paragraph of 2 to 81 subwords; a row has room for 14 of them."""
    data, folder, said = tmp_path / "data.tsv", tmp_path / "run", list[str]()
    data.write_text("".join(f"{'ab'[n % 2]}\t{'ba ' * n}ke\n" for n in range(1, 81)), encoding="utf-8")
    wishes = {"data": data, "valid": data, "model": "bert", "max_tokens": 16, "batch_tokens": 64, "vocab_size": 300}
    new = NewClassifyRun(build(ClassifySettings, wishes, "the settings"), folder)
    stored = new.prepare()
    config = new.decide(stored)
    documents = read_documents(stored.train, np.arange(80))
    held = collate_documents(config.model, stored.words, config.reading, documents).lengths - 2
    assert config.training.updates == 20 * int(held.sum()) // 64
    lengths = stored.train.source.lengths
    assert 14 in lengths
    new.report(config, stored, RunLog(folder, said.append))
    assert f"  {int((lengths > 14).sum())} documents are longer than 16 subwords; their rest is not read" in said


@pytest.mark.proof
def test_pre_training_tells_the_label_of_words_that_nobody_has_labelled(tmp_path, unchecked):
    """Two topics of 24 words each; labeled texts use six words of each, test texts the others.

    Only pre-training, without labels, shows which words belong together.
    """
    draw = random.Random(1)
    syllables = [f"{first}{second}" for first in "bdfgklmnprst" for second in "aeiou"]
    words = draw.sample([f"{first}{second}" for first in syllables for second in syllables], 60)
    topics, others = (words[:24], words[24:48]), words[48:]

    def text(own):
        chosen = draw.choices(own, k=6) + draw.choices(others, k=3)
        return " ".join(draw.sample(chosen, 9)) + "."

    plain = "\n\n".join(text(topics[number % 2]) for number in range(1500))
    (tmp_path / "text.txt").write_text(plain, encoding="utf-8")
    for name, count, part in (("few", 24, slice(6)), ("test", 200, slice(6, 24))):
        rows = [f"{'ab'[number % 2]}\t{text(topics[number % 2][part])}\n" for number in range(count)]
        (tmp_path / f"{name}.tsv").write_text("".join(rows), encoding="utf-8")
    sizes = {"width": 64, "layers": 1, "heads": 2, "inner": 128, "vocab_size": 500}
    speed = {"updates": 200, "batch_tokens": 1024, "learning_rate": 5e-3, "validate_every": 200, "threads": 1}
    quiet = {"say": lambda _: None, "use_threads": torch.set_num_threads}
    threads = torch.get_num_threads()
    try:
        given = pretrain(text=tmp_path / "text.txt", output=tmp_path / "bert", **quiet, **sizes, **speed).bert()
    finally:
        torch.set_num_threads(threads)
    torch.manual_seed(1)
    PretrainedBert(Bert(given.model.config), given.words).save(tmp_path / "drawn")
    accuracy = {}
    for name in ("bert", "drawn"):
        wishes = {"from_model": tmp_path / name, "held_out": 6, "updates": 60, "validate_every": 30, "threads": 1}
        found = run(tmp_path / f"{name}-run", data=tmp_path / "few.tsv", **wishes)
        accuracy[name] = evaluate(found.folder, tmp_path / "test.tsv").accuracy
    assert accuracy["bert"] >= 0.95
    assert accuracy["drawn"] <= 0.8


# --------------------------------------------------------------------------- what cannot be


def test_the_rules_that_a_model_was_trained_with_stay_its_own():
    """A folder of an earlier version names no language; new ones name that of the documents, or that none is known."""
    text = "Dr. Weiss kam am 3. Mai. Es war warm."
    words = BpeWords(Tokenizer.learn([text], 300, specials=BERT_SPECIALS))
    formats = {
        1: choose_format(ClassifySettings(separator="?"), ("a", "b"), None),
        2: choose_format(ClassifySettings(language="de"), ("a", "b"), None),
        3: choose_format(ClassifySettings(), ("a", "b"), None),
        4: DocumentFormat.model_validate({"labels": ["a", "b"]}),
    }
    assert [format_.language for format_ in formats.values()] == ["und", "de", "und", None]
    for count, format_ in formats.items():
        ((sentences,),) = parts_of([text], format_, words)
        assert len(sentences) == count


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"model": "bert", "depth": 2}, "depth: not a setting of model = 'bert'"),
        ({"max_tokens": 50}, "max_tokens: not a setting of model = 'hierarchical'"),
        ({"heads": 2, "inner": 32}, "heads, inner: not a setting of encoder = 'gru'"),
        ({"encoder": "none", "layers": 2}, "layers: not a setting of encoder = 'none'"),
        ({"from_model": "x", "model": "hierarchical"}, "a pre-trained encoder is a BERT"),
        ({"from_model": "x", "width": 32}, "width: not a setting of a pre-trained model"),
    ],
)
def test_settings_of_the_other_network_are_refused(wishes, words):
    with pytest.raises(ConfigurationError, match=words):
        choose_network(build(ClassifySettings, wishes, "the settings"))


@pytest.mark.parametrize(
    ("wishes", "error", "words"),
    [
        ({"data": None}, ConfigurationError, "data missing"),
        ({"held_out": 10_000}, ConfigurationError, "at most 398 of 400 different texts"),
        ({"held_out": 399}, ConfigurationError, "at most 398 of"),
        ({"held_out": 3, "valid": "test.tsv"}, ConfigurationError, "exclude each other"),
        ({"width": 15}, ConfigurationError, "width must be even"),
        ({"vocab_size": 100}, ConfigurationError, "raise vocab_size"),
        ({"device": "cuda"}, ConfigurationError, "no CUDA"),
        ({"max_words": 0}, ConfigurationError, "max_words"),
        ({"language": "de", "separator": "|"}, ConfigurationError, "separator and language exclude each other"),
        ({"language": "German, I think"}, ConfigurationError, "language"),
        ({"from_model": "nowhere"}, FormatError, "no such folder"),
        ({"widht": 3}, ConfigurationError, "did you mean 'width'"),
    ],
)
def test_a_run_that_cannot_begin_leaves_nothing_behind(wishes, error, words, files, tmp_path):
    if "device" in wishes and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    wishes = {**TINY, "data": files / "train.tsv", **wishes}
    if "from_model" in wishes:
        del wishes["width"]
    with pytest.raises(error, match=words):
        run(tmp_path / "run", **{name: value for name, value in wishes.items() if value is not None})
    assert list(tmp_path.iterdir()) == []


def test_a_line_without_words_is_named(files, tmp_path):
    path = tmp_path / "data.tsv"
    path.write_text("a\tone\nb\ttwo\na\t||\nb\tthree\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"data.tsv:3: the text has no words"):
        run(tmp_path / "run", data=path, separator="||", valid=path, vocab_size=300)
    (tmp_path / "valid.tsv").write_text("a\tone\nc\ttwo\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"valid.tsv:2: 'c' is not a label"):
        run(tmp_path / "run", data=path, valid=tmp_path / "valid.tsv")
    assert not (tmp_path / "run").exists()


def test_equal_texts_are_never_on_both_sides():
    rows = [LabeledDocument(line, "ab"[line % 2], f"text {line % 7}") for line in range(40)]
    for seed in range(5):
        train_rows, held = hold_out(rows, 3, seed)
        assert len({row.text for row in held}) == 3
        assert not {row.text for row in held} & {row.text for row in train_rows}
        assert sorted(train_rows + held) == rows
    rare = [*rows, LabeledDocument(40, "c", "rare"), LabeledDocument(41, "d", "text 2")]
    for seed in range(10):
        kept, held = hold_out(rare, 5, seed)
        assert {row.label for row in kept} == set("abcd")
        assert {row.text for row in held} <= {f"text {number}" for number in (0, 1, 3, 4, 5, 6)}
    assert hold_out(rows, 3, 1) == hold_out(rows, 3, 1)
    assert hold_out(rows, 3, 1) != hold_out(rows, 3, 2)


# --------------------------------------------------------------------------- the model


def texts_of(files):
    return [document.text for document in read_labeled(files / "test.tsv")]


@pytest.fixture(scope="module")
def quick_bert(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert") / "run"
    return run(folder, data=files / "train.tsv", **TINY, **BERT).folder


@pytest.mark.parametrize("kind", ["hierarchical", "bert"])
def test_texts_do_not_know_each_other_and_a_model_comes_back_as_it_was(kind, learned, quick_bert, files, tmp_path):
    classifier = DocumentClassifier.load(learned if kind == "hierarchical" else quick_bert)
    texts = [*texts_of(files)[:15], "A word", "Two paragraphs.\tAwful end."]
    together = classifier.classify(texts)
    for text, answer in zip(texts, together, strict=True):
        (alone,) = classifier.classify([text])
        assert alone.label == answer.label
        assert alone.probabilities == pytest.approx(answer.probabilities, abs=1e-5)
        assert list(answer.probabilities.values()) == sorted(answer.probabilities.values(), reverse=True)
        assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-5)
    classifier.save(tmp_path / "model", {"accuracy": 1.0})
    assert DocumentClassifier.load(tmp_path / "model").classify(texts) == together
    assert classifier.classify([]) == []
    with pytest.raises(InputError, match="text 2 of 2 has no words"):
        classifier.classify(["one", " \t "])


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_explanation_has_the_words_and_the_weights_of_every_level(depth, files, tmp_path):
    result = run(tmp_path / "run", data=files / "train.tsv", **{**TINY, "depth": depth, "max_words": 7})
    classifier = result.classifier()
    text = "Balat loren badip. Ünseen “words” 😀 here, mimos raren lolat!\tKelat. The end"
    answer, shade = classifier.explain(text)
    assert answer == classifier.classify([text])[0]

    def walk(part, level):
        if not part.parts:
            assert level == depth
            return part.text
        assert sum(inner.weight for inner in part.parts) == pytest.approx(1, abs=1e-5)
        return "".join(walk(inner, level + 1) for inner in part.parts)

    assert "".join(walk(shade, 0).split()) == "".join(text.split())
    if depth == 3:
        assert len(shade.parts) == 2


def test_evaluation_is_that_of_the_answers(learned, files):
    found, documents = evaluate(learned, files / "test.tsv"), read_labeled(files / "test.tsv")
    answers = DocumentClassifier.load(learned).classify([document.text for document in documents])
    labels = ("bad", "good")
    expected = score_predictions(
        [labels.index(document.label) for document in documents], [labels.index(a.label) for a in answers], labels
    )
    assert found.as_dict() == expected.as_dict()
    assert found.accuracy > 0.9


def test_what_is_no_classifier_is_not_loaded(given, learned, tmp_path, numbers):
    with pytest.raises(FormatError, match="the network in it is 'bert', not a classifier"):
        DocumentClassifier.load(given)
    shutil.copytree(learned / "best", tmp_path / "model")
    path = tmp_path / "model" / model_folder.CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"reading": {"labels": ["one"]}}), encoding="utf-8")
    with pytest.raises(FormatError, match="damaged"):
        DocumentClassifier.load(tmp_path / "model")
    path.write_text(json.dumps(config | {"words": "0" * 64}), encoding="utf-8")
    numbers.seal_again(path.parent)
    with pytest.raises(FormatError, match="not the words that this model was trained with"):
        DocumentClassifier.load(tmp_path / "model")


# --------------------------------------------------------------------------- commands


@pytest.fixture
def typed(call: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch) -> Callable[..., CommandResult]:
    """Run ``multihead classify ...``."""
    from multihead.cli.main import multihead

    monkeypatch.setitem(multihead.commands, "classify", command)
    return lambda *words, given=b"": call("classify", *words, given=given)


def test_lines_in_and_labels_out(typed, learned, files):
    texts = texts_of(files)[:5]
    given = "\n".join([*texts[:2], "", *texts[2:]]).encode()
    ended = typed("predict", learned, given=given)
    answers = DocumentClassifier.load(learned).classify(texts)
    expected = [f"{answer.label}\t{answer.probability:.4f}" for answer in answers]
    assert (ended.status, ended.text.split("\n")) == (0, [*expected[:2], "", *expected[2:], ""])
    both = typed("predict", learned, "--top", 2, given=texts[0].encode())
    assert both.text.rstrip().split("\t")[::2] == list(answers[0].probabilities)


def test_an_explanation_is_printed_and_written(typed, learned, files, tmp_path):
    texts = texts_of(files)[:2]
    page = tmp_path / "page.html"
    ended = typed("predict", learned, "--explain", "--html", page, given="\n".join(texts).encode())
    assert (ended.status, ended.err) == (0, "")
    assert "\x1b" not in ended.text
    content = page.read_text(encoding="utf-8")
    for text in texts:
        (answer,) = DocumentClassifier.load(learned).classify([text])
        assert f"{answer.label} {answer.probability:.1%}" in ended.text
        assert f"<h2>{answer.label} {answer.probability:.1%}</h2>" in content
    again = typed("predict", learned, "--html", page, given=b"x")
    assert again.status == 2
    assert "exists already" in again.err
    assert page.read_text(encoding="utf-8") == content


def test_mistakes_are_a_line(typed, learned, quick_bert, files, tmp_path):
    for words, given, message in (
        (("predict", quick_bert, "--explain"), b"a\n", "train with --model hierarchical"),
        (("predict", learned, "--html", tmp_path / "no" / "page.html"), b"a\n", "no folder"),
        (("predict", learned), b"a\ncaf\xe9\n", "standard input:2: not valid UTF-8"),
        (("predict", tmp_path / "none"), b"", "there is no such folder"),
        (("evaluate", learned, "--data", tmp_path / "none.tsv"), b"", "no such file"),
        (("train", "--output", tmp_path / "run"), b"", "--data FILE"),
        (("train", "--data", files / "train.tsv"), b"", "--output FOLDER"),
        (("train", "--data", files / "train.tsv", "--output", files / "train.tsv"), b"", "is a file"),
    ):
        ended = typed(*words, given=given)
        assert (ended.status, ended.err.count("\n")) == (2, 1), ended.err
        assert message in ended.err


def test_training_and_measuring_as_commands(typed, numbers, files, tmp_path):
    settings = tmp_path / "settings.toml"
    settings.write_text("".join(f"{name} = {value}\n" for name, value in TINY.items()), encoding="utf-8")
    output = tmp_path / "run"
    ended = typed("train", "--data", files / "train.tsv", "--output", output, "--config", settings, "--updates", 6)
    assert ended.status == 0, ended.err
    assert "done: 6 updates" in ended.err
    shown = typed("evaluate", output, "--data", files / "test.tsv")
    assert shown.text == f"{evaluate(output, files / 'test.tsv')}\n"
    figures = json.loads(typed("evaluate", output, "--data", files / "test.tsv", "--json").text)
    assert figures == evaluate(output, files / "test.tsv").as_dict()


def test_what_a_given_model_lacks_is_drawn_by_the_seed_of_the_run(files, given, tmp_path):
    whole = PretrainedBert.load(given)
    PretrainedBert(whole.model, whole.words, missing=("pooler",)).save(tmp_path / "headless")
    files_of = {"data": files / "train.tsv", "from_model": tmp_path / "headless", "pool": "first", "updates": 1}

    def pooler(state, seed):
        torch.manual_seed(state)  # of the process that calls the library
        new = NewClassifyRun(build(ClassifySettings, {**files_of, "seed": seed}, "the settings"), tmp_path / f"{state}")
        checkpoint = new.first_checkpoint(new.decide(new.prepare()))
        return checkpoint.model["encoder.pooler.weight"]

    assert torch.equal(pooler(1, 7), pooler(2, 7))
    assert not torch.equal(pooler(3, 8), pooler(4, 7))
