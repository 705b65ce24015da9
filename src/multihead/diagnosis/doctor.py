"""``multihead doctor``: check text, tokenizers and network for faults.

    from multihead import doctor

    print(doctor(source="train.de", target="train.en"))
    print(doctor("run"))

`diagnosis.inputs` collects what to check. The text is read once (`diagnosis.text_checks`), a sample of its pairs is
tokenized, and the network is tried on one small batch (`diagnosis.model_checks`). `diagnosis.findings` defines the
findings and their severities. Nothing is written.

``train`` runs the quick check before the first update of a new run (`log_quick_check`): it reads the beginning of each
corpus and the validation files, with the run's own tokenizers, and tries its network on the CPU. It takes a second or
two, uses none of the run's random numbers and never stops the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from multihead.bundle import build_network
from multihead.configuration import build, inspect_machine, require_device
from multihead.data.batching import Batch
from multihead.data.corpus import Languages, Pair, Report, normalize_code, primary_language
from multihead.data.text_files import TextScan
from multihead.diagnosis import model_checks
from multihead.diagnosis.corpus import SAMPLE_SIZE, HeldOut, ParallelReader, Sample
from multihead.diagnosis.findings import Diagnosis, FilePair, clean_commands, make_finding
from multihead.diagnosis.heuristics import SideClassifier
from multihead.diagnosis.inputs import DiagnosisInputs, check_unchanged, collect_inputs, inputs_from_data
from multihead.diagnosis.model_checks import check_tokens
from multihead.diagnosis.text_checks import TextPass, check_leaks, read_held_out
from multihead.errors import DataError, MultiheadError
from multihead.models.config import NetworkConfig
from multihead.models.network import Network
from multihead.planning.choices import CorpusSize, choose_model
from multihead.planning.settings import Choices, RunConfig, TrainSettings
from multihead.preparing.corpora import TextFiles, WeightedCorpus
from multihead.preparing.prepared import PreparedText
from multihead.preparing.subwords import learn_vocabulary
from multihead.text.backwards import have_one_vocabulary
from multihead.text.language_tokens import toward
from multihead.text.tokenizer import Tokenizer
from multihead.training.splitting import is_out_of_memory
from multihead.urls import url_of

QUICK_PAIRS = 100_000
"""Maximum number of pairs per corpus that the quick check reads."""
QUICK_SAMPLE = 4_000
"""Maximum number of pairs per corpus that the quick check tokenizes."""

_VALIDATION = "validation pairs"


def doctor(
    run: str | Path | None = None,
    *,
    test_source: str | Path | None = None,
    test_target: str | Path | None = None,
    quick: bool = False,
    progress: Callable[[int], None] = lambda _: None,
    **wishes: Any,
) -> Diagnosis:
    """Check text, tokenizers and model for faults; changes nothing.

    Args:
        run: a run folder, a model folder or a folder of ``prepare``; its text is read where it still exists.
        test_source: sources of a test set, or a file of pairs; the training text is searched for them.
        test_target: their translations.
        quick: read only the first 100,000 pairs of each corpus, and skip learning a few pairs by heart.
        progress: called with the number of newly read pairs.
        **wishes: fields of `TrainSettings`, as for ``train``. Text named here replaces that of ``run``; the other
            settings decide which tokenizers and which network would be built from it.

    Returns:
        The result: see `Diagnosis.findings` and `Diagnosis.worst`; ``str`` makes a report of it.

    Raises:
        ConfigurationError: there is nothing to check, or settings contradict each other.
        DataError: a named file does not exist. (Faults within a file are findings.)
        FormatError: ``run`` is not such a folder, or it is damaged.
    """
    settings = build(TrainSettings, wishes, "the settings")
    require_device(settings.device or "cpu")
    test = tuple(None if path is None else Path(path) for path in (test_source, test_target))
    inputs = collect_inputs(None if run is None else Path(run), settings, (test[0], test[1]))
    return diagnose(inputs, quick=quick, progress=progress)


def diagnose(
    inputs: DiagnosisInputs, *, quick: bool = False, progress: Callable[[int], None] = lambda _: None
) -> Diagnosis:
    """As `doctor`, on inputs that were already collected."""
    diagnosis = Diagnosis()
    if inputs.missing_files:
        names = ", ".join(inputs.missing_files[:4]) + (" and more" if len(inputs.missing_files) > 4 else "")
        diagnosis.looked.append(f"text: not all of it, for these files are gone: {names}")
    passes = _TextReader(inputs, diagnosis, quick, progress).read_all()
    held_out = [files for _, files in _held_out(inputs)]
    diagnosis.commands = clean_commands(diagnosis.findings, inputs.corpora, held_out, inputs.languages)
    if not quick:
        diagnosis.findings += check_unchanged(inputs.records, inputs.name)
    tokenizers = inputs.tokenizers
    if tokenizers is None and any(map(len, passes)):
        tokenizers = _learn_tokenizers(inputs.settings, passes, diagnosis)
    if tokenizers is None:
        return diagnosis
    for one in filter(len, passes):
        findings, figures = check_tokens(tokenizers, one.characters, one.sample, one.corpus.name)
        diagnosis.findings += findings
        diagnosis.figures |= figures
        words = " and ".join(f"{figures[f'{side}_tokens_per_word']:.2f}" for side in ("source", "target"))
        diagnosis.looked.append(f"subwords: {len(one.sample):,} pairs segmented and restored, {words} tokens per word")
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(0 if inputs.settings.seed is None else inputs.settings.seed)
        _check_model(inputs, tokenizers, passes, diagnosis, quick=quick)
    return diagnosis


def _held_out(inputs: DiagnosisInputs) -> list[tuple[str, FilePair]]:
    """The validation files and the test set, each with what it is."""
    found = [(_VALIDATION, files) for files in inputs.valid]
    return found if inputs.test is None else [*found, ("test pairs", inputs.test)]


class _TextReader:
    """Checks all text. Held-out text is read twice: to know its pairs, and to be checked itself."""

    def __init__(
        self, inputs: DiagnosisInputs, diagnosis: Diagnosis, quick: bool, progress: Callable[[int], None]
    ) -> None:
        self._inputs, self._diagnosis, self._progress = inputs, diagnosis, progress
        self._limit = QUICK_PAIRS if quick else None
        self._sample = QUICK_SAMPLE if quick else SAMPLE_SIZE

    def read_all(self) -> list[TextPass]:
        """Add the findings of all text to the diagnosis; returns the passes over the training corpora."""
        inputs, held_out = self._inputs, _held_out(self._inputs)
        pairs = [self._read_held_out(files) for _, files in held_out]
        corpora = (self._reader(files, inputs.corpus_languages(files)) for files in inputs.corpora)
        passes = [one for corpus in corpora if (one := self._check(corpus, pairs, None, "text")) is not None]
        for own, (_, files) in zip(pairs, held_out, strict=True):
            self._diagnosis.findings += check_leaks(own, _name(files), "the training text")
        # The test set is also matched against the validation files.
        test = self._read_held_out(inputs.test) if inputs.valid and inputs.test is not None else HeldOut()
        for what, files in held_out:
            corpus = self._reader(files, inputs.held_out_languages(files))
            classifier = _find_classifier(corpus.languages, passes)
            self._check(corpus, [test] if what == _VALIDATION else [], classifier, what)
        if inputs.test is not None:
            remedy = "take them out of one of the two: a model is chosen by the one and judged by the other"
            self._diagnosis.findings += check_leaks(test, _name(inputs.test), "the validation pairs", remedy)
        return passes

    def _reader(self, files: FilePair, languages: Languages) -> ParallelReader:
        return ParallelReader(files.source, files.target, languages, self._limit, files.columns)

    def _read_held_out(self, files: FilePair) -> HeldOut:
        with _report_unreadable(files, Diagnosis()):  # reported when the files themselves are checked
            return read_held_out(self._reader(files, self._inputs.held_out_languages(files)))
        return HeldOut()

    def _check(
        self, corpus: ParallelReader, held_out: list[HeldOut], classifier: SideClassifier | None, what: str
    ) -> TextPass | None:
        files = FilePair(corpus.source, corpus.target)
        with _report_unreadable(files, self._diagnosis):
            one = TextPass(corpus, held_out, classifier, self._progress, self._sample)
            self._diagnosis.findings += one.findings(corpus.languages)
            beginning = "" if corpus.complete else ", the beginning of it"
            self._diagnosis.looked.append(
                f"{what}: {corpus.name}, {len(one):,} usable pair{'s' * (len(one) != 1)}{beginning}"
            )
            return one
        return None


def _find_classifier(languages: Languages, passes: Sequence[TextPass]) -> SideClassifier | None:
    """The classifier of training text in these languages, or of the opposite direction with its sides exchanged.

    Codes are compared as they are written, and then without script and region; an unknown one may be any. None if there
    is no such text, or too little to learn from.
    """
    known = [(one.corpus.languages, one.classifier) for one in passes if one.classifier is not None]
    spellings: tuple[Callable[[str], str], ...] = (normalize_code, primary_language)
    for spelled in spellings:
        wanted = [spelled(code or "") for code in languages]
        for exchanged in (False, True):
            for pair, classifier in known:
                codes = [spelled(code or "") for code in (pair[::-1] if exchanged else pair)]
                if all(not one or not other or one == other for one, other in zip(codes, wanted, strict=True)):
                    return classifier.exchanged() if exchanged else classifier
    return None


def _name(files: FilePair) -> str:
    return " + ".join(map(str, files.files))


@contextmanager
def _report_unreadable(files: FilePair, diagnosis: Diagnosis) -> Iterator[None]:
    """Turn a `DataError` into a finding.

    Raises:
        DataError: a file does not exist.
    """
    try:
        yield
    except DataError as error:
        if not all(path.is_file() or url_of(path) is not None for path in files.files):
            raise
        lines = () if error.line is None else (error.line,)
        diagnosis.findings.append(
            make_finding("unreadable", _name(files), 1, 1, " ".join(str(error).split("\n")), lines)
        )


@dataclass(frozen=True)
class _SampleCorpus:
    """A sample as a corpus, for `learn_vocabulary`."""

    sample: Sample
    files: tuple[TextScan, ...] = ()
    languages: Languages = (None, None)

    @property
    def lines(self) -> int:
        """Number of pairs."""
        return len(self.sample)

    def path(self, side: int) -> Path:
        """A placeholder: a sample has no file."""
        return Path(("source", "target")[side])

    def read(self, report: Report) -> Iterator[Pair]:
        """All pairs; nothing is reported."""
        del report
        return map(Pair, self.sample.lines, self.sample.sources, self.sample.targets)


def _learn_tokenizers(
    settings: TrainSettings, passes: list[TextPass], diagnosis: Diagnosis
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers that ``train`` would learn, learned from the samples."""
    pairs = sum(map(len, passes))
    choices = Choices(settings)
    samples = [WeightedCorpus(_SampleCorpus(one.sample), 1.0) for one in passes if len(one)]
    files = TextFiles(tuple(samples), None)
    vocabulary = learn_vocabulary(choices, files, [frozenset()] * len(samples), lambda _: None, count=pairs)
    size = vocabulary.decisions["vocab_size"]
    diagnosis.looked.append(
        f"subwords: up to {size:,}, learned from {files.lines:,} of {pairs:,} pairs as training would from all"
    )
    return vocabulary.source, vocabulary.target


