"""The cost of attention in a training step of the recurrent translator.

    python benchmarks/recurrent.py [--threads 1] [--precision float32|bfloat16] [--tiny] [--json FILE]

The floor is a network without attention: bidirectional layers over the source and layers over the target, with the same
cell (`torch.nn.LSTM` or `torch.nn.GRU`), number of layers, embeddings, output projection and loss. A step is the loss
and its gradients, without the optimizer. Contenders take turns. Minimum times are compared, since other programs
disturb them least. `tests/models/recurrent/test_recurrent_equations.py` tests that the networks compute their
equations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from common import interleave, parser, write_figures
from torch import Tensor, nn

from multihead.kernels.linear import Loss, linear_cross_entropy
from multihead.models.config import RecurrentConfig
from multihead.models.recurrent.network import RecurrentTranslator

VARIANTS: dict[str, dict[str, Any]] = {
    "before, additive, GRU": {},
    "before, additive, LSTM": {"cell": "lstm"},
    "before, dot, GRU": {"score": "dot"},
    "after, bilinear, GRU": {"attend": "after", "score": "bilinear"},
    "after, bilinear, LSTM": {"attend": "after", "score": "bilinear", "cell": "lstm"},
    "the same, fed": {"attend": "after", "score": "bilinear", "cell": "lstm", "input_feeding": True},
    "before, two layers a side": {"encoder_layers": 2, "decoder_layers": 2},
    "drawn (REINFORCE)": {"alignment": "sample"},
    "straight-through": {"alignment": "straight_through"},
    "segmentation": {"alignment": "segmentation"},
    "soft self-attention": {"encoder_attention": "softmax"},
    "tree self-attention": {"encoder_attention": "tree"},
}


FLOORS: dict[str, tuple[type[nn.GRU] | type[nn.LSTM], int]] = {
    "floor, GRU": (nn.GRU, 1),
    "floor, LSTM": (nn.LSTM, 1),
    "floor, GRU, two layers": (nn.GRU, 2),
}


def floor_of(changes: dict[str, Any]) -> str:
    """The name of a variant's floor."""
    layers = ", two layers" if changes.get("decoder_layers", 1) == 2 else ""
    return f"floor, {changes.get('cell', 'gru').upper()}{layers}"


class Floor(nn.Module):
    """Recurrent layers on each side; the decoder sees the source only through one added state."""

    def __init__(self, kind: type[nn.GRU] | type[nn.LSTM], layers: int, vocabulary: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.encoder = kind(width, width // 2, layers, batch_first=True, bidirectional=True)
        self.decoder = kind(width, width, layers, batch_first=True)

    def loss(self, source: Tensor, _: Tensor, target_input: Tensor, target_output: Tensor, *, smoothing: float) -> Loss:
        """The loss of an encoder-decoder whose decoder sees one state of the encoder."""
        encoded, _ = self.encoder(self.words(source))
        states, _ = self.decoder(self.words(target_input) + encoded[:, :1])
        real = target_output != 0
        return linear_cross_entropy(states[real], self.words.weight, target_output[real], smoothing)


def batch(rows: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sources that are up to a fifth shorter than ``length``, and targets of exactly that length."""
    generator = torch.Generator().manual_seed(0)
    source, given, wanted = (torch.randint(3, vocabulary, (rows, length), generator=generator) for _ in range(3))
    lengths = torch.randint(max(1, length - length // 5), length + 1, (rows,), generator=generator)
    lengths[0] = length
    source[torch.arange(length) >= lengths[:, None]] = 0
    return source, lengths, given, wanted


def step(model: Any, inputs: tuple[Tensor, ...], low: bool) -> Callable[[], object]:
    """A function that computes the loss of a batch and its gradients."""

    def once() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            loss = model.loss(*inputs, smoothing=0.1)
        (loss.total / inputs[3].numel()).backward()

    return once


def main() -> None:
    """Measure and print."""
    accepted = parser(__doc__, rounds=5, seconds=10)
    accepted.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    accepted.add_argument("--tiny", action="store_true", help="tiny sizes, to check that it runs")
    arguments = accepted.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    rows, length, vocabulary, width = (2, 5, 20, 8) if arguments.tiny else (64, 20, 8000, 256)
    torch.manual_seed(0)
    models: dict[str, Any] = {name: Floor(*floor, vocabulary, width) for name, floor in FLOORS.items()}
    for name, changes in VARIANTS.items():
        config = RecurrentConfig(
            source_vocab=vocabulary, target_vocab=vocabulary, width=width, **{"dropout": 0.1, **changes}
        )
        models[name] = RecurrentTranslator(config).train()
    inputs = batch(rows, length, vocabulary)
    calls = {name: step(model, inputs, arguments.precision == "bfloat16") for name, model in models.items()}
    taken = interleave(calls, arguments.rounds, len(calls) * arguments.seconds)
    tokens, floors = rows * length, {name: floor_of(changes) for name, changes in VARIANTS.items()}
    print(
        f"{rows} sentences of {length} tokens, width {width}, vocabulary {vocabulary:,}, {arguments.precision}, "
        f"{torch.get_num_threads()} threads\n"
    )
    print(f"{'':<28}{'ms':>8}{'target tokens/s':>18}{'of the floor':>15}")
    for name, times in taken.items():
        floor = taken[floors.get(name, name)].minimum
        print(f"{name:<28}{times.minimum:>8.1f}{1000 * tokens / times.minimum:>18,.0f}{floor / times.minimum:>15.2f}")
    figures = [
        {"case": name, "ms": times.minimum, "tokens_a_second": 1000 * tokens / times.minimum}
        for name, times in taken.items()
    ]
    write_figures(arguments, {"precision": arguments.precision, "rows": figures})


if __name__ == "__main__":
    main()
