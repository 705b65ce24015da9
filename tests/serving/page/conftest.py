"""Tests of the page: the real server in this process, and the page in a real browser."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("fastapi", reason="the server is an extra: pip install 'multihead[serve]'")
pytest.importorskip("selenium", reason="pages are tested in a real browser")

from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from multihead import Translator
from multihead.serving.scheduler import Scheduler
from multihead.serving.server import Server, bind
from multihead.serving.settings import ServeSettings

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement


class Served:
    """The real server in a thread of this process; it can be stopped and restarted at the same port."""

    longest = 200
    """Maximum characters of a text."""

    def __init__(self, load: Callable[[], Translator], token: str | None = None) -> None:
        self._load, self._token, self._port = load, token, 0
        self.start()

    def start(self) -> None:
        listening = bind("127.0.0.1", self._port)
        self._port = listening.getsockname()[1]
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(listening, ready)))
        self._thread.start()
        assert ready.wait(30)

    async def _serve(self, listening: Any, ready: threading.Event) -> None:
        scheduler = Scheduler(ServeSettings(max_characters=self.longest), self._load, 1, lambda _: None)
        self._server = Server(scheduler, self._token)
        await scheduler.start_loading()
        ready.set()
        await self._server.serve([listening])
        await scheduler.close()

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def ask(self, text: str, **wishes: Any) -> dict[str, Any]:
        """The translation that a program gets for the page's request."""
        body = {"text": text, "n_best": 5, "alignment": True, "alternatives": 6, **wishes}
        request = urllib.request.Request(
            self.url + "translate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)["translations"][0]
        return found

    def metric(self, name: str) -> float:
        """The value of a metric."""
        with urllib.request.urlopen(self.url + "metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


class Page:
    """The page in the browser."""

    def __init__(self, chrome: Chrome, url: str) -> None:
        self.chrome, self.url = chrome, url

    def open(self) -> None:
        self.chrome.get(self.url)

    def imported(self, script: str, *given: Any) -> Any:
        """Run a script that may `await import(...)` the modules of the page."""
        words = "const done = arguments[arguments.length - 1]; (async (...given) => {" + script + "})(...arguments)"
        return self.chrome.execute_async_script(words + ".then(done, (error) => done(String(error)))", *given)

    def find(self, selector: str) -> WebElement:
        return self.chrome.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.chrome.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script: str, *given: Any) -> Any:
        return self.chrome.execute_script(script, *given)

    def until(self, what: Callable[[], Any]) -> Any:
        return WebDriverWait(self.chrome, 20, 0.02).until(lambda _: what())

    def press(self, *keys: str) -> None:
        """Send keys to the focused element."""
        for key in keys:
            self.focused.send_keys(key)

    @property
    def focused(self) -> WebElement:
        return self.chrome.switch_to.active_element

    @property
    def translation(self) -> str:
        lines = self.run("return [...document.querySelectorAll('.line > p:first-child')].map(p => p.textContent)")
        return "\n".join(lines)

    def type(self, text: str) -> None:
        self.find("#source").send_keys(text)

    def finished(self) -> bool:
        return bool(self.run("return document.querySelector('.line.done') && !document.querySelector('.output.busy')"))

    def translate(self, text: str) -> str:
        """Replace the text by pasting, and wait for the translation."""
        paste = "const a = arguments[0]; a.focus(); a.select(); document.execCommand('insertText', false, arguments[1])"
        self.run(paste, self.find("#source"), text)
        self.until(self.finished)
        return self.translation

    def word(self, number: int) -> WebElement:
        return self.all(".word")[number]

    @property
    def weights(self) -> dict[str, float]:
        """The weights of the shaded source words."""
        script = "return [...document.querySelectorAll('.mark')].map(m => [m.textContent, Number(m.dataset.weight)])"
        return {word: weight for word, weight in self.run(script) if weight}

    def listed(self, which: str) -> list[tuple[str, str]]:
        """Texts and numbers of a list."""
        script = "return [...document.querySelectorAll(arguments[0])].map(b => [...b.children].map(c => c.textContent))"
        return [(words, figure) for words, figure in self.run(script, f"#{which}-list .bar")]


@pytest.fixture(scope="module")
def served(browser: Chrome, translator: Translator) -> Iterator[Served]:
    """A server with the model of number words."""
    server = Served(lambda: translator)
    yield server
    server.stop()


@pytest.fixture
def serve_page(browser: Chrome) -> Iterator[Callable[..., tuple[Page, Served]]]:
    """Opens the page of a separate server; takes the arguments of `Served`."""
    servers: list[Served] = []

    def serve(load: Callable[[], Translator], token: str | None = None) -> tuple[Page, Served]:
        servers.append(Served(load, token))
        page = Page(browser, servers[-1].url)
        page.open()
        return page, servers[-1]

    yield serve
    browser.get("about:blank")
    for server in servers:
        server.stop()


@pytest.fixture
def page(browser: Chrome, served: Served) -> Iterator[Page]:
    """A fresh page without stored state; checks afterwards that no script failed and nothing was blocked."""
    page = Page(browser, served.url)
    browser.get(served.url + "health")  # of the same origin, and soon there
    page.run("localStorage.clear(); sessionStorage.clear()")
    browser.get_log("browser")
    page.open()
    page.until(lambda: "→" in browser.title)
    yield page
    serious = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert [entry for entry in serious if entry["source"] != "network"] == []
    assert set(page.run("return performance.getEntriesByType('resource').map(e => new URL(e.name).origin)")) == {
        served.url.rstrip("/")
    }
