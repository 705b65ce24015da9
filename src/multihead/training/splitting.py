"""What an update works on: model, batch, processes; how a batch is split.

`Trainable` is a model with a loss, `Examples` is a batch. How a loss is computed is up to the model
(`models.network.token_loss` for translators).

A batch that does not fit into memory is split into pieces of rows, which are processed one after the other
(`retry_in_pieces`). The loss is a sum over rows and rows do not interact (contract 4), so the gradients of the pieces
add up to the gradient of the batch, except for rounding. Splitting changes neither the pairs of an update, nor the
number of tokens that it is divided by, nor the masks of `kernels.random`, which depend on a row's number in the whole
batch. It does change what is drawn from PyTorch's own generator: dropout of attention weights, dropout on a GPU, and
the positions that a recurrent network samples. Each piece draws these for itself, as a function of seed, step, part
and first row.

The limit is stored in the state of the run (`RunState.room`), so a resumed run splits the same batches. A limit found
after the last checkpoint has to be found again.

With several processes, each computes a share of the rows of every batch; a stream may give it these rows only
(`data.batching.Portion`). `Processes` is what one of them sees of the others, and `SINGLE_PROCESS` is a run without
others. The processes that torchrun starts are in `training.parallel`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from multihead.configuration import Launch
from multihead.data.batching import Batch, Portion
from multihead.data.order import Array, row_range
from multihead.errors import SurroundingsError
from multihead.kernels.linear import Loss

SelfT = TypeVar("SelfT")  # typing.Self, which the shape checker does not accept


@runtime_checkable
class Examples(Protocol):
    """A batch of independent rows. `data.batching.Batch` is the one for translators."""

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The positional arguments of the model's ``loss``; the first one is a tensor."""

    @property
    def target_tokens(self) -> int:
        """Number of predictions; the loss is averaged over them."""

    @property
    def source_tokens(self) -> int:
        """Number of real tokens on the source side."""

    @property
    def indices(self) -> Array:
        """The example in the store that each row holds."""

    @property
    def cells(self) -> int:
        """Number of tokens including padding: the batch's size in memory."""

    def __len__(self) -> int:
        """Number of rows."""

    def part(self: SelfT, start: int, stop: int) -> SelfT:
        """Rows ``start`` to ``stop``."""

    def to(self: SelfT, device: torch.device | str) -> SelfT:
        """The same batch with its tensors on ``device``."""


Given: TypeAlias = Examples | Portion
"""What a process is given of a batch: all of it, or its own rows."""


@runtime_checkable
class Trainable(Protocol):
    """A model that can be trained: a `torch.nn.Module` with a ``loss``."""

    @property
    def loss(self) -> Callable[..., Loss]:
        """``loss(*inputs, smoothing)``: summed over all predictions; randomness comes from PyTorch's generator.

        ``inputs`` is `Examples.inputs`. For a sequence-to-sequence model these are the source, its lengths, the target
        shifted right, the target, and soft targets and weights if there are any. ``smoothing`` is the share of a
        token's probability that is spread over all tokens.
        """

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As in `torch.nn.Module`: a shared parameter once."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """As in `torch.nn.Module`."""

    def modules(self) -> Iterator[nn.Module]:
        """As in `torch.nn.Module`."""

    def train(self, mode: bool = True) -> object:
        """As in `torch.nn.Module`."""

    def eval(self) -> object:
        """As in `torch.nn.Module`."""


@runtime_checkable
class FollowsLoss(Protocol):
    """A model with values that follow the loss of its updates, such as the baseline of sampled alignments."""

    def follow_loss(self, loss: float) -> None:
        """Called in each process after every update that was applied, once, however its batches were divided.

        Args:
            loss: the mean smoothed loss of a token in all batches of the update.
        """


Model = TypeVar("Model", bound=Trainable)
T = TypeVar("T")


class Pass(NamedTuple):
    """Rows that one forward and one backward pass compute."""

    part: int
    """Number of the batch among those of the update."""
    rows: Examples
    first_row: int
    """Number of the first row in that batch."""
    counts: bool = True
    """False for rows of another process, computed for nothing: where gradients are summed, every process takes part."""


def sequence_loss(model: Trainable, batch: Examples, smoothing: float) -> Loss:
    """The model's loss of a batch, summed over its ``batch.target_tokens`` predictions."""
    return model.loss(*batch.inputs, smoothing=smoothing)


def split_to_fit(batch: Examples, max_cells: int | None) -> list[Examples]:
    """Halve a batch recursively until each piece has at most ``max_cells`` cells or is a single row."""
    rows = len(batch)
    if max_cells is None or batch.cells <= max_cells or rows == 1:
        return [batch]
    middle = rows // 2
    return [*split_to_fit(batch.part(0, middle), max_cells), *split_to_fit(batch.part(middle, rows), max_cells)]


