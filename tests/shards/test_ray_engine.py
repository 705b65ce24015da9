"""A Ray cluster of three nodes, one of which is killed in the middle: nothing is lost or duplicated."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray_cluster
from ray_cluster import ThreeNodes
from slow_capitals import SlowCapitals

from multihead.errors import ConfigurationError, DataError, MissingDependencyError
from multihead.shards.cutting import Shard, cut, shards_of
from multihead.shards.folder import shard_folder
from multihead.shards.ray_engine import RayEngine
from multihead.workers import LocalWorkers

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    pytest.importorskip("ray.data", reason='ray is not installed: pip install "multihead[ray]"')
    with ray_cluster.three_nodes(connect=True) as cluster:
        yield cluster


def text_of(tmp_path: Path, count: int) -> tuple[list[Shard], bytes]:
    """A text of ``count`` shards of 3 lines, and what `SlowCapitals` makes of it."""
    lines = [f"zeile {number} ä" for number in range(3 * count)]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    shards = shards_of({"text": cut([str(tmp_path / "text")], 3)})
    return shards, "".join(f"{line.upper()}\n" for line in lines).encode()


def test_a_node_is_killed_in_the_middle(cluster: ThreeNodes, tmp_path: Path) -> None:
    shards, expected = text_of(tmp_path, 16)
    function = SlowCapitals(str(tmp_path / "out"), tmp_path / "log", together=3, held=6)
    with shard_folder(function.output, {}, len(shards)) as folder:
        assert folder is not None
        found = []
        for number, name in RayEngine().map(function, shards):
            found.append(number)
            folder.check_written(name)
            if len(found) == 4:
                killed = cluster.kill_node(function.processes())
                function.let_go()
        assert found == list(range(len(shards)))
        folder.join()
    assert (tmp_path / "out").read_bytes() == expected
    assert killed


@pytest.mark.proof
def test_errors_are_those_of_the_function(cluster: ThreeNodes, tmp_path: Path) -> None:
    shards, _ = text_of(tmp_path, 4)
    with pytest.raises(DataError, match=r"^input:7: is not text$") as raised:
        list(RayEngine().map(SlowCapitals(str(tmp_path / "out"), tmp_path / "log", bad=2), shards))
    assert (raised.value.path, raised.value.line) == ("input", 7)
    # Read by this process as results are taken.
    stream = iter(range(-9, 0))
    results = RayEngine().map(abs, stream)
    assert next(results) == 9
    assert next(stream) < 0
    assert len(list(results)) in range(1, 8)
    with pytest.raises(ConfigurationError, match=r"none of the . nodes of the Ray cluster has 1 GPU"):
        list(RayEngine(gpus=1).map(abs, [1]))


def test_processes_of_this_machine_do_the_same(tmp_path: Path) -> None:
    shards, expected = text_of(tmp_path, 4)
    function = SlowCapitals(str(tmp_path / "out"), tmp_path / "log")
    with shard_folder(function.output, {}, len(shards)) as folder:
        assert folder is not None
        assert [number for number, _ in LocalWorkers(2).map(function, shards)] == [0, 1, 2, 3]
        folder.join()
    assert (tmp_path / "out").read_bytes() == expected


def test_ray_is_wanted_and_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"needs ray, which is not installed: pip install"):
        list(RayEngine().map(abs, [1]))
