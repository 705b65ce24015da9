"""Write a smaller model with parts of a trained one: ``multihead shrink``.

`models.shrinking` says which parts. The folder is for ``multihead train --from-model``, with the whole model as
``--teacher``; its own translations are bad.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from multihead.bundle import load_bundle, save_bundle
from multihead.errors import ConfigurationError
from multihead.files import check_new_folder
from multihead.models.shrinking import half_of, parameters_of, shrunk
from multihead.models.transformer import Transformer
from multihead.text.languages import Languages


def shrink(
    model: str | Path,
    *,
    output: str | Path,
    encoder_layers: int | None = None,
    decoder_layers: int | None = None,
    inner: int | None = None,
    languages: Languages | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Write a model of some layers and feed-forward units of another, to be trained on.

    Args:
        model: a run or model folder.
        output: a new or empty folder.
        encoder_layers: number of encoder layers to keep.
        decoder_layers: number of decoder layers to keep.
        inner: number of feed-forward units to keep in each layer. Without any of the three, they are chosen so that
            at most half of the parameters stay.
        languages: source and target, for a model of another program that has several.
        say: called with a line about the sizes.

    Returns:
        The model folder.

    Raises:
        ConfigurationError: it is no Transformer, has fewer layers or units, or no half; the output folder is in use.
        FormatError: there is no model, or it is damaged.
    """
    output = Path(output)
    check_new_folder(output)
    bundle = load_bundle(Path(model), languages=languages)
    network = bundle.model
    if not isinstance(network, Transformer):
        raise ConfigurationError(f"{model}: is a {network.config.architecture} model; only a Transformer can be shrunk")
    if encoder_layers is inner is decoder_layers is None:
        half = half_of(network.config)
        encoder_layers, decoder_layers, inner = half.encoder_layers, half.decoder_layers, half.inner
    smaller = shrunk(network, encoder_layers, decoder_layers, inner)
    before, after = parameters_of(network.config), parameters_of(smaller.config)
    made_by = f"Parts of {model}, by multihead {version('multihead')}: to be trained before it translates."
    save_bundle(output, replace(bundle, model=smaller), {"parts_of": str(model)}, made_by)
    say(f"{output}: {smaller.config.summary}: {after:,} of {before:,} parameters ({after / before:.0%}); now train it")
    return output
