"""Data-parallel training: every process computes some rows of each batch.

    torchrun --nproc-per-node N -m multihead train ...

Every process reads the same batches from the same stream and computes its share of the rows of each
(`training.splitting.row_range`). The loss is a sum over rows, so the gradients of all processes add up to the gradient
of the batch. It is divided by the number of tokens in the whole batch, and random numbers depend on the row's number in
the whole batch (`kernels.random`). An update is therefore the same for any N, except for the order of additions. As
with split batches (`training.splitting`), draws from PyTorch's own generator differ. A process without rows contributes
nothing.

No process decides anything from what it alone knows: each decision is a function of values that all processes have
gathered (`Processes.all_gather`), so all of them reject an update, split batches, stop early or react to a signal
together. Every collective operation is preceded by such a gather. A process that ends with an error sends it in its
last gather, and the others, waiting in theirs, raise `PeerEnded`. A process that is killed sends nothing; the operating
system closes its connections, which ends the waiting of the others.

How gradients become sums is a choice (`choose_combination`); the updates are the same but for rounding:

    sum          once, after the whole backward pass: here
    replicated   bucket by bucket during it, by PyTorch's DistributedDataParallel: `training.replicated`
    sharded      as replicated, and each process keeps 1/N of weights, gradients and optimizer state, by PyTorch's
                 fully_shard: `training.sharded`

The sum is here because of what the documentation of PyTorch (2.13) says about the other two:

* `DistributedDataParallel.join`: it prevents "hangs or errors that would otherwise happen when training with uneven
  inputs across processes". Here a process may have no rows at all, or several pieces where another one has one.
* `DistributedDataParallel`, a warning: "Constructor, forward method, and differentiation of the output [...] are
  distributed synchronization points"; `fully_shard`, a note: "If forward() or backward() raises, FSDP's per-iteration
  state [...] is left in an undefined condition". So a process that runs out of memory in its backward pass can no
  longer tell the others, and all of them repeat the batch in pieces only if it can.
* `DistributedDataParallel`, `bucket_cap_mb`: the sum of a bucket "can potentially overlap with backward computation";
  `fully_shard`: groups allow "communication/computation overlap". The processors of a machine without GPUs have no time
  to hide it in.

Exchanges of values, faults and decisions are not a part of either, and are the same for all three.
"""

from __future__ import annotations

import contextlib
import pickle
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from importlib.util import find_spec
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from multihead.configuration import Launch, get_launch
from multihead.errors import ConfigurationError, MultiheadError, SurroundingsError
from multihead.training.config import Combination
from multihead.training.splitting import SINGLE_PROCESS, Processes, is_out_of_memory

T = TypeVar("T")
Fault = tuple[str, int]
"""The message of an error, and the exit status of its process."""

_MESSAGE_BYTES = 1024
"""Size of the first round of a gather; longer messages take a second round."""
_BUCKET_NUMEL = 1 << 24
"""Maximum number of gradients in one all-reduce: the flat copy stays small beside a model."""
_START = timedelta(minutes=10)
"""For the others to start: nobody notices that a process has died before it is connected."""
_POLLING = 0.005
"""Seconds between looks into the store, while processes start."""
_STATE_SHARE = 0.6
"""Share of a GPU's memory that weights, gradients and optimizer state may take; the rest is for activations."""
_TIMEOUT = timedelta(days=30)
"""For work of one process that the others wait for, such as preparing a corpus; a dead process is noticed at once."""


