"""``multihead doctor``: is anything wrong with the text, its subwords or the network, before time is spent on them?

    from multihead import doctor

    print(doctor(source="train.de", target="train.en"))
    print(doctor("run"))

The text is read once (`doctor_text`), pairs from all over it are cut into subwords (`doctor_tokens`), and the network
that they would train, or did, is tried on one batch (`doctor_model`). What is to be looked at is found out in
`doctor_subject`; what findings are and how bad, in `doctor_findings`. Nothing is written and nothing is stopped;
``train`` does the quick part before its first update (`diagnose` with ``quick``) and logs what comes of it.

The quick part of `multihead doctor`, as ``train`` does it by itself before the first update of a new run.

It reads the beginning of each corpus and the validation files, with the subwords that were made, and tries the network
that was decided on one batch, on the processor. It takes a second or two, draws none of the run's random numbers and
never stops a run: what it finds is said, and which command tells more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from multihead.bundle import build_network
from multihead.configuration import build
from multihead.data.batching import Batch
from multihead.data.corpus import Languages, Pair, Report
from multihead.data.text_files import TextScan
from multihead.diagnosis import model_checks as models
from multihead.diagnosis.corpus import SAMPLE_SIZE, HeldOut, ParallelReader, Sample
from multihead.diagnosis.findings import Diagnosis, make_finding
from multihead.diagnosis.heuristics import SideClassifier
from multihead.diagnosis.inputs import DiagnosisInputs, FilePair, check_unchanged, collect_inputs, inputs_from_data
from multihead.diagnosis.model_checks import check_tokens
from multihead.diagnosis.text_checks import TextPass, check_leaks, read_held_out
from multihead.errors import DataError, MultiheadError
from multihead.machine import inspect_machine, require_device
from multihead.models.config import NetworkConfig
from multihead.models.network import Network
from multihead.planning.choices import CorpusSize, choose_model, choose_vocabulary
from multihead.planning.settings import Choices, RunConfig, TrainSettings
from multihead.preparing.corpora import TextFiles, WeightedCorpus
from multihead.preparing.prepare import learn_vocabulary
from multihead.preparing.prepared import PreparedText
from multihead.text.tokenizer import Tokenizer

QUICK_PAIRS = 100_000
"""Pairs of a corpus that the quick part reads,"""
QUICK_SAMPLE = 4_000
"""and those that it cuts into subwords, at most."""


def doctor(
    run: str | Path | None = None,
    *,
    test_source: str | Path | None = None,
    test_target: str | Path | None = None,
    quick: bool = False,
    progress: Callable[[int], None] = lambda _: None,
    **wishes: Any,
) -> Diagnosis:
    """Looks for what is wrong with text, subwords and model; changes nothing.

    Args:
        run: a run folder, a model folder or a folder of ``prepare``; its text is looked at where it still stands.
        test_source: of a test set, to be looked for in the training text; or a file of pairs.
        test_target: its translations.
        quick: only the first 100,000 pairs of each corpus are read, and nothing is learned by heart.
        progress: is told how many more pairs are read.
        **wishes: fields of `TrainSettings`, as for ``train``: text named here is looked at instead of that of ``run``,
            and settings say which subwords and which network would be made of it.

    Returns:
        What was found: `Diagnosis.findings`, `Diagnosis.worst`; ``str`` of it is for people.

    Raises:
        ConfigurationError: nothing is named to be looked at; settings that exclude each other.
        DataError: a file that is named does not exist. (What is wrong within one is a finding.)
        FormatError: ``run`` is no such folder, or damaged.
    """
    settings = build(TrainSettings, wishes, "the settings")
    require_device(settings.device or "cpu")
    test = tuple(None if path is None else Path(path) for path in (test_source, test_target))
    subject = collect_inputs(None if run is None else Path(run), settings, (test[0], test[1]))
    return diagnose(subject, quick=quick, progress=progress)


def diagnose(
    subject: DiagnosisInputs, *, quick: bool = False, progress: Callable[[int], None] = lambda _: None
) -> Diagnosis:
    """As `doctor`, of what was found out already."""
    diagnosis = Diagnosis()
    if subject.gone:
        names = ", ".join(subject.gone[:4]) + (" and more" if len(subject.gone) > 4 else "")
        diagnosis.looked.append(f"text: not all of it, for these files are gone: {names}")
    passes = _Text(subject, diagnosis, quick, progress).passes
    if not quick:
        diagnosis.findings += check_unchanged(subject.records, subject.languages, subject.name)
    tokenizers = subject.tokenizers
    if tokenizers is None and any(map(len, passes)):
        tokenizers = _learned(subject.settings, passes, diagnosis)
    if tokenizers is None:
        return diagnosis
    for one in filter(len, passes):
        findings, figures = check_tokens(tokenizers, one.characters, one.sample, one.corpus.name)
        diagnosis.findings += findings
        diagnosis.figures |= figures
        words = " and ".join(f"{figures[f'{side}_tokens_per_word']:.2f}" for side in ("source", "target"))
        diagnosis.looked.append(
            f"subwords: {len(one.sample):,} pairs cut and put together again, {words} tokens a word"
        )
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(0 if subject.settings.seed is None else subject.settings.seed)
        _look_at_model(subject, tokenizers, passes, diagnosis, quick=quick)
    return diagnosis


class _Text:
    """Reads everything once, what is held out twice: to know what to look for, and to be looked at."""

    def __init__(
        self, subject: DiagnosisInputs, diagnosis: Diagnosis, quick: bool, progress: Callable[[int], None]
    ) -> None:
        self._diagnosis, self._languages, self._progress = diagnosis, subject.languages, progress
        self._limit = QUICK_PAIRS if quick else None
        self._sample = QUICK_SAMPLE if quick else SAMPLE_SIZE
        sets = {"validation pairs": subject.valid, "test pairs": subject.test}
        apart = {name: files for name, files in sets.items() if files is not None}
        keys = {name: self._held_out(files) for name, files in apart.items()}
        self.passes = [
            done
            for files in subject.corpora
            if (done := self._pass(files, list(keys.values()), None, "text")) is not None
        ]
        for name, files in apart.items():
            diagnosis.findings += check_leaks(keys[name], _name(files), "the training text")
        likeness = next((done.classifier for done in self.passes), None)
        in_test = self._held_out(apart["test pairs"]) if len(apart) == 2 else HeldOut()
        for name, files in apart.items():
            self._pass(files, [in_test] if name == "validation pairs" else [], likeness, name)
        if len(in_test):
            remedy = "take them out of one of the two: a model is chosen by the one and judged by the other"
            diagnosis.findings += check_leaks(in_test, _name(apart["test pairs"]), "the validation pairs", remedy)

    def _corpus(self, files: FilePair) -> ParallelReader:
        return ParallelReader(*files, self._languages, self._limit)

    def _held_out(self, files: FilePair) -> HeldOut:
        with _readable(files, Diagnosis()):  # what is wrong with it is told when it is looked at
            return read_held_out(self._corpus(files))
        return HeldOut()

    def _pass(
        self, files: FilePair, apart: list[HeldOut], likeness: SideClassifier | None, what: str
    ) -> TextPass | None:
        corpus = self._corpus(files)
        with _readable(files, self._diagnosis):
            done = TextPass(corpus, apart, likeness, self._progress, self._sample)
            self._diagnosis.findings += done.findings(self._languages)
            beginning = "" if corpus.complete else ", the beginning of it"
            self._diagnosis.looked.append(
                f"{what}: {corpus.name}, {len(done):,} usable pair{'s' * (len(done) != 1)}{beginning}"
            )
            return done
        return None


def _name(files: FilePair) -> str:
    return " + ".join(str(path) for path in files if path is not None)


@contextmanager
def _readable(files: FilePair, diagnosis: Diagnosis) -> Iterator[None]:
    """What cannot be read as text is a finding, where there is a file at all.

    Raises:
        DataError: there is none.
    """
    try:
        yield
    except DataError as error:
        if not all(path is None or path.is_file() for path in files):
            raise
        lines = () if error.line is None else (error.line,)
        diagnosis.findings.append(
            make_finding("unreadable", _name(files), 1, 1, " ".join(str(error).split("\n")), lines)
        )


@dataclass(frozen=True)
class _InMemory:
    """A sample as a corpus: what `vocabulary.learn` reads."""

    sample: Sample
    files: tuple[TextScan, ...] = ()
    languages: Languages = (None, None)

    @property
    def lines(self) -> int:
        """Pairs."""
        return len(self.sample)

    def path(self, side: int) -> Path:
        """There is none; this is what it would be called."""
        return Path(("source", "target")[side])

    def read(self, report: Report) -> Iterator[Pair]:
        """All of them; nothing is reported."""
        del report
        return map(Pair, self.sample.lines, self.sample.sources, self.sample.targets)


def _learned(settings: TrainSettings, passes: list[TextPass], diagnosis: Diagnosis) -> tuple[Tokenizer, Tokenizer]:
    """The subwords that ``train`` would learn, from the samples."""
    pairs = sum(map(len, passes))
    size = choose_vocabulary(Choices(settings), pairs)
    choices = Choices(settings.model_copy(update={"vocab_size": size}))
    samples = [WeightedCorpus(_InMemory(one.sample), 1.0) for one in passes if len(one)]
    files = TextFiles(tuple(samples), None)
    vocabulary = learn_vocabulary(choices, files, [frozenset()] * len(samples), lambda _: None)
    diagnosis.looked.append(
        f"subwords: up to {size:,}, learned from {files.lines:,} of {pairs:,} pairs as training would from all"
    )
    return vocabulary.source, vocabulary.target


def _look_at_model(
    subject: DiagnosisInputs,
    tokenizers: tuple[Tokenizer, Tokenizer],
    passes: list[TextPass],
    diagnosis: Diagnosis,
    *,
    quick: bool,
) -> None:
    device = subject.settings.device or "cpu"
    config = subject.network or _chosen(subject.settings, tokenizers, passes)
    batch = _batch(config, tokenizers, passes).to(device)

    def make(config: NetworkConfig) -> Network:
        return build_network(config).to(device)

    untrained = make(config)
    checked = untrained if subject.trained is None else subject.trained.to(device)
    uniform = math.log(config.target_vocab)
    findings = models.check_network(checked, batch, subject.name)
    about = f"{config.summary}: causality, padding, loss"
    if not findings:
        first, diagnosis.figures["first_loss"] = models.check_first_loss(untrained, batch, subject.name)
        findings += first
        diagnosis.figures["uniform_loss"] = uniform
        about += f"; untrained it costs {diagnosis.figures['first_loss']:.2f} nats a token (ln V = {uniform:.2f})"
    if not findings and subject.trained is not None and any(map(len, passes)):
        findings, diagnosis.figures["trained_loss"] = models.check_trained(checked, batch, subject.name)
        about += f", trained {diagnosis.figures['trained_loss']:.2f}"
    if not (quick or findings):
        still = config.model_copy(update={name: 0.0 for name, value in config if "dropout" in name and value})
        findings, loss, updates = models.check_learning(lambda: make(still), batch, subject.name)
        diagnosis.figures |= {"learned_loss": loss, "learned_updates": updates}
        about += f"; {updates} updates on {len(batch)} pairs bring it to {loss:.2f}"
    diagnosis.findings += findings
    diagnosis.looked.append(f"model: {about}")


def _chosen(settings: TrainSettings, tokenizers: tuple[Tokenizer, Tokenizer], passes: list[TextPass]) -> NetworkConfig:
    """The network that ``train`` would make."""
    sample = passes[0].sample if passes and len(passes[0]) else Sample()
    pairs = sum(map(len, passes))
    tokens = sum(map(len, tokenizers[1].encode_batch(sample.targets[:1000]))) + len(sample.targets[:1000])
    mean = tokens / max(len(sample.targets[:1000]), 1)
    corpus = CorpusSize(pairs, round(mean * pairs), len(tokenizers[0]), len(tokenizers[1]), Tokenizer.pad_id)
    return choose_model(Choices(settings), corpus, inspect_machine())


def _batch(config: NetworkConfig, tokenizers: tuple[Tokenizer, Tokenizer], passes: list[TextPass]) -> Batch:
    """A few pairs of the text; without text, of nothing."""
    for one in filter(len, passes):
        count = 50 * models.ROWS
        source, target = (
            tokenizers[0].encode_batch(one.sample.sources[:count]),
            tokenizers[1].encode_batch(one.sample.targets[:count]),
        )
        return models.small_batch(source, target)
    return models.small_batch(*models.random_pairs(config.source_vocab, config.target_vocab))


def log_quick_check(
    settings: TrainSettings, config: RunConfig, prepared: PreparedText, folder: Path, say: Callable[[str], None]
) -> None:
    """Says what the quick part finds in a run that was just decided.

    Args:
        settings: the wishes.
        config: what was decided.
        prepared: what training reads.
        folder: of the run.
        say: is told each line.
    """
    subject = replace(
        inputs_from_data(config.data, settings.model_copy(update={"device": "cpu", "seed": config.training.seed})),
        tokenizers=(prepared.source_tokenizer, prepared.target_tokenizer),
        network=config.model,
    )
    try:
        diagnosis = diagnose(subject, quick=True)
    except MultiheadError as error:  # the files may have gone since; training has its own copy
        say(f"not looked for faults: {error}")
        return
    for line in _lines(diagnosis, folder):
        say(line)


def _lines(diagnosis: Diagnosis, folder: Path) -> list[str]:
    grave = [one for one in diagnosis.findings if one.severity != "note"]
    looked = f"looked for faults (up to {QUICK_PAIRS:,} pairs of a corpus, subwords, model): {diagnosis.counted()}"
    command = f"; all of it: multihead doctor {folder}"
    return [looked + command, *(f"  {one.headline}" for one in grave)]
