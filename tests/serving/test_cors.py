"""CORS: off by default; pages of the configured origins may use the server, without cookies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from multihead import Translator
from multihead.serving.settings import ServeSettings

Servers = Any

ORIGIN = "https://example.org"
JSON = {"Content-Type": "application/json"}


def preflight(client: Any, origin: str, method: str = "POST", headers: str = "authorization, content-type") -> Any:
    asked = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    return client.ask("OPTIONS", "/translate", None, {"Origin": origin, **asked})


def allowed(reply: Any) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name.startswith("access-control-")}


def test_by_default_no_page_of_another_origin_may(client: Any) -> None:
    assert preflight(client, ORIGIN).status == 405
    assert allowed(preflight(client, ORIGIN)) == {}
    assert allowed(client.get("/info", Origin=ORIGIN)) == {}


def test_the_pages_of_named_origins_may(servers: Servers, translator: Translator) -> None:
    others = ("http://localhost:3000", ORIGIN)
    client = servers.start(lambda: translator, token="abc", cors_origin=others).client
    for origin in others:
        reply = preflight(client, origin)  # which has no token
        assert reply.status == 200
        assert allowed(reply)["access-control-allow-origin"] == origin
        assert {"GET", "POST"} == set(allowed(reply)["access-control-allow-methods"].split(", "))
        assert {"authorization", "content-type"} <= set(
            allowed(reply)["access-control-allow-headers"].lower().split(", ")
        )
        asked = {**JSON, "Origin": origin, "Authorization": "Bearer abc"}
        reply = client.ask("POST", "/translate", json.dumps({"text": "eins"}).encode(), asked)
        assert (reply.status, allowed(reply)["access-control-allow-origin"]) == (200, origin)
        assert "Origin" in reply.headers["vary"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        refused = client.ask("POST", "/translate", b"{}", {**JSON, "Origin": origin})
        assert (refused.status, allowed(refused)["access-control-allow-origin"]) == (401, origin)
    for method, headers, origin in (
        ("POST", "content-type", "https://example.com"),
        ("POST", "content-type", "null"),
        ("POST", "content-type", ORIGIN + ".evil"),
        ("DELETE", "content-type", ORIGIN),
        ("POST", "x-other", ORIGIN),
    ):
        assert preflight(client, origin, method, headers).status == 400
    assert "access-control-allow-origin" not in allowed(preflight(client, "https://example.com"))
    assert "access-control-allow-origin" not in allowed(client.get("/health", Origin="https://example.com"))


def test_cookies_are_never_allowed(servers: Servers, translator: Translator) -> None:
    for origins in (("*",), (ORIGIN,)):
        client = servers.start(lambda: translator, cors_origin=origins).client
        for reply in (preflight(client, ORIGIN), client.get("/info", Origin=ORIGIN, Cookie="a=b")):
            assert "access-control-allow-credentials" not in allowed(reply)
            # starlette before 0.40 answers a cookie with the origin itself, which allows no more than "*"
            assert allowed(reply)["access-control-allow-origin"] in (origins[0], ORIGIN)


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/", "https://", "ftp://example.org", ""])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="expected an origin"):
        ServeSettings(cors_origin=(origin,))
