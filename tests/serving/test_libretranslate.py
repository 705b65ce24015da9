"""LibreTranslate's API: its own client and all its request formats get the translations of our API."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multihead import Translator
from multihead.errors import MissingDependencyError
from multihead.serving import libretranslate

libretranslatepy = pytest.importorskip("libretranslatepy", reason="LibreTranslate's client is not installed")

Client = Any
Servers = Any

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
BETWEEN = {"source": "de", "target": "en"}


def multipart(fields: dict[str, str], boundary: str = "limit") -> tuple[bytes, dict[str, str]]:
    """Body and headers of a form as ``curl -F`` sends it."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    body = "".join([*parts, f"--{boundary}--\r\n"]).encode()
    return body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def ask(client: Client, fields: dict[str, Any], path: str = "/translate") -> list[Any]:
    """The responses to the same fields as JSON, as both kinds of form, and in the address."""
    texts = {name: str(value) for name, value in fields.items()}
    return [
        client.ask("POST", path, json.dumps(fields).encode(), JSON),
        client.ask("POST", path, urlencode(texts).encode(), FORM),
        client.ask("POST", path, *multipart(texts)),
        client.ask("POST", f"{path}?{urlencode(texts)}"),
    ]


def test_every_form_of_a_request_gets_the_translation(client: Client, translator: Translator) -> None:
    (wanted,) = translator.translate(["eins zwei"])
    for reply in ask(client, {"q": "eins zwei", "format": "text", "alternatives": 0, "api_key": "", **BETWEEN}):
        assert (reply.status, reply.json) == (200, {"translatedText": wanted})
        assert reply.headers["content-type"] == "application/json"


def test_a_list_gets_a_list(client: Client, translator: Translator) -> None:
    texts = ["eins zwei", "", "drei\n\nvier"]
    wanted = client.post(text=texts).texts
    assert client.post(q=texts, **BETWEEN).json == {"translatedText": wanted}
    repeated = urlencode([*BETWEEN.items(), *(("q", text) for text in texts)]).encode()
    assert client.ask("POST", "/translate", repeated, FORM).json == {"translatedText": wanted}


def test_the_lines_of_a_form_end_as_in_json(client: Client) -> None:
    """HTML forms end them with CR LF."""
    body = urlencode({"q": "eins\r\nzwei\r\n", **BETWEEN}).encode()
    assert client.ask("POST", "/translate", body, FORM).json == client.post(q="eins\nzwei\n", **BETWEEN).json


