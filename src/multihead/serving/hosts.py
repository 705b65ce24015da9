"""Names under which clients reach the server, against DNS rebinding.

A page of any site can send requests to this machine under a name of its own that resolves to 127.0.0.1; the browser
takes the answers for those of the page's site and shows them to it. The header Host then has that name. An address in
place of a name cannot be abused so, since no resolver answers for it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import Scope

from multihead.serving.error_responses import ApiError
from multihead.serving.settings import ServeSettings


class AllowedHosts:
    """The names that the header Host may have; addresses, and requests without the header, are always allowed.

    Args:
        names: in any case; ``*.example.org`` for all names below example.org, ``*`` for all.
    """

    def __init__(self, names: Iterable[str]) -> None:
        lowered = {name.lower() for name in names}
        self._any = "*" in lowered
        self._names = {name for name in lowered if not name.startswith("*")} | {"localhost"}
        self._endings = tuple(name[1:] for name in lowered if name.startswith("*."))

    def check(self, scope: Scope) -> None:
        """Check a request.

        Raises:
            ApiError: 421.
        """
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if self._any or not hosts or (len(hosts) == 1 and self._allows(hosts[0].decode("latin-1"))):
            return
        shown = ", ".join(host.decode("latin-1") for host in hosts)
        message = f"this server is not called {shown[:100]!r}: whoever runs it can allow that name with --allowed-host"
        raise ApiError(421, "unknown_host", message)

    def _allows(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        except ValueError:
            return False
        return name in self._names or name.endswith(self._endings) or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def hosts_of(settings: ServeSettings) -> AllowedHosts:
    """The names of a server: those of the settings, and on a network that of this machine."""
    names = [settings.host, *(settings.allowed_host or ())]
    if settings.host != "localhost" and not (_is_address(settings.host) and ip_address(settings.host).is_loopback):
        names.append(socket.gethostname())
    return AllowedHosts(names)
