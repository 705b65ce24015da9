"""One pass over whole targets equals stepping: packed or padded, for one model and for several."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from multihead.bundle import build_network
from multihead.data.batching import collate_source
from multihead.decoding.ensemble import Ensemble
from multihead.decoding.scoring import force
from multihead.decoding.search import Symbols
from multihead.errors import MultiheadError
from multihead.models.config import NetworkConfig, RecurrentConfig, TransformerConfig
from multihead.models.network import Network
from multihead.text.tokenizer import BytePairTokenizer
from multihead.translating.forced import forced_log_probabilities

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES: dict[str, Any] = {"source_vocab": 23, "target_vocab": 23, "width": 16}
LAYERS: dict[str, Any] = {"heads": 2, "inner": 32, "encoder_layers": 2, "decoder_layers": 2}
NETWORKS: list[NetworkConfig] = [
    TransformerConfig(**SIZES, **LAYERS),
    TransformerConfig(**SIZES, **LAYERS, norm="post", positions="learned", tie_embeddings=False),
    TransformerConfig(**SIZES, **LAYERS, positions="relative", tie_embeddings=False),
    TransformerConfig(**SIZES, **LAYERS, source_end=False, output_bias=True),
    RecurrentConfig(**SIZES, tie_embeddings=False),
]
SOURCES = [[5, 6, 7], [], [8], [9, 10, 11, 12, 13, 14, 15], [22] * 40]
TARGETS = [[4, 5], [6], [], [7, 8, 9, 10, 11, 12], [18] * 3]


def made(config: NetworkConfig, seed: int) -> Network:
    torch.manual_seed(seed)
    return build_network(config).eval()


@pytest.fixture(scope="module")
def tokenizer(trained: Any) -> BytePairTokenizer:
    from multihead import Translator

    found = Translator.load(trained).bundle.target_tokenizer
    assert isinstance(found, BytePairTokenizer)
    return found


def stepped(stepper: Any, tokenizer: BytePairTokenizer) -> list[list[float]]:
    source, lengths = collate_source(SOURCES, tokenizer.pad_id, tokenizer.eos_id)
    return force(stepper, source, lengths, TARGETS, Symbols(tokenizer.bos_id, tokenizer.eos_id, ()))


def close(one: list[list[float]], other: list[list[float]]) -> None:
    assert [len(values) for values in one] == [len(values) for values in other]
    for own, wanted in zip(one, other, strict=True):
        assert own == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize("number", range(len(NETWORKS)))
@pytest.mark.parametrize("budget", [1, 10_000])
def test_it_finds_what_stepping_finds(number: int, budget: int, tokenizer: BytePairTokenizer) -> None:
    model, told = made(NETWORKS[number], number), list[int]()
    found = forced_log_probabilities(model, tokenizer, SOURCES, TARGETS, budget, told.append)
    close(found, stepped(model, tokenizer))
    assert sum(told) == len(SOURCES)


def test_packed_and_padded_passes_agree(
    tokenizer: BytePairTokenizer, compiled: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    """`compiled` switches the kernels off, without which a batch stays padded."""
    model = made(NETWORKS[0], 3)
    packed = forced_log_probabilities(model, tokenizer, SOURCES, TARGETS)
    with compiled():
        padded = forced_log_probabilities(model, tokenizer, SOURCES, TARGETS)
    close(packed, padded)


def test_several_models_are_their_ensemble(tokenizer: BytePairTokenizer) -> None:
    """Models of two kinds; their probabilities are averaged."""
    models = [made(NETWORKS[number], number) for number in (0, 1, 4)]
    found = forced_log_probabilities(models, tokenizer, SOURCES, TARGETS)
    close(found, stepped(Ensemble(models), tokenizer))


def test_a_model_without_numbers_is_refused(tokenizer: BytePairTokenizer) -> None:
    model = made(NETWORKS[0], 5)
    with torch.no_grad():
        model.output.weight.fill_(math.nan)
    with pytest.raises(MultiheadError, match="NaN"):
        forced_log_probabilities(model, tokenizer, SOURCES[:1], TARGETS[:1])
