"""Beam search over a batch of sentences.

A step extends the K hypotheses of each sentence by every symbol and looks at the 2K most probable results. Of
those, the ones that end, and are among the first K, are *finished* and never extended again; the best K that
do not end go on. (At most K of the 2K can end, one for each hypothesis extended, so K others are always
there.) A sentence is done, and leaves the batch, when its rule for stopping says so (`stopping.py`; usually when
nothing that goes on can still be among the n best); when its length limit is reached; or when nothing possible is
left. The finished ones are then ordered by their score (`length_penalty.py`).

Which hypotheses survive is decided by log-probability alone: within a step all candidates are equally long.
Sums are kept in single precision at least; rounding keeps the order within a row. So a beam of 1 that stops at its
first end, as it does unless told otherwise, is exactly greedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int, Shaped
from torch import Tensor

from multihead.decoding.beams import Beams, Settings, search_beams
from multihead.decoding.candidates import Candidates, extend, part
from multihead.decoding.hypothesis import Hypothesis, Limits
from multihead.decoding.length_penalty import LengthPenalty, power
from multihead.decoding.recording import Recorder
from multihead.decoding.restrictions import Restriction
from multihead.decoding.stepper import S, Stepper, Symbols
from multihead.decoding.stopping import Stop, usual_stop


def beam_search(
    stepper: Stepper[S],
    source: Shaped[Tensor, "batch source *features"],
    lengths: Int[Tensor, " batch"],
    symbols: Symbols,
    *,
    max_lengths: Limits,
    min_lengths: Limits = 0,
    beam: int = 5,
    alpha: float = 1.0,
    penalty: LengthPenalty = power,
    n_best: int = 1,
    stop: Stop | None = None,
    restrictions: Sequence[Restriction] = (),
    coverage: float = 0.0,
    recorder: Recorder | None = None,
) -> list[list[Hypothesis]]:
    """The ``n_best`` hypotheses of each sentence: finished ones before unfinished ones, then by score.

    They are distinct as sequences of symbols. A sentence can have fewer, where fewer are possible within its limit.
    With the exact rule for stopping, the only one is the first of several.

    Args:
        stepper: the model.
        source: what the model reads, padded at the end.
        lengths: how many of them are real.
        symbols: begin, end, and what is never chosen.
        max_lengths: the most symbols of a hypothesis, the end symbol counted: one number, or one a sentence.
        min_lengths: the least symbols before the end symbol, which is forbidden until then: likewise.
        beam: K, the hypotheses of a sentence that go on after each step.
        alpha: how strongly length counts in the score.
        penalty: in which form.
        n_best: how many hypotheses to hand back, at most ``beam``.
        stop: when a sentence's search may stop before its limit; by default where no more can be gained (`Exact`), or,
            with a beam of 1, at the first end, as greedy search does.
        restrictions: what no hypothesis may contain, and what each must begin with.
        coverage: beta of the coverage penalty (`coverage.py`); a model that attends is needed where it is not 0.
        recorder: writes down what happens.

    Raises:
        ShapeError, ConfigurationError: limits or restrictions that do not fit the batch or leave no room for the end
            symbol after the minimum, or settings outside their ranges.
        MultiheadError: the model gave NaN, or a sentence has nothing that is permitted.
    """
    settings = Settings(
        symbols, beam, n_best, alpha, penalty, stop or usual_stop(beam), restrictions, 1, coverage, recorder
    )
    return search_beams(stepper, source, lengths, max_lengths, min_lengths, settings, _MostProbable(beam, symbols.end))


@dataclass(frozen=True)
class _MostProbable:
    """The rule above."""

    beam: int
    end: int

    def choose(self, beams: Beams, permitted: Float[Tensor, "rows vocab"]) -> tuple[Candidates, Candidates]:
        """Of the 2K most probable extensions, those that end and those that go on."""
        return part(extend(beams.totals, permitted, 2 * self.beam, self.end), self.beam, self.end)
