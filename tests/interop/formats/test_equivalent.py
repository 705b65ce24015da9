"""Equivalent forms compute the same logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from multihead.interop.formats import equivalent
from multihead.interop.formats.parts import TranslatorParts

MakeParts = Callable[..., TranslatorParts]


@torch.no_grad()
def log_probabilities(parts: TranslatorParts) -> Tensor:
    draw = torch.Generator().manual_seed(3)
    source, target = (torch.randint(4, 290, (3, length), generator=draw) for length in (9, 7))
    return parts.build(Path())(source, torch.tensor([9, 5, 2]), target).logits.log_softmax(-1)


def assert_equal(one: TranslatorParts, other: TranslatorParts) -> None:
    torch.testing.assert_close(log_probabilities(one), log_probabilities(other), rtol=0, atol=5e-5)


NETWORKS = [
    {"norm": norm, "output_bias": shared, "tie_output": tied, "shared": shared, "embedding_norm": norm == "post"}
    for norm in ("pre", "post")
    for tied in (True, False)
    for shared in (True, False)
]


@pytest.mark.parametrize("settings", NETWORKS)
def test_another_epsilon(make_parts: MakeParts, settings: dict[str, object]) -> None:
    parts = make_parts(**settings, norm_eps=1e-3)
    learned = equivalent.with_learned_positions(parts, 20)
    changed = equivalent.with_epsilon(learned, 1e-2)
    assert changed.config.norm_eps == 1e-2
    assert_equal(parts, learned)
    assert_equal(parts, changed)
    only_said = replace(learned, config=changed.config)
    assert not torch.allclose(log_probabilities(parts), log_probabilities(only_said), rtol=0, atol=5e-4)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("scale", ["embedding", "projection", "none"])
def test_without_projection_scale(make_parts: MakeParts, norm: str, scale: str) -> None:
    parts = make_parts(norm=norm, embedding_scale=scale)
    changed = equivalent.without_projection_scale(parts)
    assert changed.config.embedding_scale == ("none" if scale == "projection" else scale)
    assert_equal(parts, changed)


def test_with_biases(make_parts: MakeParts) -> None:
    parts = make_parts(attention_bias=False, feed_forward_bias=False, feed_forward="swiglu")
    changed = equivalent.with_biases(parts)
    assert changed.config.attention_bias
    assert changed.config.feed_forward_bias
    assert_equal(parts, changed)


@pytest.mark.parametrize("settings", NETWORKS)
def test_halves_are_a_permutation(make_parts: MakeParts, settings: dict[str, object]) -> None:
    parts = make_parts(**settings)
    changed = equivalent.in_halves(parts)
    assert changed.config.sinusoid == "halves"
    assert_equal(parts, changed)


def test_learned_positions_go_on_with_the_last_one(make_parts: MakeParts) -> None:
    parts = make_parts(positions="learned", max_positions=4)
    longer = equivalent.with_learned_positions(parts, 30)
    assert longer.config.max_positions == 30
    assert_equal(parts, longer)
