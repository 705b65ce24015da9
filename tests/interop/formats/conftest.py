"""Tiny translators with random weights, and texts that are hard to tokenize."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from multihead.decoding.search import Search
from multihead.interop.formats.parts import TranslatorParts
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer

LINES = ("Ein Hund rennt.", "Zwei Hunde rennen, und drei schlafen!", "Ein Mädchen spielt mit 12 Bällen im Park.")

MakeParts = Callable[..., TranslatorParts]


def make_tokenizer(lines: tuple[str, ...], size: int) -> BytePairTokenizer:
    """A tokenizer whose vocabulary is filled by few lines."""
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
                if parameter.dim() == 1:  # gains and biases that do something
                    parameter.add_(0.2 * torch.randn_like(parameter))
                if name == "output.weight" or (config.tie_output and name == "target_embedding.table.weight"):
                    parameter.mul_(3)  # decided enough for equal translations
        search = Search(beam=3, length_factor=0.5, length_margin=4)
        return TranslatorParts(config, dict(model.named_parameters()), tokenizer, target, search, "de", "en")

    return make


@pytest.fixture(scope="session")
def hard_texts() -> list[str]:
    """Texts with everything that a tokenizer may stumble over."""
    draw = random.Random(0)
    alphabet = ["a", "b", " ", " ", "▁", ".", "!", "1", "é", "e\u0301", "\u200c", "</s>", "<0x41>", "🙂", "\t", "日"]
    fixed = ["", " ", "</s>", "a </s> b", "<blank>", "▁", "x▁ ▁y", "  a   b ", "12 34", *LINES]
    return fixed + ["".join(draw.choices(alphabet, k=draw.randint(1, 20))) for _ in range(400)]