def test_alternatives_are_the_n_best(client: Client, translator: Translator) -> None:
    """More than the model's own beam contains, without repetitions and the translation itself."""
    for count in (1, 7):
        beam = max(count + 1, translator.search_settings().beam)
        (best,) = translator.n_best(["eins zwei"], count + 1, beam=beam)
        first, *others = dict.fromkeys(one.text for one in best)
        for reply in ask(client, {"q": "eins zwei", "alternatives": count, **BETWEEN}):
            assert reply.json == {"translatedText": first, "alternatives": others}
    listed = client.post(q=["eins zwei", "drei"], alternatives=1, **BETWEEN).json
    assert [len(listed[name]) for name in ("translatedText", "alternatives")] == [2, 2]
    assert listed["alternatives"][0] == client.post(q="eins zwei", alternatives=1, **BETWEEN).json["alternatives"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"q": "eins", "source": "de"}, "target"),
        ({"q": "eins", "target": "en"}, "source"),
        ({"q": "", **BETWEEN}, "q: required, but missing or empty"),
        ({"q": "eins", "source": "de", "target": "zz"}, "'zz' is not supported"),
        ({"q": "eins", "source": "zz", "target": "en"}, "'zz' is not supported"),
        ({"q": "eins", "source": "en", "target": "de"}, "not supported"),
        ({"q": "eins", "source": "auto", "target": "zz"}, "not supported"),
        ({"q": "eins", "format": "pdf", **BETWEEN}, "format"),
        ({"q": "eins", "alternatives": "many", **BETWEEN}, "alternatives"),
        ({"q": "eins", "alternatives": -1, **BETWEEN}, "alternatives"),
        ({"q": "eins", "alternatives": 16, **BETWEEN}, "at most 15"),
        ({"q": "e" * 2_001, **BETWEEN}, "2,001 characters"),
    ],
)
def test_a_bad_request_is_400_in_their_form(fields: dict[str, Any], named: str, client: Client) -> None:
    for reply in ask(client, fields):
        assert reply.status == 400
        assert list(reply.json) == ["error"]
        assert named in reply.json["error"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"q=%ff&source=de&target=en", "application/x-www-form-urlencoded", 400),
        (b"q=\xff&source=de&target=en", "application/x-www-form-urlencoded", 400),
        (b"a=b&" * 1_001, "application/x-www-form-urlencoded", 400),
        (b"q=" + b"e" * 20_001, "application/x-www-form-urlencoded", 413),
        (b"", "multipart/form-data", 400),
        (b"--limit\r\n\r\n", "multipart/form-data; boundary=limit", 400),
        (
            b'--limit\r\nContent-Disposition: form-data; name="q"\r\n\r\neins',
            "multipart/form-data; boundary=limit",
            400,
        ),
        (multipart({"q": "e" * 20_001})[0], "multipart/form-data; boundary=limit", 413),
        (b"--limit\r\n" + b"A: b\r\n" * 99 + b"\r\n\r\n--limit--", "multipart/form-data; boundary=limit", 400),
        (b"--limit\r\n\r\n\r\n" * 1_010 + b"--limit--", "multipart/form-data; boundary=limit", 400),
        (multipart({"q": "eins", **BETWEEN})[0].replace(b"eins", b"\xff"), "multipart/form-data; boundary=limit", 400),
        (b'{"q": ["eins", 5], "source": "de", "target": "en"}', "application/json", 400),
        (b'{"q": {"a": "b"}, "source": "de", "target": "en"}', "application/json", 400),
        (b'{"q": ' + b"[" * 10_000, "application/json", 400),
        (b'{"q": "eins"}', "text/plain", 415),
    ],
)
def test_hostile_bodies_are_refused_and_the_next_request_is_served(
    body: bytes, kind: str, status: int, client: Client, translator: Translator
) -> None:
    reply = client.ask("POST", "/translate", body, {"Content-Type": kind})
    assert (reply.status, isinstance(reply.json["error"], str)) == (status, True)
    assert client.post(q="eins", **BETWEEN).json == {"translatedText": translator.translate(["eins"])[0]}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.dictionaries(
        st.sampled_from(["q", "source", "target", "format", "alternatives", "api_key", "text"]),
        st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.sampled_from(["de", "en"]),
    ),
    mangled=st.binary(max_size=20),
)
def test_no_request_makes_the_server_fail(fields: dict[str, Any], mangled: bytes, client: Client) -> None:
    body, headers = multipart({name: str(value) for name, value in fields.items()})
    for content, own in (
        (json.dumps(fields).encode(), JSON),
        (body, headers),
        (mangled + body, headers),
        (mangled, FORM),
    ):
        assert client.ask("POST", "/translate", content, own).status in (200, 400, 422)


def test_what_has_a_text_is_ours(client: Client) -> None:
    assert client.post(text="eins", q="eins").json["error"] == "invalid_request"
    for fields in ({}, {"source": "de"}, {"text": "eins", **BETWEEN, "beam": "5"}):
        assert set(client.post(**fields).json) == {"error", "message"}
    assert client.post(text="eins", **BETWEEN).texts == client.post(text="eins").texts


@pytest.mark.parametrize("code", ["de", "DE", " de ", "de-AT", "de_DE"])
def test_a_language_is_found_in_any_spelling(code: str, client: Client) -> None:
    assert client.post(q="eins", source=code, target="en").status == 200


def test_languages_and_settings(client: Client, serving: Any) -> None:
    assert client.get("/languages").json == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": []},
    ]
    shown = client.get("/frontend/settings").json
    assert shown["charLimit"] == serving.scheduler.settings.max_characters
    assert (shown["apiKeys"], shown["keyRequired"], shown["suggestions"]) == (False, False, False)
    assert shown["language"]["source"] == {"code": "de", "name": "German"}


def test_their_client(client: Client, translator: Translator) -> None:
    api = libretranslatepy.LibreTranslateAPI(f"http://127.0.0.1:{client.port}")
    assert api.translate("eins zwei", "de", "en") == translator.translate(["eins zwei"])[0]
    assert [language["code"] for language in api.languages()] == ["de", "en"]
    with pytest.raises(HTTPError, match="400"):
        api.translate("eins", "de", "zz")