def _check_model(
    inputs: DiagnosisInputs,
    tokenizers: tuple[Tokenizer, Tokenizer],
    passes: list[TextPass],
    diagnosis: Diagnosis,
    *,
    quick: bool,
) -> None:
    device = inputs.settings.device or "cpu"
    config = inputs.network or _choose_network(inputs.settings, tokenizers, passes)
    batch = _small_batch(config, tokenizers, passes).to(device)

    def make(config: NetworkConfig) -> Network:
        return build_network(config).to(device)

    untrained = make(config)
    network = untrained if inputs.trained_network is None else inputs.trained_network.to(device)
    uniform = math.log(config.target_vocab)
    findings = model_checks.check_network(network, batch, inputs.name)
    about = f"{config.summary}: causality, padding, loss"
    if not findings:
        first, diagnosis.figures["first_loss"] = model_checks.check_first_loss(untrained, batch, inputs.name)
        findings += first
        diagnosis.figures["uniform_loss"] = uniform
        about += f"; untrained it costs {diagnosis.figures['first_loss']:.2f} nats a token (ln V = {uniform:.2f})"
    if not findings and inputs.trained_network is not None and any(map(len, passes)):
        findings, diagnosis.figures["trained_loss"] = model_checks.check_trained(network, batch, inputs.name)
        about += f", trained {diagnosis.figures['trained_loss']:.2f}"
    if not (quick or findings):
        no_dropout = config.model_copy(update={name: 0.0 for name, value in config if "dropout" in name and value})
        findings, loss, updates = model_checks.check_learning(lambda: make(no_dropout), batch, inputs.name)
        diagnosis.figures |= {"learned_loss": loss, "learned_updates": updates}
        about += f"; {updates} updates on {len(batch)} pairs bring it to {loss:.2f}"
    diagnosis.findings += findings
    diagnosis.looked.append(f"model: {about}")


