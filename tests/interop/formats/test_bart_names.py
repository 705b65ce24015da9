"""Names of BART's family: there and back, and none that transformers does not know."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from multihead.interop.formats import bart_names
from multihead.interop.formats.parts import TranslatorParts

MakeParts = Callable[..., TranslatorParts]


@pytest.mark.parametrize("settings", [{"norm": "pre"}, {"embedding_norm": True, "positions": "learned"}])
def test_there_and_back(make_parts: MakeParts, settings: dict[str, object]) -> None:
    parts = make_parts(shared=False, tie_output=False, decoder_layers=3, **settings)
    renamed = bart_names.rename(parts.weights, parts.config)
    assert not renamed.keys() & parts.weights.keys()
    back = bart_names.rename_back(renamed, parts.config)
    assert back.keys() == parts.weights.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in parts.weights.items())


@pytest.mark.parametrize(
    "name", ["model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"]
)
def test_a_shared_weight_is_found_under_any_of_its_names(make_parts: MakeParts, name: str) -> None:
    parts = make_parts()
    renamed = bart_names.rename(parts.weights, parts.config)
    shared = renamed.pop("model.encoder.embed_tokens.weight")
    back = bart_names.rename_back(renamed | {f"{name}.weight": shared}, parts.config)
    assert back.keys() == parts.weights.keys()
