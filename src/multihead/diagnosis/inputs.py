"""Collect what `multihead doctor` checks: text, tokenizers and network.

A run or model folder provides its own text, tokenizers and best model. For text named in settings, these are what
``train`` would make of it. Only descriptions and weights are read here, not the text.

`check_unchanged` compares the text of a run with the SHA-256 recorded in its description: the files may have been
edited since, and recorded relative paths may lead to other files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from multihead import work_folder
from multihead.bundle import Bundle, load_bundle
from multihead.data.corpus import Languages, language_of
from multihead.data.entries import digest
from multihead.data.readers import shards
from multihead.diagnosis.findings import FilePair, Finding, make_finding
from multihead.errors import ConfigurationError, DataError
from multihead.files import current_folder
from multihead.models.config import NetworkConfig
from multihead.models.network import Network
from multihead.planning.choices import choose_given_model
from multihead.planning.corpus_settings import CorpusSettings
from multihead.planning.settings import (
    Choices,
    CorpusRecord,
    DataConfig,
    TextFile,
    TrainSettings,
    holds_pairs,
    read_begun_run,
    without_twins,
)
from multihead.preparing.prepared import folder_here, read_manifest
from multihead.text.languages import Languages as ModelLanguages
from multihead.text.tokenizer import Tokenizer
from multihead.urls import url_of


def check_unchanged(records: Iterable[CorpusRecord], name: str) -> list[Finding]:
    """A finding if any file differs from what was recorded.

    Args:
        records: records of corpora whose files exist.
        name: name of the run.
    """
    files = [file for record in records for file in record.files]
    changed = [what for file in files if (what := _describe_change(file))]
    if not changed:
        return []
    what = f"{len(changed)} of {len(files)} files are not what it was made from: {'; '.join(changed)}"
    return [make_finding("changed", name, len(changed), len(files), what)]


def _describe_change(file: TextFile) -> str:
    """How a file differs from its record; empty if it does not."""
    try:
        now = digest(Path(file.path))
    except DataError as error:  # it was readable when the run was made
        return str(error)
    if now.sha256 == file.sha256:
        return ""
    if now.lines != file.lines:
        return f"{file.path} has {now.lines:,} lines and had {file.lines:,}"
    return f"{file.path} has as many lines, but not the same"


@dataclass(frozen=True)
class DiagnosisInputs:
    """What to check. Empty or None: not available, or still to be made."""

    settings: TrainSettings
    """The user's settings."""
    corpora: tuple[FilePair, ...] = ()
    valid: tuple[FilePair, ...] = ()
    test: FilePair | None = None
    languages: Languages = (None, None)
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None
    network: NetworkConfig | None = None
    trained_network: Network | None = None
    name: str = "the model that would be trained"
    missing_files: tuple[str, ...] = field(default=())
    """Files of the run that no longer exist."""
    records: tuple[CorpusRecord, ...] = ()
    """Records of the corpora whose files exist."""

    def corpus_languages(self, files: FilePair) -> Languages:
        """The languages of a training corpus, as ``train`` finds them; where it finds none, those of all text."""
        asked = _fill_in(files.languages, (self.settings.source_language, self.settings.target_language))
        named: Languages = (None, None)
        if files.target is not None:
            named = language_of(files.source), language_of(files.target)
        return _fill_in(_fill_in(asked, named) if all(named) else asked, self.languages)

    def held_out_languages(self, files: FilePair) -> Languages:
        """The languages of validation or test files.

        The names of two files count only if they are those of a training corpus. Otherwise the files may have been
        named in the wrong order, which is to be found.
        """
        named = self.corpus_languages(files)
        if named in map(self.corpus_languages, self.corpora):
            return named
        return _fill_in(files.languages, self.languages)


def collect_inputs(run: Path | None, settings: TrainSettings, test: tuple[Path | None, Path | None]) -> DiagnosisInputs:
    """Collect what there is to check.

    Args:
        run: a run folder, a model folder, or a folder of `multihead prepare`.
        settings: settings as for training; text named here replaces that of the run.
        test: source and target of a test set, or Nones.

    Raises:
        ConfigurationError: nothing is named, or one of two files is missing.
        DataError: a pattern or folder has no files, or source and target have different numbers of them.
        FormatError: ``run`` is not such a folder, or it is damaged.
    """
    inputs = DiagnosisInputs(settings)
    if run is not None:
        inputs = _from_folder(run, settings)
    elif settings.data is not None:
        inputs = _from_prepared(settings.data, settings)
    if settings.from_model is not None:
        languages = ModelLanguages(settings.source_language, settings.target_language)
        inputs = _with_bundle(inputs, load_bundle(settings.from_model, languages=languages), trained=False)
        assert inputs.network is not None
        network = choose_given_model(Choices(settings), inputs.network)
        inputs = replace(inputs, network=network, name=f"the model of {settings.from_model}, to be fine-tuned")
    corpora = _named_text(settings.corpus, settings.source, settings.target, "")
    valid = _named_text(settings.valid, settings.valid_source, settings.valid_target, "valid")
    inputs = replace(
        inputs,
        corpora=corpora or inputs.corpora,
        valid=valid or inputs.valid,
        test=file_pair(*test, "test"),
        missing_files=() if corpora else inputs.missing_files,
    )
    if not (run or settings.from_model or settings.data or inputs.corpora):
        raise ConfigurationError(
            "nothing to check: name a run or model folder, or text (--source FILE --target FILE, or a file of pairs: "
            "--source FILE.tsv)"
        )
    files = {files[:2] for files in (*inputs.corpora, *inputs.valid)}
    records = tuple(record for record in inputs.records if _recorded_files(record)[:2] in files)
    return replace(inputs, languages=_languages(inputs), records=records)


