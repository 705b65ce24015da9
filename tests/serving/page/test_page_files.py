"""Files on the page: as many lines come out as go in, with real progress, within the limits of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("selenium", reason="pages are tested in a real browser")

from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from multihead.data.text_files import read_lines

if TYPE_CHECKING:
    from multihead import Translator


@pytest.fixture
def give(page: Any, tmp_path: Path) -> Callable[[str, bytes], str]:
    """Chooses a file, waits until the page is done with it, and returns what the page then says."""

    def give(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        page.find("#file-input").send_keys(str(tmp_path / name))
        page.until(lambda: page.find("#file-choose").is_displayed())
        return str(page.find("#file-state").text)

    return give


@pytest.fixture
def downloads(page: Any, tmp_path: Path) -> Iterator[Callable[[], tuple[str, bytes]]]:
    """Follows the link to the translation; returns name and content of the file."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    page.chrome.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})

    def partial(path: Path) -> bool:
        return path.suffix == ".crdownload"

    def download() -> tuple[str, bytes]:
        page.find("#file-download").click()
        # Chromium reserves the name with an empty file, and moves the finished file over it.
        (path,) = page.until(lambda: [one for one in folder.iterdir() if not partial(one) and one.stat().st_size])
        found = path.name, path.read_bytes()
        path.unlink()
        return found

    yield download
    page.chrome.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "default"})


def test_the_lines_of_a_file_are_those_of_the_command(
    page: Any, give: Any, downloads: Any, translator: Translator, tmp_path: Path
) -> None:
    """Byte order mark, CR LF, other line separators, empty lines, a last line without an end."""
    rows = ["\ufeffeins zwei\r", "", "  ", "drei\u2028vier\x0bfünf", "sechs\r\r", *["sieben acht"] * 40, "neun\r"]
    content = "\n".join(rows).encode()
    assert give("a.de", content).startswith("a.de: done, 46 of 46 lines in ")
    lines = list(read_lines(tmp_path / "a.de"))
    assert len(lines) == 46
    assert downloads() == ("a.en", "".join(f"{line}\n" for line in translator.translate(lines)).encode())
    assert give("b.txt", b"eins\n\n").startswith("b.txt: done, 2 of 2 lines")
    assert downloads() == ("b_en.txt", b"one\n\n")


def test_progress_is_what_is_done_and_can_be_canceled(page: Any, give: Any, tmp_path: Path) -> None:
    page.run(
        """window.waiting = []; window.signals = []; const real = window.fetch;
        window.fetch = (where, how) => {
          if (where !== "translate") return real(where, how);
          signals.push(how.signal);
          return new Promise((go, no) => {
            how.signal.addEventListener("abort", () => no(how.signal.reason));
            waiting.push(() => go(real(where, how)));
          });
        };"""
    )
    (tmp_path / "a.txt").write_bytes(b"eins\n" * 50)
    page.run("document.querySelector('#file-input').focus()")
    page.find("#file-input").send_keys(str(tmp_path / "a.txt"))
    page.until(lambda: page.run("return waiting.length") == 2)
    assert page.focused == page.find("#file-cancel")
    seen = []
    for _ in range(2):
        bar = page.find("#file-progress")
        seen.append((bar.get_property("value"), bar.get_property("max"), page.find("#file-state").text))
        before = page.run("return waiting.length")
        page.run("waiting.shift()()")
        page.until(lambda before=before: page.run("return waiting.length") == before)
    assert seen == [(done, 50, f"a.txt: {done} of 50 lines") for done in (0, 16)]
    assert page.find("#file-progress").accessible_name == "Translate a file"
    page.find("#file-cancel").send_keys(Keys.ENTER)
    assert page.find("#file-state").text == "a.txt: canceled after 32 of 50 lines."
    assert page.run("return signals.slice(2).every((signal) => signal.aborted)")
    assert page.focused == page.find("#file-input")
    assert not page.find("#file-progress").is_displayed()
    assert not page.find("#file-download").is_displayed()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"eins\nzwei\n" + b"e" * 201, "Line 3: 201 characters; at most 200 are allowed per line."),
        ("a.txt", b"eins\nzw\xffei\ndrei", "Line 2 is not UTF-8 text. Save the file as UTF-8."),
        ("a.txt", b"", "The file is empty."),
        ("a.pdf", b"%PDF-1.7\n", ".pdf files are not supported; choose a text file, .html, .srt or .vtt."),
        ("a.srt", b"e" * 1_000_001, "The file has 1 MB; this server accepts at most 1 MB."),
        ("a.srt", b"\xff", "The file 'a.srt': expected UTF-8 text."),
    ],
)
def test_what_cannot_be_translated_is_said(page: Any, give: Any, name: str, content: bytes, said: str) -> None:
    assert give(name, content) == f"{name}: {said}"
    assert not page.find("#file-download").is_displayed()
    assert page.find("#live").get_attribute("textContent") == f"{name}: {said}"


@pytest.mark.parametrize("name", ["a.txt", "a.srt"])
def test_a_file_that_can_no_longer_be_read_is_said(page: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"1\n00:00:01,0 --> 00:00:02,0\neins\n")
    page.run("document.body.append(Object.assign(document.createElement('input'), {type: 'file', id: 'earlier'}))")
    page.find("#earlier").send_keys(str(tmp_path / name))
    (tmp_path / name).unlink()
    page.run(
        """const input = document.querySelector("#file-input");
        input.files = document.querySelector("#earlier").files;
        input.dispatchEvent(new Event("change"));"""
    )
    page.until(lambda: page.find("#file-choose").is_displayed())
    assert page.find("#file-state").text == f"{name}: The file cannot be read. If it has changed, choose it again."


