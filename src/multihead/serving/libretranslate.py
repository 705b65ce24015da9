"""LibreTranslate's API: its clients use this server without a change.

Requests become those of our own API and are searched with them. Languages are named in each request; `models` finds
the models for them. An error is ``{"error": SENTENCE}`` with LibreTranslate's status.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from multihead.serving.bodies import read_form
from multihead.serving.error_responses import ApiError
from multihead.serving.languages import name_of
from multihead.serving.libretranslate_schema import (
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
)
from multihead.serving.middleware import same_token, token_missing, unauthorized
from multihead.serving.models import Models
from multihead.serving.schema import ApiRequest, TranslatedText
from multihead.serving.settings import ServeSettings

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
        models: of the server.
        settings: of the server.
        translate: translates a request of our API.
        token: required of clients; None admits every client.
    """

    def __init__(self, models: Models, settings: ServeSettings, translate: Translate, token: str | None) -> None:
        self._models, self._settings, self._translate, self._token = models, settings, translate, token

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
        return json_response(FrontendSettings(charLimit=limit, apiKeys=keyed, keyRequired=keyed, language=languages))

    async def translate_form(self, request: Request) -> Response:
        """Translate the texts of a form."""
        with libretranslate_errors():
            fields = fields_of(await read_form(request, self._settings))
        return await self.translate_fields(fields, request)

    async def translate_fields(self, fields: Mapping[str, Any], request: Request) -> Response:
        """Translate the texts of a JSON object."""
        with libretranslate_errors():
            self._check_key(fields, request)
            asked = check_fields(fields)
            return json_response(await self._answer(asked, request))

    async def _answer(self, asked: LibreTranslateRequest, request: Request) -> LibreTranslateResponse:
        if asked.alternatives >= self._settings.max_beam:
            message = f"alternatives: got {asked.alternatives}; at most {self._settings.max_beam - 1} are given"
            raise ApiError(422, "beam_too_wide", message)
        own = WideRequest(text=asked.q, source=asked.source, target=asked.target, n_best=asked.alternatives + 1)
        texts = await self._translate(own, request)
        others = [_others(text) for text in texts] if asked.alternatives else None
        if isinstance(asked.q, str):
            return LibreTranslateResponse(translatedText=texts[0].text, alternatives=others[0] if others else None)
        return LibreTranslateResponse(translatedText=[text.text for text in texts], alternatives=others)

    def _check_key(self, fields: Mapping[str, Any], request: Request) -> None:
        """Check ``api_key``, if the request has no header with the token."""
        if self._token is None or not token_missing(request):
            return
        key = fields.get("api_key")
        if not isinstance(key, str) or not same_token(key.encode("utf-8", "replace"), self._token):
            error = unauthorized()
            message = "this server wants a token: send it as api_key, or in the header 'Authorization: Bearer TOKEN'"
            raise ApiError(error.status, error.error, message)


def _others(text: TranslatedText) -> list[str]:
    """The other translations, each once."""
    return [one for one in dict.fromkeys(candidate.text for candidate in text.n_best) if one != text.text]
