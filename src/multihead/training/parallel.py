"""Several processes that train one model: each takes some rows of every batch, and all make the same update.

    torchrun --nproc-per-node N -m multihead train ...

Every process takes the same batches from the same stream and computes rows ``[r n / N, (r + 1) n / N)`` of the n of
each (`row_range`). The loss of a batch is a sum over its rows, so its gradient is the sum of theirs; what it is divided
by is the number of tokens in the whole batch, and what is random is a function of the row's number in it
(`kernels.random`). So an update is the same whatever N, but for the order of additions; as with pieces
(`training.loss`), what is drawn from PyTorch's own generator is another draw. A process that has no row of a batch
adds nothing.

Nothing that decides anything is decided by one process of what it alone knows: each decision is a function of values
that all have (`Processes.all_gather`), so all of them refuse an update, cut batches, stop early or stop at a signal
together. All that they do together is preceded by such an exchange, and whoever leaves does it with one: it says why,
and the others, who are waiting in theirs, leave too (`PeerEnded`). One that is killed says nothing; then its
connections are closed, and that ends the others' waiting. Nobody waits for the dead.

Gradients are added up once, when all are there, not bucket by bucket during the way back, as
`torch.nn.parallel.DistributedDataParallel` does. It has a process fixed to one pass forwards and one back, with a
gradient for every parameter; here a process has none, one or several (gradient accumulation, pieces of batches that do
not fit), and one that runs out of memory on its way is to be heard before others wait for its gradients. What it would
gain is the time of the addition, where that time is not the processor's own.
"""

from __future__ import annotations

import contextlib
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from multihead.errors import ConfigurationError, DivergenceError, MultiheadError, SurroundingsError
from multihead.machine import Launch, get_launch
from multihead.training.loss import Examples, is_out_of_memory
from multihead.training.progress import RunLog

T = TypeVar("T")

_MESSAGE = 1024
"""Bytes that are exchanged at once; more of them take a second round."""
_BUCKET = 1 << 24
"""Numbers that are added up at once: what is copied together stays small beside a model."""
_PATIENCE = timedelta(days=30)
"""For what one process does while the others wait, such as preparing a corpus; the dead are noticed at once."""
_APART = 1e-3
"""By how much of it the norms of gradients of equal updates may differ; on equal processors they are equal."""


