"""Whether the text of a run is still what it was made from, for `multihead doctor`: by the SHA-256 in its description.

Paths are kept as they were given, so from another folder they may lead to other text; and text is edited. What is wrong
with the text that is there now is for `doctor_text`.

What `multihead doctor` is to look at: the text, subwords and network of a run, a model, or of settings.

Whoever names a run means its files, its tokenizers and its best model; whoever names text means what ``train`` would
make of it. Nothing is read here but descriptions and weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from multihead import work_folder
from multihead.bundle import Bundle, load_bundle
from multihead.data.corpus import Languages
from multihead.data.readers import scan_corpus
from multihead.data.text_files import TextScan, scan
from multihead.diagnosis.findings import Finding, make_finding
from multihead.errors import ConfigurationError, DataError
from multihead.files import current_folder
from multihead.metrics.scores import language_of
from multihead.models.config import NetworkConfig
from multihead.models.network import Network
from multihead.planning.choices import choose_given_model
from multihead.planning.settings import (
    Choices,
    CorpusRecord,
    DataConfig,
    TextFile,
    TrainSettings,
    holds_pairs,
    read_run,
)
from multihead.preparing.prepared import read_manifest
from multihead.text.tokenizer import Tokenizer


def check_unchanged(records: Iterable[CorpusRecord], languages: Languages, name: str) -> list[Finding]:
    """One finding, if any file has other text than then.

    Args:
        records: of corpora whose files are there.
        languages: codes of both sides, for files of pairs that need them.
        name: of the run, for people.
    """
    files = [(file, len(record.files) > 1) for record in records for file in record.files]
    changed = [what for file, line_by_line in files if (what := _change(file, line_by_line, languages))]
    if not changed:
        return []
    what = f"{len(changed)} of {len(files)} files are not what it was made from: {'; '.join(changed)}"
    return [make_finding("changed", name, len(changed), len(files), what)]


def _change(file: TextFile, line_by_line: bool, languages: Languages) -> str:
    """What is different; empty if nothing is."""
    try:
        now = _scan(Path(file.path), line_by_line, languages)
    except DataError as error:  # it could be read when the run was made
        return str(error)
    if now.sha256 == file.sha256:
        return ""
    if now.lines != file.lines:
        return f"{file.path} has {now.lines:,} lines and had {file.lines:,}"
    return f"{file.path} has as many lines, but not the same"


def _scan(path: Path, line_by_line: bool, languages: Languages) -> TextScan:
    return scan(path) if line_by_line else scan_corpus(path, None, *languages).files[0]


FilePair = tuple[Path, Path | None]
"""Source and target; or one file of pairs."""


@dataclass(frozen=True)
class DiagnosisInputs:
    """What is looked at; what is None or empty is not there, or is still to be made."""

    settings: TrainSettings
    """What the user said."""
    corpora: tuple[FilePair, ...] = ()
    valid: FilePair | None = None
    test: FilePair | None = None
    languages: Languages = (None, None)
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None
    network: NetworkConfig | None = None
    trained: Network | None = None
    name: str = "the model that would be trained"
    gone: tuple[str, ...] = field(default=())
    """Files that it was made from and that are no longer there."""
    records: tuple[CorpusRecord, ...] = ()
    """What is known of those that are."""


def collect_inputs(run: Path | None, settings: TrainSettings, test: tuple[Path | None, Path | None]) -> DiagnosisInputs:
    """What there is to look at.

    Args:
        run: a run folder, a model folder, or a folder of `multihead prepare`.
        settings: as for training; text named here is looked at instead of the run's.
        test: source and target of a test set, if there is one.

    Raises:
        ConfigurationError: nothing is named; one file of two.
        FormatError: ``run`` is nothing of that, or damaged.
    """
    subject = DiagnosisInputs(settings)
    if run is not None:
        subject = _of_folder(run, settings)
    elif settings.data is not None:
        subject = _of_prepared(settings.data, settings)
    if settings.from_model is not None:
        subject = _with_bundle(subject, load_bundle(settings.from_model), trained=False)
        assert subject.network is not None
        shape = choose_given_model(Choices(settings), subject.network)
        subject = replace(subject, network=shape, name=f"the model of {settings.from_model}, to be fine-tuned")
    corpora = _named_text(settings)
    valid = file_pair(settings.valid_source, settings.valid_target, "valid")
    subject = replace(
        subject,
        corpora=corpora or subject.corpora,
        valid=valid or subject.valid,
        test=file_pair(*test, "test"),
        gone=() if corpora else subject.gone,
    )
    if run is None and settings.from_model is None and not subject.corpora:
        raise ConfigurationError(
            "nothing to look at: name a run or model folder, or text (--source FILE --target FILE, or a file of pairs: "
            "--source FILE.tsv)"
        )
    looked_at = {*subject.corpora, subject.valid}
    records = tuple(record for record in subject.records if _files(record) in looked_at)
    return replace(subject, languages=_languages(subject), records=records)


def file_pair(source: Path | None, target: Path | None, what: str) -> FilePair | None:
    """A source with its target, or a file of pairs; None if none is named.

    Raises:
        ConfigurationError: one of the two is missing.
    """
    if source is None and target is None:
        return None
    prefix = f"{what}_" if what else ""
    if source is None or (target is None and not holds_pairs(source)):
        given, missing = ("target", "source") if source is None else ("source", "target")
        raise ConfigurationError(f"{prefix}{given} is given without {prefix}{missing}: name both, or a file of pairs")
    return source, target


def inputs_from_data(data: DataConfig, settings: TrainSettings) -> DiagnosisInputs:
    """The text that a run or a prepared folder was made from, as far as it is still there."""
    records = [_files(record) for record in data.corpora]
    valid = None if data.valid is None else _files(data.valid)
    every = [path for files in (*records, *([valid] if valid else [])) for path in files if path is not None]
    gone = [path for path in every if not path.exists()]
    return DiagnosisInputs(
        settings,
        tuple(files for files in records if not {*files} & {*gone}),
        None if valid is None or {*valid} & {*gone} else valid,
        languages=(data.source_language, data.target_language),
        gone=tuple(map(str, gone)),
        records=(*data.corpora, *([data.valid] if data.valid else [])),
    )


def _files(record: CorpusRecord) -> FilePair:
    paths = [Path(file.path) for file in record.files]
    return paths[0], paths[1] if len(paths) > 1 else None


def _named_text(settings: TrainSettings) -> tuple[FilePair, ...]:
    if settings.corpus is not None:
        pairs = [file_pair(wish.source, wish.target, "") for wish in settings.corpus]
    else:
        pairs = [file_pair(settings.source, settings.target, "")]
    return tuple(pair for pair in pairs if pair is not None)


def _of_folder(folder: Path, settings: TrainSettings) -> DiagnosisInputs:
    if (folder / work_folder.PREPARED).is_file():
        return _of_prepared(folder, settings)
    if not (folder / work_folder.RUN).is_file():
        return _with_bundle(DiagnosisInputs(settings, name=str(folder)), load_bundle(folder), trained=True)
    config = read_run(folder)
    assert config is not None
    subject = replace(inputs_from_data(config.data, settings), name=str(folder), network=config.model)
    if current_folder(folder / "best").exists():
        return replace(_with_bundle(subject, load_bundle(folder), trained=True), network=config.model)
    data = folder if config.data.prepared is None else Path(config.data.prepared.path)
    return replace(subject, tokenizers=_stored(data))


def _of_prepared(folder: Path, settings: TrainSettings) -> DiagnosisInputs:
    manifest = read_manifest(folder)
    return replace(inputs_from_data(manifest.data, settings), tokenizers=_stored(folder))


def _stored(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    source, target = (Tokenizer.load(folder / "data" / f"{side}.tokenizer.json") for side in ("source", "target"))
    return source, target


def _with_bundle(subject: DiagnosisInputs, bundle: Bundle, *, trained: bool) -> DiagnosisInputs:
    given = bundle.source_language, bundle.target_language
    return replace(
        subject,
        tokenizers=(bundle.source_tokenizer, bundle.target_tokenizer),
        network=bundle.model.config,
        trained=bundle.model if trained else None,
        languages=_first(subject.languages, given),
    )


def _languages(subject: DiagnosisInputs) -> Languages:
    """What was said; else what the run knows; else what the file names say."""
    named: Languages = (None, None)
    for source, target in subject.corpora:
        if target is not None:
            named = _first(named, (language_of(source), language_of(target)))
    asked = subject.settings.source_language, subject.settings.target_language
    return _first(asked, _first(subject.languages, named))


def _first(wanted: Sequence[str | None], otherwise: Sequence[str | None]) -> Languages:
    source, target = (one or other for one, other in zip(wanted, otherwise, strict=True))
    return source, target
