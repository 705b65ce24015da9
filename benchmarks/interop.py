"""Speed of a model of OPUS-MT's shape in our engine, CTranslate2 and transformers.

All read the same MarianMT folder and translate text to text, each with its own tokenizer: we import the folder,
CTranslate2 converts it with its own converter, transformers loads it. Each contender is a process, and they take turns,
so that other load on the machine affects all of them alike. Rates are sentences per second; ``same`` is the share of
translations that equal ours in float32.

Without ``--model`` the weights are random, in the sizes of OPUS-MT's models (6 + 6 layers, width 512, 58,101 entries),
and every translation has ``--steps`` tokens. The text is Multi30k's test set of 2016 if it is found, otherwise
generated.

    python benchmarks/interop.py
    python benchmarks/interop.py --model opus-mt-de-en --beams 4 --json figures.json
"""

from __future__ import annotations

import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import describe_machine, multi30k, parser, write_figures


class Shape(NamedTuple):
    """Sizes of a MarianMT model."""

    width: int
    layers: int
    """Layers of the encoder, and of the decoder."""
    heads: int
    inner: int
    entries: int
    """Entries of the vocabulary; those without a piece are unused."""


SIZES = {"toy": Shape(16, 1, 2, 16, 120), "opus": Shape(512, 6, 8, 2048, 58_101)}
CONTENDERS = (
    "multihead float32",
    "multihead bfloat16",
    "multihead int8",
    "ctranslate2 float32 workers",
    "ctranslate2 float32 threads",
    "ctranslate2 int8 workers",
    "ctranslate2 int8 threads",
    "transformers float32",
)
BATCH = 32
"""Sentences per batch for transformers and CTranslate2; our engine gets all sentences and forms its own batches."""

Translate = Callable[[list[str], int], list[str]]


def sentences(count: int) -> list[str]:
    """German sentences of Multi30k's test set if it is found, otherwise generated ones."""
    if found := multi30k("test_2016_flickr", "de"):
        return found[:count]
    draw = random.Random(1)
    words = ["Hund", "Katze", "ein", "der", "läuft", "sieht", "große", "Straße", "Frau", "Mann", "und", "über"]
    return [" ".join(draw.choice(words) for _ in range(draw.randint(5, 20))) for _ in range(count)]


