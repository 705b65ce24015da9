"""One contender of `decoding.py` in its own process: it translates on request and reports the time.

Contenders cannot share a process, since each needs its own threads and OpenMP library. Lines on standard input:
``batch BEAM`` translates everything, ``single BEAM N`` translates the first N sentences one by one, and ``reordering
BEAM`` reports the share of our steps' time that reordering takes. The answer to each is a line of JSON.
The peers are imported and get our weights; none of their code is copied here.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from multihead.bundle import load_bundle
from multihead.data.batching import collate_source
from multihead.data.order import batches_by_tokens
from multihead.decoding.beam import beam_search
from multihead.decoding.greedy import greedy_search
from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search, Symbols
from multihead.decoding.task import SearchTask
from multihead.engine.search import Engine
from multihead.engine.weights import PRECISIONS
from multihead.interop.formats import ctranslate2 as ctranslate2_format
from multihead.models.config import TransformerConfig
from multihead.models.layers import sinusoid
from multihead.models.transformer import Transformer

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
Ids = list[list[int]]
Translate = Callable[[Ids, int], Ids]
"""(sources with end symbols, beam) -> translations without end symbols."""


class Work:
    """The model, and the lengths of translations."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.threads: int = given["threads"]
        torch.set_num_threads(self.threads)
        self.config = TransformerConfig(**given["config"])
        self.model = Transformer(self.config).eval()
        self.model.load_state_dict(given["weights"])
        self.steps: int = given["steps"]
        self.bundle = load_bundle(Path(given["folder"])) if given["folder"] else None
        forbidden = self.bundle.target_tokenizer.forbidden_in_output if self.bundle else (PAD, UNKNOWN, BEGIN)
        self.symbols = Symbols(BEGIN, END, forbidden)
        self._limits = Search()

    def limits(self, sources: Sequence[Sequence[int]]) -> list[int]:
        """The maximum number of symbols of each translation, including the end symbol."""
        return [self.steps or self._limits.limit(len(source)) for source in sources]

    @property
    def least(self) -> int:
        """The minimum number of symbols of a translation, excluding the end symbol."""
        return max(self.steps - 1, 0)

    def encode(self, sources: list[Any]) -> Ids:
        """The ids of texts, with end symbols; sources that are already ids only get the end symbol."""
        rows = self.bundle.source_tokenizer.encode_batch(sources) if self.bundle else sources
        return [[*row, END] for row in rows]

    def decode(self, found: Ids) -> list[Any]:
        """The texts of ids; without a tokenizer, the ids themselves."""
        return [self.bundle.target_tokenizer.decode(row) for row in found] if self.bundle else found


class Compiled:
    """Our compiled engine."""

    def __init__(self, work: Work, precision: str) -> None:
        self._work = work
        self._engine = Engine(work.model, PRECISIONS[[str(name) for name in PRECISIONS].index(precision)])

    def __call__(self, sources: Ids, beam: int) -> Ids:
        """The best translation of each source."""
        found = self._engine.search(
            sources,
            SearchTask(
                self._work.symbols,
                max_lengths=self._work.limits(sources),
                min_lengths=self._work.least,
                scores=False,  # as CTranslate2 does by default
            ),
            Search(beam=beam, stopping="patience"),
        )
        return [list(hypotheses[0].tokens) for hypotheses in found]

    def reordering(self, sources: Ids, beam: int) -> float:
        """The share of the steps' time that is spent on reordering hypotheses with their keys and values."""
        limits = self._work.limits(sources)
        with self._engine.open(
            SearchTask(self._work.symbols), Search(beam=beam, stopping="patience"), max(limits)
        ) as running:
            for number, (source, limit) in enumerate(zip(sources, limits, strict=True)):
                running.add(number, source, limit, self._work.least)
            while running.left:
                list(running.run(1.0))
            reordering, stepping = running.seconds
        return reordering / stepping