def test_a_part_that_is_too_large_is_divided_and_its_line_named(page: Any, give: Any, downloads: Any) -> None:
    """Here the server takes three lines at a time, and rejects one word."""
    page.run(
        """window.sizes = []; const real = window.fetch;
        const refuse = (error, message) => new Response(JSON.stringify({ error, message }), { status: 422 });
        window.fetch = (where, how) => {
          if (where !== "translate") return real(where, how);
          const { text } = JSON.parse(how.body);
          sizes.push(text.length);
          if (text.length > 3) return Promise.resolve(refuse("too_many_sentences", "at most 3 are taken at once"));
          if (text.includes("acht")) return Promise.resolve(refuse("text_too_long", "at most 5 subwords are taken"));
          return real(where, how);
        };"""
    )
    assert give("a.txt", b"eins\nzwei\n" * 10).startswith("a.txt: done, 20 of 20 lines")
    assert downloads()[1] == b"one\ntwo\n" * 10
    assert max(page.run("return sizes")) == 16
    assert give("a.txt", b"eins\n" * 20 + b"acht\n" + b"eins\n" * 9) == "a.txt: Line 21: At most 5 subwords are taken."


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (429, "queue_full", "The server is busy."),
        (503, "model_unavailable", "De-en cannot be loaded now."),
    ],
)
def test_a_busy_server_is_waited_for(page: Any, give: Any, downloads: Any, status: int, error: str, said: str) -> None:
    page.run(
        """const real = window.fetch; window.asked = 0; window.said = [];
        new MutationObserver(() => said.push(document.querySelector("#file-state").textContent))
          .observe(document.querySelector("#file-state"), { childList: true });
        const [status, error] = arguments, content = { error, message: "de-en cannot be loaded now" };
        window.fetch = (where, how) => (where !== "translate" || asked++ > 0) ? real(where, how)
          : Promise.resolve(Response.json(content, { status, headers: { "Retry-After": "1" } }));""",
        status,
        error,
    )
    assert give("a.txt", b"eins\nzwei").startswith("a.txt: done")
    assert f"a.txt: 0 of 2 lines. {said} Continues automatically." in page.run("return said")
    assert downloads()[1] == b"one\ntwo\n"


def test_an_event_that_says_to_wait_does_not_say_how_long(page: Any) -> None:
    """The response has no Retry-After; a document must not be sent again every second."""
    found = page.imported(
        """const { Server } = await import("./static/api.js");
        const content = JSON.stringify({ error: "model_unavailable", message: "de-en cannot be loaded now" });
        window.fetch = () => Promise.resolve(new Response(`event: error\\ndata: ${content}\\n\\n`));
        const asked = new Server().translateDocument(new File(["eins"], "a.txt"), {}, undefined, () => {});
        return asked.catch(({ kind, after, message }) => [kind, after, message]);"""
    )
    assert found == ["busy", 5, "De-en cannot be loaded now."]


def test_a_file_canceled_while_the_server_is_looked_for_stays_canceled(page: Any) -> None:
    phases = page.imported(
        """const { FileTranslation } = await import("./static/file.js"), { Problem } = await import("./static/api.js");
        const server = {
          limits: {},
          translateAll: () => Promise.reject(new Problem("offline", "offline")),
          alive: async () => (one.cancel(), true),
        };
        const phases = [], file = new File(["eins"], "a.txt");
        const one = new FileTranslation(server, file, {}, {}, ({ phase }) => phases.push(phase));
        await one.run();
        return phases;"""
    )
    assert phases == ["running", "waiting", "canceled"]


def test_doubtful_lines_are_named(page: Any, give: Any, served: Any) -> None:
    page.find("summary").click()
    Select(page.find("#guard")).select_by_value("mark")
    strange = "Donaudampfschiff Kapitän xyzzy"
    answer = served.ask(strange, guard="mark")
    said = f"{answer['warning'].capitalize()}. Doubtful: {'; '.join(answer['guard']['reasons'])}."
    give("a.txt", f"eins\n{strange}\nzwei".encode())
    assert [one.text for one in page.all("#file-remarks li")] == [f"Line 2: {said}"]


def test_a_document_is_translated_with_progress(page: Any, give: Any, downloads: Any) -> None:
    cues = "".join(f"{number}\n00:00:01,0 --> 00:00:02,0\neins zwei\n\n" for number in range(1, 41))
    page.run(
        """window.values = [];
        new MutationObserver(() => values.push(document.querySelector("#file-progress").value))
          .observe(document.querySelector("#file-progress"), { attributeFilter: ["value"] });"""
    )
    assert give("a.srt", cues.encode()).startswith("a.srt: done, 40 of 40 passages in ")
    assert downloads() == ("a_en.srt", cues.replace("eins zwei", "one two").encode())
    assert sorted(set(page.run("return values")) - {0}) == [16, 32, 40]
    assert give("b.html", b"<p>eins <b>zwei</b></p>").startswith("b.html: done, 1 of 1 passages")
    assert b"<b>" in downloads()[1]
