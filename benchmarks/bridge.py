"""A model of OPUS-MT's shape, trained here, exported to every format, and read back by every program.

Trains on Multi30k (or any folder with train, val and test_2016_flickr in two languages): a MarianMT folder with random
weights is fine-tuned by ``multihead train --from-model``. To save time it is trained at half the width first, then
widened and trained again (`widen`). Then the run is exported to each format with a certificate on the test set, and
each exported folder that multihead can read is imported again. For each format, the table shows the largest difference
of a log-probability, the number of equal translations, and the BLEU of both programs. If the benchmark is interrupted,
the same command continues it.

    python benchmarks/bridge.py --output bridge
    python benchmarks/bridge.py --output bridge --minutes 60 0 --json figures.json      without widening
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from common import describe_machine, multihead, parser, write_figures
from quality import measure_text, text_of, write_toy

from interop import Shape, build
from multihead.data.text_files import read_lines
from multihead.files import atomic_folder

FORMATS = ("transformers", "ctranslate2", "ctranslate2 int8", "onnx", "onnx int8", "argos", "web")
"""Formats of ``multihead export``, with the type of the weights if it is not the format's default."""
READ_BACK = ("transformers",)
"""Formats that multihead reads."""


def main() -> None:
    """Train, export, and print a row for each format."""
    made = parser(__doc__)
    made.add_argument("--output", type=Path, default=Path("bridge"), help="folder for all output (bridge)")
    made.add_argument("--minutes", type=float, nargs=2, default=[45, 30], metavar=("HALF", "WHOLE"),
                      help="training time at half the width and after widening; 0: none (45 30)")  # fmt: skip
    made.add_argument("--width", type=int, default=512, help="width of the network (512, as OPUS-MT)")
    made.add_argument("--layers", type=int, default=6, help="layers of the encoder and of the decoder (6)")
    made.add_argument("--pieces", type=int, default=5000, help="entries of the vocabulary (5000)")
    made.add_argument("--count", type=int, default=1000, help="lines of a certificate (1000)")
    made.add_argument("--formats", nargs="+", default=list(FORMATS), choices=FORMATS, help="formats to export (all)")
    made.add_argument("--updates", type=int, help="updates of each training, instead of minutes")
    measure_text(made, use_toy, measure)


def use_toy(arguments: Namespace, folder: Path) -> None:
    """Two updates of a tiny model on generated numbers, in ``folder``, without widening."""
    write_toy(folder)
    arguments.data, arguments.output = folder, folder / "bridge"
    arguments.width, arguments.layers, arguments.pieces, arguments.updates = 32, 1, 120, 2
    arguments.minutes, arguments.count, arguments.formats = [1, 0], 3, ["ctranslate2"]


def measure(arguments: Namespace) -> None:
    """Train, export and compare."""
    print(describe_machine())
    arguments.output.mkdir(parents=True, exist_ok=True)
    run = trained(arguments)
    rows = [compared(name, run, arguments) for name in arguments.formats]
    for row in rows:
        print(f"{row['case']:<18} {row['program']:<24} {row['state']:<8} {row['largest']:.2g}  greedy {row['greedy']}  "
              f"beam 5 {row['beam']}  BLEU {row['bleu'][0]:.2f} {row['bleu'][1]:.2f}")  # fmt: skip
    write_figures(arguments, {"rows": rows})


def trained(arguments: Namespace) -> Path:
    """Train as the flags say; returns the run of the full width."""
    half, whole = arguments.minutes
    first, grown = arguments.output / "half", arguments.output / "whole"
    width = arguments.width // 2 if half and whole else arguments.width
    if not first.exists():
        lines = [line for side in ("source", "target") for line in read_lines(text_of(side, "train", arguments))]
        shape = Shape(width, arguments.layers, 8, 4 * width, arguments.pieces)
        with atomic_folder(first) as draft:
            build(draft, shape, lines, arguments.pieces, (arguments.source, arguments.target))
    run = train(first, arguments.output / "run-half", half or whole, 0.0025, arguments)
    if not (half and whole):
        return run
    if not grown.exists():
        back = arguments.output / "half-trained"
        if not back.exists():
            form = ("--format", "transformers", "--no-certificate")
            multihead("export", run, *form, "-o", back, threads=arguments.threads)
        with atomic_folder(grown) as draft:
            widen(back, draft)
    return train(grown, arguments.output / "run-whole", whole, 0.001, arguments)


