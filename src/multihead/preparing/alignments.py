"""Word alignments of the training text: from a file, or by IBM Model 1.

A file in Pharaoh format has the links of a pair on a line, ``0-0 1-2``: source word and target word, counted from 0,
where words are what white space separates. Line n belongs to line n of the text (`preparing.side_files`). Links to
words that are not there are dropped; where more than one pair in 100 has such links, the file is of another text, and
refused.

A run keeps the links in its folder ``alignments``, sealed; `data.word_links` makes those between tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from multihead.data.side_store import Arrays, open_side, write_side
from multihead.data.store import Int64, TokenStore
from multihead.data.text_files import open_text, split_lines
from multihead.data.word_links import Found, WordLinks, WordNumbers
from multihead.errors import ConfigurationError, DataError, Interrupted, shown
from multihead.files import remove
from multihead.planning.settings import TextFile
from multihead.preparing import ibm1
from multihead.preparing.corpora import TextFiles
from multihead.preparing.ibm1 import Words
from multihead.preparing.prepared import PreparedText
from multihead.preparing.side_files import check_side_file, lines_of_pairs, require_same
from multihead.text.backwards import require_forwards
from multihead.text.terms import knows_terms
from multihead.training.context import RunContext

Learned = Literal["ibm1", "ibm1-grow"]
"""In place of a file: links are learned from the text, and those of both directions intersected, or grown from that."""
FOLDER, _LINKS, _OFFSETS = "alignments", "links.bin", "offsets.bin"
_TYPES = {_LINKS: "<u2", _OFFSETS: "<i8"}
_CHUNK = 1 << 14
"""Lines or pairs that are held in memory."""
_ALIGNED_AT_ONCE = 1 << 11
"""Pairs whose links are searched at a time."""
_WRONG_SHARE = 0.01
"""Share of the pairs that may have links to words that are not there."""
_FEWEST_WORDS = 1.5
"""Words of a sentence, on average, below which they are not what spaces separate."""

_PHARAOH = re.compile(rb"(?:[0-9]{1,5}-[0-9]{1,5}(?:[ \t]+|$))*")


def parse_links(line: bytes, path: Path, number: int) -> npt.NDArray[np.uint16]:
    """The links of a line, [links, 2].

    Raises:
        DataError: it is not in Pharaoh format; names file and line.
    """
    line = line.strip()
    values = list(map(int, line.replace(b"-", b" ").split())) if _PHARAOH.fullmatch(line) else [-1]
    if min(values, default=0) < 0 or max(values, default=0) >= 1 << 16:
        text = shown(line.decode("utf-8", "replace"))
        raise DataError(
            f"{text} is not an alignment; expected links such as 0-0 1-2, source word - target word", path, number
        )
    return np.unique(np.array(values, np.uint16).reshape(-1, 2), axis=0)


def check_alignments(path: Path, text: PreparedText | TextFiles) -> TextFile | Learned:
    """Read a file of alignments once, to check and hash it; errors as `side_files.check_side_file`."""
    for name in get_args(Learned):
        if str(path) == name:
            return cast(Learned, name)
    return check_side_file(path, "alignments", parse_links, text)


class StoredLinks:
    """The links of the words of pairs.

    Args:
        arrays: links and offsets, mapped into memory.
        lines: the entry of each pair.
        reversed: whether the links of a pair are from target to source.
    """

    def __init__(
        self,
        arrays: Arrays,
        lines: Callable[[Int64], Int64] = lambda pairs: pairs,
        reversed: Callable[[Int64], npt.NDArray[np.bool_]] = lambda pairs: np.zeros(len(pairs), bool),
    ) -> None:
        self._links, self._offsets = arrays[_LINKS].reshape(-1, 2), arrays[_OFFSETS]
        self._lines, self._reversed = lines, reversed

    def __call__(self, pairs: Int64) -> Found:
        """The links of some pairs, as `WordLinks` takes them."""
        lines = self._lines(pairs)
        starts, lengths = self._offsets[lines], self._offsets[lines + 1] - self._offsets[lines]
        rows = np.repeat(np.arange(len(pairs)), lengths)
        places = np.arange(len(rows)) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        links = self._links[places].astype(np.int64)
        swapped = self._reversed(pairs)[rows]
        return rows, np.where(swapped, links[:, 1], links[:, 0]), np.where(swapped, links[:, 0], links[:, 1])


def pair_links(
    folder: Path,
    origin: TextFile | Learned,
    weight: float,
    prepared: PreparedText,
    context: RunContext,
) -> WordLinks:
    """The links of a run, which are read from their file or learned if the run folder has none yet.

    Args:
        folder: the run folder.
        origin: what run.json says of the file.
        weight: the factor of the loss.
        prepared: the text.
        context: the processes, the first of which writes; receives progress and may stop the work.

    Raises:
        ConfigurationError: the file has changed since the run began; or the words of the text cannot be told apart.
        DataError: the file cannot be read, or is of another text.
        FormatError: the stored links are damaged.
        Interrupted: the run was asked to stop.
    """
    if prepared.source_tokenizer.context:
        raise ConfigurationError(
            "alignments: sources have sentences before them, whose words are aligned with nothing: leave alignments "
            "out, or train without context"
        )
    require_forwards(prepared.target_tokenizer, "alignments")
    if not isinstance(origin, str) and (prepared.target_tokenizer.copied or knows_terms(prepared.source_tokenizer)):
        raise ConfigurationError(
            f"{origin.path}: the words of this text are not those of its files, because of placeholders or terms: let "
            "their alignments be learned, --alignments ibm1"
        )
    processes, name = context.processes, origin if isinstance(origin, str) else origin.sha256
    numbers = [WordNumbers(side.entries) for side in (prepared.source_tokenizer, prepared.target_tokenizer)]
    new = processes.is_first and not (folder / FOLDER).is_dir()
    if new:
        if isinstance(origin, str):
            found = _learned(prepared, numbers, context, ibm1.grown if origin == "ibm1-grow" else ibm1.intersection)
        else:
            found = _read(require_same(origin), context)
        write_side(folder, FOLDER, name, found)
    processes.all_gather("written")
    arrays = open_side(folder, FOLDER, name, _TYPES)
    if isinstance(origin, str):
        stored = StoredLinks(arrays)
    else:
        lines = lines_of_pairs(prepared)
        stored = StoredLinks(arrays, lines, lines.reversed)
        if new:
            try:
                _check_words(stored, prepared, numbers, lines, Path(origin.path), context)
            except DataError:
                remove(folder / FOLDER)
                raise
    return WordLinks(stored, numbers[0], numbers[1], weight)


def _read(path: Path, context: RunContext) -> Iterator[Arrays]:
    def lines() -> Iterator[npt.NDArray[np.uint16]]:
        with open_text(path) as stream:
            for number, line in enumerate(split_lines(stream, path), 1):
                yield parse_links(line, path, number)

    return _in_parts(lines(), context)


def _in_parts(lines: Iterator[npt.NDArray[np.uint16]], context: RunContext) -> Iterator[Arrays]:
    """The arrays of a store, from the links of each line."""
    total = 0
    yield {_OFFSETS: np.zeros(1, _TYPES[_OFFSETS]), _LINKS: np.empty(0, _TYPES[_LINKS])}
    part: list[npt.NDArray[np.uint16]] = []
    while True:
        part = [links for _, links in zip(range(_CHUNK), lines, strict=False)]
        if not part:
            return
        offsets = total + np.cumsum([len(links) for links in part])
        total = int(offsets[-1])
        yield {_OFFSETS: offsets.astype(_TYPES[_OFFSETS]), _LINKS: np.concatenate(part).astype(_TYPES[_LINKS])}
        _stop_if_asked(context)


def _stop_if_asked(context: RunContext) -> None:
    if (number := context.stop_signal()) is not None:
        raise Interrupted(number, "stopped while the words were aligned; the same command starts that again")


def _check_words(
    stored: StoredLinks,
    prepared: PreparedText,
    numbers: list[WordNumbers],
    lines: Callable[[Int64], Int64],
    path: Path,
    context: RunContext,
) -> None:
    """Check that the words are there to which links lead."""
    wrong, first = 0, ""
    for pairs in ibm1.parts(len(prepared.train), _CHUNK):
        rows, i, j = stored(pairs)
        counts = [
            _words_per_text(number, side, pairs)
            for number, side in zip(numbers, (prepared.train.source, prepared.train.target), strict=True)
        ]
        bad = np.flatnonzero((i >= counts[0][rows]) | (j >= counts[1][rows]))
        wrong += len(np.unique(rows[bad]))
        if len(bad) and not first:
            at, row = bad[0], rows[bad[0]]
            line = int(lines(pairs[row : row + 1])[0]) + 1
            first = f"{line}: the link {i[at]}-{j[at]}, but the pair has {counts[0][row]} and {counts[1][row]} words"
    if wrong > _WRONG_SHARE * len(prepared.train):
        raise DataError(
            f"{path}:{first}, and {wrong:,} of {len(prepared.train):,} pairs have such links; align the text that is "
            "trained on, whose words are what spaces separate"
        )
    if wrong:
        context.say(f"{path}:{first}; such links are left out, {wrong:,} pairs have some")


def _words_per_text(numbers: WordNumbers, side: TokenStore, pairs: Int64) -> Int64:
    flat, lengths = side.gather(pairs)
    words = numbers(flat, lengths)
    counts = np.zeros(len(lengths), np.int64)
    np.maximum.at(counts, np.repeat(np.arange(len(lengths)), lengths), words + 1)
    return counts


# --------------------------------------------------------------------------- learned


def _learned(
    prepared: PreparedText,
    numbers: list[WordNumbers],
    context: RunContext,
    combine: Callable[[Words, Words, ibm1.Model1, ibm1.Model1], tuple[Int64, Int64, Int64]],
) -> Iterator[Arrays]:
    """The links of all pairs, by IBM Model 1 in both directions, combined by a function of `ibm1`."""
    sides = [
        _Side(number, store)
        for number, store in zip(numbers, (prepared.train.source, prepared.train.target), strict=True)
    ]
    every = np.arange(len(prepared.train))
    lengths = [np.concatenate([side.lengths(own) for own in ibm1.parts(len(every), _CHUNK)]) for side in sides]
    for name, own in zip(("source", "target"), lengths, strict=True):
        if own.mean() < _FEWEST_WORDS:
            raise ConfigurationError(
                f"alignments: the {name} has {own.mean():.2f} words a sentence, as spaces do not separate them; align "
                "segmented text by another program, and give its --alignments with that text"
            )
    context.say(f"aligning the words of {len(every):,} pairs by IBM Model 1")
    counted = [Words(np.empty(0, np.int64), own) for own in lengths]
    chosen = ibm1.sample(counted[0], counted[1])
    source, target = (side.learn_words(chosen) for side in sides)
    stop = lambda: _stop_if_asked(context)  # noqa: E731
    forward, backward = (ibm1.learn(*both, after_round=stop) for both in ((source, target), (target, source)))

    def links() -> Iterator[npt.NDArray[np.uint16]]:
        for pairs in ibm1.parts(len(every), _ALIGNED_AT_ONCE):
            texts = [side.words(pairs) for side in sides]
            rows, i, j = combine(texts[0], texts[1], forward, backward)
            both = np.stack((i, j), 1)[np.maximum(i, j) < 1 << 16].astype(np.uint16)
            yield from np.split(both, np.searchsorted(rows, np.arange(1, len(pairs))))

    return _in_parts(links(), context)


class _Side:
    """The words of one side of stored text, as numbers."""

    def __init__(self, numbers: WordNumbers, store: TokenStore) -> None:
        self._numbers, self._store = numbers, store
        self._known = np.empty(0, np.uint64)

    def lengths(self, pairs: Int64) -> Int64:
        """The number of words of some sentences."""
        return _words_per_text(self._numbers, self._store, pairs)

    def learn_words(self, pairs: Int64) -> Words:
        """The words of some sentences, which get their numbers by them."""
        hashes, _ = self._hashes(pairs)
        self._known = np.unique(hashes)
        return self.words(pairs)

    def words(self, pairs: Int64) -> Words:
        """The words of some sentences; 0 is a word that is not known."""
        hashes, lengths = self._hashes(pairs)
        places = np.minimum(np.searchsorted(self._known, hashes), len(self._known) - 1)
        return Words(np.where(self._known[places] == hashes, places + 1, 0), lengths)

    def _hashes(self, pairs: Int64) -> tuple[npt.NDArray[np.uint64], Int64]:
        """A number of 64 bits for each word, from its tokens, and the words of each sentence."""
        flat, lengths = self._store.gather(pairs)
        numbers = self._numbers(flat, lengths)
        rows = np.repeat(np.arange(len(lengths)), lengths)[numbers >= 0]
        flat, numbers = flat[numbers >= 0], numbers[numbers >= 0]
        starts = np.flatnonzero(np.diff(rows, prepend=-1).astype(bool) | np.diff(numbers, prepend=-1).astype(bool))
        place = np.arange(len(flat)) - np.repeat(starts, np.diff(np.append(starts, len(flat))))
        mixed = (flat.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * (
            np.uint64(0xBF58476D1CE4E5B9) + np.uint64(2) * place.astype(np.uint64)
        )
        mixed ^= mixed >> np.uint64(32)
        sums = np.add.reduceat(mixed, starts) if len(starts) else np.empty(0, np.uint64)
        return sums, np.bincount(rows[starts], minlength=len(lengths))
