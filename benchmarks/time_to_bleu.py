"""Time to a validation BLEU: `multihead train`, and the best peer of `training.py`.

Both train on Multi30k (or any folder with train and val in two languages) with the same subwords, sizes of the network,
batch tokens and threads, one after the other. Both are scored in the same way: greedy translations of all validation
lines, cased sacreBLEU. Seconds are training time: **validations are excluded on both sides** and reported separately.
Our time starts with the command and includes its measurements and saving; the peer's starts with its first update. A
level is reached at the first validation with that BLEU; there is no interpolation.

If the benchmark is interrupted, the same command continues it. curves.jsonl in the output folder has a line per
validation: name, seconds, updates, loss, bleu, and the seconds of all validations so far (validating). Our checkpoints
stay in the folder: some 2.5 GB for a run of 10 minutes.

    python benchmarks/time_to_bleu.py --output runs/time
    python benchmarks/time_to_bleu.py --output runs/time --only multihead --budget 5m
    python benchmarks/time_to_bleu.py --output runs/time --only MarianMT --recipe linear --peer-time 1h
    python benchmarks/time_to_bleu.py --output runs/time --only table
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import describe_machine, parser, write_figures
from pydantic import TypeAdapter
from quality import find, measure_text, write_toy
from time_to_bleu_peer import NAME, RECIPES, PeerRun, Point

from multihead.bundle import load_bundle
from multihead.files import write_text
from multihead.metrics.scores import score
from multihead.models.config import preset
from multihead.planning.sections import Duration
from multihead.preparing.prepare import prepare
from multihead.preparing.prepared import PreparedText
from multihead.runs.report.card import time_to as reached
from multihead.training.budget import JOURNAL
from multihead.training.checkpoint import copy_into, intact_checkpoints, read_weights
from multihead.translating.translator import Translator

OURS = "multihead"
_BATCH_TOKENS = 4096
Curves = dict[str, list[Point]]


def main() -> None:
    """Train both and print the table."""
    made = parser(__doc__)
    made.add_argument("--output", type=Path, default=Path("time-to-bleu"), help="folder for all output (time-to-bleu)")
    made.add_argument("--vocab-size", type=int, help="number of subwords (chosen by `multihead prepare`)")
    made.add_argument("--preset", default="small", help="sizes of both networks (small)")
    made.add_argument("--only", choices=[OURS, NAME, "table"], help="train only this one; table: train none")
    made.add_argument("--budget", default="10m", help="training time of `multihead train` (10m)")
    made.add_argument("--recipe", choices=RECIPES, default="multi30k", help="how the peer is trained (multi30k)")
    made.add_argument("--peer-time", default="3h", help="maximum training time of the peer (3h)")
    made.add_argument("--every", type=float, default=60.0, help="seconds between the peer's validations (60)")
    made.add_argument("--levels", type=float, nargs="+", default=[30, 35, 38, 40], help="levels of BLEU (30 35 38 40)")
    measure_text(made, use_toy, measure)


def use_toy(arguments: Namespace, folder: Path) -> None:
    """Train on generated numbers, in ``folder``, for a second; only the first level can be reached."""
    write_toy(folder)
    arguments.data, arguments.output, arguments.vocab_size = folder, folder / "out", 400
    arguments.budget, arguments.peer_time, arguments.every = "1s", "0.4s", 0.2
    arguments.levels = [0.0, 99.0]


def measure(arguments: Namespace) -> None:
    """Train the requested ones, and print the table of everything measured in this folder."""
    print(describe_machine())
    text = prepared_text(arguments)
    sizes = {name: value for name, value in preset(arguments.preset, "transformer").items() if isinstance(value, int)}
    if arguments.toy:
        sizes |= {"width": 16, "inner": 16, "encoder_layers": 1, "decoder_layers": 1}
    file = arguments.output / "curves.jsonl"
    try:
        if arguments.only in (None, OURS):
            name = f"multihead train --budget {arguments.budget}"
            try:
                train_ours(arguments, sizes)
            finally:
                store(file, name, our_points(arguments, name, text))
        if arguments.only in (None, NAME):
            train_peer(arguments, text, sizes, file)
    except KeyboardInterrupt:
        print("stopped; run the same command again to continue")
    rows = table(read(file), arguments.levels)
    write_figures(arguments, {"rows": rows, "sizes": sizes, "pairs": len(text.train), "lines": len(text.valid)})


def prepared_text(arguments: Namespace) -> PreparedText:
    """The text in the subwords that both use, one vocabulary as the peer needs; the first call prepares it."""
    files = {
        f"{part}{side}": find(arguments.data, name, getattr(arguments, side))
        for part, name in (("", "train"), ("valid_", "val"))
        for side in ("source", "target")
    }
    wishes = {"vocab_size": arguments.vocab_size, "shared_vocabulary": True}
    return prepare(**files, **wishes, output=arguments.output / "text")


# --------------------------------------------------------------------------- ours


def run_folder(arguments: Namespace) -> Path:
    """The folder of our run."""
    folder: Path = arguments.output / f"multihead-{arguments.budget}"
    return folder


def train_ours(arguments: Namespace, sizes: dict[str, int]) -> None:
    """Run ``multihead train``, which keeps its checkpoints: they are scored when it has ended."""
    given: dict[str, Any] = {
        "output": run_folder(arguments), "data": arguments.output / "text", "budget": arguments.budget,
        "batch-tokens": _BATCH_TOKENS, "keep-checkpoints": 10_000, "threads": torch.get_num_threads(),
        **{name.replace("_", "-"): value for name, value in sizes.items()},
    }  # fmt: skip
    flags = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    process = subprocess.Popen([sys.executable, "-m", "multihead", "train", *flags])
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.wait()  # it was interrupted, too, and saves
        raise
    if status:
        raise SystemExit(f"multihead train ended with status {status}")


def our_points(arguments: Namespace, name: str, text: PreparedText) -> list[Point]:
    """The points of our run so far, from its logs and checkpoints."""
    run = run_folder(arguments)
    if not (run / "best").is_dir():
        return []
    spent: dict[int, float] = {}  # up to the end of the validation
    for line in (run / JOURNAL).read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        spent[entry["step"]] = max(spent.get(entry["step"], 0.0), entry["spent"])
    losses, times = (
        {record["step"]: record for record in records if record["kind"] == "validation"}
        for records in (_lines(run / "log.jsonl"), _lines(run / "timing.jsonl"))
    )
    bundle, validating, points = load_bundle(run / "best"), 0.0, []
    for folder in reversed(intact_checkpoints(run / "checkpoints")):
        step = int(folder.name)
        if step not in losses or step not in times:
            continue
        validating += times[step]["seconds"]
        copy_into(dict(bundle.model.named_parameters()), read_weights(folder, "average"))
        translations = Translator(bundle).translate(text.valid_sources, beam=1)
        bleu = score(translations, text.valid_targets, text.config.target_language).bleu
        values = {"seconds": round(spent[step] - validating, 3), "updates": step, "loss": losses[step]["loss"]}
        points.append({"name": name, **values, "bleu": bleu, "validating": round(validating, 3)})
    return points


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --------------------------------------------------------------------------- the peer


def train_peer(arguments: Namespace, text: PreparedText, sizes: dict[str, int], file: Path) -> None:
    """Train the peer in this process, with PyTorch's defaults; each point is written at once."""
    state = arguments.output / f"{NAME}-{arguments.recipe}.pt"
    run = PeerRun(text, sizes, arguments.recipe, _BATCH_TOKENS, state)
    for name, points in read(file).items():
        if name.startswith(run.name):
            store(file, name, [point for point in points if point["updates"] <= run.step])

    def record(points: list[Point]) -> bool:
        with file.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(point) + "\n" for point in points)
        for point in points:
            print(
                f"{point['name']:<32} {point['seconds']:8.0f} s  {point['updates']:6} updates  "
                f"loss {point['loss']:.3f}  BLEU {point['bleu']:.2f}",
                flush=True,
            )
        return max(point["bleu"] for point in points) >= max(arguments.levels)

    before = [point for name, points in read(file).items() if name.startswith(run.name) for point in points]
    if not before or max(point["bleu"] for point in before) < max(arguments.levels):
        run.train(TypeAdapter(Duration).validate_python(arguments.peer_time), arguments.every, record)


