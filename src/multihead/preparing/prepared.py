"""Prepared text: what training reads, from a run or a prepared folder.

    FOLDER/data/source.tokenizer.json, target.tokenizer.json    equal files if the vocabulary is shared
    FOLDER/data/train/                                          a `ParallelStore`: the corpora, one after the other
    FOLDER/data/valid/                                          a `ParallelStore` of the validation pairs
    FOLDER/data/valid.source.txt, valid.target.txt              their text, to translate and to score against

`preparing.prepare` writes these files, either inside a run or ahead of one, in a folder that `multihead train --data`
reads in place. ``prepared.json`` of such a folder lists the SHA-256 of every data file; a run records the SHA-256 of
``prepared.json``. Every file is compared when a run begins and each time it resumes, with that and with the manifest of
its folder (`multihead.sealed`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from multihead.configuration import Settings
from multihead.data.batching import Batch, BatchStream, collate
from multihead.data.order import Array, Share, batch_order
from multihead.data.store import ParallelStore
from multihead.errors import ConfigurationError, FormatError
from multihead.files import sha256_of
from multihead.planning.settings import Choices, DataConfig, PreparedFolder, PrepareSettings
from multihead.sealed import OpenFolder, find_folder, open_folder
from multihead.text.languages import Direction
from multihead.text.segment import Segmenter
from multihead.text.tokenizer import Tokenizer
from multihead.training.config import TrainingConfig
from multihead.urls import url_of
from multihead.work_folder import PREPARED, given_settings, open_work, parse

MANIFEST_VERSION = 2
"""Newest format version of prepared.json; older versions can be read."""

_REMEDY = "prepare the text again into a new folder"


class Resegmentation:
    """BPE-dropout on both sides, as a function of seed, epoch, side and pair.

    With teachers the target stays as it is stored: what they predict belongs to its subwords.

    Args:
        prepared: text whose tokenizers segment.
        training: dropout rate and seed, and whether there are teachers.
    """

    def __init__(self, prepared: PreparedText, training: TrainingConfig) -> None:
        tokenizers = [prepared.source_tokenizer]
        if not training.teacher_weight:
            tokenizers.append(prepared.target_tokenizer)
        self._sides = tuple(Segmenter(tokenizer, training.bpe_dropout, training.seed) for tokenizer in tokenizers)

    def __call__(self, side: int, ids: list[list[int]], pairs: list[int], epoch: int) -> list[list[int]]:
        """Segment one side of a batch again; ``pairs`` are the sentences' indices in the store."""
        return self._sides[side].segment(ids, pairs, epoch, side) if side < len(self._sides) else ids