def halved_limit(batches: Sequence[Examples], max_cells: int | None) -> int | None:
    """Half the size of the largest piece that can still be split; None if all pieces are single rows."""
    pieces = [piece for batch in batches for piece in split_to_fit(batch, max_cells)]
    sizes = [piece.cells for piece in pieces if len(piece) > 1]
    return max(sizes) // 2 if sizes else None


def retry_in_pieces(
    attempt: Callable[[int | None], T],
    batches: Sequence[Given],
    max_cells: int | None,
    describe: Callable[[Examples], str],
    processes: Processes | None = None,
) -> tuple[T, int | None]:
    """Call ``attempt(max_cells)``, halving the limit until the batches fit into memory.

    Args:
        attempt: processes ``batches``; must leave nothing half done when it runs out of memory.
        batches: what is split.
        max_cells: the limit known so far; None = none.
        describe: names the pairs of a batch.
        processes: those that share the batches; in all of them ``attempt`` fails if it does in one, and the new limit
            is that of the rows of all.

    Returns:
        The result of ``attempt``, and the limit that it succeeded with.

    Raises:
        SurroundingsError: a single pair does not fit.
    """
    processes = processes or SINGLE_PROCESS
    while True:
        try:
            return attempt(max_cells), max_cells
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        empty_cache()  # the next tensors have other sizes: cached blocks would not fit them
        own = processes.held_rows(batches)
        longest = max(own, key=_cells_per_row, default=None)
        of_longest = (0.0, "") if longest is None else (_cells_per_row(longest), describe(longest))
        gathered = processes.all_gather((halved_limit(own, max_cells), of_longest))
        max_cells = max((limit for limit, _ in gathered if limit is not None), default=None)
        if max_cells is None:
            described = max((longest for _, longest in gathered), key=lambda longest: longest[0])[1]
            raise SurroundingsError(
                f"a single pair does not fit into memory: {described}. Train a smaller model, leave out long "
                "pairs (max_tokens) or free memory; nothing that was saved is lost"
            )


def _cells_per_row(batch: Examples) -> float:
    return batch.cells / len(batch)


def can_probe_memory(device: str) -> bool:
    """Whether running a batch proves that it fits: true on a GPU; a CPU's memory is overcommitted."""
    return device.startswith("cuda")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory ran out, on a GPU or (where the system reports it) on a CPU."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = str(error)
    signs = ("can't allocate memory", "MPS backend out of memory", "DefaultCPUAllocator: ")
    return isinstance(error, RuntimeError) and any(sign in said for sign in signs)


