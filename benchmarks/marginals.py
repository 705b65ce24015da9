"""Speed of structured attention's marginals against plain recursions.

    python benchmarks/marginals.py [--threads 1] [--batch 32] [--length 40] [--json FILE]

The plain form implements the paper directly: a Python loop over positions (chains) or over the cells of the chart
(trees; one operation for all split points of a cell), log Z in log space, and marginals by autograd. It is timed in two
variants: one sentence at a time, as the paper states the recursion, and with all sentences of the batch in each
operation. The claim, 20 times as fast at 32 sentences of length 40, is against the first variant for chains and against
both for trees. Ours and plain take turns, and medians are compared. Before anything is timed, a check ensures that the
results agree.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import interleave, parser, write_figures
from torch import Tensor

from multihead.attention.structured import chain_marginals, tree_marginals


def plain_chain(unary: Tensor, transition: Tensor) -> Tensor:
    """log Z of [batch, length, states], position by position."""
    alpha = unary[:, 0]
    for position in range(1, unary.shape[1]):
        alpha = (alpha[:, :, None] + transition).logsumexp(1) + unary[:, position]
    return alpha.logsumexp(1)


def plain_trees(arc: Tensor) -> Tensor:
    """log Z of projective trees with any number of roots, [batch, nodes, nodes], cell by cell (Eisner 1996)."""
    nodes, empty = arc.shape[1], arc.new_zeros(len(arc), 1)
    # Complete spans to the right and to the left, by their start (narrowest first) and by their end; then the
    # incomplete ones.
    right_from, right_to, left_from, left_to = ([empty] * nodes for _ in range(4))
    to_right_from: list[Tensor] = [empty[:, :0]] * nodes
    to_left_to: list[Tensor] = [empty[:, :0]] * nodes
    for width in range(1, nodes):
        for i in range(nodes - width):
            j = i + width
            met = (right_from[i] + left_to[j].flip(1)).logsumexp(1, keepdim=True)
            to_right_from[i] = torch.cat((to_right_from[i], met + arc[:, i, j, None]), 1)
            to_left_to[j] = torch.cat((to_left_to[j], met + arc[:, j, i, None]), 1)
            right = (to_right_from[i] + right_to[j].flip(1)).logsumexp(1, keepdim=True)
            left = (left_from[i].flip(1) + to_left_to[j]).logsumexp(1, keepdim=True)
            right_from[i], right_to[j] = torch.cat((right_from[i], right), 1), torch.cat((right_to[j], right), 1)
            left_from[i], left_to[j] = torch.cat((left_from[i], left), 1), torch.cat((left_to[j], left), 1)
    return right_from[0][:, -1]


def marginals(log_partition: Callable[[Tensor], Tensor], scores: Tensor, *, training: bool = False) -> Tensor:
    """The gradient of log Z."""
    leaf = scores if training else scores.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(log_partition(leaf).sum(), leaf, create_graph=training)
    return gradient


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median of each in milliseconds."""
    return {name: taken.median for name, taken in interleave(calls, rounds).items()}


def cases(batch: int, length: int) -> dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor]]:
    """Cases by name: our marginals, plain log Z, scores."""
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(batch, length, 2, generator=generator)
    transition = torch.randn(2, 2, generator=generator)
    arc = torch.randn(batch, length + 1, length + 1, generator=generator)
    return {
        "chain, 2 states": (
            lambda scores: chain_marginals(scores, transition),
            lambda scores: plain_chain(scores, transition),
            unary,
        ),
        "projective trees": (lambda scores: tree_marginals(scores, multiroot=True), plain_trees, arc),
    }


def measure(batch: int, length: int, rounds: int) -> list[dict[str, float | str]]:
    """Print a row per case."""
    rows: list[dict[str, float | str]] = []
    for name, (ours, plain, scores) in cases(batch, length).items():
        torch.testing.assert_close(ours(scores), marginals(plain, scores), rtol=1e-4, atol=1e-5)
        leaf, seed = scores.clone().requires_grad_(), torch.ones_like(scores).cumsum(1)
        some = scores[: min(batch, 2)]  # the other sentences take as long: their time is extrapolated
        taken = medians(
            {
                "ours": lambda: ours(scores),  # noqa: B023
                "batched": lambda: marginals(plain, scores),  # noqa: B023
                "one by one": lambda: [marginals(plain, row[None]) for row in some],  # noqa: B023
                "ours, training": lambda: torch.autograd.grad(ours(leaf), leaf, seed),  # noqa: B023
            },
            rounds,
        )
        slow = medians(
            {"batched, training": lambda: torch.autograd.grad(marginals(plain, leaf, training=True), leaf, seed)},  # noqa: B023
            2,
        )
        taken["one by one"] *= batch / len(some)
        rows.append({"case": name, **taken, **slow})
    return rows


def main() -> None:
    """Measure and print."""
    accepted = parser(__doc__, rounds=9)
    accepted.add_argument("--batch", type=int, default=32)
    accepted.add_argument("--length", type=int, default=40)
    arguments = accepted.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    rows = measure(arguments.batch, arguments.length, arguments.rounds)
    print(f"{arguments.batch} sentences of length {arguments.length}, {torch.get_num_threads()} threads, milliseconds")
    for row in rows:
        print(f"\n{row['case']}")
        for ours, plain in (
            ("ours", "one by one"),
            ("ours", "batched"),
            ("ours, training", "batched, training"),
        ):
            ratio = float(row[plain]) / float(row[ours])
            print(f"  plain, {plain:<18} {row[plain]:>9.2f}   {ours:<15} {row[ours]:>7.2f}   {ratio:>6.1f} times")
    write_figures(arguments, {"batch": arguments.batch, "length": arguments.length, "rows": rows})


if __name__ == "__main__":
    main()
