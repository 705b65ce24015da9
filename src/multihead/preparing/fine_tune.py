"""A run that starts from another model: its weights, sizes and subwords stay, its dropouts and its training are free.

The given weights become the run's checkpoint of update 0, before ``run.json`` is written: whatever goes on from a
checkpoint goes on from them, and the folder that they came from is not needed again. They are validated before the
first update, so that a run that gains nothing keeps the model it was given as its best.
"""

from __future__ import annotations

from pathlib import Path

from multihead.bundle import Bundle, locate
from multihead.configuration import build
from multihead.errors import ConfigurationError
from multihead.files import sha256_of
from multihead.models.config import NetworkConfig, preset
from multihead.planning.choices import GIVEN, Choices, refuse_others_fields
from multihead.planning.settings import GivenModel
from multihead.preparing.preparation import Prepared
from multihead.training.checkpoint import Checkpoint, RunState, save

_REASON = "the given model's"


def choose_model(choices: Choices, given: NetworkConfig) -> NetworkConfig:
    """The given network, with other dropouts where they are asked for.

    Raises:
        ConfigurationError: a wish that the given weights do not allow; names each.
    """
    named, asked = choices.asked("preset"), choices.asked("model")
    if asked not in (None, given.architecture):
        raise ConfigurationError(f"{choices.asked('from_model')}: a {given.architecture} model, asked for was {asked}")
    refuse_others_fields(choices, given.architecture)
    wishes = {name: choices.asked(name) for name in type(given).model_fields if name not in GIVEN}
    if named is not None:
        fixed = preset(named, given.architecture)
        wishes = fixed | {name: value for name, value in wishes.items() if value is not None}
    own = given.model_dump()
    differing = [
        f"{name} is {own[name]}, asked for was {value}"
        for name, value in wishes.items()
        if name not in given.free and value is not None and value != own[name]
    ]
    if differing:
        raise ConfigurationError(
            f"{choices.asked('from_model')}: this model cannot be trained with other sizes ({'; '.join(differing)}); "
            "leave them out, or train a new model without from_model"
        )
    choices.reasons["preset"] = _REASON
    free = {name: choices.take(name, lambda name=name: (own[name], _REASON)) for name in given.free}  # type: ignore[misc]
    choices.reasons |= {name: _REASON for name in wishes if name not in given.free}
    return build(type(given), {**own, **free}, "the settings of the model")


def check_tokenizers(given: Bundle, prepared: Prepared, choices: Choices) -> None:
    """Refuses text that was prepared with other subwords than those of the given model.

    Raises:
        ConfigurationError: says how to prepare it.
    """
    for side in ("source", "target"):
        if getattr(given, f"{side}_tokenizer").digest != getattr(prepared, f"{side}_tokenizer").digest:
            raise ConfigurationError(
                f"{choices.asked('data')}: its {side} subwords are not those of the model "
                f"{choices.asked('from_model')}; prepare the text with them: "
                f"multihead prepare --from-model {choices.asked('from_model')} ..."
            )


def describe(folder: Path) -> GivenModel:
    """What run.json keeps of the given model."""
    return GivenModel(path=str(folder), weights=sha256_of(locate(folder) / "model.safetensors"))


def write_start(folder: Path, given: Bundle, averages: bool) -> None:
    """The checkpoint of update 0: the given weights, not yet validated, and an optimiser that knows nothing.

    Args:
        folder: the run.
        given: the model.
        averages: whether the run has a moving average of its weights; it begins with the same.
    """
    weights = {name: parameter.detach() for name, parameter in given.model.named_parameters()}
    start = Checkpoint(RunState(validated_at=-1), weights, weights if averages else {}, {})
    save(folder / "checkpoints", start, keep=1)
