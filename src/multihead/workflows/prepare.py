"""From a user's files to what training reads: tokenizers, stored token ids, validation text.

    run/data/source.tokenizer.json, target.tokenizer.json    (the same content where the vocabulary is shared)
    run/data/train/                                          a `ParallelStore`
    run/data/valid/                                          the same of the validation pairs
    run/data/valid.source.txt, valid.target.txt              their text, to translate and to score against
    run/left-out.tsv                                         every pair that could not be used, and why

Nothing here depends on the model. It is done again from the start when it was interrupted: `workflows.run_folder`
sees to that, and removes what is here when it ends in an error.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from multihead.data.corpus import Pair, ParallelScan, check_parallel, read_checked
from multihead.data.report import Report
from multihead.data.store import ParallelStore, ParallelWriter
from multihead.errors import ConfigurationError, DataError, FormatError
from multihead.files import explained, write_text
from multihead.metrics.scores import language_of
from multihead.text.tokenizer import Tokenizer
from multihead.workflows.planning import Choices, choose_vocabulary
from multihead.workflows.settings import DataConfig, TextFile, TrainSettings

_SAMPLE = 1_000_000
"""Pairs that a vocabulary is learned from; more change nothing but the time."""
_CHUNK = 10_000
"""Pairs tokenised at a time."""


@dataclass(frozen=True)
class Prepared:
    """What training reads."""

    config: DataConfig
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: ParallelStore
    valid: ParallelStore
    valid_sources: list[str]
    valid_targets: list[str]


@dataclass(frozen=True)
class Files:
    """The files, looked through: they exist, are text, and have equally many lines on both sides."""

    train: ParallelScan
    valid: ParallelScan | None

    def described(self) -> dict[str, TextFile]:
        """What run.json says of them."""
        scans = {"source": self.train.source, "target": self.train.target}
        if self.valid is not None:
            scans |= {"valid_source": self.valid.source, "valid_target": self.valid.target}
        return {
            name: TextFile(path=str(scan.path), sha256=scan.sha256, lines=scan.lines) for name, scan in scans.items()
        }


def look_through(settings: TrainSettings) -> Files:
    """Reads the files that ``settings`` name once, before anything is made from them.

    Raises:
        ConfigurationError: a file is not named.
        DataError: a file cannot be read as aligned text.
    """
    if settings.source is None or settings.target is None:
        missing = " and ".join(name for name in ("source", "target") if getattr(settings, name) is None)
        raise ConfigurationError(f"the training text is not named: {missing} missing (--source FILE --target FILE)")
    train = check_parallel(settings.source, settings.target)
    if settings.valid_source is None or settings.valid_target is None:
        return Files(train, None)
    return Files(train, check_parallel(settings.valid_source, settings.valid_target))


def prepare(choices: Choices, files: Files, folder: Path, say: Callable[[str], None]) -> Prepared:
    """Writes what training needs into ``folder``, which exists and is empty.

    Raises:
        DataError: no pair is left to train on or to validate with.
    """
    settings = choices.settings
    data = folder / "data"
    with explained(data):
        data.mkdir()
    report, valid_report = Report(), Report()
    held_out = _held_out(choices, files)
    usable = (p for p in read_checked(files.train, Report()) if p.line not in held_out)
    pairs = list(islice(usable, _SAMPLE))
    size = choose_vocabulary(choices, len(pairs))
    source_tokenizer, target_tokenizer = _learn(choices, size, pairs, say)
    del pairs
    source_tokenizer.save(data / "source.tokenizer.json")
    target_tokenizer.save(data / "target.tokenizer.json")
    longest = choices.take("max_tokens", lambda: (256, "longer ones cost much and teach little"))
    tokenizers = (source_tokenizer, target_tokenizer)
    if files.valid is None:
        everything = [p for p in read_checked(files.train, Report()) if p.line in held_out]
    else:
        everything = list(read_checked(files.valid, valid_report))
    training = (p for p in read_checked(files.train, report) if p.line not in held_out)
    _store(data / "train", tokenizers, training, longest, report, files.train)
    _store(data / "valid", tokenizers, iter(everything), None, valid_report, files.valid or files.train)
    _write_valid(data, everything)
    store = ParallelStore.open(data / "train")
    if not len(store):
        raise DataError(f"no training pair is left; {report.summary()}", files.train.source.path)
    _tell(folder, (report, valid_report), say)
    config = DataConfig(
        files=files.described(),
        source_language=_language(choices, "source_language", files.train.source.path),
        target_language=_language(choices, "target_language", files.train.target.path),
        vocab_size=size,
        shared_vocabulary=settings.shared_vocabulary is not False,
        max_tokens=longest,
        held_out=len(held_out),
        pairs=len(store),
        left_out=report.left_out + valid_report.left_out,
    )
    return reopen(folder, config)


def reopen(folder: Path, config: DataConfig) -> Prepared:
    """What `prepare` wrote, read again."""
    data = folder / "data"
    return Prepared(
        config,
        Tokenizer.load(data / "source.tokenizer.json"),
        Tokenizer.load(data / "target.tokenizer.json"),
        ParallelStore.open(data / "train"),
        ParallelStore.open(data / "valid"),
        *(_read_valid(data / f"valid.{side}.txt") for side in ("source", "target")),
    )


def _language(choices: Choices, name: str, path: Path) -> str | None:
    code = language_of(path)
    reason = "from the name of the file" if code else "the name of the file does not say"
    return choices.take(name, lambda: (code, reason))


def _held_out(choices: Choices, files: Files) -> frozenset[int]:
    """The lines kept from training for validation: none where there are validation files."""
    if files.valid is not None:
        choices.reasons["held_out"] = "there are validation files"
        return frozenset()
    # The valid pairs alone are candidates: an empty line validates nothing.
    usable = [pair.line for pair in read_checked(files.train, Report())]
    size = min(max(len(usable) // 50, 1), 1000)
    wanted = choices.take(
        "held_out", lambda: (size, f"no validation files: {size:,} of {len(usable):,} pairs are kept apart")
    )
    if wanted >= len(usable):
        many = "1 pair can be used" if len(usable) == 1 else f"{len(usable):,} pairs can be used"
        raise DataError(
            f"{many}, and {wanted:,} would be held out for validation: nothing would be left to train on. "
            "Give more text, validation files, or a smaller held_out",
            files.train.source.path,
        )
    return frozenset(random.Random(settings_seed(choices)).sample(usable, wanted))


def settings_seed(choices: Choices) -> int:
    """The seed of a run before its configuration is complete."""
    return 1 if choices.settings.seed is None else choices.settings.seed


def _learn(choices: Choices, size: int, pairs: list[Pair], say: Callable[[str], None]) -> tuple[Tokenizer, Tokenizer]:
    sources, targets = (p.source for p in pairs), (p.target for p in pairs)
    shared = choices.take("shared_vocabulary", lambda: (True, "names and numbers are alike on both sides"))
    if shared:
        say(f"learning a vocabulary of {size:,} subwords from {len(pairs):,} pairs")
        both = Tokenizer.learn(_alternate(sources, targets), size)
        return both, both
    say(f"learning two vocabularies of {size:,} subwords from {len(pairs):,} pairs")
    return Tokenizer.learn(sources, size), Tokenizer.learn(targets, size)


def _alternate(first: Iterable[str], second: Iterable[str]) -> Iterator[str]:
    for one, other in zip(first, second, strict=True):
        yield one
        yield other


def _store(
    path: Path,
    tokenizers: tuple[Tokenizer, Tokenizer],
    pairs: Iterator[Pair],
    longest: int | None,
    report: Report,
    scans: ParallelScan,
) -> None:
    """Tokenises pairs into a store; pairs with a side of more than ``longest`` subwords go to the report."""
    paths = (scans.source.path, scans.target.path)
    with ParallelWriter(path, len(tokenizers[0]), len(tokenizers[1])) as writer:
        while chunk := list(islice(pairs, _CHUNK)):
            sources = tokenizers[0].encode_batch([pair.source for pair in chunk])
            targets = tokenizers[1].encode_batch([pair.target for pair in chunk])
            kept = []
            for index, pair in enumerate(chunk):
                lengths = (len(sources[index]), len(targets[index]))
                if longest is not None and max(lengths) > longest:
                    side = 0 if lengths[0] > longest else 1
                    report.add(paths[side], pair.line, f"more than {longest} subwords", str(lengths[side]))
                else:
                    kept.append(index)
            writer.append([sources[i] for i in kept], [targets[i] for i in kept], [chunk[i].line for i in kept])


def _write_valid(data: Path, pairs: list[Pair]) -> None:
    write_text(data / "valid.source.txt", "".join(pair.source + "\n" for pair in pairs))
    write_text(data / "valid.target.txt", "".join(pair.target + "\n" for pair in pairs))


def _read_valid(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: missing or damaged ({error}); start the run again in a new folder") from None


def _tell(folder: Path, reports: tuple[Report, ...], say: Callable[[str], None]) -> None:
    """Names what was left out, on the screen in short and in a file in full."""
    faults = [fault for report in reports for fault in report.faults]
    rows = ["file\tline\treason\tdetail", *("\t".join(map(str, fault)) for fault in faults)]
    if unnamed := sum(report.left_out for report in reports) - len(faults):
        rows.append(f"\t\tand {unnamed:,} more\t")
    write_text(folder / "left-out.tsv", "\n".join(rows) + "\n")
    for report in reports:
        if report.left_out:
            say(report.summary())
            say(f"{report.left_out:,} pairs left out; all others are kept (see {folder / 'left-out.tsv'})")
