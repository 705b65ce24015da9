"""JSON bodies of requests and responses, with examples for OpenAPI.

Torch-free. Limits on a request (texts, characters, beam) are server settings (`settings`), not part of the schema. An
unknown field is an error that names the nearest known one. The `title` of a model is the name of its OpenAPI schema,
which clients see; it stays when the class is renamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from multihead.configuration import Settings
from multihead.errors import shown
from multihead.serving.glossary import MAX_TERMS

GuardChoice = Literal["off", "mark", "retry"]
"""Whether translations are judged (`mark`), and suspicious ones searched again (`retry`)."""


class ApiRequest(Settings):
    """The body of ``POST /translate`` and ``POST /translate/stream``."""

    model_config = ConfigDict(
        title="Asked",
        strict=True,
        json_schema_extra={
            "examples": [
                {"text": "Ein Hund rennt."},
                {"text": ["Ein Hund rennt.", "Zwei Katzen schlafen."], "beam": 5, "n_best": 3},
                {"text": "Ein Hund rennt.", "prefix": "A dog", "alignment": True, "alternatives": 5},
                {"text": "Ein Hund rennt.", "glossary": {"Hund": ["hound", "hounds"]}},
            ]
        },
    )

    widens: ClassVar[bool] = False
    """Whether the beam is widened for `n_best`, instead of refusing the request."""
    text: str | list[str]
    """One text or a list of texts. Each line of a text is translated separately; line breaks are kept."""
    beam: int | None = Field(default=None, ge=1)
    """Beam size; 1 is greedy search. Defaults to the model's setting."""
    alpha: float | None = Field(default=None, ge=0, le=5)
    """Length penalty. Defaults to the model's setting."""
    n_best: int = Field(default=1, ge=1)
    """Number of translations of each text; at most the beam size."""
    prefix: str | None = None
    """Beginning of the translation. Requires a single text of one line."""
    alignment: bool = False
    """Return the attention of each translated word to the source words."""
    alternatives: int = Field(default=0, ge=0, le=20)
    """Number of alternative tokens to return for each word of the translation."""
    guard: GuardChoice | None = None
    """Judge translations (mark), or also search suspicious ones again (retry). Defaults to the server's setting."""
    glossary: dict[str, str | list[str]] | None = None
    """Phrases that translations must contain where the source contains a term: `{"Hund": "hound"}`; a list of phrases
    are alternatives."""
    source: str | None = None
    """Language of the texts. Without languages, the first model of the server translates."""
    target: str | None = None
    """Language of the translations."""
    pivot: str | None = None
    """Translate into this language first, and from it into the target."""
    model: str | None = None
    """Name of a model, where several have the same languages. Without it, the first of them translates."""

    @field_validator("text", mode="before")
    @classmethod
    def _check_text(cls, value: Any) -> Any:
        return check_texts(value)

    @field_validator("glossary", mode="before")
    @classmethod
    def _check_glossary(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, dict):
            raise ValueError("expected an object of terms and phrases")
        if value is not None and len(value) > MAX_TERMS:
            raise ValueError(f"at most {MAX_TERMS} terms are allowed")
        for term, wanted in (value or {}).items():
            phrases = wanted if isinstance(wanted, list) else [wanted]
            if not term.strip() or not phrases or not all(isinstance(one, str) and one.strip() for one in phrases):
                raise ValueError(f"expected characters in each term and phrase, got {shown(term)}: {shown(wanted)}")
        return value

    @model_validator(mode="after")
    def _check_prefix(self) -> ApiRequest:
        if self.prefix and (not isinstance(self.text, str) or "\n" in self.text.strip("\n")):
            raise ValueError("prefix: expected with one text of one line, got several")
        return self

    @property
    def texts(self) -> list[str]:
        """The texts as a list, also for a single text."""
        return [self.text] if isinstance(self.text, str) else list(self.text)

    def to_pivot(self) -> ApiRequest:
        """The request for the translation into the pivot."""
        return self.model_copy(update={"n_best": 1, "prefix": None, "alternatives": 0})

    def of_pivot(self, texts: Sequence[str]) -> ApiRequest:
        """The request for the translation of these texts from the pivot."""
        return self.model_copy(update={"text": texts[0] if isinstance(self.text, str) else list(texts)})


