"""What a server takes and for how long it works on it. Torch-free: flags are made from it."""

from __future__ import annotations

from pydantic import Field

from multihead.configuration import Settings
from multihead.serving.schema import Guarding


class ServeSettings(Settings):
    """How `multihead serve` serves."""

    host: str = "127.0.0.1"
    """Address to listen at. The default is this machine alone; 0.0.0.0 is every network, and wants a token."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen at; 0 is a free one, which is printed."""
    token_file: str | None = None
    """A file with the token that clients must show (Authorization: Bearer ...); or set MULTIHEAD_TOKEN. [none]"""
    max_body: int = Field(default=1_000_000, ge=100)
    """Most bytes of a request's body; above it 413."""
    max_characters: int = Field(default=5_000, ge=1)
    """Most characters of a text, or of a prefix; above it 422."""
    max_texts: int = Field(default=100, ge=1)
    """Most texts of a request; above it 422."""
    max_sentences: int = Field(default=500, ge=1)
    """Most sentences of a request, lines of its texts or parts of long ones; above it 422."""
    max_tokens: int = Field(default=500, ge=1)
    """Most subwords of a sentence; above it 422."""
    max_beam: int = Field(default=16, ge=1, le=255)
    """Widest beam that a client may ask for; above it 422."""
    queue: int = Field(default=32, ge=1)
    """Most requests in hand; above it 429. Divided by requests a second it is how long one waits at worst."""
    send_time: float = Field(default=10.0, gt=0)
    """Most seconds for a client to send a request; of a body above it 408, of what comes before it the end."""
    time_limit: float = Field(default=30.0, gt=0)
    """Most seconds that a request takes; above it 503."""
    drain: float = Field(default=30.0, ge=0)
    """Seconds that what is in hand has to end in once the server is told to stop."""
    guard: Guarding = "off"
    """Judge translations (mark), and search again those that look wrong (retry), where a request does not say."""
