"""Everyday work, the same on every system: train, resume, translate a file and a stream, serve a request.

    python everyday.py FOLDER            on this system
    python everyday.py FOLDER --windows  in a forked child process, on the simulated Windows of `windows`

Prints a line of JSON: the hashes of all files, the translations and the server's response. ``--windows`` prints a
second line: the hashes of the files of a training on this system that was not interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import random
import re
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

LIBRARIES = (
    "torch._dynamo",
    "sacrebleu",
    "safetensors",
    "tokenizers",
    "pydantic",
    "rich",
    "click",
    "fastapi",
    "uvicorn",
)
"""Libraries that behave differently on Windows. They are imported before the simulation starts."""
WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six", "汉": "字"}
SIZES = (
    "--width 32 --heads 2 --inner 64 --encoder-layers 1 --decoder-layers 1 --vocab-size 300 --batch-tokens 512 "
    "--threads 1 --updates 6 --validate-every 3 --log-every 2"
)
STOP = 4
"""The update after which the first training stops."""
TEXT = "eins zwei drei\n\nvier 汉 fünf\nsechs\n"


def write_corpus(folder: Path) -> list[str]:
    """Write training pairs; returns the flags that name their files."""
    draw = random.Random(1)
    rows = [[draw.choice(list(WORDS)) for _ in range(draw.randint(1, 6))] for _ in range(60)]
    for name, texts in (("de", rows), ("en", [[WORDS[word] for word in row] for row in rows])):
        (folder / f"train.{name}").write_bytes("".join(" ".join(row) + "\n" for row in texts).encode())
    return ["--source", str(folder / "train.de"), "--target", str(folder / "train.en")]


def command(*words: object, given: bytes = b"") -> bytes:
    """Run a command that must succeed; returns its standard output."""
    from multihead.cli import main

    out, before = io.BytesIO(), (sys.argv, sys.stdin, sys.stdout)
    sys.argv = ["multihead", *map(str, words)]
    sys.stdin = io.TextIOWrapper(io.BytesIO(given))
    sys.stdout = io.TextIOWrapper(out, encoding=before[2].encoding, newline=os.linesep, write_through=True)
    try:
        try:
            main.entry()
        except SystemExit as ended:
            if ended.code:
                raise AssertionError(f"{words} ended with status {ended.code}") from None
        return out.getvalue()
    finally:
        sys.argv, sys.stdin, sys.stdout = before


def stop_after(update: int) -> Any:
    """A function that training calls before each update; it requests a stop after ``update`` updates."""
    calls = iter(range(1_000_000))
    return lambda: signal.SIGINT if next(calls) >= update else None


def serve(run: Path) -> str:
    """Start a server, send one request, and return the response."""
    out, answers = io.BytesIO(), list[str]()
    errors = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
    body = json.dumps({"text": TEXT.split("\n")[0]}).encode()

    def ask() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not answers:
            address = re.search(r"listening at (http://\S+)", out.getvalue().decode())
            if address is not None:
                url, headers = f"{address[1]}translate", {"Content-Type": "application/json"}
                with (
                    contextlib.suppress(urllib.error.URLError, OSError),  # still loading
                    urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer,
                ):
                    answers.append(answer.read().decode())
            time.sleep(0.02)
        signal.raise_signal(signal.SIGINT)

    client = threading.Thread(target=ask)
    client.start()
    try:
        with contextlib.redirect_stderr(errors):
            command("serve", run, "--port", 0, "--threads", 1)
    finally:
        print(out.getvalue().decode(), file=sys.stderr)
    client.join()
    return answers[0]


def train_and_translate(folder: Path, corpus: list[str], *, stopped: bool) -> dict[str, Any]:
    """Train, optionally with an interruption, and translate a file; returns the hashes of all files."""
    from multihead import train
    from multihead.errors import Interrupted

    run, given, written = folder / "run", folder / "text.de", folder / "text.en"
    folder.mkdir()
    given.write_bytes(TEXT.encode())
    words = [*corpus, *SIZES.split()]
    if stopped:
        names = [flag.removeprefix("--").replace("-", "_") for flag in words[::2]]
        wishes: dict[str, Any] = dict(zip(names, words[1::2], strict=True))
        with contextlib.suppress(Interrupted):
            train(output=run, say=lambda _: None, stop_signal=stop_after(STOP), **wishes)
            raise AssertionError("the training did not stop")
    command("train", *words, "--output", run)
    command("translate", run, "--input", given, "--output", written)
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name not in ("log.txt", "timing.jsonl")
    }


def everything(folder: Path, corpus: list[str]) -> dict[str, Any]:
    """Do everything, in a new folder."""
    return {
        "files": train_and_translate(folder, corpus, stopped=True),
        "written": (folder / "text.en").read_bytes().decode(),
        "streamed": command("translate", folder / "run", given=TEXT.encode()).decode(),
        "served": json.loads(serve(folder / "run"))["translations"][0]["text"],
    }


def main() -> None:
    folder = Path(sys.argv[1])
    corpus = write_corpus(folder)
    for name in LIBRARIES:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    if "--windows" in sys.argv:
        os.environ["MULTIHEAD_NATIVE"] = "0"  # on other systems, the package must find out itself
        os.cpu_count = lambda: 1  # no worker processes: the simulation does not cover them
        child = os.fork()
        if child == 0:
            import windows

            windows.install()
            print(json.dumps(everything(folder / "windows", corpus)), flush=True)
            return
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        print(json.dumps(train_and_translate(folder / "here", corpus, stopped=False)))
    else:
        print(json.dumps(everything(folder / "here", corpus)))


if __name__ == "__main__":
    main()