def test_the_key_is_the_token(servers: Servers, translator: Translator) -> None:
    client = servers.start(lambda: translator, token="abc").client
    url, (wanted,) = f"http://127.0.0.1:{client.port}", translator.translate(["eins"])
    assert libretranslatepy.LibreTranslateAPI(url, "abc").translate("eins", "de", "en") == wanted
    for key in ("abd", "", "é"):
        with pytest.raises(HTTPError) as refused:
            libretranslatepy.LibreTranslateAPI(url, key).translate("eins", "de", "en")
        with refused.value as reply:
            assert (reply.code, "api_key" in json.load(reply)["error"]) == (403, True)
    for reply in ask(client, {"q": "eins", "api_key": "abc", **BETWEEN}):
        assert reply.json == {"translatedText": wanted}
    assert client.post(q="eins", api_key=5, **BETWEEN).status == 403
    assert client.post(text="eins", api_key="abc").status == 401
    bearer = {**JSON, "Authorization": "Bearer abc"}
    assert client.ask("POST", "/translate", json.dumps({"q": "eins", **BETWEEN}).encode(), bearer).status == 200
    wrong = {**JSON, "Authorization": "Bearer abd"}
    assert client.ask("POST", "/translate", json.dumps({"q": "eins", "api_key": "abc"}).encode(), wrong).status == 401
    assert client.get("/languages").status == 200
    assert client.get("/frontend/settings").json["keyRequired"] is True


def test_the_tags_of_html_stay(client: Client, translator: Translator) -> None:
    one, two, three = translator.translate(["eins zwei drei", "vier", "fünf"])
    html = "<p>eins <b>zwei</b> drei</p>\n<ul class='a'><li> vier<li>fünf</ul><!-- x --> &amp;"
    for reply in ask(client, {"q": html, "format": "html", **BETWEEN}):
        found = reply.json["translatedText"]
        assert re.sub("</?b>", "", found) == f"<p>{one}</p>\n<ul class='a'><li> {two}<li>{three}</ul><!-- x --> &amp;"
        assert re.sub("</?[^b]*>", "", found).index("<b>") < found.index("</b>")
    assert client.post(q=[html, "vier"], format="html", alternatives=1, **BETWEEN).json == {
        "translatedText": [found, two], "alternatives": [[], []]
    }  # fmt: skip
    lines = "eins zwei drei\n\nvier"
    assert client.post(q=lines, format="html", **BETWEEN).json == client.post(q=lines, **BETWEEN).json


def test_more_segments_than_texts_of_a_request(client: Client, serving: Any) -> None:
    count = serving.scheduler.settings.max_texts + 20
    (wanted,) = client.post(text="eins").texts
    found = client.post(q="<p>eins</p>" * count, format="html", **BETWEEN).json["translatedText"]
    assert found == f"<p>{wanted}</p>" * count


def test_the_source_is_detected(client: Client, translator: Translator) -> None:
    pytest.importorskip("py3langid", reason="the extra 'detect' is not installed")
    text = "Der Hund läuft heute über die Straße"
    (wanted,) = client.post(text=text).texts
    for reply in ask(client, {"q": text, "source": "auto", "target": "en"}):
        assert reply.json["translatedText"] == wanted
        assert reply.json["detectedLanguage"]["language"] == "de"
        assert 50 < reply.json["detectedLanguage"]["confidence"] <= 100
    english = "The dog is running over the street today"
    reply = client.post(q=[english], source="auto", target="en").json
    assert reply["translatedText"] == [english]  # it is in the target's language
    assert [one["language"] for one in reply["detectedLanguage"]] == ["en"]
    reply = client.post(q="12:30", source="auto", target="en").json
    assert (reply["translatedText"], reply["detectedLanguage"]["confidence"]) == ("12:30", 0)
    for reply in ask(client, {"q": text}, "/detect"):
        assert reply.status == 200
        assert reply.json[0]["language"] == "de"
        assert sum(one["confidence"] for one in reply.json) == pytest.approx(100, abs=1)
    assert client.post("/detect", q="12:30").json == []
    assert libretranslatepy.LibreTranslateAPI(f"http://127.0.0.1:{client.port}").detect(text)[0]["language"] == "de"
    for fields in ({}, {"q": ""}, {"q": 5}):
        reply = client.post("/detect", **fields)
        assert (reply.status, list(reply.json)) == (400, ["error"])
    assert client.ask("POST", "/detect").status == 400
    assert client.get("/detect").status == 405