class PeerEnded(SurroundingsError):  # noqa: N818 - where the error is
    """Another process of this run has ended; nothing is wrong with this one.

    Args:
        message: what it said.
        exit_status: with which it ends.
    """

    def __init__(self, message: str, exit_status: int = SurroundingsError.exit_status) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class Processes(ABC):
    """Those that train one model together, as each of them sees them.

    Args:
        launch: which one this is.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.rank, self.size = launch.rank, launch.size

    @property
    def is_first(self) -> bool:
        """Whether this is the one that holds the folder, writes and speaks."""
        return self.rank == 0

    @abstractmethod
    def all_gather(self, value: T) -> list[T]:
        """What each process gave, in the order of their ranks; the same list everywhere.

        Raises:
            PeerEnded: another process has ended.
        """

    @abstractmethod
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Makes each gradient the sum of all processes', to the last bit the same everywhere."""

    @abstractmethod
    def broadcast_tensors(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """The tensors that the first process gives, all of them on the host; the others give None."""

    @abstractmethod
    def require_devices(self, device: str) -> None:
        """Refuses a device that is not there for each process.

        Raises:
            ConfigurationError: fewer GPUs than processes.
        """

    def broadcast(self, value: T | None) -> T:
        """What the first process gave; the others give None."""
        found = self.all_gather(value)[0]
        assert found is not None
        return found

    def threads_per_process(self, total: int) -> int:
        """This process's share of the processor threads of a machine."""
        return max(1, total // self.launch.local_size)

    def split_rows(self, batch: Examples) -> list[Examples]:
        """What each process takes of a batch, in order; those left out that take nothing."""
        places = (row_range(len(batch), rank, self.size) for rank in range(self.size))
        return [_part(batch, start, stop) for start, stop in places if stop > start]

    def own_rows(self, batch: Examples) -> tuple[Examples | None, int]:
        """What this process takes of a batch, if anything, and the number of its first row."""
        start, stop = row_range(len(batch), self.rank, self.size)
        return (_part(batch, start, stop) if stop > start else None), start

    def attempt(self, work: Callable[[], T]) -> list[T]:
        """What ``work`` gave in each process.

        Raises:
            RuntimeError, MemoryError: memory was too small in this process, or in any other (`is_out_of_memory`).
            PeerEnded: another process has ended.
        """
        if self.size == 1:
            return [work()]
        result: list[T] = []
        try:
            result.append(work())
        except (RuntimeError, MemoryError) as error:  # and is gone, with all that its traceback keeps in memory
            if not is_out_of_memory(error):
                raise
        everywhere = self.all_gather(result)
        lacking = [str(rank) for rank, found in enumerate(everywhere) if not found]
        if lacking:
            raise MemoryError(f"too little memory for the process of rank {', '.join(lacking)}")
        return [found[0] for found in everywhere]


class SingleProcess(Processes):
    """One process: what all give is what it gives."""

    def all_gather(self, value: T) -> list[T]:
        """That value."""
        return [value]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """They are summed already."""

    def broadcast_tensors(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """The same."""
        assert tensors is not None
        return tensors

    def require_devices(self, device: str) -> None:
        """Whatever there is, is there for one."""


SINGLE_PROCESS = SingleProcess(Launch())


class ProcessGroup(Processes):
    """A process group of PyTorch: gloo between processors, NCCL between GPUs; a context manager.

    Leaving it tells the others, who leave too, and waits until all have got there; so none is gone before the first one
    has written what it writes.

    Args:
        launch: which one this is.

    Raises:
        PeerEnded: on entering or leaving: another process has ended.
    """

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch)
        self._ended = False
        """Whether another process is known to have ended, or nothing can be exchanged any more."""
        self.announced = False
        """Whether all know why this one ends: then it is enough if one of them says it."""

    def __enter__(self) -> ProcessGroup:
        import torch.distributed as dist

        gpus = torch.cuda.is_available() and dist.is_nccl_available()
        if gpus and self.launch.local_rank < torch.cuda.device_count():
            torch.cuda.set_device(self.launch.local_rank)
        with self._collectively():
            dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=_PATIENCE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import torch.distributed as dist

        try:
            if not self._ended:
                self._leave(error)
        finally:
            dist.destroy_process_group()

    def _leave(self, error: BaseException | None) -> None:
        """The last exchange."""
        fault = None
        if error is not None:
            known = isinstance(error, MultiheadError)
            status = error.exit_status if isinstance(error, MultiheadError) else 1
            fault = (str(error) if known else f"{type(error).__name__}: {error}", status)
        try:
            faults = self._exchange(fault, None)[0]
        except PeerEnded:
            if error is None:
                raise
            return
        self.announced = True
        if error is None:
            self._raise(faults)

    def all_gather(self, value: T) -> list[T]:
        """As in `Processes`."""
        faults, values = self._exchange(None, value)
        self._raise(faults)
        return values

    def _raise(self, faults: Sequence[tuple[str, int] | None]) -> None:
        """Raises the first fault, if there is one."""
        for rank, fault in enumerate(faults):
            if fault is not None:
                self._ended = self.announced = True
                message, status = fault
                raise PeerEnded(f"the process of rank {rank} of {self.size} has ended: {message}", status)

    def _exchange(self, fault: tuple[str, int] | None, value: Any) -> tuple[list[tuple[str, int] | None], list[Any]]:
        """The faults and values of all processes."""
        found = [pickle.loads(data) for data in self._gather(pickle.dumps((fault, value)))]
        return [fault for fault, _ in found], [value for _, value in found]

    def _gather(self, data: bytes) -> list[bytes]:
        """The bytes of every process: one round where they are few."""
        message = len(data).to_bytes(8, "little") + data
        found = self._gather_equal(message[:_MESSAGE].ljust(_MESSAGE, b"\0"))
        lengths = [int.from_bytes(other[:8], "little") for other in found]
        if max(lengths) > _MESSAGE - 8:
            found = self._gather_equal(message.ljust(8 + max(lengths), b"\0"))
        return [other[8 : 8 + length] for other, length in zip(found, lengths, strict=True)]

    def _gather_equal(self, data: bytes) -> list[bytes]:
        import torch.distributed as dist

        own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.size)]
        with self._collectively():
            dist.all_gather(found, own)
        return [other.numpy().tobytes() for other in found]

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """As in `Processes`: in buckets that travel while the next ones are put together.

        A parameter that has a gradient nowhere keeps none, so that the optimiser passes it over as it would have.
        """
        import torch.distributed as dist

        with self._collectively():
            travelling = []
            for bucket in _buckets(parameters):
                there = [float(parameter.grad is not None) for parameter in bucket]
                gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
                flat = torch.cat([*(gradient.reshape(-1) for gradient in gradients), gradients[0].new_tensor(there)])
                travelling.append((bucket, gradients, flat, dist.all_reduce(flat, async_op=True)))
            for bucket, gradients, flat, work in travelling:
                work.wait()
                *sums, anywhere = torch.split(flat, [*(gradient.numel() for gradient in gradients), len(bucket)])
                for parameter, gradient, total, somewhere in zip(
                    bucket, gradients, sums, anywhere.tolist(), strict=True
                ):
                    if somewhere:
                        parameter.grad = gradient.copy_(total.view_as(gradient))

    def broadcast_tensors(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """As in `Processes`."""
        import torch.distributed as dist

        shapes = None if tensors is None else [(name, t.shape, t.dtype) for name, t in tensors.items()]
        found = {}
        for name, shape, dtype in self.broadcast(shapes):
            tensor = torch.empty(shape, dtype=dtype) if tensors is None else tensors[name].cpu().contiguous()
            with self._collectively():
                dist.broadcast(tensor, src=0)
            found[name] = tensor
        return found

    def require_devices(self, device: str) -> None:
        """As in `Processes`."""
        count, size = torch.cuda.device_count(), self.launch.local_size
        if device.startswith("cuda") and count < size:
            raise ConfigurationError(
                f"{size} processes on this machine, but {count} GPUs, and each takes one; start as many "
                f"(--nproc-per-node {count}), or train on the processor (--device cpu)"
            )

    @contextlib.contextmanager
    def _collectively(self) -> Iterator[None]:
        """Who leaves this with an exception can tell the others nothing any more."""
        try:
            yield
        except BaseException as error:
            self._ended = True
            if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                raise PeerEnded(
                    "another process of this run has ended without a word; what it or torchrun printed says why"
                ) from error
            raise


def join_processes() -> contextlib.AbstractContextManager[Processes]:
    """The processes that ``torchrun`` started together with this one, or this one alone.

    Raises:
        PeerEnded: on entering or leaving: another process has ended.
    """
    launch = get_launch()
    return contextlib.nullcontext(SINGLE_PROCESS) if launch.size == 1 else ProcessGroup(launch)


def row_range(rows: int, rank: int, size: int) -> tuple[int, int]:
    """First row and end of what a process takes of so many: in order, and as many for each, give or take one."""
    return rank * rows // size, (rank + 1) * rows // size


def _part(batch: Examples, start: int, stop: int) -> Examples:
    return batch if (start, stop) == (0, len(batch)) else batch.part(start, stop)


def interleave(shares: Sequence[Sequence[T]]) -> list[T]:
    """All of a list of which process ``rank`` has ``[rank::size]``."""
    everything: dict[int, T] = {}
    for rank, share in enumerate(shares):
        everything |= {rank + len(shares) * place: item for place, item in enumerate(share)}
    return [everything[place] for place in sorted(everything)]


def check_same_update(step: int, norms: Sequence[float]) -> None:
    """Refuses to go on where processes that make the same updates do not.

    Args:
        step: the last update.
        norms: of its gradient, as each process has it.

    Raises:
        DivergenceError: they differ by more than rounding.
    """
    if max(norms) - min(norms) > _APART * max(norms):
        found = ", ".join(f"{norm:.4g}" for norm in norms)
        raise DivergenceError(
            f"update {step}: the processes are no longer at the same weights (norms of the gradient: {found}); the "
            "checkpoints so far are kept. Use processors or GPUs of one kind and one version of everything"
        )


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters in order, those of a bucket of one type and device."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in (p for p in parameters if p.requires_grad):
        alike = not bucket or (parameter.dtype, parameter.device) == (bucket[0].dtype, bucket[0].device)
        if bucket and (not alike or size + parameter.numel() > _BUCKET):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket


class SilentLog(RunLog):
    """The log of a process that is not the first: the first one's says it all."""

    def rewind(self, step: int) -> None:
        """Nothing."""

    def say(self, line: str) -> None:
        """Nothing."""

    def record(self, kind: str, step: int, values: dict[str, Any], timing: dict[str, float]) -> None:
        """Nothing."""
