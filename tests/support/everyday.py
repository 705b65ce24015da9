"""What people do on every system: train a toy, go on with it, translate a file and a stream, serve a request.

    python everyday.py FOLDER            here
    python everyday.py FOLDER --windows  on the Windows of `windows`, in a child that is forked before

Prints as JSON the hashes of all files, the translations and the answer; with ``--windows`` in a second line the hashes
of the files of a training here that was not stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import random
import signal
import socket
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
"""They have ways of their own on Windows, and are loaded before it begins."""
WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five", "sechs": "six", "汉": "字"}
SIZES = (
    "--width 32 --heads 2 --inner 64 --encoder-layers 1 --decoder-layers 1 --vocab-size 300 --batch-tokens 512 "
    "--threads 1 --updates 6 --validate-every 3 --log-every 2"
)
STOP = 4
"""The update after which the first training stops."""
TEXT = "eins zwei drei\n\nvier 汉 fünf\nsechs\n"


def write_corpus(folder: Path) -> list[str]:
    """Write pairs to train on; returns the flags that name them."""
    draw = random.Random(1)
    rows = [[draw.choice(list(WORDS)) for _ in range(draw.randint(1, 6))] for _ in range(60)]
    for name, texts in (("de", rows), ("en", [[WORDS[word] for word in row] for row in rows])):
        (folder / f"train.{name}").write_bytes("".join(" ".join(row) + "\n" for row in texts).encode())
    return ["--source", str(folder / "train.de"), "--target", str(folder / "train.en")]


def command(*words: object, given: bytes = b"") -> bytes:
    """Standard output of a command that succeeds."""
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
    """A function that `training` calls before each update, and that asks to stop after ``update`` of them."""
    calls = iter(range(1_000_000))
    return lambda: signal.SIGINT if next(calls) >= update else None


def serve(run: Path) -> str:
    """The answer of a server to one request."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    answers: list[str] = []

    def ask() -> None:
        request = urllib.request.Request(
            f"{address}/translate",
            json.dumps({"text": TEXT.split("\n")[0]}).encode(),
            {"Content-Type": "application/json"},
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not answers:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    answers.append(answer.read().decode())
            except (urllib.error.URLError, OSError):  # not yet
                time.sleep(0.02)
        signal.raise_signal(signal.SIGINT)

    client = threading.Thread(target=ask)
    client.start()
    command("serve", run, "--port", address.rpartition(":")[2], "--threads", 1)
    client.join()
    return answers[0]


def train_and_translate(folder: Path, corpus: list[str], *, stopped: bool) -> dict[str, Any]:
    """The hashes of all files of a run, which may be stopped in between, and of its model's translation of a file."""
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
        os.environ["MULTIHEAD_NATIVE"] = "0"  # elsewhere the package has to find out that there are none
        os.cpu_count = lambda: 1  # no worker processes: they would be Linux's
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
