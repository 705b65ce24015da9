"""What is asked for lines that are translated, and what is written of each: a line, or rows for programs.

    line TAB score TAB text                     with several translations, or scores
    line TAB score TAB suspicion TAB text       with the guard, too (`judging.guard`)

``line`` counts from 1; the rows of one line stand together, best first, or as they were drawn. A text can hold a TAB,
but it stands last, and no text holds a line feed: cut a row at its first two TABs, or three. A line without words has
one row, of score 0 and no text. How the translations are found is `lines.answering`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from multihead.errors import ConfigurationError
from multihead.judging.guard_signs import GuardSettings
from multihead.models.config import GenerationConfig
from multihead.translating.search_settings import Metric, Sampling
from multihead.translating.searching import check_n_best
from multihead.translating.translation import Translation


@dataclass(frozen=True)
class Rendering:
    """How lines are translated, and what is written of them.

    Args:
        search: as `Translator.search_settings` gives it.
        n_best: rows with so many translations of each line; None = lines, or with ``scores`` the best as a row.
        scores: whether rows are wanted.
        batch_tokens: as `Translator.translate` has it.
        sampling: draw instead of searching: a line if it is one, otherwise rows.
        metric: of all that were drawn, or that the beam holds, the one that the others agree with by this metric.
        guard: how translations are guarded, if they are.
        max_source: a line of more tokens, the end symbol counted, is translated sentence by sentence; 0: none is.
        max_sentence: a sentence of such a line that has more tokens is halved; 0: ``max_source``.

    Raises:
        ConfigurationError: more translations than the beam; things that exclude each other.
    """

    search: GenerationConfig
    n_best: int | None = None
    scores: bool = False
    batch_tokens: int = 4096
    sampling: Sampling | None = None
    metric: Metric | None = None
    guard: GuardSettings | None = None
    max_source: int = 0
    max_sentence: int = 0

    def __post_init__(self) -> None:
        if self.n_best is not None and (self.sampling or self.metric):
            raise ConfigurationError("n_best is of a search: leave it out, or sampling and the metric (mbr)")
        check_n_best(1 if self.n_best is None else self.n_best, self.search.beam)
        if self.metric is not None and self.candidates < 2:
            raise ConfigurationError("the metric (mbr) chooses among several: draw more samples, or widen the beam")
        if self.guard is not None and self.guard.mode == "retry" and self.several:
            raise ConfigurationError(
                "the guard can search again for one translation of a line, not for several: let it mark, or ask for one"
            )
        if self.max_source < 0 or self.max_source == 1:
            raise ConfigurationError(f"max_source: expected 0 (no limit) or at least 2, got {self.max_source}")
        if self.max_sentence and not 0 < self.max_source <= self.max_sentence:
            raise ConfigurationError(
                f"max_sentence: expected at least max_source, which is {self.max_source}, got {self.max_sentence}"
            )

    @property
    def candidates(self) -> int:
        """How many translations of a line are made before any is chosen."""
        if self.sampling is not None:
            return self.sampling.sample
        return self.n_best or (1 if self.metric is None else self.search.beam)

    @property
    def several(self) -> bool:
        """Whether several translations of a line are handed on."""
        return self.metric is None and self.candidates > 1

    def rows(self, number: int, found: Sequence[Translation], suspicions: Sequence[float] = ()) -> list[str]:
        """What is written of line ``number``, without line feeds; ``suspicions``: of each, where they are guarded."""
        if self.n_best is None and not self.scores and not self.several:
            return [found[0].text]
        columns = [f"{suspicion:.2f}\t" for suspicion in suspicions] or [""] * len(found)
        return [
            f"{number}\t{translation.score:.4f}\t{column}{translation.text}"
            for translation, column in zip(found, columns, strict=True)
        ]