def train(folder: Path, run: Path, minutes: float, rate: float, arguments: Namespace) -> Path:
    """Fine-tune a MarianMT folder."""
    settings: dict[str, object] = {"batch-tokens": 2048, "optimizer": "muon", "learning-rate": rate, "warmup": 80}
    for side in ("source", "target"):
        settings |= {side: text_of(side, "train", arguments), f"valid-{side}": text_of(side, "val", arguments)}
    settings |= {"updates": arguments.updates} if arguments.updates else {"budget": f"{minutes:g}m"}
    flags = (word for name, value in settings.items() for word in (f"--{name}", value))
    multihead("train", "--from-model", folder, "--output", run, *flags, "--dropout", 0.1, threads=arguments.threads)
    return run


def compared(name: str, run: Path, arguments: Namespace) -> dict[str, Any]:
    """The row of a format."""
    form, *quantization = name.split()
    output = arguments.output / name.replace(" ", "-")
    lines = ("--lines", text_of("source", "test_2016_flickr", arguments),
             "--references", text_of("target", "test_2016_flickr", arguments), "--count", arguments.count)  # fmt: skip
    if not output.exists():
        kind = ("--quantization", *quantization) if quantization else ()
        multihead("export", run, "--format", form, "-o", output, *kind, *lines, threads=arguments.threads)
    back = arguments.output / f"{output.name}-read"
    if form in READ_BACK and not back.exists():
        multihead("import", output, "-o", back, *lines, threads=arguments.threads)
    return row_of(name, json.loads((output / "certificate.json").read_text(encoding="utf-8")))


def row_of(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """The figures of a certificate."""
    greedy, beam = found["searches"]
    last = found["texts"] or beam
    rounding = found["rounding"]
    return {
        "case": name,
        "program": f"{found['program']} {found['program_version']}",
        "state": found["state"],
        "largest": found["scores"]["largest"],
        "greedy": f"{greedy['equal']} of {greedy['lines']}",
        "beam": f"{beam['equal']} of {beam['lines']}, {beam['near_ties']} near ties",
        "bleu": [last["bleu"]["ours"], last["bleu"]["theirs"]],
        "bleu_as_used": rounding and rounding["bleu"]["theirs"],
        "signature": last["bleu"]["signature"],
    }


def widen(folder: Path, output: Path, spread: float = 0.1) -> None:
    """A MarianMT folder of twice the width that computes the same function, except for the positions.

    Every channel and every hidden unit exists twice (Chen, Goodfellow & Shlens 2016, "Net2Net"): a matrix has each row
    twice, and each column w as (1/2 + e) w and (1/2 - e) w with random e, so that the two copies learn differently.
    A score q k would double, but the wider model divides scores only by sqrt(2) more, so q becomes q / sqrt(2). The
    wider model scales embeddings by sqrt(2) more, so E becomes E / sqrt(2). The output E h sums twice as many channels,
    so the last norm gives h / sqrt(2). The wider model's sinusoids have other frequencies, to which training adapts.
    """
    from transformers import MarianMTModel

    narrow: Any = MarianMTModel.from_pretrained(folder)
    config = narrow.config
    sizes = {name: 2 * getattr(config, name) for name in ("d_model", "encoder_ffn_dim", "decoder_ffn_dim")}
    wide: Any = MarianMTModel(type(config)(**{**config.to_dict(), **sizes}))
    generator, last = torch.Generator().manual_seed(1), f"model.decoder.layers.{config.decoder_layers - 1}"
    weights = {}
    for name, tensor in narrow.state_dict().items():
        if "embed_positions" in name:
            continue
        if name == "final_logits_bias":
            weights[name] = tensor
        elif "embed_tokens" in name or "shared" in name or name == "lm_head.weight":
            weights[name] = tensor.repeat_interleave(2, 1) * 0.5**0.5
        else:
            weights[name] = _widened(tensor, spread, generator)
            if "q_proj" in name or name.startswith(f"{last}.final_layer_norm"):
                weights[name] *= 0.5**0.5
    missing, unexpected = wide.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all("embed_positions" in name for name in missing), missing
    wide.save_pretrained(output)
    for path in folder.iterdir():
        if path.suffix in (".spm", ".json") and path.name not in ("config.json", "certificate.json"):
            (output / path.name).write_bytes(path.read_bytes())


def _widened(tensor: torch.Tensor, spread: float, generator: torch.Generator) -> torch.Tensor:
    """A tensor with each entry of a vector, or each row and column of a matrix, twice."""
    if tensor.dim() == 1:
        return tensor.repeat_interleave(2)
    e = spread * torch.randn(2 * tensor.shape[0], tensor.shape[1], generator=generator)
    rows = tensor.repeat_interleave(2, 0)
    return torch.stack(((0.5 + e) * rows, (0.5 - e) * rows), 2).flatten(1)


if __name__ == "__main__":
    main()