# --------------------------------------------------------------------------- curves and table


def read(file: Path) -> Curves:
    """The curves of a file, by name."""
    curves: Curves = {}
    for point in _lines(file) if file.exists() else []:
        curves.setdefault(point["name"], []).append(point)
    return curves


def store(file: Path, name: str, points: Sequence[Point]) -> None:
    """Replace a curve of the file."""
    curves = {**read(file), name: points}
    write_text(file, "".join(json.dumps(point) + "\n" for curve in curves.values() for point in curve))


def ratio(ours: Sequence[Point], peers: Sequence[Sequence[Point]], level: float) -> tuple[float, bool] | None:
    """The time that the quickest peer takes to this BLEU, divided by ours.

    Returns:
        The ratio and whether it is exact. If no peer reaches the level, the ratio is a lower bound: the shortest
        training time of a peer divided by ours. None if ours does not reach the level or there is no peer.
    """
    own, times = reached(ours, level), [reached(curve, level) for curve in peers]
    found = [time for time in times if time is not None]
    if own is None or not peers:
        return None
    if found:
        return min(found) / own, True
    return min(curve[-1]["seconds"] for curve in peers) / own, False


def table(curves: Curves, levels: Sequence[float]) -> list[dict[str, Any]]:
    """Print seconds to each level and the ratios; returns them as rows."""
    peers = [curve for name, curve in curves.items() if name.startswith(NAME)]
    rows: list[dict[str, Any]] = []
    print(f"{'seconds of training to BLEU':<34}" + "".join(f"{level:>16g}" for level in levels) + f"{'best':>9}")
    for name, curve in curves.items():
        times, last = [reached(curve, level) for level in levels], curve[-1]
        best = max(point["bleu"] for point in curve)
        ended = f"not in {last['seconds']:.0f} s"
        cells = [ended if time is None else f"{time:.0f}" for time in times]
        print(f"{name:<34}" + "".join(f"{cell:>16}" for cell in cells) + f"{best:9.2f}")
        row = {"case": name, "seconds": dict(zip(map(str, levels), times, strict=True)), "best": best}
        row |= {key: last[key] for key in ("updates", "validating")} | {"trained": last["seconds"]}
        if not name.startswith(NAME):
            ratios = [ratio(curve, peers, level) for level in levels]
            row["ratios"] = [None if one is None else {"ratio": one[0], "exact": one[1]} for one in ratios]
        rows.append(row)
    for row in rows:
        if "ratios" in row:
            print(f"{'  quickest peer / this':<34}" + "".join(f"{_show(one):>16}" for one in row["ratios"]))
    for row in rows:
        print(
            f"{row['case']}: {row['updates']} updates in {row['trained']:.0f} s, without {row['validating']:.0f} s of "
            "validations"
        )
    return rows


def _show(one: dict[str, Any] | None) -> str:
    if one is None:
        return "-"
    return f"{'' if one['exact'] else 'above '}{one['ratio']:.1f} x"


if __name__ == "__main__":
    main()
