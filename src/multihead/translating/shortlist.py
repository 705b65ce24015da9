"""A model's shortlist, learned from training pairs by IBM's model 1.

Model 1 estimates which target symbols a source symbol becomes, from pairs of token ids:

    p(y_j | x) = 1 / (|x| + 1) sum_{i=0..|x|} t(y_j | x_i)        x_0: an empty word

where t is estimated by expectation maximization (Brown et al. 1993, "The mathematics of statistical machine
translation", section 4.1). All t start equal, so that the first round counts co-occurrences; the likelihood has a
single maximum, so that the result does not depend on the start.

The shortlist of a source x has

    V_x = the most frequent target symbols, and the end symbol
        + for each source symbol s its most probable translations by t( . | s)
        + s itself if both sides share a vocabulary: names and numbers

It is a file of the model folder that records for which tokenizers it was made. `decoding.shortlist` applies it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from multihead.bundle import SHORTLIST, Bundle, load_bundle, locate
from multihead.data.store import Int64, ParallelStore
from multihead.decoding.shortlist import Ids, Shortlist
from multihead.errors import ConfigurationError, FormatError
from multihead.files import atomic_file, atomic_folder, write_tensors
from multihead.model_folder import COPY_AGAIN
from multihead.sealed import MANIFEST, open_folder, seal
from multihead.tensor_files import read_tensors
from multihead.text.backwards import have_one_vocabulary
from multihead.text.languages import Languages
from multihead.translating.own_text import open_pairs

_CELLS = 4_000_000
"""Pairs of a source and a target symbol that are processed together: memory."""

_AT_A_TIME = 100_000
"""Sentences whose symbols are counted together: memory."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Lexicon:
    """t of the symbols that occur together, in the order of source and target symbol.

    The source symbol ``source_vocab`` is the empty word.
    """

    source: Int64
    target: Int64
    probability: Floats
    """t(target | source)"""


