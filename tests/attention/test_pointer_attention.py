"""Pointer attention: additive scores and a log-softmax; visited keys are not chosen again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from multihead.attention.masks import Causal, Padding
from multihead.attention.pointer import PointerAttention, masked_log_softmax
from multihead.errors import MaskError, ShapeError


def inputs() -> tuple[PointerAttention, Tensor, Tensor]:
    torch.manual_seed(0)
    pointer = PointerAttention(3, 4, 5).double()
    return pointer, torch.randn(2, 3, 3).double().requires_grad_(), torch.randn(2, 6, 4).double().requires_grad_()


def test_it_is_the_equation() -> None:
    pointer, query, key = inputs()
    score = pointer.score
    for m in range(3):
        for n in range(6):
            u = [
                score.energy @ torch.tanh(score.key_projection.weight @ x + score.query_projection.weight @ query[1, m])
                for x in key[1]
            ]
            expected = u[n] - torch.stack(u).logsumexp(0)
            torch.testing.assert_close(pointer(query, key)[1, m, n], expected)


def test_it_is_the_log_softmax_of_the_additive_score_and_feeds_nll_loss() -> None:
    pointer, query, key = inputs()
    log_probabilities = pointer(query, key)
    torch.testing.assert_close(log_probabilities, pointer.score(query, key).log_softmax(-1))
    target = torch.tensor([[0, 5, 2], [1, 1, 3]])
    loss = F.nll_loss(log_probabilities.flatten(0, 1), target.flatten())
    torch.testing.assert_close(loss, F.cross_entropy(pointer.score(query, key).flatten(0, 1), target.flatten()))


def test_keys_are_a_set_and_can_be_computed_once() -> None:
    pointer, query, key = inputs()
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    whole = pointer(query, key, mask=Padding([6, 6]))
    torch.testing.assert_close(pointer(query, key[:, order]), whole[..., order])
    keys = pointer.score.keys(key)
    assert torch.equal(pointer.point(query, keys, mask=Padding([6, 6])), whole)
    steps = [pointer.point(query[:, m : m + 1], keys) for m in range(3)]
    torch.testing.assert_close(torch.cat(steps, 1), whole)


def test_masked_and_visited_keys_have_no_probability_and_no_gradient() -> None:
    pointer, query, key = inputs()
    visited = torch.zeros(2, 6, dtype=torch.bool)
    visited[0, 1] = visited[1, :3] = True
    with torch.autograd.set_detect_anomaly(True):
        result = pointer(query, key, mask=Padding([4, 3]), visited=visited)
        assert (result[0, :, [1, 4, 5]] == -torch.inf).all()
        assert (result[1] == -torch.inf).all()  # no keys remain in the second sentence
        torch.testing.assert_close(result[0].exp().sum(-1), torch.ones(3).double())
        gradients = torch.autograd.grad(result[0, :, 0].sum(), (query, key, *pointer.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0][1] == 0).all()
    assert (gradients[1][0, [1, 4, 5]] == 0).all()
    each = pointer(query, key, mask=Padding([4, 3]), visited=visited[:, None].expand(2, 3, 6))
    assert torch.equal(each, result)


def test_garbage_in_the_padding_reaches_nothing() -> None:
    pointer, query, key = inputs()
    results = []
    for filling in (0.0, torch.nan):
        leaf = key.detach().clone()
        leaf[0, 4:] = filling
        leaf.requires_grad_()
        result = pointer(query, leaf, mask=Padding([4, 6]))
        results.append([result, *torch.autograd.grad(result[:, :, 0].sum(), (query, leaf, *pointer.parameters()))])
    for clean, dirty in zip(*results, strict=True):
        assert torch.equal(clean, dirty)


def test_choosing_greedily_what_is_not_visited_gives_a_permutation() -> None:
    pointer, query, key = inputs()
    keys = pointer.score.keys(key)
    visited = torch.zeros(2, 6, dtype=torch.bool)
    chosen = []
    for _ in range(6):
        choice = pointer.point(query[:, :1], keys, visited=visited).argmax(-1)
        chosen.append(choice)
        visited = visited.scatter(1, choice, True)
    assert torch.cat(chosen, 1).sort(1).values.tolist() == [list(range(6))] * 2


def test_it_learns_to_point_at_the_largest() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    pointer = PointerAttention(1, 1, 8)
    optimizer = torch.optim.Adam(pointer.parameters(), lr=0.1)
    for _ in range(80):
        key = torch.rand(64, 5, 1, generator=generator)
        target = key[..., 0].argmax(1)
        log_probabilities = pointer(torch.ones(64, 1, 1), key)[:, 0]
        loss = F.nll_loss(log_probabilities, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (log_probabilities.argmax(1) == target).float().mean() > 0.9


def test_masked_log_softmax_is_the_log_of_the_masked_softmax() -> None:
    scores = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])
    result = masked_log_softmax(scores, mask)
    expected = scores.masked_fill(~mask, -torch.inf).log_softmax(-1).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    torch.testing.assert_close(result, expected)
    assert masked_log_softmax(scores.bfloat16(), mask).dtype == torch.bfloat16


def test_what_does_not_fit_is_named(unchecked: None) -> None:
    pointer, query, key = inputs()
    with pytest.raises(ShapeError, match=r"visited has shape \[2, 3\].*\[2, 6\] or \[2, 3, 6\]"):
        pointer(query, key, visited=torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(MaskError, match="Dense"):
        pointer(query, key, mask=torch.ones(3, 6, dtype=torch.bool))  # type: ignore[arg-type]
    assert pointer(query[:, :3], key[:, :3], mask=Causal())[0, 0, 1] == -torch.inf