def check_texts(value: Any) -> Any:
    """Raise ValueError if ``value`` is neither a string nor a list of strings."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("expected a string or a list of strings")
    for number, item in enumerate(value, start=1):
        if not isinstance(item, str):
            raise ValueError(f"expected a string or a list of strings; number {number} of the list is none")
    return value


class Candidate(Settings):
    """One of the n-best translations of a text."""

    text: str
    score: float
    """log p(y | x) / penalty(|y|): comparable between translations of one text."""


class WordAlignment(Settings):
    """Attention between the words of a translation and of its source."""

    model_config = ConfigDict(title="Link")

    source_words: list[str]
    target_words: list[str]
    weights: list[list[float]]
    """[target word][source word]; the remainder of each row to 1 is attention to the end symbol."""
    links: list[tuple[int, int]]
    """Pairs (source word, target word), counted from 0, with the highest attention."""


class Alternative(Settings):
    """Another token the model considered at this position."""

    text: str
    probability: float


class GuardVerdict(Settings):
    """Result of judging a translation."""

    model_config = ConfigDict(title="Verdict")

    suspicious: bool
    score: float
    """0 (inconspicuous) to 1 (suspicious)."""
    reasons: list[str]
    retried: bool
    """Whether the translation was searched again."""


class TranslatedText(Settings):
    """The translation of one text."""

    model_config = ConfigDict(title="Answer")

    source: str
    text: str
    score: float
    """log p(y | x) / penalty(|y|); the mean over sentences if the text has several."""
    finished: bool
    """False if the length limit cut the translation."""
    warning: str | None = None
    n_best: list[Candidate] = Field(default_factory=list)
    """The requested number of translations, best first, including the translation itself."""
    alignment: WordAlignment | None = None
    alternatives: list[list[Alternative]] | None = None
    """For each word of the translation, most probable first."""
    guard: GuardVerdict | None = None


TRANSLATION_EXAMPLE: dict[str, JsonValue] = {
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


class TranslateResponse(Settings):
    """The response to ``POST /translate``."""

    model_config = ConfigDict(
        title="Answers", json_schema_extra={"examples": [{"translations": [TRANSLATION_EXAMPLE], "seconds": 0.018}]}
    )

    translations: list[TranslatedText]
    """One for each text, in order."""
    seconds: float
    """Time since the request arrived."""


class ErrorBody(Settings):
    """The body of every error response."""

    model_config = ConfigDict(
        title="Fault",
        json_schema_extra={
            "examples": [
                {"error": "text_too_long", "message": "text 1 has 9,000 characters; at most 5,000 are allowed"}
            ]
        },
    )

    error: str
    """A stable code for programs."""
    message: str
    """For people: what was received, what was expected, what to do."""


class Limits(Settings):
    """Limits of this server."""

    body_bytes: int
    characters: int
    texts: int
    sentences: int
    sentence_tokens: int
    beam: int
    requests: int
    seconds: float


_INFO_EXAMPLE: dict[str, JsonValue] = {
    "source_language": "de",
    "target_language": "en",
    "model": "Transformer, 3+3 layers, width 256, inner 512, 4 heads, pre-norm",
    "name": "ensemble",
    "ensemble": 4,
    "chooses": False,
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


class InfoResponse(Settings):
    """The response to ``GET /info``."""

    model_config = ConfigDict(title="Info", protected_namespaces=(), json_schema_extra={"examples": [_INFO_EXAMPLE]})

    source_language: str | None
    target_language: str | None
    model: str
    """Architecture and sizes in words."""
    name: str | None
    """Its name, where several models have the same languages."""
    ensemble: int
    """Number of models whose predictions are averaged."""
    chooses: bool
    """Whether translations are chosen among candidates, by a reverse model, a judge or their agreement."""
    generation: int
    """Starts at 1 and increases by 1 with every reload."""
    compiled: bool
    """Whether the search is compiled, so that requests share running batches."""
    beam: int
    alpha: float
    alignment: bool
    """Whether alignments and alternatives are available."""
    guard: GuardChoice
    """Default for requests that do not set it."""
    limits: Limits
    version: str


class ModelState(Settings):
    """One of the server's models, as in the response to ``GET /models``."""

    model_config = ConfigDict(
        title="ModelState",
        json_schema_extra={
            "examples": [
                {
                    "source": "de",
                    "target": "en",
                    "name": "ensemble",
                    "state": "loaded",
                    "generation": 1,
                    "bytes": 850944,
                    "requests": 2,
                }
            ]
        },
    )

    source: str | None
    target: str | None
    name: str | None
    """Its name, where several models have the same languages."""
    state: Literal["loaded", "loading", "unloading", "failed", "unloaded"]
    """A failed one is loaded again with the next request, ten seconds later at the earliest."""
    generation: int
    """Number of times it was loaded."""
    bytes: int
    """Memory of its weights while it is loaded; estimated before the first time."""
    requests: int
    """Requests that use it or wait for it."""


class StatusResponse(Settings):
    """The response to ``GET /health`` and ``GET /ready``."""

    model_config = ConfigDict(title="State", json_schema_extra={"examples": [{"status": "ok"}]})

    status: Literal["ok"]
    """Any other status is a `Fault`."""
