"""A compiled search that mixes in what followed similar states in a text.

    p(y | x, y_<t) = (1 - s) p_models + s p_neighbours
    p_neighbours(y) = sum over the nearest entries (k, v) with v = y of softmax(-|q - k|^2 / T)

q is the state of the first model before its output projection, and the entries of a datastore are such states k, each
with the symbol v that follows it (Khandelwal, Fan, Jurafsky, Zettlemoyer, Lewis 2021, "Nearest neighbor machine
translation", section 2; they take the state before the last feed-forward network). The entries of the nearest cells
are compared (`engine.datastore`), or all, with keys and states rounded to int8. `translating.datastore` reads
datastores, and `translating.remember` makes them.
"""

from __future__ import annotations

from multihead.engine.datastore import MOST, PackedDatastore
from multihead.engine.search import MANY_ROWS, CompiledSearch, Neighbours, Together
from multihead.errors import ConfigurationError


class NeighbourSearch(CompiledSearch):
    """The search of a model, or of an ensemble, with a datastore of the first one's states.

    Args:
        search: the search of the models, without a draft.
        datastore: the entries.
        count: nearest entries of a state.
        share: their part of the probabilities.
        temperature: of the distances.
        probes: cells that a state looks into; 0 for all.

    Raises:
        ConfigurationError: an impossible number; another width; a symbol outside the vocabulary; a shortlist.
    """

    def __init__(
        self,
        search: CompiledSearch,
        datastore: PackedDatastore,
        count: int,
        share: float,
        temperature: float,
        probes: int = 0,
    ) -> None:
        together = search.undrafted.together
        config = together.engines[0].config
        if not (1 <= count <= MOST and 0 < share < 1 and 0 < temperature < float("inf")):
            raise ConfigurationError(
                f"neighbours are from 1 to {MOST}, their share is above 0 and below 1, and the temperature above 0, "
                f"got {count}, {share} and {temperature}"
            )
        datastore.check_probes(probes)
        if datastore.width != config.width or int(datastore.symbols.max()) >= config.target_vocab:
            raise ConfigurationError(
                f"the datastore is of a model of width {datastore.width} with at least {datastore.symbols.max() + 1} "
                f"target entries, this one has {config.width} and {config.target_vocab}"
            )
        if together.engines[0].shortlist is not None:
            raise ConfigurationError("a datastore has symbols of the whole vocabulary: leave out the shortlist")
        self._together = together._replace(neighbours=Neighbours(datastore, count, share, temperature, probes))

    @property
    def together(self) -> Together:
        """The models and the datastore."""
        return self._together

    @property
    def rows(self) -> int:
        """Many: all rows of a step share the reading of the datastore."""
        return MANY_ROWS
