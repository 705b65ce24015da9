"""The recurrent translator against the equations of its papers.

The reference takes the parameters by name: Bahdanau et al. (2015), section 3 and appendix A; Luong et al. (2015),
section 3; Kim et al. (2017), sections 3.2 and 4.4, whose marginals are sums over every choice here. Positions are
`sinusoid`, whose formula test_embedding.py tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from multihead.models.config import RecurrentConfig
from multihead.models.layers import sinusoid
from multihead.models.recurrent.cells import GATES, Recurrent
from multihead.models.recurrent.network import RecurrentTranslator

Ids = tuple[int, ...]
SIZES: dict[str, Any] = {"source_vocab": 13, "target_vocab": 11, "tie_embeddings": False, "width": 8, "dropout": 0.0}
BAHDANAU: dict[str, Any] = {"attend": "before", "score": "additive"}
LUONG: dict[str, Any] = {"attend": "after", "score": "bilinear", "cell": "lstm"}

NETWORKS: dict[str, dict[str, Any]] = {
    "Bahdanau's": BAHDANAU,
    "Bahdanau's with LSTM": {**BAHDANAU, "cell": "lstm"},
    "Bahdanau's with two layers a side": {**BAHDANAU, "encoder_layers": 2, "decoder_layers": 2},
    "Bahdanau's with three layers of LSTM": {**BAHDANAU, "cell": "lstm", "decoder_layers": 3},
    "Luong's": LUONG,
    "Luong's with GRU": {**LUONG, "cell": "gru"},
    "Luong's with dot products": {**LUONG, "score": "dot"},
    "Luong's with input feeding": {**LUONG, "input_feeding": True},
    "Luong's with two layers, fed": {**LUONG, "encoder_layers": 2, "decoder_layers": 2, "input_feeding": True},
    "Luong's with two layers, not fed": {**LUONG, "encoder_layers": 2, "decoder_layers": 2},
    "scaled dot products": {**BAHDANAU, "score": "scaled_dot"},
    "low rank": {**LUONG, "score": "low_rank"},
    "no encoder": {**BAHDANAU, "encoder_layers": 0},
    "no encoder, after": {**LUONG, "encoder_layers": 0, "input_feeding": True},
    "the highest score": {**BAHDANAU, "alignment": "sample"},
    "runs": {**LUONG, "alignment": "segmentation"},
    "sparsemax": {**LUONG, "alignment": "sparsemax"},
    "sigmoid": {**BAHDANAU, "alignment": "sigmoid"},
    "self-attention": {**BAHDANAU, "encoder_attention": "softmax"},
    "trees": {**LUONG, "encoder_attention": "tree"},
    "trees over words": {**BAHDANAU, "encoder_attention": "tree", "encoder_layers": 0},
    "all tied": {**BAHDANAU, "target_vocab": 13, "tie_embeddings": True},
    "nothing tied": {**LUONG, "tie_output": False},
}


def network(seed: int = 0, **changes: Any) -> RecurrentTranslator:
    """A model in float64 and evaluation mode, with random biases."""
    torch.manual_seed(seed)
    made = RecurrentTranslator(RecurrentConfig(**(SIZES | changes))).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return made


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def tanh(x: Tensor) -> Tensor:
    return 2 * sigmoid(2 * x) - 1


class Written:
    """The network of `model`, written out for one sentence at a time."""

    def __init__(self, model: RecurrentTranslator) -> None:
        self.config = model.config
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        self.own_weights: list[Tensor] = []
        self.weights: list[Tensor] = []

    def __getitem__(self, name: str) -> Tensor:
        return self.parameters[name]

    def logits(self, source: Ids, target: Ids) -> Tensor:
        memory, summary = self.encoded(source)
        state = self.first_state(summary)
        fed = torch.zeros(self.config.width, dtype=torch.float64)
        joined = []
        for token in target:
            word = math.sqrt(self.config.width) * self["target_words.table.weight"][token]
            step = self.before if self.config.attend == "before" else self.after
            fed, state = step(word, state, fed, memory)
            joined.append(fed)
        return torch.stack(joined) @ self["output.weight"].t()

    def before(
        self, word: Tensor, state: list[list[Tensor]], _: Tensor, memory: Tensor
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """c_t of s_{t-1}; s_t of both; t = W_o [s_t; y_{t-1}; c_t]."""
        context = self.context(state[0][0], memory)
        new, x = [], word
        for layer, held in enumerate(state):
            new.append(self.cell(f"decoder.layers.{layer}.layer", "", x, held, None if layer else context))
            x = new[-1][0]
        return tanh(self["decoder.readout.weight"] @ torch.cat((x, word, context))), new

    def after(
        self, word: Tensor, state: list[list[Tensor]], fed: Tensor, memory: Tensor
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """s_t; c_t of it; h~_t = tanh(W_c [s_t; c_t])."""
        new, x = [], word
        for layer, held in enumerate(state):
            told = fed if self.config.input_feeding and not layer else None
            new.append(self.cell(f"decoder.layers.{layer}.layer", "", x, held, told))
            x = new[-1][0]
        context = self.context(x, memory)
        return tanh(self["decoder.readout.weight"] @ torch.cat((x, context))), new

    def first_state(self, summary: Tensor) -> list[list[Tensor]]:
        parts = 1 if self.config.cell == "gru" else 2
        begin = tanh(self["decoder.begin.weight"] @ summary + self["decoder.begin.bias"])
        vectors = iter(begin.view(-1, self.config.width))
        return [[next(vectors) for _ in range(parts)] for _ in range(self.config.decoder_layers)]

    def cell(self, name: str, suffix: str, x: Tensor, held: list[Tensor], told: Tensor | None = None) -> list[Tensor]:
        """One step of a GRU or LSTM; a second input has its own matrices."""
        read = self[f"{name}.weight_ih_l0{suffix}"] @ x + self[f"{name}.bias_ih_l0{suffix}"]
        if told is not None:
            read = read + self["decoder.layers.0.told.weight"] @ told
        past = self[f"{name}.weight_hh_l0{suffix}"] @ held[0] + self[f"{name}.bias_hh_l0{suffix}"]
        a, u = (v.view(-1, len(held[0])) for v in (read, past))
        if self.config.cell == "gru":
            reset, update = sigmoid(a[0] + u[0]), sigmoid(a[1] + u[1])
            return [(1 - update) * tanh(a[2] + reset * u[2]) + update * held[0]]
        cell = sigmoid(a[1] + u[1]) * held[1] + sigmoid(a[0] + u[0]) * tanh(a[2] + u[2])
        return [sigmoid(a[3] + u[3]) * tanh(cell), cell]

    # ------------------------------------------------------------------------------ the source

    def encoded(self, source: Ids) -> tuple[Tensor, Tensor]:
        x = math.sqrt(self.config.width) * self["encoder.words.table.weight"][list(source)]
        if not self.config.encoder_layers:
            x = x + sinusoid(torch.arange(len(x)), self.config.width).double()
            summary = x.sum(0) / len(x)
        for layer in range(self.config.encoder_layers):
            name = f"encoder.layers.{layer}"
            forward, backward = self.run(name, "", list(x)), self.run(name, "_reverse", list(x.flip(0)))
            x, summary = torch.cat((forward, backward.flip(0)), 1), backward[-1]
        return self.with_heads(x), summary

    def run(self, name: str, suffix: str, words: list[Tensor]) -> Tensor:
        parts = 1 if self.config.cell == "gru" else 2
        held = [torch.zeros(self.config.width // 2, dtype=torch.float64)] * parts
        states = []
        for word in words:
            held = self.cell(name, suffix, word, held)
            states.append(held[0])
        return torch.stack(states)

    def with_heads(self, states: Tensor) -> Tensor:
        if self.config.encoder_attention == "none":
            return states
        score = "encoder.attention.attention.score"
        if self.config.encoder_attention == "softmax":
            weights = torch.stack([softmax(self.additive(score, state, states)) for state in states])
            heads = weights @ states
        else:
            nodes = torch.cat((self["encoder.attention.root"][None], states))
            scores = torch.stack([self.additive(score, state, nodes) for state in states])
            weights = marginals_of_trees(scores)
            heads = weights @ nodes
        self.own_weights.append(weights)
        joined = torch.cat((states, heads), 1) @ self["encoder.join.weight"].t() + self["encoder.join.bias"]
        return tanh(joined)

    # ------------------------------------------------------------------------------ attention

    def context(self, query: Tensor, memory: Tensor) -> Tensor:
        scores = self.scores(query, memory)
        if self.config.alignment == "segmentation":
            weights = marginals_of_runs(scores, self["decoder.attention.align.transition"])
        elif self.config.alignment == "sample":
            weights = torch.zeros_like(scores)
            weights[scores.argmax()] = 1
        elif self.config.alignment == "sparsemax":
            weights = nearest_distribution(scores)
        elif self.config.alignment == "sigmoid":
            weights = sigmoid(scores - math.log(len(scores)))
        else:
            weights = softmax(scores)
        self.weights.append(weights)
        return weights @ memory

    def scores(self, query: Tensor, memory: Tensor) -> Tensor:
        name = "decoder.attention.score"
        if self.config.score == "additive":
            return self.additive(name, query, memory)
        if self.config.score == "bilinear":
            return torch.stack([state @ self[f"{name}.weight"] @ query for state in memory])
        if self.config.score == "low_rank":
            keys = memory @ self[f"{name}.key_projection"].t()
            return keys @ (self[f"{name}.query_projection"] @ query)
        scale = math.sqrt(self.config.width) if self.config.score == "scaled_dot" else 1
        return torch.stack([(state * query).sum() / scale for state in memory])

    def additive(self, name: str, query: Tensor, memory: Tensor) -> Tensor:
        key, asked = (self[f"{name}.{side}_projection.weight"] for side in ("key", "query"))
        return torch.stack([self[f"{name}.energy"] @ tanh(key @ state + asked @ query) for state in memory])


def softmax(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum()


def nearest_distribution(scores: Tensor) -> Tensor:
    """Sparsemax: [s - tau]_+ that sums to 1, with tau from the one support that lies above it."""
    for chosen in product((False, True), repeat=len(scores)):
        support = torch.tensor(chosen)
        tau = (scores[support].sum() - 1) / support.sum()
        if support.any() and torch.equal(scores > tau, support):
            return (scores - tau) * support
    raise AssertionError(scores)


def marginals_of_runs(scores: Tensor, transition: Tensor) -> Tensor:
    """p(z_n = 1) of a binary chain, a sum over all 2^N of them; divided by its own sum."""
    weights, chains = [], list(product((0, 1), repeat=len(scores)))
    for chain in chains:
        moves = sum((transition[a, b] for a, b in pairwise(chain)), torch.zeros(()).double())
        weights.append(sum((s * z for s, z in zip(scores, chain, strict=True)), moves).exp())
    chosen = torch.stack(weights) @ torch.tensor(chains).double() / sum(weights)
    return chosen / chosen.sum()


def marginals_of_trees(scores: Tensor) -> Tensor:
    """p(head | modifier), a sum over all projective trees; ``scores`` [modifiers, ROOT and heads]."""
    total, marginals = torch.zeros(()).double(), torch.zeros_like(scores)
    for heads in projective_trees(len(scores)):
        weight = sum(scores[m, h] for m, h in enumerate(heads)).exp()
        arcs = nn.functional.one_hot(torch.tensor(heads), scores.shape[1]).double()
        total, marginals = total + weight, marginals + weight * arcs
    return marginals / total


def projective_trees(words: int) -> Iterator[tuple[int, ...]]:
    """The head of each word, with ROOT 0: one root, no cycles, projective."""
    for heads in product(range(words + 1), repeat=words):
        above = [[m + 1] for m in range(words)]
        for chain in above:
            while chain[-1] and len(chain) <= words + 1:
                chain.append(heads[chain[-1] - 1])
        if heads.count(0) != 1 or any(chain[-1] for chain in above):
            continue
        spans = [(h, range(min(h, m) + 1, max(h, m))) for m, h in enumerate(heads, 1)]
        if all(h in above[between - 1] for h, span in spans for between in span):
            yield heads


@pytest.mark.parametrize("words", range(1, 6))
def test_there_are_as_many_projective_trees_as_there_should_be(words: int) -> None:
    """1, 2, 7, 30, 143: with one root they are pairs of ternary trees."""
    assert len(list(projective_trees(words))) == math.comb(3 * words - 2, words - 1) // words


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_is_the_equations(small: Any, name: str) -> None:
    """Logits, weights, and the gradient of every parameter; in a batch with padding."""
    model = network(**NETWORKS[name])
    sources, targets = ((5, 7, 3, 2), (9, 2)), ((1, 6, 4), (1, 9, 9, 3, 5))
    (source, lengths), (target, _) = small.padded(list(sources), 1), small.padded(list(targets), 1)
    output = model(source, lengths, target, need_weights=True)

    written = [Written(model) for _ in sources]
    expected = [one.logits(*ids) for one, *ids in zip(written, sources, targets, strict=True)]
    assert output.weights.decoder == ()
    assert len(output.weights.encoder) == (model.config.encoder_attention != "none")
    for row, (one, theirs) in enumerate(zip(written, expected, strict=True)):
        close(output.logits[row, : len(theirs)], theirs)
        pairs = [(output.weights.cross, torch.stack(one.weights))]
        if one.own_weights:
            pairs.append((output.weights.encoder, one.own_weights[0]))
        for (found,), wanted in pairs:
            queries, keys = wanted.shape
            close(found[row, 0, :queries, :keys], wanted)
            assert found.shape[:2] == (2, 1)
            assert not found[row, 0, :queries, keys:].any()

    direction = [torch.randn_like(theirs) for theirs in expected]
    names, parameters = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    ours = sum((output.logits[row, : len(d)] * d).sum() for row, d in enumerate(direction))
    theirs = sum((logits * d).sum() for logits, d in zip(expected, direction, strict=True))
    gradients = (torch.autograd.grad(total, parameters, materialize_grads=True) for total in (ours, theirs))
    for parameter, found, wanted in zip(names, *gradients, strict=True):
        hard = model.config.alignment == "sample" and "score" in parameter
        assert hard != bool(wanted.any()), parameter  # a choice has no gradient; everything else has one
        close(found, wanted)


# ------------------------------------------------------------------------------------------ cells


@pytest.mark.parametrize("told", [0, 5])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_step_is_pytorchs_own(cell: Any, told: int) -> None:
    """With the same weights; the second input is concatenated to the first."""
    torch.manual_seed(0)
    ours = Recurrent(cell, 3, 4, told).double()
    theirs = (nn.GRUCell if cell == "gru" else nn.LSTMCell)(3 + told, 4, dtype=torch.float64)
    weights = dict(ours.layer.named_parameters())
    assert weights["weight_ih_l0"].shape == (GATES[cell] * 4, 3)
    with torch.no_grad():
        if ours.told is not None:
            ours.told.weight.normal_()
        matrices = [weights["weight_ih_l0"], *([] if ours.told is None else [ours.told.weight])]
        theirs.weight_ih.copy_(torch.cat(matrices, 1))
        for name in ("weight_hh", "bias_ih", "bias_hh"):
            getattr(theirs, name).copy_(weights[f"{name}_l0"])
    held = tuple(torch.randn(6, 4).double() for _ in range(ours.parts))
    words, context = torch.randn(6, 3).double(), torch.randn(6, told).double()
    found = ours.step(ours.project(words), held, context if told else None)
    expected = theirs(torch.cat((words, context), 1), held[0] if cell == "gru" else held)
    for mine, other in zip(found, (expected,) if cell == "gru" else expected, strict=True):
        close(mine, other)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_sequence_is_its_steps(cell: Any) -> None:
    torch.manual_seed(0)
    layer = Recurrent(cell, 3, 4).double()
    words, held = torch.randn(2, 5, 3).double(), tuple(torch.randn(2, 4).double() for _ in range(layer.parts))
    whole = layer(words, held)
    for time in range(words.shape[1]):
        held = layer.step(layer.project(words[:, time]), held)
        close(whole[:, time], held[0])
