"""PyTorch's elastic agent, which torchrun starts, with processes forked from one that has imported the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def worker(words: list[str], pids: str) -> None:
    """The process that the agent starts: records its process id and runs the command on one thread."""
    import torch

    from multihead.cli.main import main

    torch.set_num_threads(1)
    Path(pids, f"{os.getpid()}.{os.environ['RANK']}").touch()
    status = main(words)
    if status:
        sys.exit(status)


def agent(
    words: list[str], pids: Path, port: int, nodes: tuple[int, int], each: int, errors: Path, restarts: int = 1000
) -> None:
    """``torchrun --nnodes MIN:MAX --nproc-per-node each --max-restarts restarts``, forking its processes."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    import multihead.training.sharded_trainer  # noqa: F401  # once for all workers, including replacements

    with errors.open("ab") as stream:
        os.dup2(stream.fileno(), 2)
    os.setsid()
    if nodes[1] > 1:  # otherwise, in PyTorch 2.13, a late agent never learns the others' address
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    config = LaunchConfig(
        min_nodes=nodes[0],
        max_nodes=nodes[1],
        nproc_per_node=each,
        run_id="elastic",
        rdzv_backend="c10d",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs={"last_call_timeout": 1, "join_timeout": 600},
        max_restarts=restarts,
        monitor_interval=0.05,
        start_method="fork",
        local_addr="127.0.0.1",
    )
    elastic_launch(config, worker)(words, str(pids))
