"""The API documentation in a real browser: it shows what openapi.json says, and contacts no other host."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

pytest.importorskip("selenium", reason="pages are tested in a real browser")


def described(served: Any, token: str | None = None) -> Any:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(served.url + "openapi.json", headers=headers)) as answer:
        return json.load(answer)


def open_docs(page: Any, served: Any) -> None:
    page.chrome.get(served.url + "docs")
    page.until(lambda: page.all(".operation"))


def test_every_address_and_field_is_shown(page: Any, served: Any) -> None:
    open_docs(page, served)
    paths = described(served)["paths"]
    operations = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert [one.text for one in page.all(".operation h2")] == operations
    assert [one.text for one in page.all("#contents a")] == operations
    shown = page.run("return [...document.querySelectorAll('#post-translate th')].map((cell) => cell.textContent)")
    for schema in paths["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]["anyOf"]:
        assert set(schema["properties"]) <= set(shown)
    assert "translations[].n_best[].score" in shown
    statuses = page.run(
        "return [...document.querySelectorAll('#post-translate summary')].map((one) => one.textContent)"
    )
    assert [text.partition(":")[0] for text in statuses[1:]] == list(paths["/translate"]["post"]["responses"])


def test_a_request_can_be_tried(page: Any, served: Any) -> None:
    open_docs(page, served)
    page.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    body = page.find("#post-translate textarea")
    assert "text" in json.loads(body.get_attribute("value"))
    body.clear()
    body.send_keys('{"text": "eins zwei"}')
    page.find("#post-translate button").click()
    output = page.find("#post-translate pre[role=status]")
    page.until(lambda: output.text.startswith("200"))
    assert json.loads(output.text.partition("\n")[2])["translations"][0]["text"] == served.ask("eins zwei")["text"]
    page.find("#get-health button").click()
    page.until(lambda: page.find("#get-health pre[role=status]").text == '200\n{"status":"ok"}')


def test_everything_has_a_name_and_fits(page: Any, served: Any) -> None:
    open_docs(page, served)
    page.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    controls = page.all("button, input, textarea, summary, a")
    assert [one.get_attribute("outerHTML") for one in controls if one.is_displayed() and not one.accessible_name] == []
    size = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert page.run("return document.documentElement.scrollWidth") <= 360
    finally:
        page.chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_it_asks_for_the_token(serve_page: Any, translator: Any) -> None:
    page, server = serve_page(lambda: translator, token="abc")
    page.run("sessionStorage.clear()")
    page.chrome.get(server.url + "docs")
    page.until(lambda: page.find("#token").is_displayed())
    page.find("#token").send_keys("abc")
    page.find("#token-form button").click()
    page.until(lambda: page.all(".operation"))
    assert len(page.all(".operation")) == sum(map(len, described(server, "abc")["paths"].values()))
    page.run("document.querySelector('#get-info details').open = true")
    page.find("#get-info button").click()
    page.until(lambda: page.find("#get-info pre[role=status]").text.startswith("200"))
