"""JSON bodies of LibreTranslate's API, and its error responses.

Fields and statuses are those of LibreTranslate's API description, so that its clients need no change. Fields that this
server does not know are passed over, as LibreTranslate does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import to_json
from starlette.responses import Response

from multihead.configuration import Settings, build
from multihead.errors import ConfigurationError
from multihead.serving.bodies import Form
from multihead.serving.error_responses import ApiError
from multihead.serving.schema import ApiRequest, check_texts

AUTO = "auto"
"""As a source: the language is detected."""


class LibreTranslateRequest(Settings):
    """The body of ``POST /translate``, as LibreTranslate's clients write it."""

    model_config = ConfigDict(
        title="LibreTranslateAsked",
        extra="ignore",
        json_schema_extra={
            "examples": [
                {"q": "Ein Hund rennt.", "source": "de", "target": "en"},
                {"q": ["Ein Hund rennt.", "Zwei Katzen."], "source": "de", "target": "en", "alternatives": 2},
                {"q": "<p>Ein <b>Hund</b> rennt.</p>", "source": "de", "target": "en", "format": "html"},
            ]
        },
    )

    q: str | list[str]
    """One text or a list of texts."""
    source: str
    """Language of the texts, or `auto` to detect it."""
    target: str
    """Language of the translations."""
    format: Literal["text", "html"] = "text"
    """Format of the texts; the tags of HTML are kept."""
    alternatives: int = Field(default=0, ge=0)
    """Number of other translations of each text."""
    api_key: str | None = None
    """The token, where the server asks for one; the header Authorization serves as well."""

    @field_validator("q", mode="before")
    @classmethod
    def _check_texts(cls, value: Any) -> Any:
        return check_texts(value)

    @field_validator("alternatives", mode="before")
    @classmethod
    def _check_alternatives(cls, value: Any) -> Any:
        return value.strip() or 0 if isinstance(value, str) else value or 0

    @field_validator("format", mode="before")
    @classmethod
    def _check_format(cls, value: Any) -> Any:
        return value or "text"


class DetectRequest(Settings):
    """The body of ``POST /detect``."""

    model_config = ConfigDict(
        title="DetectAsked", extra="ignore", json_schema_extra={"examples": [{"q": "Wo ist der Bahnhof?"}]}
    )

    q: str | list[str]
    """The text."""
    api_key: str | None = None
    """The token, where the server asks for one; the header Authorization serves as well."""

    @field_validator("q", mode="before")
    @classmethod
    def _check_texts(cls, value: Any) -> Any:
        return check_texts(value)


class FileRequest(Settings):
    """The fields of ``POST /translate_file``; the file itself is read apart from them."""

    model_config = ConfigDict(title="FileAsked", extra="ignore")

    source: str | None = None
    """Language of the file, or `auto` to detect it. Required unless the models of the server name no languages."""
    target: str | None = None
    """Language of the translation. Required unless the models of the server name no languages."""
    model: str | None = None
    """Name of a model, where several have the same languages."""
    api_key: str | None = None
    """The token, where the server asks for one; the header Authorization serves as well."""

    @field_validator("source", "target", mode="before")
    @classmethod
    def _check_language(cls, value: Any) -> Any:
        return value or None


class FileResponse(Settings):
    """The response to ``POST /translate_file``."""

    model_config = ConfigDict(
        title="FileAnswer",
        json_schema_extra={
            "examples": [{"translatedFileUrl": "http://127.0.0.1:8000/download_file/2d9f0c6e.notes_en.txt"}]
        },
    )

    translatedFileUrl: str  # noqa: N815 - the name of the API
    """Where the translated file can be fetched, for ten minutes."""


class WideRequest(ApiRequest):
    """A request for n translations whose client does not know the model's beam."""

    widens: ClassVar[bool] = True


class Detection(Settings):
    """A language that a text may be in."""

    confidence: float = Field(ge=0, le=100)
    """In percent."""
    language: str