def empty_cache() -> None:
    """Return the memory that PyTorch keeps for later tensors to the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()


# --------------------------------------------------------------------------- among processes


class Processes(ABC):
    """The processes that train one model together, from the point of view of one of them.

    Args:
        launch: the place of this process.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.rank, self.size = launch.rank, launch.size

    @property
    def is_first(self) -> bool:
        """Whether this process writes the run folder and prints."""
        return self.rank == 0

    @abstractmethod
    def all_gather(self, value: T) -> list[T]:
        """The values of all processes in the order of their ranks; the same list in each process.

        Raises:
            PeerEnded: another process has ended.
        """

    @abstractmethod
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by the sum over all processes, which is bitwise equal in each of them.

        Does nothing where the passes have summed them already.
        """

    @abstractmethod
    def broadcast_tensors(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """The first process's tensors, on the host in the others; the others pass None."""

    @abstractmethod
    def require_devices(self, device: str) -> None:
        """Check that there is a device for each process.

        Raises:
            ConfigurationError: there are fewer GPUs than processes.
        """

    def entry(self, model: Trainable) -> Trainable:
        """What computes the loss of a model in training."""
        return model

    def complete(self, passes: list[Pass], filler: Examples) -> list[Pass]:
        """The passes of this process in an update, with more of ``filler`` where the others would wait for them."""
        del filler
        return passes

    def synchronizing(self, last: bool) -> AbstractContextManager[None]:
        """Around each pass: whether its gradients are summed with those of the other processes meanwhile."""
        del last
        return nullcontext()

    def clip_gradient(self, parameters: Iterable[nn.Parameter], most: float) -> float:
        """Scale the gradient down to a norm of at most ``most``; returns its norm before."""
        return torch.nn.utils.clip_grad_norm_(parameters, most).item()

    def broadcast(self, value: T | None) -> T:
        """The value of the first process; the others pass None."""
        first = self.all_gather(value)[0]
        assert first is not None
        return first

    def threads_per_process(self, total: int) -> int:
        """This process's share of the processor threads of its machine."""
        return max(1, total // self.launch.local_size)

    @property
    def shares(self) -> int:
        """Number of shares into which the rows of a batch are divided: one for each process."""
        return self.size

    @property
    def own_shares(self) -> Sequence[int]:
        """The shares of this process."""
        return (self.rank,)

    def own_rows(self, batch: Given, share: int | None = None) -> tuple[Examples | None, int]:
        """The rows of a share, by default this process's (None if it gets none), and the number of the first one."""
        if isinstance(batch, Portion):
            return (batch.rows if batch.count else None), batch.first_row
        start, stop = row_range(len(batch), self.rank if share is None else share, self.shares)
        return (_part(batch, start, stop) if stop > start else None), start

    def passes(self, batches: Sequence[Given], share: int, max_cells: int | None) -> list[Pass]:
        """The pieces of a share of the rows of the batches, in order."""
        found = []
        for part, batch in enumerate(batches):
            rows, first_row = self.own_rows(batch, share)
            for piece in split_to_fit(rows, max_cells) if rows is not None else ():
                found.append(Pass(part, piece, first_row))
                first_row += len(piece)
        first = batches[0]
        return self.complete(found, first.rows.part(0, 1) if isinstance(first, Portion) else first.part(0, 1))

    def held_rows(self, batches: Sequence[Given]) -> list[Examples]:
        """The rows of each share of this process in each batch, without shares that get no rows."""
        found = [self.own_rows(batch, share)[0] for batch in batches for share in self.own_shares]
        return [rows for rows in found if rows is not None]

    def count_tokens(self, batches: Sequence[Given]) -> Counts:
        """The tokens of all rows of the batches.

        The processes exchange them only if none of them knows: BPE-dropout cuts other tokens, each process its rows.
        """
        known = [_known_counts(batch) for batch in batches]
        if None not in known:
            counts = [tokens for tokens in known if tokens is not None]
        else:
            gathered = self.all_gather([_counts(rows) for rows in self.held_rows(batches)])
            counts = [tokens for of_process in gathered for tokens in of_process]
        return Counts(*map(sum, zip(*counts, strict=True)))

    def attempt(self, work: Callable[[], T]) -> list[T]:
        """Run ``work`` in each process and gather the results.

        Raises:
            RuntimeError, MemoryError: this process ran out of memory, or any other did (`is_out_of_memory`).
            PeerEnded: another process has ended.
        """
        if self.size == 1:
            return [work()]
        result: list[T] = []  # stays empty if memory runs out
        try:
            result.append(work())
        except (RuntimeError, MemoryError) as error:  # not kept: its traceback would keep the tensors alive
            if not is_out_of_memory(error):
                raise
        results = self.all_gather(result)
        failed = [str(rank) for rank, found in enumerate(results) if not found]
        if failed:
            raise MemoryError(f"too little memory for the process of rank {', '.join(failed)}")
        return [found[0] for found in results]


class SingleProcess(Processes):
    """A run in one process."""

    def all_gather(self, value: T) -> list[T]:
        return [value]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        pass

    def broadcast_tensors(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        assert tensors is not None
        return tensors

    def require_devices(self, device: str) -> None:
        pass


SINGLE_PROCESS = SingleProcess(Launch())


class BothShares(SingleProcess):
    """One process that computes the shares of two, one after the other: it continues their run bit for bit.

    A sum of two gradients does not depend on their order. Of more, the order in which processes add them is not known.
    """

    @property
    def shares(self) -> int:
        return 2

    @property
    def own_shares(self) -> Sequence[int]:
        return (0, 1)


def with_shares(processes: Processes, shares: int) -> Processes:
    """The processes, dividing batches into so many shares as before where they can; 0 = as many as there are."""
    return BothShares(processes.launch) if (processes.size, shares) == (1, 2) else processes


class Counts(NamedTuple):
    """Tokens of the batches of an update."""

    target: int
    source: int
    divisor: float
    """What the loss is divided by: the target tokens, or with weights the sum of their weights."""


def _counts(batch: Examples) -> Counts:
    divisor = batch.divisor if isinstance(batch, Batch) else float(batch.target_tokens)
    return Counts(batch.target_tokens, batch.source_tokens, divisor)


def _known_counts(batch: Given) -> Counts | None:
    """The tokens of all rows of a batch; None if this process does not know them."""
    if not isinstance(batch, Portion):
        return _counts(batch)
    return (
        None
        if batch.tokens is None
        else Counts(*batch.tokens, float(batch.tokens[0]) if batch.divisor is None else batch.divisor)
    )


def _part(batch: Examples, start: int, stop: int) -> Examples:
    return batch if (start, stop) == (0, len(batch)) else batch.part(start, stop)


def interleave(shares: Sequence[Sequence[T]]) -> list[T]:
    """Reassemble a list of which the process of rank ``rank`` has ``[rank::size]``."""
    items: dict[int, T] = {}
    for rank, share in enumerate(shares):
        items |= {rank + len(shares) * place: item for place, item in enumerate(share)}
    return [items[place] for place in sorted(items)]
