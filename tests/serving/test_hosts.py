"""Names in the header Host: addresses and the server's own names are accepted, others are not (DNS rebinding)."""

from __future__ import annotations

from typing import Any

import pytest

from multihead import Translator
from multihead.configuration import build
from multihead.errors import ConfigurationError
from multihead.serving.error_responses import ApiError
from multihead.serving.hosts import AllowedHosts, hosts_of
from multihead.serving.settings import ServeSettings

Servers = Any

OWN = [
    "localhost",
    "localhost:8000",
    "LOCALHOST.",
    "127.0.0.1",
    "127.0.0.1:80",
    "[::1]:8000",
    "192.168.1.5",
    "[fe80::1]",
]
FOREIGN = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.nip.io", "", "[", "xlocalhost"]


def taken(hosts: AllowedHosts, *values: str) -> bool:
    try:
        hosts.check({"headers": [(b"host", value.encode()) for value in values]})
    except ApiError as error:
        return (error.status, error.error) != (421, "unknown_host")
    return True


def test_only_names_of_the_server_are_taken() -> None:
    hosts = hosts_of(ServeSettings())
    assert [host for host in OWN if not taken(hosts, host)] == []
    assert [host for host in FOREIGN if taken(hosts, host)] == []
    assert taken(hosts)
    assert not taken(hosts, "localhost", "evil.example")


def test_further_names_are_configured() -> None:
    hosts = hosts_of(ServeSettings(host="mt.example.org", allowed_host=("*.Example.com", "other")))
    for host in ("mt.example.org", "a.example.com:80", "a.b.example.com", "other", *OWN):
        assert taken(hosts, host)
    for host in ("example.com", "example.org", "evilexample.com"):
        assert not taken(hosts, host)
    assert taken(hosts_of(ServeSettings(allowed_host=("*",))), "evil.example")


@pytest.mark.parametrize("name", ["http://a.example", "a.example:80", "*a", "a.*", ""])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="expected a name such as"):
        build(ServeSettings, {"allowed_host": (name,)}, "the command line")


def test_a_page_of_another_name_reads_nothing(translator: Translator, servers: Servers) -> None:
    client = servers.start(lambda: translator, allowed_host=("mt.example.org",)).client
    for path in ("/", "/health", "/info", "/nowhere", "/metrics"):
        assert client.get(path, Host="mt.example.org").status != 421
        reply = client.get(path, Host="evil.example")
        assert (reply.status, reply.json["error"]) == (421, "unknown_host")
        assert "--allowed-host" in reply.json["message"]
