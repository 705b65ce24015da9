"""The page in a real browser: what users do and see, compared with the responses of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("selenium", reason="pages are tested in a real browser")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

if TYPE_CHECKING:
    from multihead import Translator


def test_what_is_typed_is_translated(page: Any, served: Any) -> None:
    assert page.translate("eins zwei drei") == served.ask("eins zwei drei")["text"] == "one two three"
    assert page.find("#live").get_attribute("textContent") == "Translation: one two three"


def test_a_translation_grows_until_it_is_stopped(serve_page: Any, endless: Callable[[], Translator]) -> None:
    page, server = serve_page(endless)
    page.run("localStorage.setItem('multihead.settings', '{\"beam\": 1}')")  # greedy: partial texts only grow
    page.open()
    page.type("eins zwei drei")
    first = page.until(lambda: page.run("return document.querySelector('.line.running p')?.textContent"))
    # Records writes of attributes: those that concern the whole text must not be written for a partial translation.
    page.run(
        """window.written = 0;
        const observer = new MutationObserver((all) => (written += all.length));
        observer.observe(document.querySelector("#output"), { attributes: true });"""
    )
    second = page.until(lambda: page.translation if len(page.translation) > len(first) else "")
    assert second.startswith(first)
    assert page.run("return written") == 0
    page.press(Keys.ESCAPE)
    page.until(lambda: page.find(".remark").text == "Stopped.")
    assert page.run("return written") > 0
    page.until(lambda: server.metric("multihead_requests_in_hand") == 0)


def test_a_click_on_a_word_shows_where_it_looked(page: Any, served: Any) -> None:
    assert page.translate("eins zwei drei") == "one two three"
    reply = served.ask("eins zwei drei")["alignment"]
    for number, (word, source) in enumerate(zip(["one", "two", "three"], ["eins", "zwei", "drei"], strict=True)):
        page.word(number).click()
        expected = dict(zip(reply["source_words"], reply["weights"][number], strict=True))
        assert page.weights == {name: pytest.approx(w, abs=6e-4) for name, w in expected.items() if w >= 5e-4}
        assert max(page.weights, key=lambda name: page.weights[name]) == source
        assert page.find("#looked-word").text == word
        assert page.listed("looked")[0][0] == source
        assert page.word(number).get_attribute("aria-pressed") == "true"
        assert len(page.all("#links path")) == sum(weight >= 0.05 for weight in reply["weights"][number])
        assert source in page.find("#live").get_attribute("textContent")


def test_the_pointer_looks_ahead(page: Any) -> None:
    page.translate("eins zwei drei")
    threads = len(page.all("#links path"))
    assert threads == 3  # one for each word while none is selected
    page.word(0).click()
    for number, source in ((2, "drei"), (1, "zwei")):
        ActionChains(page.chrome).move_to_element(page.word(number)).perform()
        assert max(page.weights, key=lambda name: page.weights[name]) == source
        assert page.find("#looked-word").text == "one"
    ActionChains(page.chrome).move_to_element(page.find("h1")).perform()
    assert max(page.weights, key=lambda name: page.weights[name]) == "eins"


def test_threads_lead_from_the_source_word_to_the_word(page: Any) -> None:
    page.translate("eins zwei drei")
    page.word(1).click()
    ends = """
    const path = [...document.querySelectorAll("#links path")].at(-1);
    const frame = document.querySelector("#links").getBoundingClientRect();
    const points = [0, path.getTotalLength()].map((length) => path.getPointAtLength(length));
    return points.map((point) => [point.x + frame.x, point.y + frame.y]);"""
    mark = page.find(".mark[data-source='1']").rect
    word = page.word(1).rect
    start, end = page.run(ends)
    assert start == pytest.approx([mark["x"] + mark["width"] / 2, mark["y"] + mark["height"]], abs=1.5)
    assert end == pytest.approx([word["x"] + word["width"] / 2, word["y"]], abs=1.5)


def test_another_word_is_taken_and_given_back(page: Any, served: Any) -> None:
    page.translate("eins zwei drei")
    page.word(1).click()
    reply = served.ask("eins zwei drei")["alternatives"][1]
    reply = [other for other in reply if other["probability"] >= 0.001]
    assert [words for words, _ in page.listed("alternatives")] == [other["text"] for other in reply]
    page.all("#alternatives-list button")[0].click()
    begins = f"one {reply[0]['text']}"
    page.until(lambda: page.finished() and page.translation != "one two three")
    assert page.translation == served.ask("eins zwei drei", prefix=begins)["text"]
    assert page.translation.startswith(begins)
    assert page.focused.text == page.word(1).text  # and the user continues from there
    assert [word.text for word in page.all(".word.given")] == begins.split()
    page.find(".way").click()
    page.until(lambda: page.finished() and page.translation == "one two three")
    assert page.all(".word.given") == []


def test_the_best_are_listed_and_one_of_them_is_taken(page: Any, served: Any) -> None:
    page.translate("eins zwei drei")
    reply = served.ask("eins zwei drei")["n_best"]
    assert page.listed("others") == [(one["text"], f"{one['score']:.2f}".replace("-", "−")) for one in reply]
    page.all("#others-list button")[1].click()
    page.until(lambda: page.finished() and page.translation == reply[1]["text"])


def test_settings_are_asked_for_and_remembered(page: Any, served: Any) -> None:
    page.translate("eins zwei")
    page.find("summary").click()
    page.find("#beam").send_keys("3", Keys.TAB)
    page.until(lambda: page.finished() and len(page.listed("others")) == 3)
    reply = served.ask("eins zwei", beam=3, n_best=3)["n_best"]
    assert [words for words, _ in page.listed("others")] == [one["text"] for one in reply]
    page.open()
    page.until(lambda: page.find("#settings-summary").text == "beam 3, 3 listed")


def test_the_guard_says_what_it_doubts(page: Any, served: Any) -> None:
    texts = ["eins zwei", "Donaudampfschiff Kapitän xyzzy"]
    reply = [served.ask(text, guard="mark")["guard"] for text in texts]
    assert [verdict["suspicious"] for verdict in reply] == [False, True]

    def doubts() -> list[str]:
        return [remark.text for remark in page.all(".remark") if "Doubtful" in remark.text]

    page.translate("\n".join(texts))
    assert doubts() == []  # the guard is off by default
    page.find("summary").click()
    page.find("#guard").send_keys("mark it", Keys.TAB)
    page.until(lambda: page.finished() and doubts())
    assert doubts() == [f"Doubtful: {'; '.join(reply[1]['reasons'])}."]


def test_lines_are_translated_one_by_one_and_only_where_they_change(page: Any) -> None:
    asked = "return performance.getEntriesByType('resource').filter(e => e.name.endsWith('stream')).length"
    assert page.translate("eins zwei\n\ndrei") == "one two\n\nthree"
    before = page.run(asked)
    page.type(" vier")
    page.until(lambda: page.finished() and page.translation == "one two\n\nthree four")
    assert page.run(asked) == before + 1
    page.all(".word")[2].click()  # its attention is to the third line
    assert max(page.weights, key=lambda name: page.weights[name]) == "drei"


def test_a_selected_word_stays_selected_while_another_line_is_edited(page: Any) -> None:
    page.translate("eins zwei\n\ndrei")
    page.word(1).click()
    shades, threads = page.weights, len(page.all("#links path"))
    page.type(" vier")
    page.until(lambda: page.finished() and page.translation == "one two\n\nthree four")
    assert [word.text for word in page.all("[aria-pressed=true]")] == ["two"]
    assert [word.text for word in page.all(".word[tabindex='0']")] == ["two"]
    assert (page.weights, len(page.all("#links path"))) == (shades, threads)
    assert page.find("#looked-word").text == "two"


def test_many_lines_are_what_the_server_makes_of_the_whole(page: Any, served: Any) -> None:
    text = "\n".join(
        ["eins", "", "zwei drei", "vier fünf sechs", "   ", "sieben", "acht neun", "zehn", "null eins", ""]
    )
    assert page.translate(text) == served.ask(text)["text"]


def test_typing_on_cancels_what_is_not_finished(page: Any) -> None:
    page.run(
        """window.signals = []; const real = window.fetch;
        window.fetch = (where, how) => {
          if (!where.endsWith("stream")) return real(where, how);
          signals.push(how.signal);
          if (signals.length > 1) return real(where, how);
          return new Promise((_, no) => how.signal.addEventListener("abort", () => no(how.signal.reason)));
        };"""
    )
    page.type("eins")
    page.until(lambda: page.run("return signals.length") == 1)
    assert not page.run("return signals[0].aborted")
    page.type(" zwei")
    page.until(lambda: page.finished() and page.translation == "one two")
    assert page.run("return signals.map(s => s.aborted)")[0]
    assert not page.run("return signals.at(-1).aborted")


def test_keyboard_alone(page: Any) -> None:
    assert page.focused.get_attribute("id") == "source"
    page.press("eins zwei drei")
    page.until(page.finished)
    page.press(Keys.TAB)
    assert page.focused.text == "Copy"
    page.press(Keys.TAB)
    assert page.focused.text == "one"
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.focused.text == "three"
    assert max(page.weights, key=lambda name: page.weights[name]) == "drei"
    ring = page.run("const s = getComputedStyle(document.activeElement); return [s.outlineStyle, s.outlineWidth]")
    assert ring == ["solid", "2px"]
    page.press(Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    first, second = page.all("#alternatives-list button")[:2]
    assert page.focused == first
    page.press(Keys.ARROW_DOWN)
    assert page.focused == second
    page.press(Keys.ESCAPE)
    assert page.focused.text == "two"
    page.press(Keys.ESCAPE)
    assert page.focused.get_attribute("id") == "source"
    assert page.weights == {}
    assert not page.find("#looked").is_displayed()


def test_what_is_too_long_is_said_and_disturbs_nobody(page: Any, served: Any) -> None:
    page.translate("eins zwei\n" + "drei " * served.longest)
    assert [word.text for word in page.all(".word")] == ["one", "two"]
    assert f"at most {served.longest} are allowed" in page.find(".remark").text
    assert page.find("#count").text == f"{5 * served.longest:,} / {served.longest}"
    page.translate("eins zwei\ndrei")
    assert page.all(".remark") == []
    assert page.find("#count").text == ""


def test_the_focus_stays_where_a_line_can_be_tried_again(page: Any, served: Any) -> None:
    page.translate("eins zwei\n" + "drei " * served.longest)
    page.run("arguments[0].dataset.old = 'yes'", page.find(".way"))
    page.find(".way").send_keys(Keys.ENTER)
    page.until(lambda: page.all(".way:not([data-old])"))  # it was refused again
    assert page.focused == page.find(".way")


def test_a_server_that_is_gone_is_said_and_it_goes_on_when_it_is_back(page: Any, served: Any) -> None:
    page.translate("eins")
    served.stop()
    try:
        page.type(" zwei")
        page.until(lambda: page.find("#notice").is_displayed())
        assert page.find("#notice").aria_role == "alert"
        assert "cannot be reached" in page.find("#notice-text").text
        assert page.find("#source").get_property("value") == "eins zwei"
    finally:
        served.start()
    page.until(lambda: page.finished() and page.translation == "one two")
    assert not page.find("#notice").is_displayed()


def test_a_busy_server_is_asked_again_when_it_says_so(page: Any) -> None:
    page.run(
        """const real = window.fetch, notice = document.querySelector("#notice"); window.asked = window.aloud = 0;
        new MutationObserver((all) => (aloud += all.filter(({ target }) => !target.closest("[aria-hidden]")).length))
          .observe(notice, { childList: true, subtree: true });
        window.fetch = (where, how) => (!where.endsWith("stream") || asked++ > 0) ? real(where, how)
          : Promise.resolve(new Response('{"error": "queue_full", "message": "full"}',
              { status: 429, headers: { "Retry-After": "2" } }));"""
    )
    page.type("eins")
    page.until(lambda: page.find("#notice p").text == "The server is busy. Trying again in 2 s.")
    page.until(lambda: page.find("#notice p").text == "The server is busy. Trying again in 1 s.")
    assert page.run("return aloud") == 1  # not every second
    page.until(lambda: page.finished() and page.translation == "one")
    assert not page.find("#notice").is_displayed()


def test_what_is_not_from_the_server_is_as_if_it_were_gone(page: Any) -> None:
    """A proxy's page instead of the response."""
    kinds = page.imported(
        """const { Server } = await import("./static/api.js"), server = new Server();
        window.fetch = () => Promise.resolve(new Response("<!doctype html>"));
        const asked = [server.info({}), server.models(), server.pairs(), server.description(), server.translateAll({})];
        return (await Promise.allSettled(asked)).map(({ reason }) => reason.kind ?? reason.name);"""
    )
    assert kinds == ["offline"] * 5