def _choose_network(
    settings: TrainSettings, tokenizers: tuple[Tokenizer, Tokenizer], passes: list[TextPass]
) -> NetworkConfig:
    """The network that ``train`` would choose."""
    sample = passes[0].sample if passes and len(passes[0]) else Sample()
    pairs = sum(map(len, passes))
    targets = sample.targets[:1000]
    tokens = sum(map(len, tokenizers[1].encode_batch(targets))) + len(targets)  # with end symbols
    mean = tokens / max(len(targets), 1)
    source, target = map(len, tokenizers)
    corpus = CorpusSize(
        pairs,
        round(mean * pairs),
        source,
        target,
        tokenizers[1].pad_id,
        factors=tokenizers[0].factors,
        shared=have_one_vocabulary(*tokenizers),
    )
    return choose_model(Choices(settings), corpus, inspect_machine(settings.device))


def _small_batch(config: NetworkConfig, tokenizers: tuple[Tokenizer, Tokenizer], passes: list[TextPass]) -> Batch:
    """A few pairs of the first corpus, or random ids if there is no text."""
    for one in filter(len, passes):
        count = 50 * model_checks.ROWS
        language = one.corpus.languages[1]
        marked = toward(tokenizers[0], language if language in tokenizers[0].languages else None)
        source = marked.encode_batch(one.sample.sources[:count])
        target = tokenizers[1].encode_batch(one.sample.targets[:count])
        return model_checks.small_batch(source, target, tokenizers[1].special_ids)
    source, target = model_checks.random_pairs(config.source_vocab, config.target_vocab)
    return model_checks.small_batch(source, target, tokenizers[1].special_ids)