def test_without_the_extra_the_error_names_it(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise MissingDependencyError("py3langid", "detect", "detecting languages")

    monkeypatch.setattr(libretranslate, "detect", missing)
    for reply in (client.post(q="eins", source="auto", target="en"), client.post("/detect", q="eins")):
        assert (reply.status, "multihead[detect]" in reply.json["error"]) == (400, True)


def test_a_language_into_itself_changes_nothing(client: Client) -> None:
    assert client.post(q="eins <b>", source="de", target="de").json == {"translatedText": "eins <b>"}


def upload(client: Client, name: str, content: bytes, fields: dict[str, str]) -> Any:
    body, headers = multipart(fields)
    part = f'--limit\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
    return client.ask("POST", "/translate_file", part + content + b"\r\n" + body, headers)


def test_a_file_is_translated_and_fetched(client: Client, translator: Translator) -> None:
    one, two = translator.translate(["eins zwei", "drei"])
    for name, content, wanted in (
        ("Notiz 1.txt", "eins zwei\r\n\r\n12\n drei", f"{one}\r\n\r\n12\n {two}"),
        ("a.html", "<p>eins zwei</p><i>drei</i>", f"<p>{one}</p><i>{two}</i>"),
        ("a.srt", "1\n00:00:01,0 --> 00:00:02,0\ndrei\n", f"1\n00:00:01,0 --> 00:00:02,0\n{two}\n"),
        ("leer.txt", "", ""),
    ):
        reply = upload(client, name, content.encode(), BETWEEN)
        assert reply.status == 200
        url = reply.json["translatedFileUrl"]
        assert url.startswith(f"http://127.0.0.1:{client.port}/download_file/")
        file = client.get(url.removeprefix(f"http://127.0.0.1:{client.port}"))
        assert (file.status, file.body.decode()) == (200, wanted)
        assert file.headers["content-type"] == "application/octet-stream"
        assert file.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")


def test_a_file_needs_languages_only_where_the_model_names_them(servers: Servers, translator: Translator) -> None:
    bundle = replace(translator.bundle, source_language=None, target_language=None)
    client = servers.start(lambda: Translator(bundle)).client
    (wanted,) = translator.translate(["eins zwei"])
    for fields in ({}, {"source": "", "target": ""}):
        reply = upload(client, "a.html", b"<p>eins zwei</p>", fields)
        assert (reply.status, reply.json["translatedFileUrl"].endswith(".a_translation.html")) == (200, True)
        file = client.get("/" + reply.json["translatedFileUrl"].split("/", 3)[3])
        assert file.body.decode() == f"<p>{wanted}</p>"
    for fields, message in (({"source": "de"}, "target: required"), (BETWEEN, "does not name its languages")):
        reply = upload(client, "a.html", b"<p>eins</p>", fields)
        assert (reply.status, message in reply.json["error"]) == (400, True)


@pytest.mark.parametrize(
    ("name", "content", "fields", "status"),
    [
        ("a.pdf", b"eins", BETWEEN, 400),
        ("a.txt", b"\xff", BETWEEN, 400),
        ("", b"eins", BETWEEN, 400),
        ("a.txt", b"eins", {"source": "de"}, 400),
        ("a.txt", b"eins", {}, 400),
        ("a.txt", b"eins", {"source": "de", "target": "zz"}, 400),
        ("a.txt", b"e" * 2_001, BETWEEN, 400),
        ("a.txt", b"e" * 20_001, BETWEEN, 413),
    ],
)
def test_a_file_that_cannot_be_translated(
    name: str, content: bytes, fields: dict[str, str], status: int, client: Client
) -> None:
    reply = upload(client, name, content, fields)
    assert (reply.status, list(reply.json)) == (status, ["error"])
    assert client.post("/translate_file", **BETWEEN).status == 415
    assert client.ask("POST", "/translate_file", *multipart(BETWEEN)).status == 400


@pytest.mark.parametrize("name", ["x", "..%2f..%2fetc%2fpasswd", "%00", "a/b"])
def test_there_is_no_other_file(name: str, client: Client) -> None:
    assert client.get(f"/download_file/{name}").status == 404


def test_files_need_the_key_and_their_address_is_enough(servers: Servers, translator: Translator) -> None:
    client = servers.start(lambda: translator, token="abc").client
    assert upload(client, "a.txt", b"eins", BETWEEN).status == 403
    wrong = client.ask("POST", "/detect", b'{"q": "eins"}', {**JSON, "Authorization": "Bearer abd"})
    assert (wrong.status, list(wrong.json)) == (403, ["error"])
    reply = upload(client, "a.txt", b"eins", {**BETWEEN, "api_key": "abc"})
    assert client.get("/" + reply.json["translatedFileUrl"].split("/", 3)[3]).status == 200


def test_a_full_queue_is_429_in_their_form(endless: Any, servers: Servers) -> None:
    client = servers.start(endless, queue=1, time_limit=2).client
    with client.in_flight(text="eins"):
        client.until("multihead_requests_in_hand", 1)
        reply = client.post(q="eins", **BETWEEN)
        assert (reply.status, list(reply.json)) == (429, ["error"])
        assert int(reply.headers["retry-after"]) >= 1
