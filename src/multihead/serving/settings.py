"""Settings of the server: address, limits, time limits. Torch-free."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from multihead.configuration import Settings
from multihead.serving.schema import GuardChoice


class ServeSettings(Settings):
    """Settings of `multihead serve`; each field is a flag."""

    host: str = "127.0.0.1"
    """Address to listen on. The default accepts this machine only; 0.0.0.0 accepts every network: set a token, too."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 picks a free port, which is printed."""
    token_file: str | None = None
    """File with the token that clients must send (Authorization: Bearer ...); or set MULTIHEAD_TOKEN. [none]"""
    max_body: int = Field(default=1_000_000, ge=100)
    """Maximum bytes of a request body; more is status 413."""
    max_answer: int = Field(default=10_000_000, ge=10_000)
    """Maximum bytes of an answer; a request that needs more is status 422."""
    max_characters: int = Field(default=5_000, ge=1)
    """Maximum characters of a text or prefix; more is status 422."""
    max_texts: int = Field(default=100, ge=1)
    """Maximum texts per request; more is status 422."""
    max_sentences: int = Field(default=500, ge=1)
    """Maximum sentences per request (lines, or parts of long lines); more is status 422."""
    max_tokens: int = Field(default=500, ge=1)
    """Maximum subwords per sentence; more is status 422."""
    max_beam: int = Field(default=16, ge=1, le=255)
    """Maximum beam size a client may request; more is status 422."""
    queue: int = Field(default=32, ge=1)
    """Maximum requests in flight; more is status 429. Divided by requests per second, it is the longest wait."""
    send_time: float = Field(default=10.0, gt=0)
    """Seconds a client has to send a request; a late body is status 408, a late head closes the connection."""
    take_time: float = Field(default=30.0, gt=0)
    """Seconds a client has to take an answer, or an event of a stream; then the connection is closed."""
    connections: int = Field(default=1_000, ge=1)
    """Maximum open connections; beyond that, those that have waited longest for their client are closed."""
    time_limit: float = Field(default=30.0, gt=0)
    """Seconds a request may take; more is status 503."""
    drain: float = Field(default=30.0, ge=0)
    """Seconds to finish requests in flight after a signal to stop."""
    memory_limit: str | None = None
    """Maximum memory of the weights of several models, such as 2GB; the least recently used one is unloaded. [none]"""
    pivot: tuple[str, ...] | None = None
    """Language through which pairs without a model are translated; may be repeated, in order of preference. [none]"""
    allowed_host: tuple[str, ...] | None = None
    """Name by which clients reach this server, such as mt.example.org or *.example.org; may be repeated; * for all.
    Addresses, localhost and --host are always allowed. [none]"""
    cors_origin: tuple[str, ...] | None = None
    """Origin whose pages may use this server, such as https://example.org; may be repeated; * for all. [none]"""
    guard: GuardChoice = "off"
    """Judge translations (mark), and search suspicious ones again (retry), unless the request sets it."""

    @field_validator("memory_limit")
    @classmethod
    def _check_memory(cls, value: str | None) -> str | None:
        if value is not None:
            _bytes_of(value)
        return value

    @field_validator("allowed_host")
    @classmethod
    def _check_hosts(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            if name != "*" and not re.fullmatch(r"(\*\.)?[^*:/?#@\s]+", name):
                raise ValueError(f"expected a name such as mt.example.org, without a port, got {name!r}")
        return value

    @field_validator("cors_origin")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for origin in value or ():
            if origin != "*" and not re.fullmatch(r"https?://[^/?#\s]+", origin):
                raise ValueError(f"expected an origin such as https://example.org, without a path, got {origin!r}")
        return value

    @property
    def held_bytes(self) -> int:
        """Maximum bytes of all unfinished requests and unread answers."""
        return max(64_000_000, 4 * (self.max_body + self.max_answer))

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit in bytes."""
        return None if self.memory_limit is None else _bytes_of(self.memory_limit)


_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _bytes_of(size: str) -> int:
    """Bytes of a size such as 500MB.

    Raises:
        ValueError: it is none.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]i?B)", size.strip(), re.IGNORECASE)
    if found is None or float(found[1]) == 0:
        raise ValueError("expected a size such as 500MB or 2GB")
    return int(float(found[1]) * _UNITS[found[2].upper()])