@dataclass(frozen=True)
class PreparedText:
    """Stored training and validation pairs, with their tokenizers."""

    config: DataConfig
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: ParallelStore
    valid: ParallelStore
    valid_sources: list[str]
    valid_targets: list[str]

    @property
    def shares(self) -> tuple[Share, ...]:
        """The range and weight of each corpus in the store; empty if every pair is seen once an epoch."""
        shares, start = [], 0
        for corpus in self.config.corpora:
            shares.append(Share(start, start + corpus.pairs, corpus.weight))
            start += corpus.pairs
        return () if all(share.weight == 1 for share in shares) else tuple(s for s in shares if s.start < s.stop)

    def batches(self, training: TrainingConfig, position: tuple[int, int]) -> BatchStream:
        """An endless stream of batches, starting at ``position`` (epoch and index in it)."""
        return BatchStream(
            self.train,
            training.batch_tokens,
            training.seed,
            **self.target_tokenizer.special_ids,
            position=position,
            shares=self.shares,
            segment=Resegmentation(self, training) if training.bpe_dropout else None,
            blocks=self.config.order == "blocks",
        )

    def largest(self, training: TrainingConfig) -> list[Batch]:
        """The batches of the first epoch that need most memory.

        These are the batch with most tokens, including padding, and the one with most pairs of tokens: the first is
        the largest everywhere but in attention, the second there. Of a large store, only some batches are compared
        (`block_order.large_batches`), those of the longest pairs among them.
        """
        if self.config.order == "blocks":
            from multihead.data.block_order import large_batches

            order = large_batches(self.train, training.batch_tokens, training.seed)
        else:
            sides = self.train.source.lengths + 1, self.train.target.lengths + 1
            order = batch_order(*sides, training.batch_tokens, training.seed, 0)
        longest = [[int(s.lengths_of(b).max()) + 1 for s in (self.train.source, self.train.target)] for b in order]
        sizes = np.array(
            [[len(b) * sum(n**p for n in most) for p in (1, 2)] for b, most in zip(order, longest, strict=True)]
        )
        return [
            collate(self.train, order[index], **self.target_tokenizer.special_ids)
            for index in sorted(set(sizes.argmax(0).tolist()))
        ]

    @property
    def valid_parts(self) -> list[tuple[Direction | None, slice]]:
        """The validation pairs of each direction; of a single direction, which needs no name, all of them."""
        parts: list[tuple[Direction | None, slice]] = []
        start = 0
        for record in self.config.directions:
            parts.append((Direction(record.source, record.target), slice(start, start + record.valid)))
            start += record.valid
        return [part for part in parts if part[1].stop > part[1].start] or [(None, slice(0, len(self.valid)))]

    def lines(self, pairs: Array) -> dict[str, list[int]]:
        """The line numbers of pairs of the store, counted from 1, by the names of their corpus's files."""
        found, start = {}, 0
        for corpus in self.config.corpora:
            own = pairs[(pairs >= start) & (pairs < start + corpus.pairs)]
            if len(own):
                found[" + ".join(file.path for file in corpus.files)] = sorted(self.train.lines[own].tolist())
            start += corpus.pairs
        return found


def open_prepared(folder: Path, config: DataConfig) -> PreparedText:
    """Open the text stored in ``folder/data``, compared with the manifest of the folder.

    Raises:
        FormatError: a file is missing or damaged.
    """
    with open_work(folder) as opened:
        return _open(opened.part("data"), config)


def _open(data: OpenFolder, config: DataConfig) -> PreparedText:
    source, target = (Tokenizer.read(data, f"{side}.tokenizer.json") for side in ("source", "target"))
    train, valid = (ParallelStore.open(data.part(name)) for name in ("train", "valid"))
    for name, store in (("train", train), ("valid", valid)):
        store.check_ids(len(source), len(target), data.path / name)
    said = sum(corpus.pairs for corpus in config.corpora)
    if said != len(train):
        raise FormatError(f"{data.path / 'train'}: {len(train):,} pairs, but the corpora have {said:,}; {data.remedy}")
    texts = {name: data.read_text(name, None).split("\n")[:-1] for name in ("valid.source.txt", "valid.target.txt")}
    for name, lines in texts.items():
        if len(lines) != len(valid):
            raise FormatError(f"{data.path / name}: {len(lines):,} lines for {len(valid):,} pairs; {data.remedy}")
    return PreparedText(config, source, target, train, valid, *texts.values())


# --------------------------------------------------------------------------- folders of `multihead prepare`


