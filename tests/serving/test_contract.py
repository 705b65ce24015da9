"""Every response is as /openapi.json describes it: each status is provoked, and bodies are checked against schemas."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multihead import Translator
from multihead.serving.openapi import ERROR_EXAMPLES

Client = Any
Servers = Any

JSON = {"Content-Type": "application/json"}
GOOD = b'{"text": "eins zwei", "n_best": 2, "alignment": true, "alternatives": 2, "guard": "mark"}'

NOTES = {"type", "title", "description", "default", "examples", "example"}
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "array": (list,), "object": (dict,),
}  # fmt: skip


def typed(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def problems(schema: dict[str, Any], value: Any, whole: dict[str, Any], place: str = "it") -> Iterator[str]:
    """Violations of a schema (the part of JSON Schema in use); an unknown keyword is a violation."""
    if "type" in schema and not typed(value, schema["type"]):
        yield f"{place}: {value!r} is no {schema['type']}"
        return
    for word, said in schema.items():
        match word:
            case "$ref":
                named = whole
                for part in said.removeprefix("#/").split("/"):
                    named = named[part]
                yield from problems(named, value, whole, place)
            case "anyOf":
                if all(any(problems(one, value, whole)) for one in said):
                    yield f"{place}: {value!r} is none of {said}"
            case "enum" | "const":
                if value not in (said if word == "enum" else [said]):
                    yield f"{place}: {value!r} is not {said}"
            case "minimum" | "maximum":
                if (value < said) if word == "minimum" else (value > said):
                    yield f"{place}: {value} is beyond {said}"
            case "minItems" | "maxItems":
                if (len(value) < said) if word == "minItems" else (len(value) > said):
                    yield f"{place}: so many: {len(value)}"
            case "items" | "prefixItems":
                kinds = said if word == "prefixItems" else [said] * len(value)
                for number, (kind, one) in enumerate(zip(kinds, value, strict=True)):
                    yield from problems(kind, one, whole, f"{place}[{number}]")
            case "properties":
                for name in said.keys() & value.keys():
                    yield from problems(said[name], value[name], whole, f"{place}.{name}")
            case "required":
                yield from (f"{place}: no {name}" for name in said if name not in value)
            case "additionalProperties":
                others = [name for name in value if name not in schema.get("properties", ())]
                if said is False:
                    yield from (f"{place}: {name} is not foreseen" for name in others)
                else:
                    for name in others:
                        yield from problems(said, value[name], whole, f"{place}.{name}")
            case _ if word not in NOTES:
                yield f"{place}: the schema says {word}"


def check(described: dict[str, Any], path: str, method: str, reply: Any) -> None:
    """Check that a response is documented."""
    said = described["paths"][path][method.lower()]["responses"][str(reply.status)]
    kind = reply.headers["content-type"].partition(";")[0]
    schema = said["content"][kind]["schema"]
    if kind == "application/json":
        assert list(problems(schema, reply.json, described)) == []
    if reply.status != 200 and "message" in reply.json:  # LibreTranslate's form has a sentence instead of the word
        assert reply.json["error"] in said["content"][kind]["examples"]
    for name, header in said.get("headers", {}).items():
        assert header["schema"] == {"type": "integer", "minimum": 1}
        assert int(reply.headers[name.lower()]) >= 1


def provoked(path: str, servers: Servers, models: dict[str, Callable[[], Translator]]) -> Iterator[tuple[str, Any]]:
    """A response of every status that the translation routes can have, with the expected status."""
    usual = servers.start(models["usual"], max_body=300, send_time=0.2, max_sentences=3, max_characters=20)
    client = usual.client
    yield "200", client.ask("POST", path, GOOD, JSON)
    yield "400", client.ask("POST", path, b"{", JSON)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    yield "408", client.raw(head.encode() + b"{")
    yield "413", client.ask("POST", path, b" " * 301, JSON)
    yield "415", client.ask("POST", path, GOOD, {"Content-Type": "text/plain"})
    for fields in ({"text": 5}, {"text": "e" * 21}, {"text": "eins", "beam": 17}, {"text": "\n".join("e" * 9)}):
        yield "422", client.post(path, **fields)
    usual.scheduler.draining = True
    yield "503", client.post(path, text="eins")
    guarded = servers.start(models["usual"], token="open sesame").client
    yield "401", guarded.post(path, text="eins")
    if path == "/translate":
        yield "403", guarded.post(path, q="eins", source="de", target="en")
    busy = servers.start(models["endless"], queue=1, time_limit=1).client
    with busy.in_flight(text="eins"):
        busy.until("multihead_requests_in_hand", 1)
        yield "429", busy.post(path, text="eins")
    busy.until("multihead_requests_in_hand", 0)
    if path == "/translate":  # a stream has started by then
        yield "503", busy.post(path, text="eins")
        yield "500", servers.start(models["damaged"]).client.post(path, text="acht")


@pytest.mark.parametrize("path", ["/translate", "/translate/stream"])
def test_each_documented_status_is_provoked_and_is_as_documented(
    path: str, servers: Servers, translator: Translator, endless: Callable[[], Translator], damaged: Translator
) -> None:
    described = servers.start(lambda: translator, token="t").client.get("/openapi.json", Authorization="Bearer t").json
    models = {"usual": lambda: translator, "endless": endless, "damaged": lambda: damaged}
    seen = set()
    for status, reply in provoked(path, servers, models):
        assert str(reply.status) == status
        check(described, path, "POST", reply)
        seen.add(status)
    documented = set(described["paths"][path]["post"]["responses"])
    assert seen == documented - ({"500"} if path == "/translate/stream" else set())


def test_what_can_be_got_is_as_documented(client: Client, servers: Servers, translator: Translator) -> None:
    described = client.get("/openapi.json").json
    paths = ("/health", "/ready", "/info", "/metrics", "/models", "/languages", "/frontend/settings")
    for path in paths:
        check(described, path, "GET", client.get(path))
    check(described, "/info", "GET", client.get("/info?source=zz"))
    for fields in ({"q": "eins", "alternatives": 1}, {"q": ["eins", "zwei"], "alternatives": 1}, {"q": ""}):
        check(described, "/translate", "POST", client.post(source="de", target="en", **fields))
    leaving = servers.start(lambda: translator)
    leaving.scheduler.draining = True
    for path in ("/ready", "/info"):
        check(described, path, "GET", leaving.client.get(path))
    methods = {(path, method) for path, methods in described["paths"].items() for method in methods}
    get = {(path, "get") for path in paths}
    posted = {(path, "post") for path in ("/translate", "/translate/stream", "/translate_file", "/detect")}
    assert methods == posted | get
    check(described, "/translate_file", "POST", client.post("/translate_file"))
    check(described, "/detect", "POST", client.post("/detect", q="Hund"))
    check(described, "/detect", "POST", client.post("/detect"))
    assert "security" not in described["paths"]["/translate"]["post"]


def test_a_token_is_documented_where_one_is_asked_for(servers: Servers, translator: Translator) -> None:
    client = servers.start(lambda: translator, token="t").client
    described = client.get("/openapi.json", Authorization="Bearer t").json
    for path, methods in described["paths"].items():
        for method, said in methods.items():
            reply = client.ask(method.upper(), path, GOOD if method == "post" else None, JSON)
            assert (reply.status == 401) == ("401" in said["responses"]) == (said.get("security") == [{"bearer": []}])
            check(described, path, method, reply)
    assert described["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


def test_examples_are_what_they_are_examples_of(servers: Servers, translator: Translator) -> None:
    client, answered = servers.start(lambda: translator.searching(max_length=12)).client, list[Any]()
    described = client.get("/openapi.json").json
    for path in ("/translate", "/translate/stream"):
        route = described["paths"][path]["post"]
        schema = route["requestBody"]["content"]["application/json"]["schema"]
        assert schema["examples"]
        for example in schema["examples"]:
            assert list(problems(schema, example, described)) == []
            if example not in answered:  # both routes have the same ones
                assert client.post(**example).status == 200
                answered.append(example)
        for status, said in route["responses"].items():
            fault = said["content"].get("application/json", {"examples": {}})
            assert status == "200" or fault["examples"]
            for word, example in fault.get("examples", {}).items():
                assert example["value"]["error"] == word
                assert list(problems(fault["schema"], example["value"], described)) == []
    for name, schema in described["components"]["schemas"].items():
        for example in schema.get("examples", ()):
            assert list(problems(schema, example, described, name)) == []
    assert {"Answers", "Fault", "Info", "State"} <= {
        n for n, s in described["components"]["schemas"].items() if "examples" in s
    }


NEARLY = {
    "text": st.text(max_size=30) | st.lists(st.text(max_size=9), max_size=3) | st.integers(),
    "beam": st.none() | st.integers(-1, 20) | st.floats(),
    "alpha": st.none() | st.floats() | st.integers(-1, 6),
    "n_best": st.integers(-1, 6),
    "prefix": st.none() | st.text(max_size=9),
    "alignment": st.booleans() | st.none(),
    "alternatives": st.integers(-1, 22),
    "guard": st.sampled_from([None, "off", "mark", "retry", "maybe"]),
}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.fixed_dictionaries({}, optional=NEARLY), path=st.sampled_from(["/translate", "/translate/stream"]))
def test_what_the_schema_refuses_is_refused_and_every_answer_is_as_documented(
    fields: dict[str, Any], path: str, client: Client, described: dict[str, Any]
) -> None:
    reply = client.ask("POST", path, json.dumps(fields).encode(), JSON)
    check(described, path, "POST", reply)
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    if any(problems(schema, fields, described)):
        assert reply.status in (400, 422)


@pytest.fixture(scope="module")
def described(serving: Any) -> Any:
    return serving.client.get("/openapi.json").json


def asked_in(page: str) -> Iterator[tuple[str, dict[str, str], bytes]]:
    """Path, headers and body of each curl command."""
    for block in re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            if words[0] == "curl":
                headers = dict(value.split(": ", 1) for word, value in pairwise(words) if word == "-H")
                sent = "&".join(value for word, value in pairwise(words) if word == "-d")
                (url,) = (word for word in words if word.startswith("http://127.0.0.1:8000/"))
                if not sent.startswith("{"):
                    headers, sent = {"Content-Type": "application/x-www-form-urlencoded", **headers}, quote(sent, "=&")
                yield url.removeprefix("http://127.0.0.1:8000"), headers, sent.encode()


def test_the_calls_of_the_page_are_answered(servers: Servers, translator: Translator) -> None:
    client = servers.start(lambda: translator.searching(max_length=20), token="TOKEN").client
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    calls = list(asked_in(page))
    assert len(calls) == 9
    for path, headers, content in calls:
        reply = client.ask("POST", path, content, {"Authorization": "Bearer TOKEN", **headers})
        assert reply.status == 200, content


def test_the_page_has_every_address_word_and_figure(client: Client) -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    described = client.get("/openapi.json").json
    codes = {word for said in ERROR_EXAMPLES.values() for word in said}
    words = {"malformed_http", "not_found", "method_not_allowed"} | codes
    assert [word for word in words if f"`{word}`" not in page] == []
    assert [
        path for path, ways in described["paths"].items() for way in ways if f"{way.upper()} {path}" not in page
    ] == []
    figures = set(
        re.findall(r"^# HELP (multihead_\w+?)(?:_created)? ", client.get("/metrics").body.decode(), re.MULTILINE)
    )
    assert [name for name in figures if name not in page] == []


def test_the_example_messages_are_those_of_the_server(servers: Servers, translator: Translator) -> None:
    client = servers.start(lambda: translator).client
    requests: dict[str, dict[str, Any]] = {
        "invalid_request": {"text": "a", "baem": 5},
        "text_too_long": {"text": "a" * 9_000},
        "too_many_texts": {"text": ["a"] * 200},
        "too_many_sentences": {"text": ["a\n" * 9] * 100},
        "beam_too_wide": {"text": "a", "beam": 40},
    }
    for word, fields in requests.items():
        assert client.post(**fields).json == {"error": word, "message": ERROR_EXAMPLES[422][word]}
