"""From settings to the network that they describe: the one place that knows all of them."""

from __future__ import annotations

from multihead.models.config import TransformerConfig
from multihead.models.network import Network
from multihead.models.network_config import NetworkConfig
from multihead.models.recurrent.network import RecurrentTranslator
from multihead.models.transformer import Transformer


def build_network(config: NetworkConfig) -> Network:
    """The network of ``config``, with first values drawn from PyTorch's current generator."""
    return Transformer(config) if isinstance(config, TransformerConfig) else RecurrentTranslator(config)
