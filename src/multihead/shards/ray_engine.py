"""A function over many items on a Ray cluster, by Ray Data (extra `ray`)

`RayEngine` is an `Engine` of `workers`. A list of items, such as shards that each node reads for itself, becomes a data
set of Ray Data, one item a block, to which a pool of actors, one for each node, applies the function. Ray Data
schedules the blocks and holds back what the actors cannot take. A stream of items, which only this process can read,
goes to the same actors through Ray's `ActorPool`, a few items ahead of the results. Either way Ray starts an actor
again when its process or its node dies, and repeats its items; results come in the order of the items.

An actor reserves half a core: so it can be started again beside another one, and the tasks that hand out blocks find
room on every node. How many threads it uses is for the function to decide.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from multihead.errors import ConfigurationError, DataError, MultiheadError, SurroundingsError, require_package

Item = TypeVar("Item")
Result = TypeVar("Result")

_CORES = 0.5
_QUEUED = 2
"""Items that an actor holds: the next one is there when one is finished."""
_STORE = 256 << 20
"""Bytes of shared memory of a cluster that is started here. Items and results are small."""
_NICENESS = "worker_niceness"
"""Ray's setting of how far actors stand back behind everything else: by 15, so on a busy machine they hardly compute. A
cluster that is started here works for this command alone."""


class RayEngine:
    """Applies a function on the nodes of a Ray cluster, in one process each.

    The cluster is the one that this process uses already, that ``RAY_ADDRESS`` names, or that runs on this machine. If
    there is none, one is started on this machine until the work ends.

    Args:
        say: called with each line of output.
        gpus: GPUs for each process; only nodes that have them are used.
    """

    def __init__(self, say: Callable[[str], None] = lambda _: None, gpus: int = 0) -> None:
        self._say, self._gpus = say, gpus

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """As `workers.Engine.map`; a sequence is handed to Ray at once.

        Raises:
            MissingDependencyError: Ray is not installed.
            ConfigurationError: no node has what a process needs.
            SurroundingsError: the cluster cannot be reached, or failed.
        """
        ray, pickled = _import_ray(), pickle.dumps(function)
        with _ray_errors(ray), self._cluster(ray):
            count = self._count_nodes(ray)
            if isinstance(items, Sequence):
                answers = self._of_shards(ray, count, pickled, items)
            else:
                answers = self._of_stream(ray, count, pickled, items)
            with contextlib.closing(answers):
                for answer in answers:
                    succeeded, result = pickle.loads(answer)
                    if not succeeded:
                        raise result
                    yield result

    def _of_shards(self, ray: Any, count: int, function: bytes, items: Sequence[Any]) -> Generator[bytes, None, None]:
        """The answers for items, by Ray Data."""
        if not items:
            return
        rows = [{"item": pickle.dumps(item)} for item in items]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            _AppliedToRows,
            fn_constructor_args=(function,),
            compute=ray.data.ActorPoolStrategy(size=min(count, len(rows)), max_tasks_in_flight_per_actor=_QUEUED),
            num_cpus=_CORES,
            num_gpus=self._gpus or None,
        )
        dataset.context.execution_options.preserve_order = True
        dataset.context.enable_progress_bars = False
        for batch in dataset.iter_batches(batch_size=1, prefetch_batches=0):
            yield batch["answer"][0]

    def _of_stream(self, ray: Any, count: int, function: bytes, items: Iterable[Any]) -> Generator[bytes, None, None]:
        """The answers for items that are read as answers are taken."""
        kind = ray.remote(_Applied).options(
            num_cpus=_CORES, num_gpus=self._gpus, scheduling_strategy="SPREAD", max_restarts=-1, max_task_retries=-1
        )
        actors = [kind.remote(function) for _ in range(count)]
        pool = ray.util.ActorPool(actors * _QUEUED)
        try:
            for item in items:
                if not pool.has_free():
                    yield pool.get_next()
                pool.submit(lambda actor, value: actor.answer.remote(value), pickle.dumps(item))
            while pool.has_next():
                yield pool.get_next()
        finally:
            for actor in actors:
                ray.kill(actor)

    def _count_nodes(self, ray: Any) -> int:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fitting = [node for node in nodes if node.get("CPU", 0) >= _CORES and node.get("GPU", 0) >= self._gpus]
        if not fitting:
            wanted = f"{self._gpus} GPU and half a core" if self._gpus else "half a core"
            raise ConfigurationError(f"none of the {len(nodes)} nodes of the Ray cluster has {wanted} for a process")
        return len(fitting)

    @contextlib.contextmanager
    def _cluster(self, ray: Any) -> Iterator[None]:
        """A connection to the cluster."""
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        if ray.is_initialized():
            yield
            return
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            context = ray.init(address="auto", **quiet)
        except ConnectionError:
            if "RAY_ADDRESS" in os.environ:
                raise
            self._say("no Ray cluster runs here: starting one on this machine")
            system = {} if f"RAY_{_NICENESS}" in os.environ else {_NICENESS: 0}
            context = ray.init(address="local", object_store_memory=_STORE, _system_config=system, **quiet)
        try:
            if context.dashboard_url:
                self._say(f"Ray's dashboard: http://{context.dashboard_url}")
            yield
        finally:
            ray.shutdown()


class _Applied:
    """An actor: the function in a process of its own."""

    def __init__(self, function: bytes) -> None:
        self._function = pickle.loads(function)

    def answer(self, pickled: bytes) -> bytes:
        """Whether the function succeeded, and its result or error, for a pickled item."""
        try:
            return pickle.dumps((True, self._function(pickle.loads(pickled))))
        except MultiheadError as error:  # for the user; others are failures of Ray's task
            if not isinstance(error, DataError):
                error.args = (f"node {_address()}: {error}", *error.args[1:])
            return pickle.dumps((False, error))


class _AppliedToRows(_Applied):
    """The same for rows of Ray Data."""

    def __call__(self, row: dict[str, Any]) -> dict[str, bytes]:
        return {"answer": self.answer(row["item"])}


def _address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


def _import_ray() -> Any:
    for module in ("ray", "ray.data", "ray.util"):
        require_package(module, "ray", "--engine ray")
    import ray

    return ray


@contextlib.contextmanager
def _ray_errors(ray: Any) -> Iterator[None]:
    try:
        yield
    except (ray.exceptions.RayError, ConnectionError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        what = f"Ray: {reason[-1].strip()}; what is finished stays; run the same command again to continue"
        raise SurroundingsError(what) from error