def test_a_token_is_asked_for_where_there_is_one(serve_page: Any, translator: Translator) -> None:
    page, _ = serve_page(lambda: translator, token="open sesame")
    page.until(lambda: page.find("#token-form").is_displayed())
    assert page.find("#token").accessible_name == "Token"
    page.press("wrong", Keys.ENTER)
    page.until(lambda: page.find("#notice-text").text == "The server rejected this token.")
    page.find("#token").clear()
    page.find("#token").send_keys("open sesame", Keys.ENTER)
    page.until(lambda: not page.find("#notice").is_displayed())
    assert page.translate("eins zwei") == "one two"


def test_events_are_read_however_they_are_cut(page: Any) -> None:
    first = ': hello\r\n\r\nevent: partial\r\ndata: {"text":\r\ndata: "zwölf"}\r\n\r\n'
    stream = first + "data: x\n\nevent: none\n\ndata:y\r\rdata: a\u2028b\u2029c\n\n"
    found = page.imported(
        """const { eventsOf } = await import("./static/events.js");
        const bytes = new TextEncoder().encode(given[0]), all = [];
        for (let size = 1; size <= bytes.length; size++) {
          const stream = new ReadableStream({ start(to) {
            for (let at = 0; at < bytes.length; at += size) to.enqueue(bytes.slice(at, at + size));
            to.close();
          } });
          all.push([]);
          for await (const { event, data } of eventsOf(stream)) all.at(-1).push([event, data]);
        }
        return all;""",
        stream,
    )
    expected = [["partial", '{"text":\n"zwölf"}'], ["message", "x"], ["message", "y"]]
    expected += [["message", "a\u2028b\u2029c"]]
    assert found == [expected] * len(stream.encode())