def learn(store: ParallelStore, source_vocab: int, target_vocab: int, rounds: int = 5, pairs: int = 100_000) -> Lexicon:
    """Estimate t.

    Args:
        store: the pairs, without begin and end symbols.
        source_vocab: entries of the source's vocabulary.
        target_vocab: entries of the target's vocabulary.
        rounds: of expectation maximization.
        pairs: maximum number of pairs that are used, evenly spread.
    """
    chosen = np.arange(0, len(store), max(1, -(-len(store) // pairs)), dtype=np.int64)
    keys = np.empty(0, dtype=np.int64)
    for cells, _ in _cells(store, chosen, source_vocab, target_vocab):
        keys = np.union1d(keys, cells)
    source, target = np.divmod(keys, target_vocab)
    probability: Floats = np.ones(len(keys))
    for _ in range(rounds):
        counts = np.zeros(len(keys))
        for cells, words in _cells(store, chosen, source_vocab, target_vocab):
            places = np.searchsorted(keys, cells)
            shares = probability[places]
            shares /= np.bincount(words, shares)[words]
            counts += np.bincount(places, shares, len(keys))
        totals = np.bincount(source, counts, source_vocab + 1)
        probability = counts / totals[source]
    return Lexicon(source, target, probability)


def _cells(store: ParallelStore, chosen: Int64, source_vocab: int, target_vocab: int) -> Iterator[tuple[Int64, Int64]]:
    """Every source symbol, the empty word first, with every target symbol of its pair, some pairs at a time.

    Yields source * target_vocab + target, and the number of the target word.
    """
    sizes = (store.source.lengths[chosen].astype(np.int64) + 1) * store.target.lengths[chosen]
    parts = np.searchsorted(np.cumsum(sizes), np.arange(_CELLS, int(sizes.sum()) + _CELLS, _CELLS), side="right")
    for some in np.split(chosen, np.unique(np.clip(parts, 1, len(chosen)))):
        if not len(some):
            continue
        (source, read), (target, written) = store.source.gather(some), store.target.gather(some)
        each = np.repeat(read + 1, written)  # source words of each target word
        words = np.repeat(np.arange(len(target)), each)
        place = np.arange(len(words)) - np.repeat(
            np.cumsum(each) - each, each
        )  # place in the source; 0 is the empty word
        first = np.repeat(np.cumsum(read) - read, written)[words]
        known = np.append(source, source_vocab)  # for place 0 of the first source
        symbols = np.where(place == 0, source_vocab, known[first + place - 1])
        yield symbols * target_vocab + target[words], words


FILE = SHORTLIST
_NAMES = ("always", "starts", "candidates")

AGAIN = "make it again by `multihead shortlist`"


def shortlist(
    model: str | Path,
    *,
    data: str | Path | None = None,
    always: int = 1024,
    candidates: int = 40,
    languages: Languages | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Make the shortlist of a model and store it in its folder, replacing an earlier one.

    Args:
        model: a run or a model folder, or one of another program.
        data: a run, or a folder of `multihead prepare`, with pairs in the model's subwords; by default the run itself.
        always: number of most frequent target symbols that every translation may contain.
        candidates: number of translations of each source symbol.
        languages: source and target, for a model of another program that has several.
        say: called with a line about its size.

    Returns:
        The file.

    Raises:
        ConfigurationError: impossible numbers; pairs in other subwords, or none; a language of a model with several is
            not named.
        FormatError: not a model.
    """
    if always < 1 or candidates < 0:
        raise ConfigurationError(f"always is at least 1 and candidates at least 0, got {always} and {candidates}")
    folder = locate(Path(model))
    bundle = load_bundle(folder, languages=languages)
    pairs = open_pairs(Path(data or model), bundle)
    if not len(pairs):
        raise ConfigurationError(f"{Path(data or model) / 'data' / 'train'}: holds no pairs")
    source, target = bundle.source_tokenizer, bundle.target_tokenizer
    made = choose(pairs, len(source), len(target), always, candidates, _shared(bundle), target.eos_id)
    arrays = dict(zip(_NAMES, map(torch.from_numpy, made.arrays), strict=True))
    path = _store(folder, arrays | {name: _bytes(digest) for name, digest in _digests(bundle)})
    sizes = [len(made.of(pairs.source[place].tolist())) for place in range(0, len(pairs), -(-len(pairs) // 1000))]
    say(f"{path}: {np.mean(sizes):.0f} of {len(bundle.target_tokenizer)} target symbols for a sentence of the text")
    return path


def _store(folder: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Write a shortlist into a model folder; a folder with a manifest is replaced by one that lists it, too."""
    with open_folder(folder, COPY_AGAIN) as found:
        entries = found.entries
    if entries is None:
        with atomic_file(folder / FILE) as draft:
            write_tensors(draft, tensors)
    else:
        known = {name: entry.sha256 for name, entry in entries.items() if name != FILE}
        with atomic_folder(folder) as draft:
            shutil.copytree(folder, draft, dirs_exist_ok=True, ignore=lambda *_: {FILE, MANIFEST})
            seal(draft, {**known, FILE: write_tensors(draft / FILE, tensors)})
    return folder / FILE


def choose(
    pairs: ParallelStore, source_vocab: int, target_vocab: int, always: int, candidates: int, shared: bool, end: int
) -> Shortlist:
    """The shortlist for some pairs; ``shared``: both sides have one vocabulary; ``end``: the end symbol."""
    counts = np.zeros(target_vocab, np.int64)
    for start in range(0, len(pairs), _AT_A_TIME):
        ids, _ = pairs.target.gather(np.arange(start, min(start + _AT_A_TIME, len(pairs))))
        counts += np.bincount(ids, minlength=target_vocab)
    frequent = np.argsort(-counts, kind="stable")[:always]
    found = learn(pairs, source_vocab, target_vocab)
    words, targets = best(found, candidates)
    if shared:
        words, targets = (np.append(side, np.arange(source_vocab)) for side in (words, targets))
    keys = np.unique(words * target_vocab + targets)
    words, targets = np.divmod(keys, target_vocab)
    starts = np.searchsorted(words, np.arange(source_vocab + 1))
    return Shortlist(np.append(frequent, end), starts, targets)


def best(found: Lexicon, count: int) -> tuple[Ids, Ids]:
    """The ``count`` most probable translations of each source symbol, without the empty word."""
    order = np.lexsort((-found.probability, found.source))
    words, targets = found.source[order], found.target[order]
    rank = np.arange(len(words)) - np.searchsorted(words, words)
    kept = (rank < count) & (words < words.max(initial=0))  # the empty word comes last
    return words[kept], targets[kept]


def read(folder: Path | None, bundle: Bundle) -> Shortlist:
    """Read the shortlist of a model folder.

    Args:
        folder: of the model, or of its run.
        bundle: the model that the shortlist must be for.

    Raises:
        ConfigurationError: there is none, or it was made for other subwords.
        FormatError: it is damaged.
    """
    path = None if folder is None else locate(folder) / FILE
    if path is None or not path.is_file():
        raise ConfigurationError(
            f"{path or 'this model'}: there is no shortlist: make one by `multihead shortlist`, or search without"
        )
    with open_folder(path.parent, AGAIN) as found:
        tensors = read_tensors(found, FILE)
    try:
        made = Shortlist(*(_ids(tensors, name) for name in _NAMES))
        same = all(torch.equal(tensors[name], _bytes(digest)) for name, digest in _digests(bundle))
        if same:  # symbols of other subwords would not fit
            made.check(len(bundle.source_tokenizer), len(bundle.target_tokenizer))
    except (KeyError, ConfigurationError) as error:
        raise FormatError(f"{path}: damaged ({error}); {AGAIN}") from None
    if not same:
        raise ConfigurationError(f"{path}: made for other subwords than this model's; {AGAIN}")
    return made


def _ids(tensors: Mapping[str, Tensor], name: str) -> Ids:
    """A tensor of a shortlist.

    Raises:
        ConfigurationError: it does not hold integers of 64 bits.
    """
    if tensors[name].dtype != torch.int64:
        raise ConfigurationError(f"{name} is of {tensors[name].dtype}, expected {torch.int64}")
    ids: Ids = tensors[name].numpy()
    return ids


def _bytes(digest: bytes) -> Tensor:
    return torch.tensor(list(digest), dtype=torch.uint8)


def _digests(bundle: Bundle) -> list[tuple[str, bytes]]:
    return [
        ("source", bytes.fromhex(bundle.source_tokenizer.digest)),
        ("target", bytes.fromhex(bundle.target_tokenizer.digest)),
    ]


def _shared(bundle: Bundle) -> bool:
    return have_one_vocabulary(bundle.source_tokenizer, bundle.target_tokenizer)
