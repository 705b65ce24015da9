# ruff: noqa: E501
"""Runs commands on generated inputs and records all outputs, so that two versions can be compared.

    python tools/record_outputs.py record FOLDER --multihead .venv/bin/multihead
    python tools/record_outputs.py compare FOLDER OTHER

``record`` writes status, standard output and standard error of each command into ``FOLDER/recorded.json``, together with the
SHA-256 of every file that the commands write. Sizes are small and one thread computes, so that equal versions give equal
bytes. ``compare`` prints the differences and exits with 1 if there are any. Durations and speeds are replaced by ``TIME``;
standard error is compared only with ``--errors``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

WORDS = {
    "eins": "one", "zwei": "two", "drei": "three", "vier": "four", "fünf": "five",
    "sechs": "six", "sieben": "seven", "acht": "eight", "neun": "nine", "zehn": "ten",
}  # fmt: skip

SMALL = (
    "--width 32 --heads 2 --inner 64 --encoder-layers 1 --decoder-layers 1 --batch-tokens 512 --learning-rate 0.01 "
    "--warmup 20 --average 0.9 --dropout 0 --smoothing 0 --updates 250 --validate-every 125 --log-every 50 --threads 1 "
    "--precision float32 --seed 3"
)
"""A network that learns the generated language in seconds."""

COMMANDS = f"""
train --source train.de --target train.en --valid-source val.de --valid-target val.en --output run --vocab-size 320 {SMALL}
train --output run
train --source train.de --target train.en --output run-held-out --vocab-size 320 {SMALL} --bpe-dropout 0.1
translate run --threads 1 < input.de
translate run --threads 1 --beam 1 < input.de
translate run --threads 1 --input input.de --output output.en
evaluate run --source test.de --target test.en --threads 1
evaluate run --source test.de --target test.en --beam 8 --no-repeat 3 --json --threads 1
prepare --source train.de --target train.en --valid-source val.de --valid-target val.en --output prepared --vocab-size 320
train --data prepared --output run-tiny {SMALL}
train --config settings.toml --output run-toml --threads 1 --seed 3
train --from-model run --corpus "own.tsv weight=2" --corpus "train.de train.en weight=0.1" --output tuned --updates 40 --threads 1 --precision float32 --keep-checkpoints 3 --validate-every 20
average tuned --last 2 --output mean
translate mean --threads 1 < input.de
translate run --threads 1 --n-best 3 < input.de
translate run --threads 1 --scores < input.de
translate run --threads 1 --precision int8 < input.de
translate run --threads 1 --no-repeat 3 --without "two" < input.de
translate run --threads 1 --beam 6 --groups 3 --n-best 3 < input.de
translate run --threads 1 --sample 4 --epsilon 0.02 --mbr chrf < input.de
translate run --threads 1 --sample 3 --top-k 5 --seed 4 < input.de
translate run --threads 1 --guard mark --scores < input.de
translate run --threads 1 --guard retry < input.de
translate run --threads 1 --with run-tiny --beam 4 < input.de
translate run --threads 1 --coverage 0.1 --length-penalty wu --stopping patience < input.de
translate run --threads 1 --input input.de --prefixes begin.en --phrases terms.en --output demanded.en
translate run --threads 1 --max-source 4 < input.de
attention run "eins zwei drei" -o heads.png
attention run "eins zwei drei" --kind encoder --layer 1 --heads mean --text
plot run run-tiny -o curves.png
bpe learn train.de train.en --output tokenizer.json --vocab-size 320
bpe apply tokenizer.json < input.de
bpe undo < pieces.de
bpe learn train.de train.en --format subword-nmt --symbols 40 --output codes.txt
bpe apply codes.txt < input.de
doctor --source train.de --target train.en --valid-source val.de --valid-target val.en --vocab-size 320 --preset tiny
doctor run
doctor run --json
clean --source train.de --target train.en --held-out "val.de val.en" --output clean.de --output-target clean.en
explain run "eins zwei drei" -o page.html
explain run "eins zwei drei" --beam 8 --n-best 3 --json
explain run "eins zwei drei" --translation "one two" -o given.html --png words.png
compare run run-tiny --source test.de --target test.en --threads 1
compare run run-tiny --source test.de --target test.en --threads 1 --json
score run --source test.de --target test.en --threads 1
score run --source test.de --target test.en --perplexity --threads 1
score run --source test.de --target test.en --tokens --threads 1
score run --source test.de --target test.en --normalize --alpha 0.6 --threads 1
align run --source test.de --target test.en --threads 1
align run --source test.de --target test.en --mutual --threads 1
selftest batch run --source test.de
selftest batch run --source test.de --size 4 --beam 1 --plain --json
shortlist run
translate run --threads 1 --shortlist < input.de
quantise run --output small
translate small --threads 1 < input.de
train --model recurrent --source train.de --target train.en --output run-recurrent --vocab-size 320 --preset tiny --updates 30 --threads 1 --precision float32 --seed 3
translate run-recurrent --threads 1 < input.de
evaluate run-recurrent --source test.de --target test.en --threads 1
pointer train sort --output pointer-sort --updates 60 --width 32 --largest 5 --threads 1 --seed 3
pointer sort --model pointer-sort 20 5 10
pointer sort --model pointer-sort -3 2.5 1e3 -4 --beam 3
pointer evaluate sort --model pointer-sort --lengths 2-5 --count 50
pointer train hull --output pointer-hull --updates 30 --width 32 --largest 6 --threads 1 --seed 3
pointer hull --model pointer-hull 0,0 1,0 0.5,0.2 1,1 0,1
pretrain --text corpus.txt --output bert --updates 30 --width 32 --layers 1 --heads 2 --inner 64 --vocab-size 300 --max-tokens 32 --threads 1 --seed 3
fill-mask bert "eins [MASK] drei"
train --model decoder --target corpus.txt --output language-model --updates 30 --width 32 --decoder-layers 1 --heads 2 --inner 64 --vocab-size 300 --threads 1 --seed 3
generate language-model "eins" --max-length 8
score language-model --target input.de
evaluate language-model --target input.de
classify train --data labelled.tsv --output run-classes --updates 40 --width 32 --threads 1 --seed 3 --vocab-size 300
classify predict run-classes --explain < documents.txt
classify predict run-classes < documents.txt
classify evaluate run-classes --data labelled.tsv
classify train --data labelled.tsv --from-model bert --output run-bert-classes --updates 20 --threads 1 --seed 3
classify predict run-bert-classes < documents.txt
translate nothing < input.de
translate run --beam 0 < input.de
train --sorce a
"""

TIMES = (
    r"\d+(\.\d+)? ?(ms|s|min|h)\b( an update)?",
    r"[\d,]+(\.\d+)? (tokens|pairs|sentences|words|lines|updates|target tokens|source tokens)(/s| a second)",
    r"[\d,.]+k?/s\b",
    r"\d+(\.\d+)?% of (the )?peak[^)\n]*",
    r'"seconds": ?[\d.e-]+',
    r"[\d,]+ a second",
)
VARYING = ("timing.jsonl", "log.txt", "lock", ".so")


def write_inputs(folder: Path) -> None:
    """Write a small corpus, the same each time: German number words with their English translations."""
    draw = random.Random(7)

    def rows(count: int) -> list[list[str]]:
        return [[draw.choice(list(WORDS)) for _ in range(draw.randint(1, 6))] for _ in range(count)]

    def write(name: str, lines: list[str]) -> None:
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    for name, count in (("train", 600), ("val", 20), ("test", 30), ("own", 40)):
        made = rows(count)
        sources, targets = [" ".join(row) for row in made], [" ".join(WORDS[word] for word in row) for row in made]
        write(f"{name}.de", sources)
        write(f"{name}.en", targets)
        write(f"{name}.tsv", [f"{source}\t{target}" for source, target in zip(sources, targets, strict=True)])
    inputs = [
        "eins zwei",
        "",
        "drei vier fünf sechs",
        "acht",
        "eins eins eins eins eins eins eins. zwei drei vier acht.",
    ]
    write("input.de", inputs)
    write("begin.en", ["one", "", "", "", ""])
    write("terms.en", ["", "", "six", "", ""])
    write("pieces.de", ["▁ e ins ▁ zwei"])
    corpus = [" ".join(row) if row else "" for row in rows(300)]
    write("corpus.txt", [line for n, line in enumerate(corpus) for line in ([line, ""] if n % 5 == 4 else [line])])
    labelled = [f"{'high' if 'neun' in row or 'zehn' in row else 'low'}\t{' '.join(row)}." for row in rows(200)]
    write("labelled.tsv", labelled)
    write("documents.txt", ["neun zehn neun.", "eins zwei.", "drei zehn."])
    settings = ['preset = "tiny"', "updates = 20", "vocab_size = 320", 'feed_forward = "swiglu"', "kv_heads = 2"]
    settings += [
        'norm = "post"',
        'precision = "float32"',
        "",
        "[[corpus]]",
        'source = "train.de"',
        'target = "train.en"',
    ]
    write("settings.toml", settings)


def digest(path: Path, folder: Path) -> str:
    """The hash of a file, with the name of the working folder removed."""
    return hashlib.sha256(path.read_bytes().replace(str(folder).encode(), b"FOLDER")).hexdigest()[:16]


def without_times(text: str) -> str:
    for pattern in TIMES:
        text = re.sub(pattern, "TIME", text)
    return text


def run(multihead: str, command: str, folder: Path) -> dict[str, object]:
    line, _, given = command.partition(" < ")
    words = [multihead, *shlex.split(line)]
    stdin = (folder / given).open("rb") if given else subprocess.DEVNULL
    ended = subprocess.run(words, cwd=folder, stdin=stdin, capture_output=True, check=False)
    return {
        "command": command,
        "status": ended.returncode,
        "out": without_times(ended.stdout.decode("utf-8", "replace")),
        "err": without_times(ended.stderr.decode("utf-8", "replace")),
    }


def serve(multihead: str, folder: Path) -> list[dict[str, object]]:
    """Send a few requests to `multihead serve`; returns its responses and its interface description."""
    process = subprocess.Popen(
        [multihead, "serve", "run", "--port", "0", "--threads", "1"], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    requests: list[tuple[str, dict[str, object] | None]] = [
        ("/translate", {"text": ["eins zwei", "", "drei vier."], "n_best": 2, "alternatives": 2, "alignment": True}),
        ("/translate", {"text": "acht neun", "beam": 1, "guard": "mark"}),
        ("/translate", {"texts": "acht"}),
        ("/info", None),
        ("/openapi.json", None),
        ("/", None),
    ]
    found = []
    try:
        matches = (re.search(r"listening at (http://\S+)/", line) for line in process.stderr)
        address = next((match[1] for match in matches if match), None)
        if address is None:
            raise SystemExit("multihead serve ended before it was listening")
        for _ in range(200):
            try:
                urllib.request.urlopen(f"{address}/ready", timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        for path, body in requests:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(f"{address}{path}", data, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    status, text = answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                status, text = error.code, error.read().decode()
            out = without_times(text)
            found.append({"command": f"serve: {path} {json.dumps(body)}", "status": status, "out": out, "err": ""})
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        process.stderr.close()
    return found


def record(folder: Path, multihead: str) -> None:
    """Run everything in a new folder."""
    folder.mkdir(parents=True)
    write_inputs(folder)
    os.environ["OMP_NUM_THREADS"] = "1"
    commands = [line for line in COMMANDS.splitlines() if line.strip()]
    recorded = []
    for number, command in enumerate(commands, start=1):
        recorded.append(run(multihead, command, folder))
        print(f"{number}/{len(commands)} {recorded[-1]['status']} {command}", flush=True)
    recorded += serve(multihead, folder)
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.endswith(VARYING):
            files[str(path.relative_to(folder))] = digest(path, folder)
        elif path.is_file() and path.name == "log.txt":
            files[str(path.relative_to(folder))] = without_times(path.read_text(encoding="utf-8"))
    content = {"commands": recorded, "files": files}
    (folder / "recorded.json").write_text(
        json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8", newline="\n"
    )


def compare(folder: Path, other: Path, errors: bool) -> int:
    """Print the differences; returns their number."""
    one, two = (json.loads((place / "recorded.json").read_text(encoding="utf-8")) for place in (folder, other))
    if [mine["command"] for mine in one["commands"]] != [its["command"] for its in two["commands"]]:
        sys.exit(f"{folder} and {other} have different commands: record both with the same tools/record_outputs.py")
    differing = 0
    for mine, its in zip(one["commands"], two["commands"], strict=True):
        for what in ("status", "out", *(("err",) if errors else ())):
            if mine[what] != its[what]:
                differing += 1
                print(f"{mine['command']}: {what} differs")
                for line, (a, b) in enumerate(
                    zip(str(mine[what]).splitlines(), str(its[what]).splitlines(), strict=False), start=1
                ):
                    if a != b:
                        print(f"  line {line}\n    {a[:300]}\n    {b[:300]}")
                        break
    for name in sorted({*one["files"], *two["files"]}):
        if one["files"].get(name) != two["files"].get(name):
            differing += 1
            print(f"file {name} differs")
    print(f"{len(one['commands'])} commands, {len(one['files'])} files: {differing} differences")
    return differing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="what", required=True)
    recording = parts.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--multihead", default="multihead")
    comparing = parts.add_parser("compare")
    comparing.add_argument("folder", type=Path)
    comparing.add_argument("other", type=Path)
    comparing.add_argument("--errors", action="store_true")
    given = parser.parse_args()
    if given.what == "record":
        record(given.folder.absolute(), str(Path(shutil.which(given.multihead) or given.multihead).absolute()))
    else:
        sys.exit(compare(given.folder, given.other, given.errors) > 0)


if __name__ == "__main__":
    main()
