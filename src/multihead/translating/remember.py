"""Make a datastore: the states of a model in a text, and what follows.

    D = {(f(x, y_<t), y_t) for each pair (x, y) of the text and each t <= |y|},    y_|y| is the end symbol

where f is the state before the output projection (Khandelwal et al. 2021, section 2.2, "datastore creation"). How much
the neighbours count is chosen on validation text: the share s and the temperature T with the lowest mean of

    - log((1 - s) p(y_t) + s p_neighbours(y_t))

and then how many cells of entries are looked into: the fewest with which that mean is at most `TOLERANCE` higher.

`translating.datastore` has the format, `translating.cells` divides the entries, `engine.neighbours` is the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multihead.bundle import Bundle, load_bundle, locate, model_digest
from multihead.configuration import build
from multihead.engine.datastore import Floats, PackedDatastore
from multihead.engine.search import why_not
from multihead.errors import ConfigurationError
from multihead.files import atomic_folder, check_new_folder, write_tensors
from multihead.model_folder import write_json
from multihead.sealed import seal
from multihead.text.languages import Languages
from multihead.translating.cells import divide, rounded
from multihead.translating.datastore import ARRAYS, CONFIG, FORMAT_VERSION, Remembering
from multihead.translating.forced import forced_states, pair_batches, token_log_probabilities
from multihead.translating.own_text import open_pairs
from multihead.translating.searching import require_same_vocabularies

SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7)
TEMPERATURES = (0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
"""In units of the mean squared distance between the nearest and the last neighbour."""

PROBES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Cells that are tried, before all."""
TOLERANCE = 0.001

_TRIED = 20_000
"""Validation symbols by which share and temperature are chosen."""

_AT_A_TIME = 2_000
"""Pairs whose states are computed together."""

_LOOKED_UP = 1_000
"""States that are looked up between two moments at which the work can be stopped."""

_BATCH_TOKENS = 4096

_SECONDS = 5
"""Between two lines about the progress."""


@dataclass(frozen=True)
class Pairs:
    """Sentences and their translations as ids, without begin and end symbols."""

    sources: Sequence[list[int]]
    targets: Sequence[list[int]]

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def symbols(self) -> int:
        """Target symbols, end symbols counted."""
        return sum(map(len, self.targets)) + len(self)

    def spread(self, most: int) -> Pairs:
        """As many pairs as have some ``most`` target symbols, evenly spread."""
        step = _step(self.symbols, most)
        return Pairs(self.sources[::step], self.targets[::step])


