"""Sentences per second of an exported web page in Chromium, against our engine on one thread.

    python benchmarks/web.py --model run --lines test.de [--rounds 5] [--json FILE]

Both translate the same lines with the same weights, rounded to int8. The browser runs the module of the exported folder
in one worker; its time includes the tokenizer, the search, and the messages to the worker and back. Without
``--model``, a model of the size of the preset ``tiny`` with random weights translates lines of random subwords, which
says nothing about speed in practice. The translations of both are compared before anything is timed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from common import interleave, parser, write_figures

from multihead.bundle import load_bundle
from multihead.decoding.search import Search
from multihead.interop.exporting import parts_of
from multihead.interop.formats import web
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.lines import certificate_lines
from multihead.interop.our_side import OurSide
from multihead.interop.runtimes.browser import BrowserRuntime
from multihead.models.config import PRESETS, TransformerConfig
from multihead.models.transformer import Transformer
from multihead.text.tokenizer import Tokenizer


def random_parts() -> TranslatorParts:
    """A model with random weights."""
    tokenizer = Tokenizer.learn(["Ein Hund rennt durch den Park.", "Zwei Katzen schlafen im Garten."] * 3, 320)
    sizes = PRESETS["tiny"]
    config = TransformerConfig(source_vocab=len(tokenizer), target_vocab=len(tokenizer), **sizes)
    weights = dict(Transformer(config).named_parameters())
    return TranslatorParts(config, weights, tokenizer, tokenizer, Search(length_factor=1.0, length_margin=1))


def main() -> None:
    """Measure and print."""
    accepted = parser(__doc__, rounds=5, seconds=10, threads="1")
    accepted.add_argument("--model", type=Path, help="a model or run folder")
    accepted.add_argument("--lines", type=Path, help="source lines")
    accepted.add_argument("--count", type=int, default=1000, help="maximum number of lines (1000)")
    accepted.add_argument("--beams", type=int, nargs="+", default=[1, 5], help="beams; 1 is greedy search (1 5)")
    arguments = accepted.parse_args()
    torch.set_num_threads(arguments.threads or 1)
    parts = parts_of(load_bundle(arguments.model), "the model") if arguments.model else random_parts()
    texts = certificate_lines(arguments.model, parts.source_tokenizer, arguments.lines, arguments.count).texts
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        web.write(parts, Path(folder))
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        ours = OurSide(parts)
        with BrowserRuntime(Path(folder)) as browser:
            for beam in arguments.beams:
                search = parts.generation.model_copy(update={"beam": beam})

                def engine(search: Search = search) -> list[str]:
                    sources = [ours.ended(ids) for ids in ours.encode(texts)]
                    return ours.decode([one.tokens for one in ours.translate_int8(sources, search)])

                def page(search: Search = search) -> list[str]:
                    rows = browser.translations(texts, search)
                    return ours.decode([one.tokens for one in rows])

                equal = sum(one == other for one, other in zip(engine(), page(), strict=True))
                found = interleave({"engine": engine, "browser": page}, arguments.rounds, arguments.seconds * 10)
                speeds = {name: 1000 * len(texts) / timing.minimum for name, timing in found.items()}
                case = "greedy" if beam == 1 else f"beam {beam}"
                rows.append({"case": case, "sentences": len(texts), "equal": equal, "per_second": speeds})
                print(
                    f"{case}: browser {speeds['browser']:.0f} sentences/s, engine {speeds['engine']:.0f}; "
                    f"{equal} of {len(texts)} equal"
                )
        print(f"Chromium {browser.version}, {size / 1e6:.2f} MB")
    write_figures(arguments, {"chromium": browser.version, "bytes": size, "rows": rows})


if __name__ == "__main__":
    main()
