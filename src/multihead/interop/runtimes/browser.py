"""A headless Chromium as the other side of a web folder's certificate.

The folder is served to the browser by this process. The browser can connect to nothing else. Its search has the same
arithmetic as our engine with int8 products, so whole translations are compared (`runtimes.EngineRuntime`).
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from copy import copy
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from multihead.decoding.hypothesis import Hypothesis
from multihead.decoding.search import Search
from multihead.errors import SurroundingsError, require_package
from multihead.interop.formats.parts import TranslatorParts
from multihead.platforms import is_administrator
from multihead.text.languages import Direction

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")

_SECONDS = 110
"""Patience with one script; the driver's client waits 120 s for an answer."""
_PART = 16
"""Lines of one script: a translation does not depend on the others, and large models are slow."""

_ANSWER = """
const done = arguments[arguments.length - 1], given = [...arguments].slice(0, -1);
(async () => { %s })().then((value) => done({ value }), (error) => done({ error: String(error) }));
"""

_TOKENIZERS = """
const { tokenizersOf } = await import("/vocabularies.js");
const { source, target } = tokenizersOf(await (await fetch("/model.json")).json());
"""


class _Handler(SimpleHTTPRequestHandler):
    extensions_map: ClassVar[dict[str, str]] = {  # type: ignore[misc]
        ".html": "text/html",
        ".js": "text/javascript",
        ".css": "text/css",
        ".json": "application/json",
        ".wasm": "application/wasm",
        "": "application/octet-stream",
    }

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class Site:
    """A folder behind HTTP on this machine, in a thread of its own.

    Args:
        folder: what to serve.
    """

    def __init__(self, folder: Path) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class BrowserRuntime:
    """An exported folder in a browser.

    Args:
        folder: it.
        chrome: a browser to use; by default a new headless one, which is closed at the end.

    Raises:
        MissingDependencyError: selenium, which drives the browser, is not installed.
        SurroundingsError: there is no Chromium with its chromedriver, or it does not start.
    """

    name = "Chromium"

    def __init__(self, folder: Path, chrome: Chrome | None = None) -> None:
        self._stack = ExitStack()
        try:
            self._chrome = chrome or self._stack.enter_context(_headless())
            site = Site(folder)
            self._stack.callback(site.close)
            self._chrome.set_script_timeout(_SECONDS)
            self._chrome.get(site.url + "package.json")  # a page of this origin without scripts
            self._loaded = False
        except BaseException:
            self._stack.close()
            raise
        self.version = str(self._chrome.capabilities["browserVersion"])
        self._languages: dict[str, str | None] = {}

    def toward(self, direction: Direction) -> BrowserRuntime:
        """The same page, whose model is asked for one of its directions."""
        other = copy(self)
        other._languages = direction._asdict()
        return other

    def __enter__(self) -> BrowserRuntime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from selenium.common.exceptions import WebDriverException

        with self._stack, suppress(WebDriverException):  # a browser that does not answer is closed, too
            self._chrome.get("about:blank")

    def encode(self, texts: Sequence[str]) -> list[list[int]] | None:
        """By tokenizer.js."""
        script = _TOKENIZERS + (
            "const own = given[1] ? source.toward(given[1]) : source; return given[0].map((text) => own.encode(text));"
        )
        found: list[list[int]] = self.run(script, list(texts), self._languages.get("target"))
        return found

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str] | None:
        """By tokenizer.js."""
        script = _TOKENIZERS + "return given[0].map((row) => target.decode(row));"
        found: list[str] = self.run(script, [list(row) for row in rows])
        return found

    def translations(self, texts: Sequence[str], search: Search) -> list[Hypothesis]:
        """By multihead.js, each text as one sentence."""
        if not self._loaded:
            self.run('const { load } = await import("/multihead.js"); window.translator = await load("/");')
            self._loaded = True
        changes = {"beam": search.beam, "alpha": search.alpha, "sentences": "never", **self._languages}
        script = "return await window.translator.translations(given[0], given[1]);"
        parts = (list(texts[start : start + _PART]) for start in range(0, len(texts), _PART))
        found = [one for part in parts for one in self.run(script, part, changes)]
        return [Hypothesis(tuple(one["ids"]), one["logProbability"], one["score"], one["finished"]) for one in found]

    def run(self, script: str, *given: Any) -> Any:
        """The result of a script that may await; ``given`` are its arguments.

        Raises:
            SurroundingsError: the script failed, or took too long.
        """
        from selenium.common.exceptions import WebDriverException

        try:
            result = self._chrome.execute_async_script(_ANSWER % script, *given)
        except WebDriverException as error:
            reason = (error.msg or "no reason").strip().partition("\n")[0]
            raise SurroundingsError(
                f"Chromium {self.version} does not answer within {_SECONDS} s ({reason}): repeat it when the machine "
                "is less busy, or write --no-certificate"
            ) from None
        if "error" in result:
            raise SurroundingsError(f"the page fails in Chromium {self.version}: {result['error']}")
        return result.get("value")


def open_folder(folder: Path, _parts: TranslatorParts, _quantization: str) -> BrowserRuntime:
    """A browser with the folder.

    Raises:
        MissingDependencyError, SurroundingsError: as `BrowserRuntime`.
    """
    return BrowserRuntime(folder)


class _headless(ExitStack):  # noqa: N801 - used as a function
    """A headless browser that can connect to this machine only, with a profile that is removed afterwards."""

    def __enter__(self) -> Chrome:  # type: ignore[override]
        require_package("selenium.webdriver", "browser", "comparing both sides in a browser")
        from selenium.common.exceptions import WebDriverException
        from selenium.webdriver import Chrome, ChromeOptions, ChromeService

        binary = next(filter(None, map(shutil.which, _BROWSERS)), None)
        driver = shutil.which("chromedriver")
        if binary is None or driver is None:
            raise SurroundingsError(
                f"there is no {'chromedriver' if binary else 'browser (chromium)'} to compare both sides: install "
                "chromium and chromedriver, or write --no-certificate"
            )
        options = ChromeOptions()
        options.binary_location = binary
        profile = self.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        words = [
            *("headless", "disable-gpu", "no-first-run", "disable-dev-shm-usage", "disable-background-networking"),
            *("disable-component-update", "disable-sync", f"user-data-dir={profile}"),
            "host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
            *(["no-sandbox"] if is_administrator() else []),
        ]
        for word in words:
            options.add_argument(f"--{word}")
        try:
            chrome = Chrome(options=options, service=ChromeService(driver))
        except WebDriverException as error:
            raise SurroundingsError(f"{binary} does not start: {error.msg}; or write --no-certificate") from None
        self.callback(chrome.quit)
        return chrome