def remember(
    model: str | Path,
    *,
    output: str | Path,
    data: str | Path | None = None,
    text: tuple[Sequence[str], Sequence[str]] | None = None,
    valid: tuple[Sequence[str], Sequence[str]] | None = None,
    others: Sequence[str | Path] = (),
    languages: Languages | None = None,
    neighbours: int = 64,
    most: int = 2_000_000,
    say: Callable[[str], None] = print,
    progress: Callable[[], None] = lambda: None,
) -> Path:
    """Make the datastore of a model.

    Args:
        model: a run or a model folder, or one of another program.
        output: a new or empty folder.
        data: a run, or a folder of `multihead prepare`, with pairs in the model's subwords; by default the run itself.
        text: sentences and their translations instead.
        valid: the same, by which share, temperature and probes are chosen; by default the validation text of
            ``data``.
        others: further members of the ensemble that the share is chosen for.
        languages: source and target, for models of another program that have several.
        neighbours: nearest entries of a state.
        most: about how many entries there are at most, for which pairs are taken evenly spread.
        say: called with lines about the progress and the result.
        progress: called now and then; it may raise, to stop.

    Returns:
        The folder.

    Raises:
        ConfigurationError: an impossible number; the output exists; a model that has no compiled search or several
            directions; pairs in other subwords, or none; a language of a model with several is not named.
        FormatError: not a model.
        SurroundingsError: not enough memory, or the output cannot be written.
    """
    output, folder = Path(output), locate(Path(model))
    if most < 1:
        raise ConfigurationError(f"most is a number of entries of at least 1, got {most}")
    build(Remembering, {"neighbours": neighbours, "share": SHARES[0], "temperature": 1.0}, "the datastore")
    check_new_folder(output)
    bundle, *members = (load_bundle(place, languages=languages) for place in (folder, *map(locate, map(Path, others))))
    for path, member in zip(others, members, strict=True):
        require_same_vocabularies(bundle, member, str(path))
    if bundle.directions:
        raise ConfigurationError(f"{model}: has several directions; a datastore is of a model of one")
    if (reason := why_not(bundle.searched)) is not None:
        raise ConfigurationError(f"{model}: has no compiled search, which a datastore needs: {reason}")
    own = Path(data or model)
    pairs = _prepared(own, bundle, "train", most) if text is None else _encoded(bundle, *text).spread(most)
    tried = _prepared(own, bundle, "valid", _TRIED) if valid is None and text is None else None
    if valid is not None:
        tried = _encoded(bundle, *valid).spread(_TRIED)
    if tried is None:
        raise ConfigurationError(
            "the share of the neighbours is chosen on validation text: give --valid-source and --valid-target"
        )
    if not len(pairs) or not len(tried):
        raise ConfigurationError("the text, or the validation text, holds no pairs")
    keys, steps, symbols = _entries(bundle, pairs, say, progress)
    order, cells = divide(keys, steps)
    keys, steps, symbols = keys[order], steps[order], symbols[order]
    packed = PackedDatastore(keys, steps, symbols, cells)
    how, before, after = _choose([bundle, *members], packed, tried, neighbours, progress)
    with atomic_folder(output) as draft:
        arrays = {"keys": keys, "steps": steps, "symbols": symbols, **cells._asdict()}
        digest = write_tensors(draft / ARRAYS, {name: torch.from_numpy(array) for name, array in arrays.items()})
        said = {"format_version": FORMAT_VERSION, "model": model_digest(folder), **how.model_dump()}
        write_json(draft / CONFIG, said)
        seal(draft, {ARRAYS: digest})
    size = (output / ARRAYS).stat().st_size / 1e6
    say(
        f"{output}: {len(symbols):,} entries, {size:.0f} MB; {how.neighbours} neighbours with a share of {how.share}, "
        f"in {how.probes or packed.cells} of {packed.cells:,} cells: validation loss {after:.3f} instead of "
        f"{before:.3f}; translate with --datastore {output}"
    )
    return output


def _encoded(bundle: Bundle, sources: Sequence[str], targets: Sequence[str]) -> Pairs:
    """Pairs of text in the model's subwords, without those that have an empty side."""
    if len(sources) != len(targets):
        raise ConfigurationError(
            f"got {len(sources)} sentences and {len(targets)} translations; expected as many of each"
        )
    kept = [place for place, pair in enumerate(zip(sources, targets, strict=True)) if all(map(str.strip, pair))]
    sources, targets = [sources[place] for place in kept], [targets[place] for place in kept]
    return Pairs(bundle.source_tokenizer.encode_batch(sources), bundle.target_tokenizer.answers(targets, sources))


def _prepared(folder: Path, bundle: Bundle, name: str, most: int) -> Pairs:
    """Pairs of a run or prepared folder, as lists: those that `Pairs.spread` takes. The others are not read."""
    other = ", or text with --source and --target, and with --valid-source and --valid-target"
    store = open_pairs(folder, bundle, name, other)
    places = range(0, len(store), _step(int(store.target.lengths.sum()) + len(store), most))
    return Pairs(*([side[place].tolist() for place in places] for side in (store.source, store.target)))


