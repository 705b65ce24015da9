"""LibreTranslate's API: its clients use this server without a change.

Requests become those of our own API and are searched with them. Languages are named in each request; `models` finds
the models for them. An error is ``{"error": SENTENCE}`` with LibreTranslate's status.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from multihead.errors import FormatError, InputError, MissingDependencyError
from multihead.serving import requests
from multihead.serving.bodies import JSON, MULTIPART, FormFile, call_for, media_type, read_form, read_object
from multihead.serving.documents import Ask, html_document, translate_documents
from multihead.serving.downloads import Downloads
from multihead.serving.error_responses import ApiError, time_exceeded
from multihead.serving.file_formats import FORMATS, read_document
from multihead.serving.languages import match, name_of
from multihead.serving.libretranslate_schema import (
    AUTO,
    Detection,
    DetectRequest,
    FileRequest,
    FileResponse,
    FrontendLanguages,
    FrontendSettings,
    Language,
    LanguageName,
    LibreTranslateError,
    LibreTranslateRequest,
    LibreTranslateResponse,
    WideRequest,
    check_fields,
    fields_of,
    json_response,
    missing_field,
)
from multihead.serving.middleware import same_token, token_missing, unauthorized
from multihead.serving.models import unsupported
from multihead.serving.queue import LARGE
from multihead.serving.scheduler import Scheduler
from multihead.serving.schema import ApiRequest, TranslatedText
from multihead.serving.served_model import Pair
from multihead.serving.stream import DocumentStream, Progress
from multihead.text.detection import detect

T = TypeVar("T")

Counter = Callable[[int], Awaitable[None]]
"""Called with a number of newly finished texts."""

Translate = Callable[[ApiRequest, Request], Awaitable[list[TranslatedText]]]
"""Translates the texts of a request within the server's limits."""


@contextlib.contextmanager
def libretranslate_errors() -> Iterator[None]:
    """Errors of the block are in LibreTranslate's form."""
    try:
        yield
    except ApiError as error:
        raise LibreTranslateError(error) from None


