"""The hierarchical network: padding, and pooling without encoders."""

import itertools

import pytest
import torch

from multihead.attention.pooling import AttentionPool, HierarchicalAttention
from multihead.configuration import build
from multihead.errors import ConfigurationError, ShapeError
from multihead.models.classifier.config import HierarchicalConfig
from multihead.models.classifier.hierarchical import HierarchicalNetwork

VOCAB, WIDTH = 20, 8
ENCODERS = ["gru", "transformer", "none"]
KINDS = list(itertools.product(ENCODERS, [1, 2, 3]))


def network(encoder="gru", depth=2, **wishes):
    torch.manual_seed(0)
    sizes = {"vocab": VOCAB, "classes": 2, "width": WIDTH, "heads": 2, "inner": 16, "dropout": 0.0}
    return HierarchicalNetwork(HierarchicalConfig(encoder=encoder, depth=depth, **{**sizes, **wishes})).double().eval()


def documents(depth):
    """Three documents of different sizes: ids and lengths, padded on the right at each level."""
    generator = torch.Generator().manual_seed(1)
    lengths = {
        1: torch.tensor([5, 1, 3]),
        2: torch.tensor([[3, 5, 1], [2, 0, 0], [4, 4, 0]]),
        3: torch.tensor([[[3, 5], [2, 0]], [[1, 0], [0, 0]], [[4, 4], [5, 1]]]),
    }[depth]
    return torch.randint(1, VOCAB, (*lengths.shape, 5), generator=generator), lengths


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("encoder", "depth"), KINDS)
def test_a_batch_is_its_documents_one_by_one_without_padding(encoder, depth):
    model, (tokens, lengths) = network(encoder, depth), documents(depth)
    together = model(tokens, lengths)
    for row in range(len(tokens)):
        there = lengths[row] > 0
        used = [1 + int(place) for place in there.nonzero().amax(0)] if there.dim() else []
        own = lengths[row][tuple(map(slice, used))]
        box = (*map(slice, used), slice(int(own.max())))
        alone = model(tokens[row][box][None], own[None])
        close(together.output[row], alone.output[0])
        for level, (wide, narrow) in enumerate(zip(together.weights, alone.weights, strict=True)):
            kept = wide[row][box[: level + 1]]
            close(kept, narrow[0])
            close(wide[row].sum(), narrow[0].sum())  # nothing outside


@pytest.mark.parametrize(("encoder", "depth"), KINDS)
def test_more_padding_with_garbage_in_it_changes_nothing(encoder, depth):
    model, (tokens, lengths) = network(encoder, depth), documents(depth)
    shape = [len(tokens), *(size + 2 for size in tokens.shape[1:])]
    wide = torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(2))
    wide_lengths = torch.zeros(shape[:-1], dtype=torch.long)
    box = tuple(map(slice, tokens.shape))
    there = torch.arange(tokens.shape[-1]) < lengths[..., None]
    wide[box] = torch.where(there, tokens, wide[box])
    wide_lengths[box[:-1]] = lengths
    plain, padded = model(tokens, lengths), model(wide, wide_lengths)
    close(padded.output, plain.output)
    for level, (one, other) in enumerate(zip(padded.weights, plain.weights, strict=True)):
        close(one[box[: level + 2]], other)
        close(one.sum(), other.sum())


def test_one_level_without_encoder_is_plain_attention_pooling():
    model, (tokens, lengths) = network("none", 1), documents(1)
    pool = AttentionPool(WIDTH).double()
    pool.load_state_dict(model.levels[0].pool.state_dict())
    found = model(tokens, lengths)
    for row, length in enumerate(lengths.tolist()):
        output, weights = pool(model.embedding(tokens[row : row + 1, :length]) * WIDTH**0.5)
        close(found.output[row], output[0])
        close(found.weights[0][row, :length], weights[0])


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_without_encoders_it_is_pooling_upon_pooling(depth):
    model, (tokens, lengths) = network("none", depth), documents(depth)
    pools = HierarchicalAttention(WIDTH, depth).double()
    for pool, level in zip(pools.levels, model.levels, strict=True):
        pool.load_state_dict(level.pool.state_dict())
    expected, found = pools(model.embedding(tokens) * WIDTH**0.5, lengths), model(tokens, lengths)
    close(found.output, expected.output)
    for one, other in zip(found.weights, expected.weights, strict=True):
        close(one, other)


@pytest.mark.parametrize(("encoder", "depth"), KINDS)
def test_the_weights_of_each_level_add_up_to_one(encoder, depth):
    tokens, lengths = documents(depth)
    weights = network(encoder, depth)(tokens, lengths).weights
    assert [list(level.shape) for level in weights] == [list(tokens.shape[: n + 2]) for n in range(depth)]
    share = torch.ones(len(tokens), dtype=torch.float64)
    there = lengths
    for level in reversed(weights):
        close(level.sum(-1), (there > 0).double())
        there = there.sum(-1) if there.dim() > 1 else there
    for level in weights:
        share = share[..., None] * level
    close(share.flatten(1).sum(1), torch.ones(len(tokens), dtype=torch.float64))
    assert (share[torch.arange(tokens.shape[-1]) >= lengths[..., None]] == 0).all()


def test_a_document_of_nothing_is_zeros():
    model, (tokens, lengths) = network("gru", 2), documents(2)
    lengths[1] = 0
    found = model(tokens, lengths)
    assert (found.output[1] == 0).all()
    assert all((level[1] == 0).all() for level in found.weights)
    close(found.output[[0, 2]], model(tokens[[0, 2]], lengths[[0, 2]]).output)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_parameter_learns_and_the_padding_does_not(encoder):
    model, (tokens, lengths) = network(encoder, 2).train(), documents(2)
    model(tokens, lengths).output.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    assert not model.embedding.weight.grad[0].any()


def test_the_order_of_words_and_of_sentences_matters_where_something_reads():
    tokens, lengths = torch.tensor([[[1, 2, 3], [4, 5, 6]]]), torch.tensor([[3, 3]])
    for encoder in ENCODERS:
        model = network(encoder, 2)
        first = model(tokens, lengths).output
        for other in (tokens.flip(1), tokens.flip(2)):
            assert torch.allclose(model(other, lengths).output, first) == (encoder == "none")


def test_what_does_not_fit_is_named():
    model, (tokens, lengths) = network("gru", 2), documents(2)
    with pytest.raises(ShapeError, match="depth=2"):
        model(tokens[0], lengths[0])
    with pytest.raises(ShapeError, match="empty part stands before"):
        model(tokens, lengths.flip(1))
    deep, (deep_tokens, deep_lengths) = network("none", 3), documents(3)
    with pytest.raises(ShapeError, match="empty part stands before"):
        deep(deep_tokens, deep_lengths.flip(1))


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"width": 7}, "take 8"),
        ({"encoder": "transformer", "heads": 3}, "take 9"),
        ({"padding_id": 20}, "entry of the vocabulary"),
        ({"depth": 0}, "depth"),
        ({"classes": 1}, "classes"),
        ({"depht": 2}, "did you mean 'depth'"),
    ],
)
def test_sizes_that_cannot_be(wishes, words):
    with pytest.raises(ConfigurationError, match=words):
        build(HierarchicalConfig, {"vocab": VOCAB, "classes": 2, "width": WIDTH, **wishes}, "the settings")
    assert HierarchicalConfig(vocab=VOCAB, classes=2, width=7, encoder="none").summary.startswith("hierarchical")