def _step(symbols: int, most: int) -> int:
    """The distance between pairs that are taken, so that about ``most`` of their target symbols are."""
    return max(1, -(-symbols // most))


def _entries(
    bundle: Bundle, pairs: Pairs, say: Callable[[str], None], progress: Callable[[], None]
) -> tuple[npt.NDArray[np.int8], Floats, npt.NDArray[np.int32]]:
    """Keys, steps and symbols of a text, pair after pair."""
    count, width = pairs.symbols, bundle.model.config.width
    keys, steps = np.empty((count, width), np.int8), np.empty(count, np.float32)
    symbols, at = np.empty(count, np.int32), 0
    began = said = time.monotonic()
    for start in range(0, len(pairs), _AT_A_TIME):
        progress()
        some = Pairs(pairs.sources[start : start + _AT_A_TIME], pairs.targets[start : start + _AT_A_TIME])
        for states, following in states_of(bundle, some):
            values = states.numpy()
            here = slice(at, at + len(values))
            keys[here], steps[here] = rounded(values)
            symbols[here] = following.numpy()
            at += len(values)
        done, now = start + _AT_A_TIME, time.monotonic()
        if done < len(pairs) and now - said >= _SECONDS:
            rate, said = done / (now - began), now
            left = (len(pairs) - done) / rate
            say(f"states of {done:,} of {len(pairs):,} pairs, {rate:,.0f} a second, {left:.0f} s left")
    return keys, steps, symbols


def states_of(bundle: Bundle, pairs: Pairs) -> Iterator[tuple[Float[Tensor, "symbols width"], Int[Tensor, " symbols"]]]:
    """The states of a model before its output projection, and the symbol that follows each, batch after batch."""
    model, tokenizer = bundle.model.eval(), bundle.target_tokenizer
    for batch in pair_batches(model, tokenizer, pairs.sources, pairs.targets, _BATCH_TOKENS):
        with torch.no_grad():
            found = forced_states(model, batch)
        yield found


@torch.no_grad()
def _choose(
    bundles: Sequence[Bundle], packed: PackedDatastore, pairs: Pairs, neighbours: int, progress: Callable[[], None]
) -> tuple[Remembering, float, float]:
    """How an ensemble uses its neighbours with the lowest loss, and the loss without and with them."""
    found = [list(zip(*states_of(bundle, pairs), strict=True)) for bundle in bundles]  # all in the same order
    read, following = [torch.cat(states) for states, _ in found], torch.cat(found[0][1])
    pairs_of = zip(read, bundles, strict=True)
    each = [token_log_probabilities(states, one.model.output, following).double().exp() for states, one in pairs_of]
    own, states = torch.stack(each).mean(dim=0), read[0]

    def found_in(probes: int) -> tuple[Tensor, Tensor]:
        """Squared distances beyond that of the nearest, and which neighbours are followed by the right symbol."""
        count, parts = min(neighbours, packed.entries), list[tuple[Tensor, Tensor]]()
        for some in torch.split(states, _LOOKED_UP):
            progress()
            here, there = packed.nearest(some.numpy(), count, probes=probes)
            parts.append((torch.from_numpy(here), torch.from_numpy(there)))
        entries, values = (torch.cat(one) for one in zip(*parts, strict=True))
        right = (torch.from_numpy(packed.symbols)[entries] == following[:, None]) & (entries >= 0)
        return 2 * (values[:, :1] - values).double(), right

    def loss(distances: Tensor, right: Tensor, share: float, temperature: float) -> float:
        progress()
        p = ((-distances / temperature).softmax(dim=1) * right).sum(dim=1)
        return float(-((1 - share) * own + share * p).log().mean())

    distances, right = found_in(0)
    unit = float(distances[:, -1].mean()) or 1.0
    warm = [one * unit for one in TEMPERATURES]
    losses = {(share, one): loss(distances, right, share, one) for one in warm for share in SHARES}
    share, temperature = min(losses, key=lambda one: losses[one])
    least, probes = losses[share, temperature], 0
    for some in PROBES:
        if some < packed.cells and (after := loss(*found_in(some), share, temperature)) <= least + TOLERANCE:
            least, probes = after, some
            break
    how = Remembering(neighbours=neighbours, share=share, temperature=temperature, probes=probes)
    return how, float(-own.log().mean()), least
