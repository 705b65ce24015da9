"""Validation of the recurrent translator's settings."""

from __future__ import annotations

from typing import Any

import pytest

from multihead.configuration import build
from multihead.errors import ConfigurationError
from multihead.models.config import RECURRENT_PRESETS, RecurrentConfig

SIZES = {"source_vocab": 30, "target_vocab": 30}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 255}, "width must be even, half a direction of the encoder, got 255: take 256"),
        ({"input_feeding": True}, "input_feeding needs attend 'after', got 'before'"),
        ({"target_vocab": 31}, "tie_embeddings needs one vocabulary, got 30 source and 31 target entries"),
        ({"padding_id": 30}, "padding_id must be an entry of both vocabularies, got 30"),
        ({"decoder_layers": 0}, "decoder_layers: "),
        ({"encoder_layers": -1}, "encoder_layers: "),
        ({"scores": "dot"}, "there is no setting 'scores'; did you mean 'score'?"),
        ({"alignment": "hard"}, "alignment: input should be 'softmax', 'sample'"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^settings\.toml: ") as caught:
        build(RecurrentConfig, SIZES | changes, "settings.toml")
    assert message in str(caught.value)


def test_the_presets_are_those_of_the_papers() -> None:
    """Bahdanau et al. 2015, A.2 and B.1: 1,000 units, one layer; Luong et al. 2015, 4.1: 4 layers of 1,000."""
    made = {name: RecurrentConfig(**SIZES, **fields) for name, fields in RECURRENT_PRESETS.items()}
    paper = made["bahdanau"]
    assert (paper.cell, paper.attend, paper.score, paper.width) == ("gru", "before", "additive", 1000)
    assert (paper.encoder_layers, paper.decoder_layers, paper.alignment) == (1, 1, "softmax")
    paper = made["luong"]
    assert (paper.cell, paper.attend, paper.score, paper.width) == ("lstm", "after", "bilinear", 1000)
    assert (paper.encoder_layers, paper.decoder_layers, paper.input_feeding) == (4, 4, True)
    assert made["tiny"].width < made["small"].width < RecurrentConfig(**SIZES).width


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"attend": "before"}, True),
        ({"attend": "after"}, False),
        ({"attend": "after", "input_feeding": True}, True),
    ],
)
def test_a_choice_is_remembered_where_its_answer_enters_a_state(changes: dict[str, Any], expected: bool) -> None:
    assert RecurrentConfig(**SIZES, **changes).feeds_context is expected
