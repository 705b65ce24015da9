"""Which networks there are, by their settings: what a model folder, a run and a command tell apart. No torch here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from multihead.configuration import nearest
from multihead.errors import ConfigurationError
from multihead.models.config import PRESETS, TransformerConfig
from multihead.models.recurrent.config import RECURRENT_PRESETS, RecurrentConfig

NetworkConfig = TransformerConfig | RecurrentConfig
"""The settings of a translator's network."""

Architecture = Literal["transformer", "recurrent"]

ARCHITECTURES: dict[Architecture, type[TransformerConfig] | type[RecurrentConfig]] = {
    "transformer": TransformerConfig,
    "recurrent": RecurrentConfig,
}
"""Their names, as ``--model`` and the field ``architecture`` have them."""

PRESETS_OF: dict[Architecture, dict[str, dict[str, Any]]] = {
    "transformer": PRESETS,
    "recurrent": RECURRENT_PRESETS,
}
"""The named shapes of each."""


def preset(name: str, architecture: Architecture = "transformer") -> dict[str, Any]:
    """The fields that a preset fixes: sizes, and in some cases more.

    Raises:
        ConfigurationError: this network has no such preset.
    """
    known = PRESETS_OF[architecture]
    if name not in known:
        raise ConfigurationError(f"the {architecture} model has no preset '{name}'{nearest(name, list(known))}")
    return dict(known[name])


def _name_the_first(value: object) -> object:
    """Before there was a second network, settings need not say which one they are of."""
    if isinstance(value, dict) and "architecture" not in value:
        return {"architecture": "transformer", **value}
    return value


AnyNetworkConfig = Annotated[
    Annotated[NetworkConfig, Field(discriminator="architecture")], BeforeValidator(_name_the_first)
]
"""`NetworkConfig` as the field of other settings: read by what ``architecture`` says."""