def eager(work: Work) -> Translate:
    """Our search with PyTorch's operations."""

    def search(sources: Ids, beam: int) -> list[Hypothesis]:
        source, lengths = collate_source([row[:-1] for row in sources], PAD, END)
        limits = work.limits(sources)
        if beam == 1:
            return greedy_search(
                work.model, source, lengths, SearchTask(work.symbols, max_lengths=limits, min_lengths=work.least)
            )
        found = beam_search(
            work.model,
            source,
            lengths,
            SearchTask(work.symbols, max_lengths=limits, min_lengths=work.least),
            Search(beam=beam, stopping="patience"),
        )
        return [hypotheses[0] for hypotheses in found]

    def translate(sources: Ids, beam: int) -> Ids:
        found: Ids = [[] for _ in sources]
        for group in batches_by_tokens([len(row) for row in sources], max(4096 // beam, 1)):
            for place, hypothesis in zip(group, search([sources[i] for i in group], beam), strict=True):
                found[place] = list(hypothesis.tokens)
        return found

    return translate


def ctranslate2(work: Work, precision: str, split: str, folder: Path) -> Translate:
    """CTranslate2, with our weights in its own specification: one worker per core, or one thread per core."""
    import ctranslate2

    tokens = [f"t{number}" for number in range(work.config.target_vocab)]
    tokens[: END + 1] = ["<pad>", "<unk>", "<s>", "</s>"]
    place = folder / f"ct2-{precision}-{split}"
    specification = ctranslate2_format.specification(work.model)
    specification.register_source_vocabulary(tokens)
    specification.register_target_vocabulary(tokens)
    specification.config.layer_norm_epsilon = work.config.norm_eps
    specification.validate()
    specification.optimize(quantization=precision)
    place.mkdir()
    specification.save(str(place))
    workers, threads = (work.threads, 1) if split == "workers" else (1, work.threads)
    translator = ctranslate2.Translator(
        str(place), device="cpu", compute_type=precision, inter_threads=workers, intra_threads=threads
    )
    numbers = {token: number for number, token in enumerate(tokens)}
    # A trained model never predicts forbidden symbols; a random one does.
    never = [[tokens[number]] for number in work.symbols.forbidden] if work.steps else None

    def translate(sources: Ids, beam: int) -> Ids:
        longest = max(work.limits(sources))
        found = translator.translate_batch(
            [[tokens[number] for number in row] for row in sources], beam_size=beam, max_batch_size=32 if beam > 1 else
            64, max_decoding_length=longest, min_decoding_length=work.steps or 1, length_penalty=1.0, patience=1.0,
            suppress_sequences=never,
        )  # fmt: skip
        return [[numbers[token] for token in one.hypotheses[0]] for one in found]

    return translate


def marian(work: Work) -> Translate:
    """`transformers`' MarianMT with our weights (post-norm only)."""
    from transformers import GenerationConfig as Generation
    from transformers import MarianConfig, MarianMTModel

    ours, config = work.model, work.config
    sizes = {
        f"{side}_{name}": value
        for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers))
        for name, value in {"layers": layers, "attention_heads": config.heads, "ffn_dim": config.inner}.items()
    }
    theirs = MarianMTModel(
        MarianConfig(
            vocab_size=config.target_vocab, d_model=config.width, activation_function="relu", scale_embedding=True,
            max_position_embeddings=512, pad_token_id=PAD, bos_token_id=BEGIN, eos_token_id=END,
            forced_eos_token_id=None, decoder_start_token_id=BEGIN, **sizes,
        )
    ).eval()  # fmt: skip
    state = theirs.state_dict()
    for name in state:
        if name.endswith("embed_positions.weight"):
            state[name] = sinusoid(torch.arange(512), config.width)
        elif name.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight")):
            state[name] = ours.output.weight
    for side, layers in (("encoder", ours.encoder), ("decoder", ours.decoder)):
        for number, layer in enumerate(layers):
            state |= {f"model.{side}.layers.{number}.{name}": value for name, value in marian_layer(layer).items()}
    theirs.load_state_dict(state)
    settings = {"length_penalty": 1.0, "early_stopping": True, "suppress_tokens": list(work.symbols.forbidden)}
    start = {"pad_token_id": PAD, "eos_token_id": END, "bos_token_id": BEGIN, "decoder_start_token_id": BEGIN}
    theirs.generation_config = Generation(**start)

    @torch.no_grad()
    def translate(sources: Ids, beam: int) -> Ids:
        found: Ids = [[] for _ in sources]
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        for begin in range(0, len(order), 64):
            group = order[begin : begin + 64]
            source, lengths = collate_source([sources[i][:-1] for i in group], PAD, END)
            mask = (torch.arange(source.shape[1]) < lengths[:, None]).long()
            some = settings if beam > 1 else {"suppress_tokens": settings["suppress_tokens"]}
            written = theirs.generate(
                input_ids=source, attention_mask=mask, num_beams=beam, do_sample=False,
                max_new_tokens=max(work.limits([sources[i] for i in group])), min_new_tokens=work.steps or None, **some,
            )  # fmt: skip
            for i, row in zip(group, written.tolist(), strict=True):
                row = row[1:]
                found[i] = row[: row.index(END)] if END in row else row
        return found

    return translate