def build(
    folder: Path, shape: Shape, lines: list[str], pieces: int = 2000, languages: tuple[str, str] = ("de", "en")
) -> None:
    """Write a MarianMT folder with random weights and a SentencePiece model with ``pieces`` pieces of the lines."""
    import sentencepiece
    from transformers import MarianConfig, MarianMTModel

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=written, minloglevel=2, hard_vocab_limit=False,
        vocab_size=min(shape.entries, pieces), character_coverage=1.0,
    )  # fmt: skip
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(written.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    names = ["</s>", "<unk>", *(processor.id_to_piece(i) for i in range(3, processor.get_piece_size()))]
    names += [f"unused{i}" for i in range(shape.entries - len(names) - 1)] + ["<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}), encoding="utf-8")
    named = dict(zip(("source_lang", "target_lang"), languages, strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps(named), encoding="utf-8")
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder")
             for name, value in (("layers", shape.layers), ("attention_heads", shape.heads), ("ffn_dim", shape.inner))
             }  # fmt: skip
    torch.manual_seed(1)
    config = MarianConfig(
        vocab_size=len(names), d_model=shape.width, activation_function="swish", scale_embedding=True,
        pad_token_id=len(names) - 1, decoder_start_token_id=len(names) - 1, **sides,
    )  # fmt: skip
    MarianMTModel(config).save_pretrained(folder)


def ours(folder: Path, precision: str, steps: int) -> Translate:
    """Our engine."""
    from multihead import Translator

    lengths = {"min_length": steps - 1, "max_length": steps} if steps else {}
    translator = Translator.load(folder).searching(precision=precision, stopping="patience", **lengths)
    return lambda lines, beam: translator.translate(lines, beam=beam)


def transformers(folder: Path, steps: int) -> Translate:
    """``generate`` on batches of sentences of similar lengths."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    lengths = {"min_new_tokens": steps - 1, "max_new_tokens": steps} if steps else {"max_new_tokens": 128}

    def translate(lines: list[str], beam: int) -> list[str]:
        order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
        found = [""] * len(lines)
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            batch = tokenizer([lines[i] for i in places], return_tensors="pt", padding=True)
            with torch.inference_mode():
                rows = model.generate(**batch, num_beams=beam, early_stopping=beam > 1, **lengths)
            for place, text in zip(places, tokenizer.batch_decode(rows, skip_special_tokens=True), strict=True):
                found[place] = text
        return found

    return translate


def ctranslate2(folder: Path, kind: str, split: str, steps: int) -> Translate:
    """CTranslate2, with its own converter; ``split`` says whether threads become workers or share each product."""
    import ctranslate2 as library
    from ctranslate2.converters import TransformersConverter
    from transformers import AutoTokenizer

    converted = folder / f"ctranslate2-{kind}-{split}"
    TransformersConverter(str(folder)).convert(str(converted), quantization=kind, force=True)
    threads = torch.get_num_threads()
    workers, inner = (threads, 1) if split == "workers" else (1, threads)
    translator = library.Translator(str(converted), inter_threads=workers, intra_threads=inner, compute_type=kind)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    lengths = {"min_decoding_length": steps - 1, "max_decoding_length": steps} if steps else {}

    def translate(lines: list[str], beam: int) -> list[str]:
        sources = [tokenizer.convert_ids_to_tokens(row) for row in tokenizer(lines)["input_ids"]]
        rows = translator.translate_batch(sources, beam_size=beam, max_batch_size=BATCH, **lengths)
        return [tokenizer.decode(tokenizer.convert_tokens_to_ids(row.hypotheses[0]), skip_special_tokens=True)
                for row in rows]  # fmt: skip

    return translate


def contend(name: str, folder: Path, count: int, steps: int) -> None:
    """A contender: reads beam widths, and answers each with the seconds and the translations of all lines."""
    program, precision, *split = name.split()
    if program == "multihead":
        translate = ours(folder, precision, steps)
    elif program == "transformers":
        translate = transformers(folder, steps)
    else:
        translate = ctranslate2(folder, precision, split[0], steps)
    lines = sentences(count)
    print("ready", flush=True)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        found = translate(lines, int(line))
        taken = {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "outputs": found}
        print(json.dumps(taken), flush=True)


class Process:
    """A contender's process."""

    def __init__(self, name: str, folder: Path, count: int, steps: int) -> None:
        own = folder / name.replace(" ", "-")  # its own folder, since CTranslate2 writes into it
        own.mkdir()
        for path in folder.iterdir():
            if path.is_file():
                (own / path.name).symlink_to(path)
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        if torch.backends.cpu.get_cpu_capability() == "AVX512":
            environment.setdefault("CT2_FORCE_CPU_ISA", "AVX512")  # the fastest; it selects it only on Intel
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--contender", name, str(own), str(count), str(steps)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.read("ready")

    def read(self, expected: str = "") -> str:
        """The next line; if there is none, exit with what the process wrote to standard error."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line or expected not in line:
            raise SystemExit(self.process.communicate()[1])
        return line

    def ask(self, beam: int) -> dict[str, Any]:
        """Let the process translate all lines; returns seconds and translations."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{beam}\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.read())
        return found


def main() -> None:
    """Let the contenders take turns, and print a table."""
    arguments = parser(__doc__, rounds=3)
    arguments.add_argument("--model", type=Path, help="a MarianMT folder instead of random weights")
    arguments.add_argument("--size", choices=SIZES, default="opus", help="size of the model with random weights (opus)")
    arguments.add_argument("--beams", type=int, nargs="+", default=[1, 4], help="beam widths; 1 is greedy (1 4)")
    arguments.add_argument("--steps", type=int, default=15, help="tokens per translation with random weights (15)")
    arguments.add_argument("--sentences", type=int, default=200)
    arguments.add_argument("--only", default="", help="only the first contender and those with this in the name")
    chosen = arguments.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    names = [CONTENDERS[0], *(name for name in CONTENDERS[1:] if chosen.only in name)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if chosen.model is None:
            build(folder, SIZES[chosen.size], sentences(1000))
        else:
            for path in chosen.model.iterdir():
                (folder / path.name).symlink_to(path.resolve())
        steps = 0 if chosen.model else chosen.steps
        contenders = {name: Process(name, folder, chosen.sentences, steps) for name in names}
        rows = turns(contenders, chosen)
        for one in contenders.values():
            one.process.communicate()  # the end of its input ends the process
    write_figures(chosen, {"size": chosen.size, "rows": rows})


def turns(contenders: dict[str, Process], chosen: Any) -> list[dict[str, Any]]:
    """Measure and print the median rate of each contender with each beam."""
    rows, count = [], len(sentences(chosen.sentences))
    print(f"{chosen.model or chosen.size}, {describe_machine()['threads']} threads, {count} sentences; medians of "
          f"{chosen.rounds} turns")  # fmt: skip
    print(f"{'':44}{'sent/s':>10}{'per CPU-s':>11}{'same':>8}")
    for beam in chosen.beams:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
        outputs = {name: one.ask(beam)["outputs"] for name, one in contenders.items()}  # also warms up
        for _ in range(chosen.rounds):
            for name, one in contenders.items():
                found[name].append(one.ask(beam))
        for name, runs in found.items():
            wall, cpu = (statistics.median(run[key] for run in runs) for key in ("seconds", "cpu"))
            same = sum(a == b for a, b in zip(outputs[name], outputs[CONTENDERS[0]], strict=True)) / count
            case = f"{name}, beam {beam}"
            rows.append(
                {"case": case, "sentences_per_second": count / wall, "per_cpu_second": count / cpu, "same": same}
            )
            print(f"{case:44}{count / wall:10,.1f}{count / cpu:11,.1f}{same:8.1%}")
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        contend(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
