"""Tiny translators with random weights, and texts that are hard to tokenize."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from multihead.data.batching import collate_source
from multihead.decoding.search import Search
from multihead.interop.formats.opening import read_foreign
from multihead.interop.formats.parts import Languages, TranslatorParts
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer

LINES = ("Ein Hund rennt.", "Zwei Hunde rennen, und drei schlafen!", "Ein Mädchen spielt mit 12 Bällen im Park.")

MakeParts = Callable[..., TranslatorParts]


def make_tokenizer(lines: tuple[str, ...], size: int) -> BytePairTokenizer:
    """A tokenizer with a small vocabulary, learned from a few lines."""
    return Tokenizer.learn([*lines] * 3, size)


@pytest.fixture(scope="session")
def tokenizer() -> BytePairTokenizer:
    return make_tokenizer(LINES, 310)


@pytest.fixture(scope="session")
def other_tokenizer() -> BytePairTokenizer:
    return make_tokenizer(("A dog runs.", "Two dogs run, and three sleep!", "A girl plays with 12 balls."), 300)


@pytest.fixture(scope="session")
def make_parts(tokenizer: BytePairTokenizer, other_tokenizer: BytePairTokenizer) -> MakeParts:
    """Make a translator of these settings; with ``shared`` False, its tokenizers differ."""

    def make(*, shared: bool = True, **settings: Any) -> TranslatorParts:
        target = tokenizer if shared else other_tokenizer
        sizes = {"width": 16, "heads": 2, "inner": 24, "encoder_layers": 2, "decoder_layers": 2}
        config = TransformerConfig(
            source_vocab=len(tokenizer), target_vocab=len(target), **sizes | {"tie_embeddings": shared} | settings
        )
        torch.manual_seed(1)
        model = Transformer(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:  # gains and biases with an effect
                    parameter.add_(0.2 * torch.randn_like(parameter))
                if name == "output.weight" or (config.tie_output and name == "target_embedding.table.weight"):
                    parameter.mul_(3)  # peaked enough for equal translations
        search = Search(beam=3, length_factor=0.5, length_margin=4)
        return TranslatorParts(config, dict(model.named_parameters()), tokenizer, target, search, "de", "en")

    return make


@pytest.fixture(scope="session")
def hard_texts() -> list[str]:
    """Texts with everything that is hard to tokenize."""
    draw = random.Random(0)
    alphabet = ["a", "b", " ", " ", "▁", ".", "!", "1", "é", "e\u0301", "\u200c", "</s>", "<0x41>", "🙂", "\t", "日"]
    fixed = ["", " ", "</s>", "a </s> b", "<blank>", "▁", "x▁ ▁y", "  a   b ", "12 34", *LINES]
    return fixed + ["".join(draw.choices(alphabet, k=draw.randint(1, 20))) for _ in range(400)]


class Plain:
    """The layers of a Transformer in plain operations, on weights under the names of any program.

    A test composes them as the program's documentation describes its network, one sentence at a time.

    Args:
        weights: by the program's names.
        heads: number of heads; those of keys and values follow from their widths.
        eps: of the layer norms.
        activation: of the feed-forward networks.
    """

    def __init__(
        self, weights: dict[str, Tensor], heads: int, eps: float, activation: Callable[[Tensor], Tensor] = torch.relu
    ) -> None:
        self.weights, self.heads, self.eps, self.activation = weights, heads, eps, activation

    def linear(self, x: Tensor, name: str) -> Tensor:
        """x W^T + b; without b if the program has none."""
        return x @ self.weights[f"{name}.weight"].t() + self.weights.get(f"{name}.bias", torch.zeros(1))

    def norm(self, x: Tensor, name: str) -> Tensor:
        """The layer norm."""
        centered = x - x.mean(-1, keepdim=True)
        deviation = (centered.square().mean(-1, keepdim=True) + self.eps).sqrt()
        return centered / deviation * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attend(self, x: Tensor, memory: Tensor, names: Sequence[str], *, causal: bool = False) -> Tensor:
        """Multi-head attention; names of the projections to queries, keys, values and output."""
        query, key, value = (self.linear(z, name) for z, name in zip((x, memory, memory), names, strict=False))
        size = query.shape[1] // self.heads
        shared = self.heads * size // key.shape[1]
        results = []
        for head in range(self.heads):
            own = slice(head * size, (head + 1) * size)
            theirs = slice(head // shared * size, (head // shared + 1) * size)
            scores = query[:, own] @ key[:, theirs].t() / size**0.5
            if causal:
                scores = scores.masked_fill(torch.ones(scores.shape).triu(1).bool(), -torch.inf)
            results.append(scores.softmax(-1) @ value[:, theirs])
        return self.linear(torch.cat(results, 1), names[3])

    def feed(self, x: Tensor, first: str, second: str, gate: str = "") -> Tensor:
        """The feed-forward network; with a ``gate``, the activation is applied to it."""
        hidden = self.linear(x, first)
        return self.linear(self.activation(self.linear(x, gate)) * hidden if gate else self.activation(hidden), second)


def random_weights(shapes: dict[str, Sequence[int]], seed: int = 0) -> dict[str, Tensor]:
    """Random tensors; gains of norms are near 1."""
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
    return {
        name: 1 + 0.2 * tensor if "norm" in name and name.endswith("weight") else 0.4 * tensor
        for name, tensor in drawn.items()
    }


def linear_shapes(name: str, rows: int, columns: int, bias: bool = True) -> dict[str, Sequence[int]]:
    """The shapes of a linear map."""
    return {f"{name}.weight": (rows, columns)} | ({f"{name}.bias": (rows,)} if bias else {})


def norm_shapes(width: int, *names: str) -> dict[str, Sequence[int]]:
    """The shapes of layer norms."""
    return {f"{name}.{kind}": (width,) for name in names for kind in ("weight", "bias")}


@dataclass(frozen=True)
class Foreigners:
    """Helpers to test readers: reference layers, random weights, and the comparison."""

    plain = Plain
    random_weights = staticmethod(random_weights)
    linear = staticmethod(linear_shapes)
    norm = staticmethod(norm_shapes)

    @staticmethod
    def interleaved(length: int, width: int) -> Tensor:
        """The paper's sinusoids."""
        angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)

    @staticmethod
    def compare(folder: Path, logits: Callable[[list[int], list[int]], Tensor], *, end: bool = True) -> TranslatorParts:
        """Recognize and read the network in a folder, and compare it with a reference in a batch with padding.

        Args:
            folder: the folder.
            logits: the reference: source ids (with the end symbol, if ``end``) and decoder input to logits.
            end: whether the reference reads the end symbol of the source.
        """
        parts = read_foreign(folder, Languages())
        model, target = parts.build(folder), parts.target_tokenizer
        draw = random.Random(3)
        sources, targets = (
            [[draw.randrange(4, size - 1) for _ in range(length)] for length in lengths]
            for size, lengths in ((parts.config.source_vocab, (5, 1, 8)), (parts.config.target_vocab, (4, 7, 2)))
        )
        source, lengths = collate_source(sources, target.pad_id, target.eos_id)
        given = [[target.bos_id, *row] for row in targets]
        padded = torch.tensor([row + [target.pad_id] * (8 - len(row)) for row in given])
        with torch.no_grad():
            found = model(source, lengths, padded).logits.log_softmax(-1)
            for row, (ids, written) in enumerate(zip(sources, given, strict=True)):
                expected = logits([*ids, target.eos_id] if end else ids, written).log_softmax(-1)
                torch.testing.assert_close(found[row, : len(written)], expected, rtol=0, atol=3e-5)
        return parts


@pytest.fixture(scope="session")
def foreigners() -> Foreigners:
    return Foreigners()


class Evil:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.made}'",)


@pytest.fixture
def evil(tmp_path: Path) -> Iterator[Evil]:
    """An object whose unpickling would run code, which must not happen."""
    made = tmp_path / "made by a pickle"
    yield Evil(made)
    assert not made.exists()