def marian_layer(layer: Any) -> dict[str, torch.Tensor]:
    """The weights of one of our layers under their names."""
    found = {}
    kinds = [("self_attn", layer.self_attention, layer.self_residual)]
    if hasattr(layer, "cross_attention"):
        kinds.append(("encoder_attn", layer.cross_attention, layer.cross_residual))
    for name, attention, residual in kinds:
        packed = attention.in_projection
        for part, (start, size) in zip("qkv", zip(packed.starts, packed.sizes, strict=False), strict=True):
            rows = slice(start, start + size)
            found |= {f"{name}.{part}_proj.weight": packed.weight[rows], f"{name}.{part}_proj.bias": packed.bias[rows]}
        for to, module in (("out_proj", attention.output_projection), ("layer_norm", residual.norm)):
            dot = "." if to == "out_proj" else "_"
            found |= {f"{name}{dot}{to}.weight": module.weight, f"{name}{dot}{to}.bias": module.bias}
    for to, module in (
        ("fc1", layer.feed_forward.expand),
        ("fc2", layer.feed_forward.contract),
        ("final_layer_norm", layer.feed_forward_residual.norm),
    ):
        found |= {f"{to}.weight": module.weight, f"{to}.bias": module.bias}
    return found


def contender(name: str, precision: str, work: Work, folder: Path) -> Translate:
    """The contender with this name."""
    if name == "multihead":
        return Compiled(work, precision)
    if name == "multihead eager":
        return eager(work)
    return marian(work) if name == "transformers" else ctranslate2(work, precision, name.split()[1], folder)


def main() -> None:
    """``decoding_contender.py NAME PRECISION FILE FOLDER``; `decoding.py` writes FILE."""
    name, precision, file, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    given = torch.load(file, weights_only=False)
    work = Work(given)
    translate = contender(name, precision, work, folder)
    print(json.dumps({"ready": name}), flush=True)
    for line in sys.stdin:
        word, beam, *more = line.split()
        if word == "batch":
            started, cpu = time.perf_counter(), time.process_time()
            outputs = work.decode(translate(work.encode(given["sources"]), int(beam)))
            answer = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu, "outputs": outputs}
        elif word == "reordering":
            share = (
                translate.reordering(work.encode(given["sources"]), int(beam))
                if isinstance(translate, Compiled)
                else None
            )
            answer = {"reordering": share}
        else:
            answer = {"p": [], "cpu_p": []}  # ms
            for source in given["sources"][: int(more[0])]:
                started, cpu = time.perf_counter(), time.process_time()
                work.decode(translate(work.encode([source]), int(beam)))
                answer["p"].append(1000 * (time.perf_counter() - started))
                answer["cpu_p"].append(1000 * (time.process_time() - cpu))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