def log_quick_check(
    settings: TrainSettings, config: RunConfig, prepared: PreparedText, folder: Path, say: Callable[[str], None]
) -> None:
    """Run the quick check on a run that was just configured, and log its findings.

    Args:
        settings: the user's settings.
        config: the configuration of the run.
        prepared: the text that training reads.
        folder: the run folder.
        say: called with each line.
    """
    inputs = replace(
        inputs_from_data(config.data, settings.model_copy(update={"device": "cpu", "seed": config.training.seed})),
        tokenizers=(prepared.source_tokenizer, prepared.target_tokenizer),
        network=config.model,
    )
    try:
        diagnosis = diagnose(inputs, quick=True)
    except MultiheadError as error:  # for example, a file was deleted; training has its own copy
        say(f"not looked for faults: {error}")
        return
    except (MemoryError, RuntimeError) as error:  # of a host that is smaller than the GPU of the training
        if not is_out_of_memory(error):
            raise
        say("not looked for faults: the network does not fit into the memory of this processor")
        return
    for line in _log_lines(diagnosis, folder):
        say(line)


def _log_lines(diagnosis: Diagnosis, folder: Path) -> list[str]:
    severe = [one for one in diagnosis.findings if one.severity != "note"]
    looked = f"looked for faults (up to {QUICK_PAIRS:,} pairs of a corpus, subwords, model): {diagnosis.counted()}"
    command = f"; all of it: multihead doctor {folder}"
    return [looked + command, *(f"  {one.headline}" for one in severe)]