def test_words_are_found_again_and_the_text_stays_what_it_is(page: Any) -> None:
    cases = {
        "one  two one": ["one", "two", "one"],
        " a a\ta ": ["a", "a", "a"],
        "": ["x"],
        "eins": ["ei", "ns"],
        "words that are not there": ["that", "nowhere", "there"],
        "ab abc ab": ["ab", "ab", "ab"],
    }
    found = page.imported(
        """const { locate, fill } = await import("./static/words.js");
        return Object.entries(given[0]).map(([text, words]) => {
          const made = words.map(() => null), whole = document.createElement("p");
          fill(whole, text, locate(text, words), (number, word) => (made[number] = word, new Text(word)));
          return [whole.textContent, made];
        });""",
        cases,
    )
    missing = {"x", "nowhere"}
    assert dict(found) == {text: [None if w in missing else w for w in words] for text, words in cases.items()}


def test_improbable_alternatives_are_not_shown(page: Any) -> None:
    shown = page.imported(
        """const { Inspector } = await import("./static/inspector.js");
        const alternatives = given[0].map((probability) => ({ text: `p${probability}`, probability }));
        const line = { text: "one", result: { n_best: [], alternatives: [alternatives], alignment: {
          source_words: ["eins"], target_words: ["one"], weights: [[1]], links: [] } } };
        new Inspector({}).show(line, 0);
        return document.querySelectorAll("#alternatives-list .words").length;""",
        [0.5, 0.001, 0.0009, 1e-9],
    )
    assert shown == 2
    assert [words for words, _ in page.listed("alternatives")] == ["p0.5", "p0.001"]
