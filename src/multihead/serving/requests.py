"""Checking and preparing requests.

A body, read by `bodies`, is checked against the schema (`check_request`) and turned into sentences to be searched
(`prepare`). Each error says what was received and what is accepted. Lines of a text are translated one by one and stay
lines; those that are too long are split (`translating.lengths`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.types import Receive

from multihead.configuration import build
from multihead.errors import ConfigurationError, InputError, MultiheadError
from multihead.serving.bodies import call_for, read_object
from multihead.serving.error_responses import ApiError
from multihead.serving.glossary import MAX_FOUND, find_phrases
from multihead.serving.queue import BatchKey, Phrases
from multihead.serving.schema import ApiRequest
from multihead.serving.settings import ServeSettings
from multihead.text.backwards import require_forwards
from multihead.text.context import Documents
from multihead.translating.lengths import SplitLine, most_tokens, split_long_lines
from multihead.translating.request import TranslationRequest, check_n_best
from multihead.translating.searching import Constraints, check_room, encode_constraints
from multihead.translating.translator import Translator

_MAX_UNKNOWN, _MAX_NAME = 3, 60
"""Unknown fields named in an error, and characters of such a name; to look for a similar name takes long."""

MAX_ALIGNMENT_WEIGHTS = 4_000_000
"""Approximate maximum for all alignments of a request; each weight is a number in memory and in JSON."""


async def read_request(request: Request, settings: ServeSettings) -> ApiRequest:
    """Read and check the body of a request.

    Raises:
        ApiError: 400, 408, 413, 415 or 422.
        ClientDisconnect: the client disconnected before the body was complete.
    """
    fields = await read_object(request, settings)
    return await call_for(request, partial(check_request, fields))


def check_request(content: Mapping[str, Any]) -> ApiRequest:
    """Check a JSON object against the schema.

    Raises:
        ApiError: 422.
    """
    known = {name: value for name, value in content.items() if name in ApiRequest.model_fields}
    unknown = islice((name for name in content if name not in known), _MAX_UNKNOWN)
    try:
        return build(ApiRequest, {**known, **{name[:_MAX_NAME]: None for name in unknown}}, "the request")
    except ConfigurationError as error:
        raise ApiError(422, "invalid_request", str(error)) from None


@contextlib.asynccontextmanager
async def on_disconnect(receive: Receive, callback: Callable[[], None]) -> AsyncIterator[None]:
    """Call ``callback`` if the client disconnects before the block ends.

    Args:
        receive: of a request whose body was read, so that only a disconnect can follow.
        callback: called without arguments.
    """
    task = asyncio.create_task(_wait_for_disconnect(receive))
    task.add_done_callback(lambda ended: None if ended.cancelled() else callback())
    try:
        yield
    finally:
        task.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@dataclass(frozen=True)
class TextLine:
    """A line of a text and its line ending: LF, CR LF, or nothing at the end of the text."""

    text: str
    ending: str

    @property
    def empty(self) -> bool:
        """Whether the line has no words; such a line is not translated and stays empty."""
        return not self.text.strip()


def split_lines(text: str) -> list[TextLine]:
    """The lines of a text."""
    *lines, last = text.split("\n")
    ended = [TextLine(line[:-1], "\r\n") if line.endswith("\r") else TextLine(line, "\n") for line in lines]
    return [*ended, TextLine(last, "")]


@dataclass(frozen=True)
class PreparedRequest:
    """A checked request, as sentences to be searched."""

    request: ApiRequest
    key: BatchKey
    text_lines: list[list[TextLine]]
    """For each text: its lines."""
    lines: list[SplitLine]
    """The lines that are not empty, in order, cut where they are too long."""
    read: list[str]
    """Each sentence (a line, or a part of one) as the model reads it: with its context, if it has any."""
    rows: list[list[int]]
    """Tokens of each sentence, including the end symbol."""
    prefix: list[int]
    wanted: list[list[list[str]]]
    """What the glossary requires of each sentence: phrases, each with its alternatives; empty if nothing."""
    phrases: list[Phrases]
    """The same in tokens."""

    @property
    def sentences(self) -> list[str]:
        """Text of each sentence."""
        return [text for line in self.lines for text in line.texts]


def check_limits(request: ApiRequest, settings: ServeSettings) -> None:
    """Check the limits that do not depend on the model.

    Raises:
        ApiError: 422.
    """
    texts = request.texts
    if len(texts) > settings.max_texts:
        message = f"got {len(texts):,} texts; at most {settings.max_texts:,} are allowed at once"
        raise ApiError(422, "too_many_texts", message)
    named = [(f"text {number}", text) for number, text in enumerate(texts, start=1)]
    for name, text in [*named, ("the prefix", request.prefix or "")]:
        if len(text) > settings.max_characters:
            message = f"{name} has {len(text):,} characters; at most {settings.max_characters:,} are allowed: cut it"
            raise ApiError(422, "text_too_long", message)
    if request.beam is not None and request.beam > settings.max_beam:
        raise ApiError(422, "beam_too_wide", f"beam: got {request.beam}; at most {settings.max_beam} is allowed")


def check_pivot(request: ApiRequest) -> None:
    """Check that a request can be translated through a pivot.

    Raises:
        ApiError: 422.
    """
    for name in ("alignment", "glossary"):
        if getattr(request, name):
            message = f"{name}: not available through a pivot, which has a text between source and translation"
            raise ApiError(422, "invalid_request", message)


def prepare(
    request: ApiRequest, translator: Translator, settings: ServeSettings, chooses: bool = False
) -> PreparedRequest:
    """Split a request into sentences and encode them.

    Args:
        request: to prepare.
        translator: the model.
        settings: of the server.
        chooses: whether a translation is chosen among all hypotheses of the beam.

    Raises:
        ApiError: 422.
    """
    try:
        search = translator.search_settings(request.beam, request.alpha)
        if request.widens and request.n_best > search.beam:
            search = translator.search_settings(request.n_best, request.alpha)
        check_n_best(request.n_best, search.beam)
        text_lines = [split_lines(text) for text in request.texts]
        lines = _cut_lines([line.text for lines in text_lines for line in lines if not line.empty], translator, request)
        sentences = [text for line in lines for text in line.texts]
        if len(sentences) > settings.max_sentences:
            message = f"got {len(sentences):,} sentences; at most {settings.max_sentences:,} are allowed at once"
            raise ApiError(422, "too_many_sentences", message)
        read = _in_context(text_lines, lines, translator)
        rows = _encode(read, translator, settings.max_tokens)
        if request.alignment or request.alternatives:
            require_forwards(translator.bundle.target_tokenizer, "alignments and alternatives")
        if request.alignment:
            _check_alignment_size(text_lines, lines, rows)
        wanted, constraints = _find_terms(request, sentences), Constraints()
        if request.prefix or wanted:
            constraints = _encode_constraints(request, translator, sentences, wanted)
            limits = [search.limit(len(row)) for row in rows]
            check_room(constraints, limits, translator.bundle.target_tokenizer.prefix)
    except MultiheadError as error:
        raise ApiError(422, "invalid_request", str(error)) from None
    key = BatchKey(search, search.beam if chooses else request.n_best)
    prefix = constraints.prefixes[0] if constraints.prefixes else []
    return PreparedRequest(request, key, text_lines, lines, read, rows, prefix, wanted, constraints.phrases)


def _cut_lines(texts: Sequence[str], translator: Translator, request: ApiRequest) -> list[SplitLine]:
    """Cut lines longer than the model is used to, as `multihead translate` does."""
    most, longest = most_tokens(translator.lengths, translator.reach)
    bundle = translator.bundle
    whole = bool(request.prefix)
    return split_long_lines(bundle.source_tokenizer, texts, most, lambda _: whole, longest, bundle.source_language)


def _in_context(
    text_lines: Sequence[Sequence[TextLine]], lines: Sequence[SplitLine], translator: Translator
) -> list[str]:
    """What the model reads of each sentence: a text is one document, or several with empty lines between them."""
    left, read = iter(lines), list[str]()
    for own in text_lines:
        documents = Documents(translator.bundle.source_tokenizer.context)
        for line in own:
            if line.empty:
                documents.end()
            else:
                read += documents.add_parts(line.text, next(left).texts)
    return read


def _encode(sentences: Sequence[str], translator: Translator, limit: int) -> list[list[int]]:
    tokenizer = translator.bundle.source_tokenizer
    encoded = tokenizer.encode_batch(sentences)
    for number, ids in enumerate(encoded, start=1):
        if len(ids) > limit:
            message = f"sentence {number} has {len(ids):,} subwords; at most {limit:,} are allowed: cut it"
            raise ApiError(422, "text_too_long", message)
    return [[*ids, tokenizer.eos_id] for ids in encoded]


def _check_alignment_size(
    text_lines: Sequence[Sequence[TextLine]], lines: Sequence[SplitLine], rows: Sequence[list[int]]
) -> None:
    """Each text has a matrix of all its target words by all its source words: the square of its length."""
    lengths, remaining, weights = map(len, rows), iter(lines), 0
    for own in text_lines:
        weights += sum(next(lengths) for line in own if not line.empty for _ in next(remaining).texts) ** 2
    if weights > MAX_ALIGNMENT_WEIGHTS:
        raise ApiError(
            422,
            "invalid_request",
            f"alignment: the squares of the texts' subwords add up to {weights:,}; at most {MAX_ALIGNMENT_WEIGHTS:,} "
            "are allowed: send shorter texts, or fewer at once",
        )


def _find_terms(request: ApiRequest, sentences: Sequence[str]) -> list[list[list[str]]]:
    if not request.glossary:
        return []
    wanted = [find_phrases(request.glossary, sentence) for sentence in sentences]
    for number, phrases in enumerate(wanted, start=1):
        if len(phrases) > MAX_FOUND:
            message = f"sentence {number} has {len(phrases)} terms of the glossary; at most {MAX_FOUND} are allowed"
            raise ApiError(422, "invalid_request", message)
    return wanted if any(wanted) else []


def _encode_constraints(
    request: ApiRequest, translator: Translator, sentences: Sequence[str], wanted: Sequence[list[list[str]]]
) -> Constraints:
    """The prefix and phrases in tokens; a request with a prefix has a single sentence."""
    prefixes, tokenizer = [request.prefix] if request.prefix else None, translator.bundle.target_tokenizer
    asked = TranslationRequest(translator.search_settings(), sentences or [""], prefixes, list(wanted) or None)
    constraints = encode_constraints(tokenizer, asked)
    for phrases, own in zip(wanted, constraints.phrases, strict=True):
        for phrase, alternatives in zip(phrases, own, strict=True):
            for text, tokens in zip(phrase, alternatives, strict=True):
                if not tokens or not set(tokens).isdisjoint(tokenizer.forbidden_in_output):
                    raise InputError(f"glossary: the model cannot write {text!r}")
    return constraints