class LibreTranslateResponse(Settings):
    """The response to a `LibreTranslateRequest`; a list of texts has a list in each field."""

    model_config = ConfigDict(
        title="LibreTranslateAnswer", json_schema_extra={"examples": [{"translatedText": "A dog runs."}]}
    )

    translatedText: str | list[str]  # noqa: N815 - the names of the API
    alternatives: list[str] | list[list[str]] | None = None
    """If the request asks for alternatives."""
    detectedLanguage: Detection | list[Detection] | None = None  # noqa: N815
    """If the request has the source `auto`."""


class Language(Settings):
    """A language of the server."""

    code: str
    name: str
    """In English."""
    targets: list[str]
    """Languages into which the server translates it."""


class LanguageName(Settings):
    """The code and the English name of a language."""

    code: str
    name: str


class FrontendLanguages(Settings):
    """The languages that a page should show first."""

    source: LanguageName
    target: LanguageName


class FrontendSettings(Settings):
    """The response to ``GET /frontend/settings``."""

    model_config = ConfigDict(title="FrontendSettings")

    charLimit: int  # noqa: N815
    """Maximum characters of a text."""
    frontendTimeout: int = 500  # noqa: N815
    """Milliseconds without a key before a page sends what was typed."""
    apiKeys: bool  # noqa: N815
    keyRequired: bool  # noqa: N815
    suggestions: bool = False
    filesTranslation: bool = True  # noqa: N815
    supportedFilesFormat: list[str] = Field(default_factory=list)  # noqa: N815
    language: FrontendLanguages


class LibreTranslateFault(Settings):
    """The body of an error response."""

    model_config = ConfigDict(
        title="LibreTranslateFault", json_schema_extra={"examples": [{"error": "q: field required"}]}
    )

    error: str
    """For people: what was received, what was expected, what to do."""


class LibreTranslateError(ApiError):
    """An error in LibreTranslate's form: 400 where we have 422, and 403 where we have 401.

    Args:
        error: in our form.
    """

    def __init__(self, error: ApiError) -> None:
        status = {401: 403, 422: 400}.get(error.status, error.status)
        headers = {name: value for name, value in error.headers.items() if name != "WWW-Authenticate"}
        super().__init__(status, error.error, error.message, headers)

    def response(self) -> Response:
        body = LibreTranslateFault(error=self.message).model_dump_json()
        return Response(body, self.status, self.headers, "application/json")


def is_libretranslate(content: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a request of LibreTranslate's API rather than of ours, which has ``text``."""
    return "text" not in content and ("q" in content or ("source" in content and "target" in content))


Fields = TypeVar("Fields", bound=Settings)


def check_fields(kind: type[Fields], content: Mapping[str, Any]) -> Fields:
    """Check a JSON object or the fields of a form.

    Raises:
        ApiError: 422.
    """
    required = [name for name, field in kind.model_fields.items() if field.is_required()]
    missing = [name for name in required if not content.get(name)]
    if missing:
        raise missing_field(missing[0])
    try:
        return build(kind, {name: content[name] for name in kind.model_fields if name in content}, "the request")
    except ConfigurationError as error:
        raise ApiError(422, "invalid_request", str(error)) from None


def missing_field(name: str) -> ApiError:
    """The error of a request without a required field."""
    return ApiError(422, "invalid_request", f"{name}: required, but missing or empty")


def fields_of(form: Form) -> dict[str, Any]:
    """The fields of a form as those of JSON: a repeated ``q`` is a list; line breaks are LF."""
    fields: dict[str, Any] = dict(reversed(form.fields))
    texts = [text.replace("\r\n", "\n") for text in form.all("q")]
    return {**fields, "q": texts if len(texts) > 1 else "".join(texts)}


def json_response(content: BaseModel | Sequence[BaseModel]) -> Response:
    """A response; optional fields that are None are left out."""
    return Response(to_json(content, exclude_none=True), media_type="application/json")
