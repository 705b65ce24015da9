"""What the guard of translations is told: when to mark, whether to look closer, what to do about it. No torch here."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from multihead.configuration import Settings

Mode = Literal["mark", "retry"]


class GuardSettings(Settings):
    """How translations are guarded (`workflows.guard`)."""

    mode: Mode = "mark"
    """Mark a suspicious translation, or search it again more safely, keep the better one and mark it."""
    threshold: float = Field(default=0.5, gt=0, le=1)
    """A translation is suspicious from this score on (`guard_signs.suspicion`)."""
    closer: bool = False
    """Also run each translation through the model: what was never looked at, and its least probable token."""
    beam: int = Field(default=10, ge=1)
    """Of the second search."""
    no_repeat: int = Field(default=3, ge=0)
    """Of the second search, and of the samples."""
    samples: int = Field(default=16, ge=2)
    """Drawn where the second search did not help."""
    epsilon: float = Field(default=0.02, gt=0, le=1)
    """Samples are drawn from tokens at least this probable."""
    seed: int = 0
    """Of the samples."""
