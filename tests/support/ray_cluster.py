"""A Ray cluster of three nodes on this machine; a node can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


class ThreeNodes:
    """The cluster; a killed node is noticed within seconds.

    Args:
        connect: whether this process joins it. It joins while the head is the only node: Ray before 2.60 connects to
            any node of the machine, and killing that node would end the work.
    """

    def __init__(self, *, connect: bool) -> None:
        import ray
        from ray.cluster_utils import Cluster

        checks = {"period_ms": 500, "timeout_ms": 5000, "failure_threshold": 3, "initial_delay_ms": 500}
        system = {f"health_check_{name}": value for name, value in checks.items()}
        system["worker_niceness"] = 0  # other tests run beside this one, and Ray's actors would hardly compute
        # Without the programs that collect logs and that add nodes, which nobody reads here and each import all of Ray.
        sizes = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_log_monitor": False}
        head = {**sizes, "include_dashboard": False, "no_monitor": True, "_system_config": system}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address = str(self._cluster.address)
        if connect:
            ray.init(address=self.address, log_to_driver=False, logging_level="fatal")
        self._others = [self._cluster.add_node(**sizes, wait=False) for _ in range(2)]
        self._cluster.wait_for_nodes()

    def kill_node(self, workers: Iterable[int]) -> list[int]:
        """Kill a node that is not the head; returns which of these processes ran on it and were killed with it."""
        parents = {pid: int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in workers}
        (node, *_) = [node for node in self._others if _raylet(node) in parents.values()]
        killed = [pid for pid, parent in parents.items() if parent == _raylet(node)]
        self._others.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):  # it has already exited
                os.kill(pid, signal.SIGKILL)
        return killed

    def close(self) -> None:
        """Stop all nodes."""
        self._cluster.shutdown()


def _raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


@contextlib.contextmanager
def three_nodes(*, connect: bool) -> Iterator[ThreeNodes]:
    """A new cluster whose processes can import the package and the modules of ``tests/support``.

    Args:
        connect: whether this process joins it.
    """
    import ray

    with pytest.MonkeyPatch.context() as patch:
        places = [str(ROOT / "src"), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(places))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = ThreeNodes(connect=connect)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.close()