class PeerEnded(SurroundingsError):  # noqa: N818 - an event of another process
    """Another process of this run has ended; this one is not at fault.

    Args:
        message: which process ended, and its error.
        exit_status: the exit status of that process.
    """

    def __init__(self, message: str, exit_status: int = SurroundingsError.exit_status) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class ProcessGroup(Processes):
    """A process group of PyTorch (gloo between CPUs, NCCL between GPUs), as a context manager.

    On exit, a process sends its error, if any, and waits for the others to exit, too. So no process ends before the
    first one has written its files.

    Args:
        launch: the place of this process.

    Raises:
        PeerEnded: on entry or exit: another process has ended.
    """

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch)
        self._ended = False
        """Whether another process has ended, or the connection is broken: nothing more can be exchanged."""
        self.announced = False
        """Whether all processes know why this one ends: it is enough if one of them prints it."""
        self._held: list[Tensor] = []
        """The tensors of the last gather. If gloo's thread were the last to hold one, it would need Python's lock to
        free it, while destroying the group in PyTorch 2.6 waits for that thread and keeps the lock."""

    def __enter__(self) -> ProcessGroup:
        import torch.distributed as dist
        from torch.distributed.rendezvous import rendezvous

        gpus = torch.cuda.is_available() and dist.is_nccl_available()
        if gpus and self.launch.local_rank < torch.cuda.device_count():
            torch.cuda.set_device(self.launch.local_rank)
        with self.collective():
            store, *_ = next(rendezvous("env://", timeout=_TIMEOUT))
            own = dist.PrefixStore(_meet(store, self.rank, self.size), store)  # type: ignore[attr-defined]
            backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
            dist.init_process_group(backend, timeout=_TIMEOUT, store=own, rank=self.rank, world_size=self.size)
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
        """The last gather: send the error of this process, if any, and receive those of the others."""
        fault = None
        if error is not None:
            known = isinstance(error, MultiheadError)
            status = error.exit_status if isinstance(error, MultiheadError) else 1
            fault = (str(error) if known else f"{type(error).__name__}: {error}", status)
        try:
            faults = self._gather_with_faults(fault, None)[0]
        except PeerEnded:
            if error is None:
                raise
            return  # the error of this process is already propagating
        self.announced = True
        if error is None:
            self._raise_first(faults)

    def all_gather(self, value: T) -> list[T]:
        faults, values = self._gather_with_faults(None, value)
        self._raise_first(faults)
        return values

    def _raise_first(self, faults: Sequence[Fault | None]) -> None:
        """Raise `PeerEnded` for the first process that has ended, if any."""
        for rank, fault in enumerate(faults):
            if fault is not None:
                self._ended = self.announced = True
                message, status = fault
                raise PeerEnded(f"the process of rank {rank} of {self.size} has ended: {message}", status)

    def _gather_with_faults(self, fault: Fault | None, value: Any) -> tuple[list[Fault | None], list[Any]]:
        """The faults and the values of all processes."""
        gathered = [pickle.loads(data) for data in self._gather_bytes(pickle.dumps((fault, value)))]
        return [fault for fault, _ in gathered], [value for _, value in gathered]

    def _gather_bytes(self, data: bytes) -> list[bytes]:
        """The bytes of every process: one round for short messages, two for longer ones.

        A message is its length in 8 bytes, then the data, padded with zeros: all messages of a round have one size.
        """
        message = len(data).to_bytes(8, "little") + data
        gathered = self._gather_equal(message[:_MESSAGE_BYTES].ljust(_MESSAGE_BYTES, b"\0"))
        lengths = [int.from_bytes(other[:8], "little") for other in gathered]
        if max(lengths) > _MESSAGE_BYTES - 8:
            gathered = self._gather_equal(message.ljust(8 + max(lengths), b"\0"))
        return [other[8 : 8 + length] for other, length in zip(gathered, lengths, strict=True)]

    def _gather_equal(self, data: bytes) -> list[bytes]:
        """The bytes of every process, which must have equal lengths."""
        import torch.distributed as dist

        own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        self._held = [own, *gathered]
        with self.collective():
            dist.all_gather(gathered, own)
        return [other.numpy().tobytes() for other in gathered]

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum in buckets; a bucket is reduced while the next one is assembled.

        A parameter without a gradient in any process keeps None, so the optimizer skips it as in a single process.
        """
        import torch.distributed as dist

        with self.collective():
            pending = []
            for bucket in _buckets(parameters):
                has_gradient = [float(parameter.grad is not None) for parameter in bucket]
                gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
                # One flat tensor: all gradients, then per parameter the number of processes that have one.
                flat = torch.cat(
                    [*(gradient.reshape(-1) for gradient in gradients), gradients[0].new_tensor(has_gradient)]
                )
                pending.append((bucket, gradients, flat, dist.all_reduce(flat, async_op=True)))
            for bucket, gradients, flat, work in pending:
                work.wait()
                *sums, counts = torch.split(flat, [*(gradient.numel() for gradient in gradients), len(bucket)])
                for parameter, gradient, total, count in zip(bucket, gradients, sums, counts.tolist(), strict=True):
                    if count:
                        parameter.grad = gradient.copy_(total.view_as(gradient))

    def broadcast_tensors(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        import torch.distributed as dist

        shapes = None if tensors is None else [(name, t.shape, t.dtype) for name, t in tensors.items()]
        received = {}
        for name, shape, dtype in self.broadcast(shapes):
            tensor = torch.empty(shape, dtype=dtype) if tensors is None else tensors[name].cpu().contiguous()
            with self.collective():
                dist.broadcast(tensor, src=0)
            received[name] = tensor
        return received

    def require_devices(self, device: str) -> None:
        count, size = torch.cuda.device_count(), self.launch.local_size
        if device == "mps":
            raise ConfigurationError("device: got mps, which trains in one process; start one, or train on cpu")
        if device.startswith("cuda") and count < size:
            raise ConfigurationError(
                f"{size} processes on this machine, but {count} GPUs, and each takes one; start as many "
                f"(--nproc-per-node {count}), or train on the processor (--device cpu)"
            )

    @contextlib.contextmanager
    def collective(self) -> Iterator[None]:
        """Around a collective operation: after an exception nothing more can be exchanged."""
        try:
            yield
        except BaseException as error:
            self._ended = True
            if isinstance(error, RuntimeError) and _is_lost(error):
                raise PeerEnded(
                    "another process of this run has ended without a message; what it or torchrun printed says why"
                ) from error
            raise


class InGroup(Processes):
    """The processes of a group, which sum gradients during the backward pass.

    Args:
        group: does everything else.
    """

    def __init__(self, group: Processes) -> None:
        super().__init__(group.launch)
        self._group = group

    def all_gather(self, value: T) -> list[T]:
        return self._group.all_gather(value)

    def broadcast_tensors(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        return self._group.broadcast_tensors(tensors)

    def require_devices(self, device: str) -> None:
        self._group.require_devices(device)

    def attempt(self, work: Callable[[], T]) -> list[T]:
        """Run ``work``, in which the processes wait for each other, and gather the results.

        Raises:
            SurroundingsError: this process ran out of memory.
            PeerEnded: another process has ended.
        """
        assert isinstance(self._group, ProcessGroup)
        try:
            with self._group.collective():
                result = work()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise SurroundingsError(
                f"the process of rank {self.rank} ran out of memory, while the others wait for its gradients; go on "
                "with --parallel sum, which takes such a batch in pieces, or start again with smaller --batch-tokens"
            ) from None
        return self.all_gather(result)


def choose_combination(
    asked: Combination | None, size: int, device: str, state_bytes: int, memory: int | None
) -> tuple[Combination, str]:
    """How gradients are combined, and why.

    Args:
        asked: the user's choice, if any.
        size: number of processes.
        device: device of the training.
        state_bytes: bytes of weights, their average, gradients and optimizer state.
        memory: bytes of the device; None = unknown.

    Raises:
        ConfigurationError: parameters are to be divided, which this PyTorch cannot.
    """
    if size == 1:
        return "sum", "one process"
    chosen, reason = (asked, "as asked") if asked is not None else _chosen(device, state_bytes, memory)
    if chosen == "sharded" and not can_shard():
        raise ConfigurationError(
            f"--parallel sharded ({reason}) needs a newer PyTorch than {torch.__version__}, whose fully_shard can sum "
            "gradients and whose checkpoints can have parts; install one, or choose --parallel replicated"
        )
    return chosen, reason


def can_shard() -> bool:
    """Whether this PyTorch has what dividing parameters needs (`training.sharded`, `training.shards`)."""
    from torch.distributed import fsdp

    can_sum = hasattr(getattr(fsdp, "FSDPModule", None), "set_force_sum_reduction_for_comms")
    return can_sum and find_spec("torch.distributed.checkpoint.hf_storage") is not None


def _chosen(device: str, state_bytes: int, memory: int | None) -> tuple[Combination, str]:
    if not device.startswith("cuda"):
        return "sum", "the processors that compute also sum, so that nothing is gained by summing meanwhile"
    if memory is not None and state_bytes > _STATE_SHARE * memory:
        return "sharded", (
            f"weights, gradients and optimizer state take {state_bytes / 2**30:,.0f} of {memory / 2**30:,.0f} GB a GPU"
        )
    return "replicated", "gradients are summed while others are computed"


def join_processes() -> contextlib.AbstractContextManager[Processes]:
    """The processes that ``torchrun`` started together with this one, or `SINGLE_PROCESS` without ``torchrun``.

    Raises:
        PeerEnded: on entry or exit: another process has ended.
    """
    launch = get_launch()
    return contextlib.nullcontext(SINGLE_PROCESS) if launch.size == 1 else ProcessGroup(launch)


def _meet(store: Any, rank: int, size: int) -> str:
    """A word that the processes of this start agree on, under which they leave each other their addresses.

    torchrun keeps one store for all restarts, and gloo would connect to the addresses of killed processes. So each
    process leaves a new word; the first one answers to it with its own, and waits until all have read that.

    Raises:
        PeerEnded: some have not come within `_START`.
    """
    own, deadline = uuid.uuid4().hex, time.monotonic() + _START.total_seconds()
    if rank:
        store.set(f"here/{rank}", own)
        while not store.check([f"answer/{own}"]):
            _wait_until(deadline)
        first: str = store.get(f"answer/{own}").decode()
        store.set(f"read/{first}/{rank}", "")
        return first
    waiting = dict.fromkeys(range(1, size), b"")
    while waiting:
        for other, answered in list(waiting.items()):
            if store.check([f"read/{own}/{other}"]):
                del waiting[other]
            elif store.check([f"here/{other}"]) and (word := store.get(f"here/{other}")) != answered:
                store.set(f"answer/{word.decode()}", own)
                waiting[other] = word
        _wait_until(deadline)
    return own


def _wait_until(deadline: float) -> None:
    """Wait a little, or raise `PeerEnded` after the deadline."""
    if time.monotonic() > deadline:
        raise PeerEnded(f"not all processes have started within {_START.seconds // 60} minutes")
    time.sleep(_POLLING)


def _is_lost(error: RuntimeError) -> bool:
    """Whether an error of PyTorch means that the connection to another process is lost."""
    import torch.distributed as dist

    words = ("gloo", "nccl", "Connection", "connection", "socket")
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Trainable parameters in order, in buckets of one dtype and device and of limited size."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in (p for p in parameters if p.requires_grad):
        alike = not bucket or (parameter.dtype, parameter.device) == (bucket[0].dtype, bucket[0].device)
        if bucket and (not alike or size + parameter.numel() > _BUCKET_NUMEL):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.numel()
    if bucket:
        yield bucket