class Manifest(Settings):
    """The content of prepared.json."""

    sealed_since: ClassVar[int] = 2
    """Folders of this format version and later have a manifest."""

    format_version: int = MANIFEST_VERSION
    multihead: str
    """The version that wrote it."""
    asked: dict[str, object]
    """The settings given by the user."""
    data: DataConfig
    reasons: dict[str, str]
    """The reason of each decision."""
    files: dict[str, str]
    """The SHA-256 of each file below data."""


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of ``folder``.

    Raises:
        FormatError: it is missing, damaged or of a newer version.
    """
    found = find_folder(folder, _REMEDY)
    if found is None or PREPARED not in found:
        why = "is there: no such folder" if found is None else "was prepared here to the end"
        raise FormatError(f"{folder}: nothing {why}; give as --data what `multihead prepare --output` made")
    with found:
        return _parse(found)


def _open_folder(folder: Path) -> OpenFolder:
    return open_folder(folder, _REMEDY)


def _parse(opened: OpenFolder) -> Manifest:
    return parse(opened, PREPARED, Manifest, "install that")


def folder_here(place: Path, say: Callable[[str], None] = lambda _: None, digest: str | None = None) -> Path:
    """A folder on this machine: the same, or a copy of one at a URL, which `preparing.remote` makes.

    Args:
        place: the folder, or a URL.
        say: called with each line of output while it is copied.
        digest: the SHA-256 of its ``prepared.json``, if it is known.

    Raises:
        FormatError: nothing was prepared at the URL.
        SurroundingsError: it cannot be read, or the copy cannot be written.
    """
    if (url := url_of(place)) is None:
        return place
    from multihead.preparing.remote import local_copy

    return local_copy(url.rstrip("/"), say, digest)


def use_folder(place: Path, choices: Choices, say: Callable[[str], None] = lambda _: None) -> PreparedText:
    """Open a prepared folder for a new run and take over the reasons recorded there.

    Args:
        place: the folder, or a URL.
        choices: the settings of the run.
        say: called with each line of output while it is copied from a URL.

    Raises:
        FormatError: a file is missing, damaged or has changed.
        ConfigurationError: a setting of the text differs from the one it was prepared with.
    """
    folder = folder_here(place, say)
    manifest = read_manifest(folder)
    _check_settings(folder, manifest, choices.settings)
    choices.reasons |= manifest.reasons
    with _open_folder(folder) as opened:
        origin = PreparedFolder(path=url_of(place) or str(folder.absolute()), sha256=opened.digest(PREPARED))
        return _open_checked(opened, _parse(opened), manifest.data.model_copy(update={"prepared": origin}))


def open_training_text(run: Path, config: DataConfig, moved: Path | None) -> PreparedText:
    """Open the text of a run that has begun.

    Args:
        run: the run folder.
        config: what the run recorded of its text.
        moved: where the prepared folder is now, if it has been moved; it may be a URL.

    Raises:
        FormatError: the text is missing, or differs from that with which the run began.
    """
    if config.prepared is None:
        return open_prepared(run, config)
    folder = folder_here(moved or Path(config.prepared.path), digest=config.prepared.sha256)
    read_manifest(folder)  # says what is missing where nothing is
    with _open_folder(folder) as opened:
        if opened.verify(PREPARED) != config.prepared.sha256:
            raise FormatError(
                f"{folder}: not the text that this run was begun with: {PREPARED} has changed. Give the right folder "
                "as --data, or start a new run"
            )
        return _open_checked(opened, _parse(opened), config)


def _check_settings(folder: Path, manifest: Manifest, settings: Settings) -> None:
    decided = {**manifest.data.model_dump(mode="json"), **manifest.asked}
    given = given_settings(settings)
    differing = [
        f"{name} is {decided.get(name, 'not given')} there, not {given[name]}"
        for name in PrepareSettings.model_fields
        if name not in ("from_model", "seed") and name in given and decided.get(name) != given[name]
    ]
    if differing:
        raise ConfigurationError(
            f"{folder}: was prepared with other settings ({', '.join(differing)}); leave them out, or {_REMEDY}"
        )


def _open_checked(opened: OpenFolder, manifest: Manifest, config: DataConfig) -> PreparedText:
    """Open the text after comparing it with prepared.json, which is older than the manifest of the folder."""
    found = data_digests(opened.path) if opened.entries is None else {n: e.sha256 for n, e in opened.entries.items()}
    for name, digest in manifest.files.items():
        if found.get(name) != digest:
            what = "has changed since it was written" if name in found else "is missing"
            raise FormatError(f"{opened.path / name}: {what} (its SHA-256 stands in {PREPARED}); {_REMEDY}")
    return _open(opened.part("data"), config)


def data_digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in ``folder/data``, by its path relative to ``folder``."""
    return {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in sorted((folder / "data").rglob("*"))
        if path.is_file()
    }
