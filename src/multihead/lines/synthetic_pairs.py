"""Pairs for training that a model makes from one side: synthetic pairs.

* Back-translation (Sennrich et al. 2016, "Improving neural machine translation models with monolingual data"): the
  line is the target, its translation by a model of the opposite direction the source. A tag at the beginning of the
  source tells the trained model that it is synthetic (Caswell et al. 2019, "Tagged back-translation").
* Sequence-level distillation (Kim and Rush 2016, "Sequence-level knowledge distillation", section 3.2): the line is the
  source, its translation by a larger model, or an ensemble, the target.

Both are written as TSV (`data.records`), a pair a line. Translations that would teach errors are left out: without
words, cut at the length limit, or suspicious to the guard. `lines.translate_file` writes and resumes the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from multihead.data.text_files import one_line
from multihead.errors import ConfigurationError
from multihead.lines.windows import LineOptions
from multihead.translating.searching import Translation


@dataclass(frozen=True)
class PairOptions(LineOptions):
    """How lines are made into pairs.

    Args:
        backwards: the line is the target of the pair.
        tag: a word at the beginning of each source; "" for none.

    Raises:
        ConfigurationError: the tag is not a single word.
    """

    backwards: bool = False
    tag: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tag and self.tag.split() != [self.tag]:
            raise ConfigurationError(f"the tag is one word without blanks, such as <bt>, got {self.tag!r}")

    @property
    def record(self) -> dict[str, Any]:
        return {"pairs": {"backwards": self.backwards, "tag": self.tag}}

    def rows(self, number: int, text: str, found: Sequence[Translation], suspicions: Sequence[float] = ()) -> list[str]:
        """A row for each different translation that is good enough to learn from."""
        del number
        most = 1.0 if self.guard is None else self.guard.threshold
        kept: dict[str, None] = {}
        for translation, suspicion in zip(found, suspicions or [0.0] * len(found), strict=True):
            if translation.finished and translation.text.strip() and suspicion < most:
                kept[_cell(translation.text)] = None
        line, tag = _cell(text), f"{self.tag} " if self.tag else ""
        return [f"{tag}{made}\t{line}" if self.backwards else f"{tag}{line}\t{made}" for made in kept]


def _cell(text: str) -> str:
    """A text without tabs and line breaks."""
    return one_line(text).replace("\t", " ").strip()
