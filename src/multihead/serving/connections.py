"""Budgets of connections: how many are open, and how many bytes they hold.

A connection waits for its client, or works for it. When a budget is exceeded, a connection that waits for its client is
given up: first those that did not send a request in time, then unfinished bodies, unread answers, connections kept
alive, and new ones; in each group the one that has waited longest. A client that sends its request and takes its answer
is never given up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, Protocol, runtime_checkable

from multihead.errors import SurroundingsError
from multihead.platforms import open_file_count, open_file_limit

_ACCEPTED_AT_ONCE = (16, 64)
"""Fewest and most connections accepted before the event loop does anything else. With more, a connection could be given
up before its request is read."""

_UNCOUNTED = 4
"""Times so many connections can be open without being counted yet: asyncio counts them two turns of the loop later."""

_MODEL_FILES = 48
"""Files for loading a model."""

_FEWEST = 16
"""Connections without which a server is useless."""


class Wait(IntEnum):
    """What a connection waits for from its client, in the order in which connections are given up."""

    HEAD = 0
    BODY = 1
    TAKING = 2
    """The client takes an answer."""
    NEXT = 3
    """Another request on a connection that was kept alive."""
    FRESH = 4
    """The first bytes of a new connection."""


_BY_BYTES = (Wait.BODY, Wait.TAKING, Wait.HEAD, Wait.NEXT, Wait.FRESH)
"""The same where bytes are too many."""


@runtime_checkable
class Closable(Protocol):
    """What is counted."""

    def abort(self, reason: str) -> None:
        """Close the connection at once."""


class Connections:
    """The open connections.

    Args:
        most: maximum number.
        most_bytes: maximum bytes of all unfinished requests and unread answers.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most, self.most_bytes = most, most_bytes
        self.held = 0
        """Bytes of unfinished requests and unread answers."""
        self._held: dict[Closable, int] = {}
        self._waits: dict[Closable, Wait] = {}
        self._waiting: dict[Wait, OrderedDict[Closable, None]] = {wait: OrderedDict() for wait in Wait}
        """For each kind, the connections in the order in which they began to wait."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, connection: Closable) -> bool:
        """Count a new connection; False if there is no room, because every other one is being worked for."""
        if len(self) >= self.most and not self._give_up("too_many", tuple(Wait)):
            return False
        self._held[connection] = 0
        return True

    def remove(self, connection: Closable) -> None:
        """Forget a connection, if it is counted."""
        self.held -= self._held.pop(connection, 0)
        wait = self._waits.pop(connection, None)
        if wait is not None:
            del self._waiting[wait][connection]

    def update(self, connection: Closable, wait: Wait | None, held: int) -> bool:
        """State what a connection waits for, and what it holds.

        Args:
            connection: a connection; ignored if it is not counted (any more).
            wait: None while the server works for it.
            held: bytes.

        Returns:
            Whether ``wait`` is new.
        """
        if connection not in self._held:
            return False
        before = self._waits.get(connection)
        if wait is not before:
            if before is not None:
                del self._waiting[before][connection], self._waits[connection]
            if wait is not None:
                self._waits[connection] = wait
                self._waiting[wait][connection] = None
        self.held += held - self._held[connection]
        self._held[connection] = held
        while self.held > self.most_bytes and self._give_up("too_many_bytes", _BY_BYTES):
            pass
        return wait is not before

    def _give_up(self, reason: str, waits: tuple[Wait, ...]) -> bool:
        for wait in waits:
            if self._waiting[wait]:
                longest = next(iter(self._waiting[wait]))
                self.remove(longest)
                longest.abort(reason)
                return True
        return False


class ConnectionLimits(NamedTuple):
    """What the number of files that a process may open allows."""

    most: int
    """Connections that can be open."""
    accepted_at_once: int
    """Connections accepted in a turn of the event loop; with few, new ones wait behind each other."""


def connection_limits(wanted: int, say: Callable[[str], None]) -> ConnectionLimits:
    """The limits for this process, with at most ``wanted`` open connections; fewer ones are said.

    Raises:
        SurroundingsError: the process may open so few files that it cannot serve.
    """
    files = open_file_limit()
    fewest, most = _ACCEPTED_AT_ONCE
    if files is None:
        return ConnectionLimits(wanted, most)
    room = files - open_file_count() - _MODEL_FILES
    at_once = min(max((room - wanted) // _UNCOUNTED, fewest), most)
    room -= at_once * _UNCOUNTED
    if room >= wanted:
        return ConnectionLimits(wanted, at_once)
    if room < _FEWEST:
        needed = files + _FEWEST - room
        raise SurroundingsError(f"this process may open {files} files, too few to serve: expected {needed} (ulimit -n)")
    say(f"at most {room} connections, not {wanted}: this process may open {files} files (ulimit -n)")
    return ConnectionLimits(room, at_once)
