"""Faults for copies of good folders, and sealing the copies again, as an attacker can do."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multihead.errors import MultiheadError
from multihead.model_folder import WEIGHTS
from multihead.sealed import MANIFEST, seal

SECONDS, MEGABYTES = 2.0, 200
HANGS = 30.0
"""Seconds after which an operation counts as hanging, even on a busy machine."""
LINES = ["The cat sat on the mat, 12 times.", "Ein Hund rennt über die Straße."] * 4
"""Text that subwords are learned from."""
Plant = Callable[[Path], object]


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block if it takes longer."""

    def ring(_number: int, _frame: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def peak_megabytes() -> float:
    """Peak memory of this process since the last reset."""
    with contextlib.suppress(OSError):
        if (found := re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())) is not None:
            return int(found[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Check that the block takes less than `MEGABYTES` (above the previous peak, if the system cannot reset it)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size
    before = peak_megabytes()
    yield
    assert peak_megabytes() - before < MEGABYTES


def one_line(error: MultiheadError, says: str) -> None:
    """Check that an error is one line for people, with status 2, that matches ``says``."""
    text = str(error)
    assert error.exit_status == 2, text
    assert "\n" not in text
    assert len(text) < 1500, text
    assert re.search(says, text), text


def edit(name: str, *place: str, value: Any) -> Plant:
    """Set a field of a JSON file; ``value`` may be the text of a number."""

    def plant(folder: Path) -> None:
        path = folder / name
        content = part = json.loads(path.read_text(encoding="utf-8"))
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = "@" if isinstance(value, Raw) else value
        text = json.dumps(content)
        path.write_text(text.replace('"@"', value.text) if isinstance(value, Raw) else text, encoding="utf-8")

    return plant


@dataclass(frozen=True)
class Raw:
    """A value as written in JSON."""

    text: str


def content(name: str, data: bytes) -> Plant:
    """The content of a file."""
    return lambda folder: (folder / name).write_bytes(data)


def replaced(name: str, make: Callable[[Path], object]) -> Plant:
    """Something other than a regular file."""

    def plant(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return plant


def listening(path: Path) -> None:
    """A socket; its path is short, as sockets' must be."""
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)


KINDS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a socket": listening,
    "a loop": lambda path: path.symlink_to(path.name),
    "a device": lambda path: path.symlink_to("/dev/zero"),
}
"""Things that may be in the place of a regular file."""


def header(described: Any, data: bytes = bytes(64), length: int | None = None, name: str = WEIGHTS) -> Plant:
    """A file of tensors with this header."""
    text = json.dumps(described).encode()
    return content(name, struct.pack("<Q", len(text) if length is None else length) + text + data)


def tensor(begin: int, end: int, *shape: int, dtype: str = "F32") -> dict[str, Any]:
    """The entry of a tensor in a header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def planted(good: Path, folder: Path, plant: Plant, *, sealed: bool = True) -> Path:
    """A copy with a fault; sealed again, or as versions before 6 wrote it."""
    shutil.copytree(good, folder)
    if not sealed:
        edit("config.json", "format_version", value=5)(folder)
    plant(folder)
    (folder / MANIFEST).unlink(missing_ok=True)
    if sealed:
        regular = {path for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
        entries = [path for path in folder.iterdir() if path not in regular and path.is_symlink()]
        assert len(entries) <= 1
        with contextlib.suppress(OSError):  # the manifest does not list what cannot be hashed
            seal(folder)
    return folder


# --------------------------------------------------------------------------- fields changed at random

NUMBERS = [0, -1, 1, 2, 7, 2**31, 2**32, 2**63, 10**12, 10**18, 10**40, -(10**18), 0.5, -0.5, 1e-320, 1e18, 1e308]
OTHERS = [None, True, False, "", "x", "x" * 10_000, "9" * 5000, [], {}, [1] * 1000, {"a": {}}, "\ud800", "cuda:7"]
VALUES = [*NUMBERS, *OTHERS]


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*before, key)
        yield from places(part, (*before, key))


def mutated(draw: random.Random, good: Any) -> Any:
    """A copy of a value of JSON with one to three changes: another value, a deeper one, one less, one more."""
    found = json.loads(json.dumps(good))
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        ways = list(places(found))
        # the vocabulary has as many places as all others together
        way = draw.choice([way for way in ways if len(way) < 3 or draw.random() < 0.05] or [()])
        if not way:
            break
        part = found
        for key in way[:-1]:
            part = part[key]
        match draw.choice(["value", "value", "value", "less", "deeper", "more"]):
            case "value":
                part[way[-1]] = copy.deepcopy(draw.choice(VALUES))
            case "less":
                del part[way[-1]]
            case "deeper":
                for _ in range(draw.choice([1, 50, 200])):
                    part[way[-1]] = {"a": part[way[-1]]} if draw.random() < 0.5 else [part[way[-1]]]
            case "more" if isinstance(part, dict):
                part[draw.choice(["x", "widht", "x" * 1000])] = copy.deepcopy(draw.choice(VALUES))
    return found


def change_fields(path: Path, draw: random.Random) -> None:
    """Change fields of a JSON file, or of the header of a file of tensors."""
    if path.suffix == ".safetensors":
        whole = path.read_bytes()
        length = 8 + int.from_bytes(whole[:8], "little")
        text = json.dumps(mutated(draw, json.loads(whole[8:length])), ensure_ascii=True).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + whole[length:])
    else:
        text = json.dumps(mutated(draw, json.loads(path.read_text(encoding="utf-8"))))
        path.write_text(text.replace("1e-320", draw.choice(["1e-320", "1e999", "9" * 5000, "NaN"])))