class LibreTranslate:
    """The endpoints; their docstrings are descriptions in the OpenAPI document.

    Args:
        scheduler: has the models, the settings and the metrics.
        translate: translates a request of our API.
        token: required of clients; None admits every client.
    """

    def __init__(self, scheduler: Scheduler, translate: Translate, token: str | None) -> None:
        self._scheduler, self._translate, self._token = scheduler, translate, token
        self._models, self._settings = scheduler.models, scheduler.settings
        self._downloads = Downloads()
        self._parsing = asyncio.Lock()
        """Documents are parsed one at a time: a large one keeps a processor core busy."""

    async def languages(self, _request: Request) -> Response:
        """The languages of the server, and into which each can be translated."""
        pairs = sorted(self._models.pairs)
        codes = dict.fromkeys([pair.source for pair in pairs] + [pair.target for pair in pairs])
        listed = []
        for code in codes:
            targets = [pair.target for pair in pairs if pair.source == code]
            listed.append(Language(code=code, name=name_of(code), targets=targets))
        return json_response(listed)

    async def settings(self, _request: Request) -> Response:
        """What a page for this server should show."""
        pairs = list(self._models.pairs)
        source, target = pairs[0] if pairs else ("", "")
        keyed = self._token is not None
        languages = FrontendLanguages(
            source=LanguageName(code=source, name=name_of(source)),
            target=LanguageName(code=target, name=name_of(target)),
        )
        limit = self._settings.max_characters
        shown = FrontendSettings(
            charLimit=limit, apiKeys=keyed, keyRequired=keyed, supportedFilesFormat=list(FORMATS), language=languages
        )
        return json_response(shown)

    async def translate_form(self, request: Request) -> Response:
        """Translate the texts of a form."""
        with libretranslate_errors():
            fields = fields_of(await read_form(request, self._settings))
        return await self.translate_fields(fields, request)

    async def translate_fields(self, fields: Mapping[str, Any], request: Request) -> Response:
        """Translate the texts of a JSON object."""
        with libretranslate_errors():
            self._check_key(fields, request)
            asked = await call_for(request, partial(check_fields, LibreTranslateRequest, fields))
            return json_response(await self._within_limit(self._answer(asked, request)))

    async def _answer(self, asked: LibreTranslateRequest, request: Request) -> LibreTranslateResponse:
        if asked.alternatives >= self._settings.max_beam:
            message = f"alternatives: got {asked.alternatives}; at most {self._settings.max_beam - 1} are given"
            raise ApiError(422, "beam_too_wide", message)
        several = not isinstance(asked.q, str)
        sources = [asked.q] if isinstance(asked.q, str) else asked.q
        languages, detected = await self._languages_of(asked.source, asked.target, "\n".join(sources))
        others: list[list[str]] = [[] for _ in sources]
        if languages is None:
            texts = list(sources)
        elif asked.format == "html":
            requests.check_limits(ApiRequest(text=sources), self._settings)
            async with self._parsing:
                documents = await asyncio.to_thread(lambda: [html_document(text) for text in sources])
            texts = await translate_documents(documents, self._asker(languages, request))
        else:
            own = WideRequest(
                text=sources, n_best=asked.alternatives + 1, source=languages.source, target=languages.target
            )
            found = await self._translate(own, request)
            texts, others = [one.text for one in found], [_others(one) for one in found]
        own_others = others if asked.alternatives else None
        if several:
            return LibreTranslateResponse(
                translatedText=texts, alternatives=own_others,
                detectedLanguage=None if detected is None else [detected] * len(texts),
            )  # fmt: skip
        return LibreTranslateResponse(
            translatedText=texts[0], alternatives=None if own_others is None else own_others[0],
            detectedLanguage=detected,
        )  # fmt: skip

    async def _within_limit(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._settings.time_limit):
                return await work
        except TimeoutError:
            raise time_exceeded(self._settings.time_limit) from None

    async def _languages_of(self, source: str, target: str, text: str) -> tuple[Pair | None, Detection | None]:
        """The languages to translate between, None if the text stays as it is; and what was detected."""
        known = sorted({code for pair in self._models.pairs for code in pair})
        if source != AUTO:
            same = match(source, known) is not None and match(source, known) == match(target, known)
            return (None if same else Pair(source, target)), None
        ranking = await asyncio.to_thread(detect_languages, text, known)
        if not ranking:  # no letters: nothing to translate
            if match(target, known) is None:
                raise unsupported("target", target, known)
            return None, Detection(confidence=0, language=known[0])
        if ranking[0].language == match(target, known):
            return None, ranking[0]
        return Pair(ranking[0].language, target), ranking[0]

    def _asker(
        self, languages: Pair | None, request: Request, model: str | None = None, progress: Counter | None = None
    ) -> Ask:
        """Translates the texts of documents, as many at a time as one request may have.

        Args:
            languages: of the texts; None if the models of the server name none.
            request: of the client.
            model: name of the model.
            progress: called with the number of newly finished texts. Fewer texts are then translated at a time, and a
                full queue is waited for: nothing but the client ends the work.
        """
        source, target = languages or (None, None)
        direct = len(self._models.route(source, target, None, model)) == 1
        most = self._settings.max_texts if progress is None else min(self._settings.max_texts, LARGE)
        translate = self._translate if progress is None else self._translate_when_possible

        async def ask(texts: Sequence[str], aligned: bool) -> list[TranslatedText]:
            found = []
            for start in range(0, len(texts), most):
                own = ApiRequest(
                    text=list(texts[start : start + most]), alignment=aligned and direct, source=source,
                    target=target, model=model,
                )  # fmt: skip
                try:
                    found += await translate(own, request)
                except ApiError as error:
                    too_large = error.error == "answer_too_large" or error.message.startswith("alignment")
                    if not own.alignment or not too_large:
                        raise
                    # Too large to be aligned: the tags are placed by the position of the words.
                    found += await translate(own.model_copy(update={"alignment": False}), request)
                if progress is not None:
                    await progress(len(own.texts))
            return found

        return ask

    async def _translate_when_possible(self, own: ApiRequest, request: Request) -> list[TranslatedText]:
        """Translate, and wait while the queue is full, the client is there, and the server is not shutting down."""
        while True:
            try:
                return await self._translate(own, request)
            except ApiError as error:
                if error.error != "queue_full":
                    raise
                for _ in range(int(error.headers["Retry-After"])):
                    if await request.is_disconnected():
                        raise ClientDisconnect from None
                    self._scheduler.check_ready()
                    await asyncio.sleep(1)

    async def translate_file(self, request: Request) -> Response:
        """Translate a file (`file` of a form): .txt, .html, .srt or .vtt.

        With `Accept: text/event-stream`, the response is a stream of events: `progress`, then `done` or `error`.
        """
        with libretranslate_errors():
            if media_type(request) != MULTIPART:
                raise ApiError(415, "unsupported_media_type", f"Content-Type: expected {MULTIPART}")
            form = await read_form(request, self._settings)
            fields = dict(reversed(form.fields))
            self._check_key(fields, request)
            asked, file = check_fields(FileRequest, fields), form.file("file")
            missing = [name for name in ("source", "target") if getattr(asked, name) is None]
            if len(missing) == 1 or (missing and self._models.pairs):
                raise missing_field(missing[0])
            if file is None or not file.name:
                raise ApiError(422, "invalid_request", "file: expected a file with a name")
            if DocumentStream.media_type in request.headers.get("accept", ""):
                return DocumentStream(self._scheduler, partial(self._translate_file, asked, file, request))
            return json_response(await self._within_limit(self._translate_file(asked, file, request)))

    async def _translate_file(
        self, asked: FileRequest, file: FormFile, request: Request, progress: Progress | None = None
    ) -> FileResponse:
        """Translate a file, and keep the translation."""
        name, content = await self._translation_of(asked, file, request, progress)
        key = self._downloads.add(name, content)
        return FileResponse(translatedFileUrl=f"{request.base_url}download_file/{quote(key)}")

    async def _translation_of(
        self, asked: FileRequest, file: FormFile, request: Request, progress: Progress | None
    ) -> tuple[str, bytes]:
        """Name and content of the translation of a file."""
        try:
            async with self._parsing:
                document = await asyncio.to_thread(read_document, file.name, file.content)
        except FormatError as error:
            raise ApiError(422, "invalid_request", str(error)) from None
        passages = [part.segment.text for part in document.parts if not isinstance(part, str)]
        languages = None  # where the models name none
        if asked.source is not None and asked.target is not None:
            languages, _ = await self._languages_of(asked.source, asked.target, "\n".join(passages))
            if languages is None:
                return file.name, file.content
        done = 0

        async def count(more: int) -> None:
            nonlocal done
            done += more
            if progress is not None:
                await progress(done, len(passages))

        counter = None if progress is None else count
        (text,) = await translate_documents([document], self._asker(languages, request, asked.model, counter))
        name = PurePath(file.name)
        return f"{name.stem}_{asked.target or 'translation'}{name.suffix}", text.encode()

    async def download(self, request: Request) -> Response:
        """A translated file, under the address from `POST /translate_file`."""
        key = request.path_params["name"]
        content = self._downloads.get(key)
        if content is None:
            raise LibreTranslateError(ApiError(404, "not_found", "there is no such file, or it has expired"))
        disposition = f"attachment; filename*=UTF-8''{quote(key.partition('.')[2])}"
        headers = {"Content-Disposition": disposition, "Cache-Control": "no-store"}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def detect(self, request: Request) -> Response:
        """Detect the language of a text among those of the server, most likely first."""
        with libretranslate_errors():
            if media_type(request) == JSON:
                fields = await read_object(request, self._settings)
            else:
                fields = fields_of(await read_form(request, self._settings))
            self._check_key(fields, request)
            asked = check_fields(DetectRequest, fields)
            text = asked.q if isinstance(asked.q, str) else "\n".join(asked.q)
            known = sorted({code for pair in self._models.pairs for code in pair})
            return json_response(await asyncio.to_thread(detect_languages, text, known))

    def _check_key(self, fields: Mapping[str, Any], request: Request) -> None:
        """Check ``api_key``, if the request has no header with the token."""
        if self._token is None or not token_missing(request):
            return
        key = fields.get("api_key")
        if not isinstance(key, str) or not same_token(key.encode("utf-8", "replace"), self._token):
            error = unauthorized()
            message = "this server requires a token: send it as api_key, or in the header 'Authorization: Bearer TOKEN'"
            raise ApiError(error.status, error.error, message)


def detect_languages(text: str, known: Sequence[str]) -> list[Detection]:
    """The languages that a text may be in, most likely first; empty for a text without letters.

    Args:
        text: of any length.
        known: codes of the languages to choose from.

    Raises:
        ApiError: 422, the extra is not installed, or none of the languages can be detected.
    """
    try:
        found = detect(text, known)
    except (MissingDependencyError, InputError) as error:
        raise ApiError(422, "detection_unavailable", str(error)) from None
    return [Detection(confidence=round(100 * share, 1), language=code) for code, share in found if share >= 0.0005]


def _others(text: TranslatedText) -> list[str]:
    """The other translations, each once."""
    return [one for one in dict.fromkeys(candidate.text for candidate in text.n_best) if one != text.text]
