"""The contract over HTTP: what is asked, what is answered, and examples of both for OpenAPI.

Torch-free. What a request may be at most (texts, characters, beam) is the server's to say (`settings`), not the
contract's; a field that is not here is an error that names the nearest one.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from multihead.configuration import Settings

Guarding = Literal["off", "mark", "retry"]
"""Whether translations are judged (`mark`), and searched again where they are found wanting (`retry`)."""


class Asked(Settings):
    """The body of ``POST /translate`` and ``POST /translate/stream``."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [
                {"text": "Ein Hund rennt."},
                {"text": ["Ein Hund rennt.", "Zwei Katzen schlafen."], "beam": 5, "n_best": 3},
                {"text": "Ein Hund rennt.", "prefix": "A dog", "alignment": True, "alternatives": 5},
            ]
        },
    )

    text: str | list[str]
    """A text, or several. The lines of a text are translated one by one and stay lines."""
    beam: int | None = Field(default=None, ge=1)
    """Hypotheses of the beam search; 1 is greedy. By default the model's own."""
    alpha: float | None = Field(default=None, ge=0, le=5)
    """Length penalty. By default the model's own."""
    n_best: int = Field(default=1, ge=1)
    """How many translations of each text; at most the beam."""
    prefix: str | None = None
    """What the translation begins with; with one text of one line."""
    alignment: bool = False
    """Whether each translated word says where it looked."""
    alternatives: int = Field(default=0, ge=0, le=20)
    """How many other tokens to name at each word of the translation."""
    guard: Guarding | None = None
    """Whether translations are judged, and searched again where they look wrong. By default what the server says."""

    @field_validator("text", mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return value
        if not isinstance(value, list):
            raise ValueError("expected a string or a list of strings")
        for place, one in enumerate(value):
            if not isinstance(one, str):
                raise ValueError(f"expected a string or a list of strings; number {place + 1} of the list is none")
        return value

    @model_validator(mode="after")
    def _prefix_has_one_text(self) -> Asked:
        if self.prefix and (not isinstance(self.text, str) or "\n" in self.text.strip("\n")):
            raise ValueError("prefix: expected with one text of one line, got several")
        return self

    @property
    def texts(self) -> list[str]:
        """A list in any case."""
        return [self.text] if isinstance(self.text, str) else list(self.text)


class Candidate(Settings):
    """One of the n best."""

    text: str
    score: float
    """log p(y | x) / penalty(|y|): comparable between translations of one text."""


class Link(Settings):
    """Where the words of a translation looked."""

    source_words: list[str]
    target_words: list[str]
    weights: list[list[float]]
    """[target word][source word]; what a row lacks to 1 went to the end of the sentence."""
    links: list[tuple[int, int]]
    """Pairs (source word, target word), counted from 0: who looked where most."""


class Alternative(Settings):
    """What could have stood in a place."""

    text: str
    probability: float


class Verdict(Settings):
    """What the guard thinks of a translation."""

    suspicious: bool
    score: float
    """How suspicious, from 0 to 1."""
    reasons: list[str]
    retried: bool
    """Whether it was searched again."""


class Answer(Settings):
    """A text, translated."""

    source: str
    text: str
    score: float
    """log p(y | x) / penalty(|y|); of a text of several sentences their mean."""
    finished: bool
    """False where the length limit cut it."""
    warning: str | None = None
    n_best: list[Candidate] = Field(default_factory=list)
    """As many as were asked for, best first, the translation itself among them."""
    alignment: Link | None = None
    alternatives: list[list[Alternative]] | None = None
    """Of each word of the translation, most probable first."""
    guard: Verdict | None = None


ANSWER: dict[str, JsonValue] = {
    "source": "Ein Hund rennt.",
    "text": "A dog is running.",
    "score": -0.21,
    "finished": True,
    "warning": None,
    "n_best": [{"text": "A dog is running.", "score": -0.21}],
    "alignment": None,
    "alternatives": None,
    "guard": None,
}
"""An example."""


class Answers(Settings):
    """The answer to ``POST /translate``."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"translations": [ANSWER], "seconds": 0.018}]})

    translations: list[Answer]
    """One of each text, in order."""
    seconds: float
    """From the request's arrival."""


class Fault(Settings):
    """Every answer that is not what was asked for."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"error": "text_too_long", "message": "text 1 has 9,000 characters; at most 5,000 are taken"}]
        }
    )

    error: str
    """For programs: a word that stays."""
    message: str
    """For people: what was got, what was expected, what to do."""


class Limits(Settings):
    """What this server takes."""

    body_bytes: int
    characters: int
    texts: int
    sentences: int
    sentence_tokens: int
    beam: int
    requests: int
    seconds: float


_INFO: dict[str, JsonValue] = {
    "source_language": "de",
    "target_language": "en",
    "model": "Transformer, 3+3 layers, width 256, inner 512, 4 heads, pre-norm",
    "generation": 1,
    "compiled": True,
    "beam": 5,
    "alpha": 1.0,
    "alignment": True,
    "guard": "off",
    "limits": {
        "body_bytes": 1_000_000, "characters": 5_000, "texts": 100, "sentences": 500, "sentence_tokens": 500,
        "beam": 16, "requests": 32, "seconds": 30.0,
    },
    "version": "1.0.0",
}  # fmt: skip


class Info(Settings):
    """The answer to ``GET /info``."""

    model_config = ConfigDict(protected_namespaces=(), json_schema_extra={"examples": [_INFO]})

    source_language: str | None
    target_language: str | None
    model: str
    """Its sizes, in words."""
    generation: int
    """1, and one more with every model that was loaded since."""
    compiled: bool
    """Whether searches run as compiled code and share batches."""
    beam: int
    alpha: float
    alignment: bool
    """Whether an alignment and alternatives can be had."""
    guard: Guarding
    """What is done where a request does not say."""
    limits: Limits
    version: str


class State(Settings):
    """The answer to ``GET /health`` and ``GET /ready``."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ok"}]})

    status: Literal["ok"]
    """Anything else is a `Fault`."""