def file_pair(source: Path | None, target: Path | None, what: str) -> FilePair | None:
    """A source with its target, or a file of pairs; None if neither is given.

    Raises:
        ConfigurationError: one of the two is missing.
    """
    if source is None and target is None:
        return None
    prefix = f"{what}_" if what else ""
    if source is None or (target is None and not holds_pairs(source)):
        given, missing = ("target", "source") if source is None else ("source", "target")
        raise ConfigurationError(f"{prefix}{given} is given without {prefix}{missing}: name both, or a file of pairs")
    return FilePair(source, target)


def inputs_from_data(data: DataConfig, settings: TrainSettings) -> DiagnosisInputs:
    """The text that a run or a prepared folder was made from, as far as it still exists."""
    corpora = _readable(data.corpora)
    valid = _readable([] if data.valid is None else [data.valid, *data.valid_more])
    every = [path for record in (*corpora, *valid) for path in _recorded_files(record).files]
    missing = [path for path in every if not path.exists() and url_of(path) is None]

    asked = _fill_in((settings.source_language, settings.target_language), (data.source_language, data.target_language))

    def there(records: Sequence[CorpusRecord]) -> tuple[FilePair, ...]:
        found = (files for files in map(_recorded_files, records) if not {*files.files} & {*missing})
        return tuple(files._replace(languages=_fill_in(files.languages, asked)) for files in found)

    return DiagnosisInputs(
        settings,
        there(corpora),
        there(valid),
        languages=(data.source_language, data.target_language),
        missing_files=tuple(map(str, missing)),
        records=(*corpora, *valid),
    )


def _readable(records: Sequence[CorpusRecord]) -> list[CorpusRecord]:
    """Those whose text is to be read: each text once, in the direction in which it was given."""
    return [record for record in without_twins(records) if _is_readable(record)]


def _is_readable(record: CorpusRecord) -> bool:
    """Whether a record says which side is the source: a file of pairs whose sides were exchanged has no such order."""
    return not record.reversed or len(record.files) > 1 or record.columns is not None


def _recorded_files(record: CorpusRecord) -> FilePair:
    paths = [Path(file.path) for file in record.files]
    languages = record.source_language, record.target_language
    return FilePair(paths[0], paths[1] if len(paths) > 1 else None, languages, record.columns)


def _named_text(
    corpora: Sequence[CorpusSettings] | None, source: Path | None, target: Path | None, what: str
) -> tuple[FilePair, ...]:
    """The files of corpora, or of a source and its target; patterns and folders stand for files, as for ``train``."""
    if corpora is None:
        named = file_pair(source, target, what)
        return () if named is None else tuple(FilePair(*files) for files in shards(*named[:2]))
    return tuple(
        FilePair(*files, (wish.source_language, wish.target_language), wish.columns)
        for wish in corpora
        for files in shards(wish.source, wish.target)
    )


def _from_folder(folder: Path, settings: TrainSettings) -> DiagnosisInputs:
    if url_of(folder) is not None or (folder / work_folder.PREPARED).is_file():
        return _from_prepared(folder, settings)
    if not (folder / work_folder.RUN).is_file():
        return _with_bundle(DiagnosisInputs(settings, name=str(folder)), load_bundle(folder), trained=True)
    config = read_begun_run(folder)
    inputs = replace(inputs_from_data(config.data, settings), name=str(folder), network=config.model)
    if current_folder(folder / "best").exists():
        return replace(_with_bundle(inputs, load_bundle(folder), trained=True), network=config.model)
    prepared = config.data.prepared
    data = folder if prepared is None else folder_here(Path(prepared.path), digest=prepared.sha256)
    return replace(inputs, tokenizers=_load_tokenizers(data))


def _from_prepared(place: Path, settings: TrainSettings) -> DiagnosisInputs:
    folder = folder_here(place)
    manifest = read_manifest(folder)
    return replace(inputs_from_data(manifest.data, settings), tokenizers=_load_tokenizers(folder))


def _load_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    with work_folder.open_work(folder) as opened:
        source, target = (Tokenizer.read(opened, f"data/{side}.tokenizer.json") for side in ("source", "target"))
    return source, target


def _with_bundle(inputs: DiagnosisInputs, bundle: Bundle, *, trained: bool) -> DiagnosisInputs:
    return replace(
        inputs,
        tokenizers=(bundle.source_tokenizer.plain, bundle.target_tokenizer),
        network=bundle.model.config,
        trained_network=bundle.model if trained else None,
        languages=_fill_in(inputs.languages, (bundle.source_language, bundle.target_language)),
    )


def _languages(inputs: DiagnosisInputs) -> Languages:
    """The languages from the settings, else from the run, else from the file names."""
    named: Languages = (None, None)
    for files in inputs.corpora:
        named = _fill_in(named, files.languages)
        if files.target is not None:
            named = _fill_in(named, (language_of(files.source), language_of(files.target)))
    settings = inputs.settings
    return _fill_in((settings.source_language, settings.target_language), _fill_in(inputs.languages, named))


def _fill_in(languages: Sequence[str | None], defaults: Sequence[str | None]) -> Languages:
    source, target = (one or default for one, default in zip(languages, defaults, strict=True))
    return source, target
