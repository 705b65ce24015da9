"""Settings of the server: address, limits, time limits. Torch-free."""

from __future__ import annotations

from pydantic import Field

from multihead.configuration import Settings
from multihead.serving.schema import GuardChoice


class ServeSettings(Settings):
    """Settings of `multihead serve`; each field is a flag."""

    host: str = "127.0.0.1"
    """Address to listen on. The default accepts this machine only; 0.0.0.0 accepts every network and needs a token."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 picks a free port, which is printed."""
    token_file: str | None = None
    """File with the token that clients must send (Authorization: Bearer ...); or set MULTIHEAD_TOKEN. [none]"""
    max_body: int = Field(default=1_000_000, ge=100)
    """Maximum bytes of a request body; more is status 413."""
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
    time_limit: float = Field(default=30.0, gt=0)
    """Seconds a request may take; more is status 503."""
    drain: float = Field(default=30.0, ge=0)
    """Seconds to finish requests in flight after a signal to stop."""
    guard: GuardChoice = "off"
    """Judge translations (mark), and search suspicious ones again (retry), unless the request sets it."""
