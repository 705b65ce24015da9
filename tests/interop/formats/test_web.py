"""The web export in a real browser: ids, texts and translations are those of Python."""

from __future__ import annotations

import importlib.util
import io
import json
import random
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
import torch

pytest.importorskip("selenium", reason="pages are tested in a real browser")

from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from selenium.webdriver.support.wait import WebDriverWait

from multihead.bundle import Bundle, save_bundle
from multihead.decoding.search import Search
from multihead.errors import SurroundingsError
from multihead.interop.certificate import Terms, certify
from multihead.interop.exporting import ExportOptions, _certify_directions, export_model
from multihead.interop.formats import web
from multihead.interop.formats.parts import TranslatorParts
from multihead.interop.lines import Lines, random_lines
from multihead.interop.our_side import OurSide
from multihead.interop.runtimes.browser import BrowserRuntime, Site
from multihead.models.config import TransformerConfig
from multihead.models.transformer import Transformer
from multihead.text.backwards import BackwardsTokenizer
from multihead.text.foreign import SpecialIds
from multihead.text.language_tokens import LanguageTokenizer
from multihead.text.languages import Direction, Languages
from multihead.text.sentencepiece import SentencePieceTokenizer, own_pieces
from multihead.text.tokenizer import BytePairTokenizer, Tokenizer

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

ROOT = Path(__file__).resolve().parents[3]
EXACT = web.allowed("int8") < 0.1
"""Whether our engine computes the bits of the browser on this processor."""

Open = Callable[[TranslatorParts], BrowserRuntime]

WIDE = {"width": 128, "heads": 4, "inner": 160, "encoder_layers": 1, "decoder_layers": 1}
MODELS = {
    "tiny": WIDE,
    "narrow": {},
    "post-norm, learned, gelu": {"norm": "post", "positions": "learned", "max_positions": 30, "feed_forward": "gelu"},
    "grouped, swiglu": {**WIDE, "kv_heads": 2, "feed_forward": "swiglu"},
    "halves, bias": {**WIDE, "sinusoid": "halves", "output_bias": True, "feed_forward": "silu"},
    "rotary, grouped": {**WIDE, "positions": "rotary", "kv_heads": 2},
    "linear positions, query-key norm, window": {
        **WIDE,
        "positions": "alibi",
        "query_key_norm": "rms",
        "encoder_window": 2,
    },
    "parallel blocks": {**WIDE, "norm": "pre", "block": "parallel", "feed_forward": "swiglu"},
    "no positions": {**WIDE, "positions": "none"},
    "fairseq, separate, norm": {"sinusoid": "fairseq", "shared": False, "tie_output": False, "embedding_norm": True},
}


@pytest.fixture(scope="module")
def open_site(browser: Chrome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """Exports a translator and opens the folder in the browser."""
    opened: list[BrowserRuntime] = []

    def open_it(parts: TranslatorParts) -> BrowserRuntime:
        folder = tmp_path_factory.mktemp("site")
        web.write(parts, folder)
        opened.append(BrowserRuntime(folder, browser))
        return opened[-1]

    yield open_it
    for runtime in opened:
        runtime.__exit__(None, None, None)


@pytest.mark.parametrize("name", MODELS)
def test_translations_are_those_of_the_engine(
    name: str, make_parts: Callable[..., TranslatorParts], open_site: Open
) -> None:
    parts = make_parts(**MODELS[name])
    lines = random_lines(parts.source_tokenizer, 40 if name == "tiny" else 15, seed=3)
    runtime, ours = open_site(parts), OurSide(parts)
    sources = [[*ids, parts.source_tokenizer.eos_id] for ids in ours.encode(lines)]
    for beam in (1, 4):
        search = parts.generation.model_copy(update={"beam": beam})
        mine, theirs = ours.translate_int8(sources, search), runtime.translations(lines, search)
        same = [(one, other) for one, other in zip(mine, theirs, strict=True) if one.tokens == other.tokens]
        assert len(same) >= (len(lines) if EXACT else 0.8 * len(lines))
        for one, other in same:
            assert other.log_probability == pytest.approx(one.log_probability, abs=web.allowed("int8"))
            assert other.score == pytest.approx(one.score, abs=web.allowed("int8"))
            assert other.finished == one.finished


def test_the_certificate_passes_and_sees_another_model(
    make_parts: Callable[..., TranslatorParts], open_site: Open
) -> None:
    parts = make_parts()
    terms = Terms("web", Lines(random_lines(parts.source_tokenizer, 20, 1), "random"), 3, web.allowed("int8"), "int8")
    found = certify(web.represented(parts, "int8"), open_site(parts), terms)
    assert found.state == "passed", found.reason
    assert found.scores is not None
    assert [one.lines for one in found.searches] == [20, 20]
    if EXACT:
        assert [one.equal for one in found.searches] == [20, 20]
    name = "decoder.0.feed_forward.expand.weight"
    other = replace(parts, weights={**parts.weights, name: -parts.weights[name]})
    assert certify(web.represented(parts, "int8"), open_site(other), terms).state == "failed"


def test_a_browser_that_does_not_answer_is_an_error_and_is_closed(tmp_path: Path) -> None:
    from selenium.common.exceptions import TimeoutException

    class Stuck:
        capabilities: ClassVar[dict[str, str]] = {"browserVersion": "1"}

        def set_script_timeout(self, seconds: float) -> None: ...

        def get(self, url: str) -> None:
            if url == "about:blank":
                raise TimeoutException("the renderer is busy")

        def execute_async_script(self, *given: object) -> object:
            raise TimeoutException("script timeout\nwith a trace")

    runtime = BrowserRuntime(tmp_path, cast(Any, Stuck()))
    closed: list[int] = []
    runtime._stack.callback(closed.append, 1)
    with (
        pytest.raises(SurroundingsError, match=r"^Chromium 1 does not answer within 110 s \(script timeout\)"),
        runtime,
    ):
        runtime.run("return 1;")
    assert closed == [1]


def hostile_texts(tokenizer: BytePairTokenizer) -> list[str]:
    """Texts of all scripts, random ones, and those that a tokenizer gets wrong first."""
    draw = random.Random(1)
    assigned = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cs", "Cn")]
    common = "aäbß .,-'’\"12३ \t\u00a0\u200d\u0301ñ語한👍🏽🇩🇪▁ْم"
    texts = [
        *("", " ", "  ", "▁", " ▁", "▁ ", "▁▁a", "a▁b ▁ c", "\ufeffa", "a\ufeff", "\x00\x1f\x85\u2028", "</s>"),
        *("Ein Hund rennt.", "  zwei   Hunde  ", "1234,56 €", "नमस्ते दुनिया", "می‌خواهم", "สวัสดีชาวโลก", "私は学生です。"),
        *("e\u0301\u0301\u0301", "\u0301e", "👩\u200d👩\u200d👧", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "\U0010ffff\U000e0001"),
        *("a" * 3000, "ab" * 700 + " " * 500),
        *("".join(draw.choices(assigned, k=draw.randint(1, 30))) for _ in range(400)),
        *("".join(draw.choices(common, k=draw.randint(1, 25))) for _ in range(400)),
        *random_lines(tokenizer, 100, 2),
    ]
    everything = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    return [*texts, *(" ".join(everything[i : i + 997]) for i in range(0, 0x3200, 997))]


def test_ids_are_those_of_python(tokenizer: BytePairTokenizer, make_parts: Any, open_site: Open) -> None:
    runtime = open_site(make_parts())
    texts = hostile_texts(tokenizer)
    expected = tokenizer.encode_batch(texts)
    found = runtime.encode(texts)
    assert found is not None
    assert [text for text, one, other in zip(texts, expected, found, strict=True) if one != other] == []
    assert runtime.decode(expected) == texts


def test_ids_of_all_characters_are_those_of_python(
    tokenizer: BytePairTokenizer, make_parts: Any, open_site: Open
) -> None:
    """Classes of characters as the library knows them: where pieces begin decides which merges are possible."""
    script = """
    const { BytePairTokenizer } = await import("/tokenizer.js");
    const { source_tokenizer: parts } = await (await fetch("/model.json")).json();
    const tokenizer = new BytePairTokenizer(parts), found = [];
    for (let code = 0; code < 0x110000; code++) {
      if (code >= 0xd800 && code < 0xe000) continue;
      const text = "▁a" + String.fromCodePoint(code) + "a▁";
      found.push([...tokenizer.split(text)].length);
    }
    return found;
    """
    cut = tokenizer._backend.pre_tokenizer.pre_tokenize_str
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    found = open_site(make_parts()).run(script)
    # Every character of the first planes, where letters are; every hundredth of the rest.
    some = [i for i, code in enumerate(codes) if code < 0x3500 or 0xA000 <= code < 0xABFF or code % 100 == 0]
    assert [hex(codes[i]) for i in some if found[i] != len(cut(f"▁a{chr(codes[i])}a▁"))] == []


def test_texts_are_those_of_python(tokenizer: BytePairTokenizer, make_parts: Any, open_site: Open) -> None:
    """Bytes that are not UTF-8, in any order."""
    draw = random.Random(2)
    rows = [[draw.randrange(len(tokenizer)) for _ in range(draw.randint(0, 12))] for _ in range(300)]
    high = [4 + byte for byte in b"A\x80\xbf\xc3\xc0\xe2\x96\x81\xed\xa0\xf0\x9f\xf4\x90\xff "]
    rows += [draw.choices(high, k=draw.randint(1, 8)) for _ in range(700)]
    rows += [tokenizer.encode("\ufeffa"), [4 + byte for byte in b"\xef\xbb\xbfa"]]
    assert open_site(make_parts()).decode(rows) == tokenizer.decode_batch(rows)


@pytest.fixture(scope="module", params=["nmt_nfkc", "identity, bytes"])
def unigram(request: pytest.FixtureRequest) -> SentencePieceTokenizer:
    """A unigram model with the ids of another program, as OPUS-MT has it."""
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("google.protobuf")
    content = io.BytesIO()
    rule, _, fallback = request.param.partition(", ")
    words = [
        "Ein",
        "Hund",
        "rennt",
        "und",
        "Hunde",
        "rennen",
        "im",
        "Park",
        "mit",
        "12",
        "Bällen",
        "345",
        "Wörter",
        "„Zeichen“",
        "schlafen",
        "schläft",
    ]
    draw = random.Random(4)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(" ".join(draw.choices(words, k=8)) for _ in range(300)),
        model_writer=content, vocab_size=400, hard_vocab_limit=False, model_type="unigram", character_coverage=0.98,
        normalization_rule_name=rule, byte_fallback=bool(fallback), user_defined_symbols=["<sep>", "12"],
        remove_extra_whitespaces=not fallback, minloglevel=2,
    )  # fmt: skip
    names = own_pieces(content.getvalue())
    vocabulary = [
        "</s>",
        "<unk>",
        *[name for name in names if name not in ("<s>", "</s>", "<unk>")][::-1],
        "ω",
        "<pad>",
    ]
    last = len(vocabulary) - 1
    specials = SpecialIds(pad=last, unk=1, bos=last, eos=0)
    return SentencePieceTokenizer(content.getvalue(), vocabulary, specials, prefix=() if fallback else (5,))


def test_unigram_models_are_those_of_sentencepiece(
    unigram: SentencePieceTokenizer, tokenizer: BytePairTokenizer, open_site: Open
) -> None:
    """A post-norm network with a vocabulary of another program: ids, texts and translations."""
    sizes = {"width": 32, "heads": 2, "inner": 32, "encoder_layers": 1, "decoder_layers": 1, "norm": "post"}
    vocabulary = {"source_vocab": len(unigram), "target_vocab": len(unigram), "padding_id": unigram.pad_id}
    torch.manual_seed(3)
    config = TransformerConfig(**sizes, **vocabulary, tie_embeddings=True, output_bias=True)
    target = SentencePieceTokenizer(unigram.model, unigram.vocabulary, unigram.specials)
    weights = dict(Transformer(config).named_parameters())
    parts = TranslatorParts(config, weights, unigram, target, Search(beam=2, length_factor=1, length_margin=2))
    assert web.refusals(parts) == []
    runtime, ours = open_site(parts), OurSide(parts)
    extra = ["ω ωω a", "<sep>a <sep> 12 <s> </s> <unk>", "ﬁ ½ Ａ ㍿ ﷺ  a\u3000b", "x\u00ad\u200by", "\u3000 a \u3000"]
    texts = [*hostile_texts(tokenizer), *extra]
    expected, found = unigram.encode_batch(texts), runtime.encode(texts)
    assert found is not None
    assert [text for text, one, other in zip(texts, expected, found, strict=True) if one != other] == []
    assert runtime.decode(expected) == target.decode_batch(expected)
    lines = [text for text in texts if text.strip() and "\n" not in text and 2 < len(unigram.encode(text)) < 30][:40]
    mine = ours.translate_int8([ours.ended(ids) for ids in ours.encode(lines)], parts.generation)
    if EXACT:
        assert [one.tokens for one in runtime.translations(lines, parts.generation)] == [one.tokens for one in mine]


def test_lone_surrogates_are_refused(make_parts: Any, open_site: Open) -> None:
    script = 'const { BytePairTokenizer: T } = await import("/tokenizer.js");' + (
        'const settings = await (await fetch("/model.json")).json();'
        'try { new T(settings.source_tokenizer).encode("a\\ud800"); } catch (error) { return error.name; }'
    )
    assert open_site(make_parts()).run(script) == "RangeError"


def test_lines_and_sentences(make_parts: Any, open_site: Open) -> None:
    """Line breaks and space between sentences remain; empty lines stay empty; long lines are cut."""
    runtime = open_site(make_parts())
    script = """
    const { load } = await import("/multihead.js");
    const translator = await load();
    const [one, two] = await translator.translate(["Ein Hund.", "Zwei Hunde."], { sentences: "never" });
    const checks = {
      lines: (await translator.translate("Ein Hund.\\n\\n \\nZwei Hunde.\\n")) === `${one}\\n\\n\\n${two}\\n`,
      sentences: (await translator.translate("Ein Hund.  Zwei Hunde.", { sentences: true })) === `${one}  ${two}`,
      empty: (await translator.translate("")) === "",
      long: (await translator.translations([Array(200).fill("Hund").join(" ")]))[0].ids.length > 0,
    };
    const stop = new AbortController();
    const slow = translator.translate(Array(3000).fill("Ein Hund rennt. ".repeat(8)), { signal: stop.signal });
    setTimeout(() => stop.abort(), 20);
    checks.stopped = await slow.catch((error) => error.name);
    checks.beam = await translator.translate("Hund", { beam: 0 }).catch((error) => error.message);
    translator.close();
    checks.missing = await load("/nowhere/").catch((error) => error.message);
    return checks;
    """
    found = runtime.run(script)
    assert {name: found[name] for name in ("lines", "sentences", "empty", "long")} == dict.fromkeys(
        ("lines", "sentences", "empty", "long"), True
    )
    assert found["stopped"] == "AbortError"
    assert "1 to 255" in found["beam"]
    assert "404" in found["missing"]


def test_line_ends_of_windows_remain(make_parts: Any, open_site: Open) -> None:
    """A carriage return before a line feed ends the line, and is no part of its sentence."""
    script = """
    const { load } = await import("/multihead.js");
    const translator = await load();
    const [one, two] = await translator.translate(["Ein Hund.", "Zwei Hunde."], { sentences: "never" });
    const text = "Ein Hund.\\r\\n\\r\\n \\r\\nZwei Hunde.\\r\\n", found = [];
    for (const sentences of ["never", false, true]) found.push(await translator.translate(text, { sentences }));
    translator.close();
    return [found, `${one}\\r\\n\\r\\n\\r\\n${two}\\r\\n`];
    """
    found, expected = open_site(make_parts()).run(script)
    assert found == [expected] * 3


def test_an_undefined_option_is_the_model_s_own_and_wrong_ones_are_refused(make_parts: Any, open_site: Open) -> None:
    script = """
    const { load } = await import("/multihead.js");
    const translator = await load(), asked = (options) => translator.translate("Ein Hund rennt.", options);
    const names = ["beam", "alpha", "min_length", "max_length", "source", "target", "sentences", "beem"];
    const unset = Object.fromEntries(names.map((name) => [name, undefined]));
    const described = (error) => `${error.name}: ${error.message}`, refused = [], found = [];
    for (const options of given[0]) refused.push(await asked(options).catch(described));
    for (const options of [undefined, unset, { max_length: null }, { min_length: 0 }, translator.search]) {
      found.push(await asked(options));
    }
    const [short] = await translator.translations(["Ein Hund rennt."], { max_length: 1 });
    translator.close();
    return [refused, found, short.ids.length];
    """
    wrong: dict[str, dict[str, Any]] = {
        "RangeError: min_length: expected a whole number from 0 to 16384, got -1": {"min_length": -1},
        "RangeError: min_length: expected a whole number from 0 to 16384, got 1.5": {"min_length": 1.5},
        "RangeError: max_length: expected a whole number from 1 to 1048576, or null, got 0": {"max_length": 0},
        "RangeError: max_length: expected a whole number from 1 to 1048576, or null, got 5": {"max_length": "5"},
        "RangeError: length_factor: expected more than 0, up to 100, got null": {"length_factor": None},
        "RangeError: stopping: expected exact or ahead or patience, got soon": {"stopping": "soon"},
        "RangeError: max_length counts the end symbol, too: expected more than min_length, "
        "got max_length 3 and min_length 3": {"min_length": 3, "max_length": 3},
        "TypeError: there is no option beem, maxLength; expected beam, alpha, length_factor, length_margin, "
        "min_length, max_length, min_factor, length_penalty, stopping, patience, source, target, sentences, signal, "
        "progress": {"beem": 1, "maxLength": 5, "beam": 1},
    }
    refused, found, short = open_site(make_parts()).run(script, list(wrong.values()))
    assert refused == list(wrong)
    assert found == [found[0]] * len(found)
    assert short <= 1


def test_the_limits_of_the_options_are_those_of_python() -> None:
    """Except for beam and alpha, which have lower limits on a page."""
    script = (web.SITE / "translator.js").read_text(encoding="utf-8")
    fields = script.partition("const FIELDS = {")[2].partition("};")[0]
    rows = dict(re.findall(r"^  (\w+): (.*),$", fields, re.MULTILINE))
    assert list(rows) == list(web._SEARCH)
    properties = Search.model_json_schema()["properties"]
    for name, rule in rows.items():
        known = properties[name]
        number = next((one for one in known.get("anyOf", [known]) if one["type"] != "null"), known)
        written = list(map(int, re.findall(r"\d+", rule)))
        if name in ("beam", "alpha"):
            assert written[0] == number["minimum"]
            assert written[1] <= number["maximum"]
        elif rule.startswith("among"):
            assert re.findall(r'"(\w+)"', rule) == known["enum"]
        elif rule.startswith("positive"):
            assert [0, *written] == [number["exclusiveMinimum"], number["maximum"]]
        else:
            assert written == [number["minimum"], number["maximum"]]


def test_requests_in_flight_at_once_are_those_one_after_the_other(make_parts: Any, open_site: Open) -> None:
    """A longer request makes the table of positions grow while a running search still reads it."""
    script = """
    const { fetchModel } = await import("/loading.js");
    const { LocalTranslator } = await import("/translator.js");
    const { settings, weights, module } = await fetchModel(new URL("/", location.href));
    const translator = new LocalTranslator(settings, weights, module);
    const open = translator.engine.open.bind(translator.engine);
    translator.engine.open = (...given) => {
      const search = open(...given), run = search.run.bind(search);
      return Object.assign(search, { run: () => run(0) }); // a step, and then another request has its turn
    };
    const ask = async (text) => (await translator.translate([text], { sentences: "never", min_length: 6 }))[0];
    const together = await Promise.all(given[0].map(ask)), alone = [];
    for (const text of given[0]) alone.push(await ask(text));
    return [together, alone];
    """
    parts = make_parts(**WIDE)
    texts = [" ".join(["Hund"] * words) for words in (1, 3, 8, 20, 45)]
    together, alone = open_site(parts).run(script, texts)
    assert min(len(one["ids"]) for one in alone) >= 6
    assert together == alone


def test_a_closed_translator_rejects_and_a_signal_keeps_no_listener(make_parts: Any, open_site: Open) -> None:
    script = """
    const { load } = await import("/multihead.js");
    const translator = await load("/"), { signal } = new AbortController();
    let listeners = 0;
    for (const [name, by] of [["addEventListener", 1], ["removeEventListener", -1]]) {
      signal[name] = (...given) => ((listeners += by), EventTarget.prototype[name].apply(signal, given));
    }
    for (const text of ["Hund", "Park"]) await translator.translate(text, { signal });
    const names = [];
    const late = [translator.translate("Hund")];
    translator.close();
    late.push(translator.translate("Hund"));
    for (const one of late) await one.catch((error) => names.push(error.name));
    return [listeners, ...names];
    """
    assert open_site(make_parts()).run(script) == [0, "AbortError", "AbortError"]


def test_memory_that_the_browser_refuses_is_an_error(make_parts: Any, open_site: Open) -> None:
    script = """
    const { Engine } = await import("/engine.js");
    const engine = Object.create(Engine.prototype);
    engine.wasm = { allocate: (bytes) => bytes - 16 };
    try { engine.allocate(16); } catch (error) { return [engine.allocate(8), error.message]; }
    """
    address, message = open_site(make_parts()).run(script)
    assert address == 2**32 - 8
    assert message == "too little memory for this model: the browser refused 16 more bytes"


def paste(browser: Chrome, text: str) -> None:
    """Enter a text at once: the page translates the text 150 ms after the last key."""
    script = "arguments[0].focus(); document.execCommand('insertText', false, arguments[1])"
    browser.execute_script(script, browser.find_element(By.ID, "source"), text)


def test_the_page_translates_what_is_typed(
    browser: Chrome, make_parts: Callable[..., TranslatorParts], tmp_path: Path
) -> None:
    parts = make_parts()
    web.write(parts, tmp_path)
    ours = OurSide(parts)
    ids = [[*ours.encode([text])[0], parts.source_tokenizer.eos_id] for text in ("Zwei Hunde rennen.", "Ein Park.")]
    expected = "\n".join(ours.decode([one.tokens for one in ours.translate_int8(ids, parts.generation)]))
    site = Site(tmp_path)
    browser.get_log("browser")
    try:
        browser.get(site.url)
        wait = WebDriverWait(browser, 20, 0.02)
        wait.until(lambda _: browser.find_element(By.ID, "state").text == "Ready.")
        assert browser.title == "German → English"
        paste(browser, "Zwei Hunde rennen.\nEin Park.")
        wait.until(lambda _: browser.find_element(By.ID, "state").text.startswith("Translated"))
        if EXACT:
            assert browser.find_element(By.ID, "translation").get_attribute("value") == expected
        for code, title in (("de", "Deutsch → Englisch"), ("zh", "德语 → 英语"), ("fr", "allemand → anglais")):
            Select(browser.find_element(By.ID, "language")).select_by_value(code)
            assert browser.title == title
            words = browser.execute_script(
                "return [...document.querySelectorAll('#copy, .note, #state, [for]')].map((one) => one.textContent)"
            )
            assert all(words)
            assert not {"Copy the translation", "Text", "Translation"} & set(words)
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
        names = browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
        assert all(name.startswith((site.url, "data:")) for name in names)
        browser.get(site.url + "example.html")
        wait.until(lambda _: "is ready" in browser.find_element(By.TAG_NAME, "output").text)
        browser.find_element(By.NAME, "text").send_keys("Ein Park.")
        browser.find_element(By.TAG_NAME, "button").click()
        wait.until(lambda _: "is ready" not in browser.find_element(By.TAG_NAME, "output").text)
    finally:
        browser.get("about:blank")
        site.close()


@pytest.fixture
def held(browser: Chrome) -> Iterator[Callable[..., None]]:
    """The page with a thread that records requests; a call answers one, by number and kind."""
    script = """window.asked = [];
    window.Worker = class {
      constructor() { window.worker = this; }
      postMessage({ number, kind }) { asked.push([number, kind]); }
    };"""
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
    site = Site(web.SITE)
    browser.get_log("browser")
    browser.get(site.url)

    def answer(number: int, kind: str, **given: Any) -> None:
        wait = WebDriverWait(browser, 20, 0.02)
        wait.until(lambda _: [number, kind] in browser.execute_script("return asked"))
        browser.execute_script("worker.onmessage({ data: { number: arguments[0], ...arguments[1] } })", number, given)

    yield answer
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    browser.get("about:blank")
    site.close()
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


LOADED = {"source": "de", "target": "en", "directions": [], "search": {}}


def test_a_translation_that_comes_too_late_is_not_shown(browser: Chrome, held: Callable[..., None]) -> None:
    translation = browser.find_element(By.ID, "translation")
    held(1, "load", result=LOADED)
    paste(browser, "eins")
    held(2, "translate", progress={"done": 0, "all": 1})
    paste(browser, " zwei")
    held(3, "translate", progress={"done": 0, "all": 1})
    held(2, "stop", result=[{"text": "one", "finished": True}])  # it was on its way
    assert (translation.get_attribute("value"), translation.get_attribute("aria-busy")) == ("", "true")
    held(3, "translate", result=[{"text": "one two", "finished": True}])
    assert (translation.get_attribute("value"), translation.get_attribute("aria-busy")) == ("one two", "false")


def test_the_state_is_read_aloud_once(browser: Chrome, held: Callable[..., None]) -> None:
    """Each sentence is written once, and the part that changes with every block of bytes is marked as busy."""
    browser.execute_script(
        """window.said = []; const state = document.getElementById("state");
        const added = ({ addedNodes }) => [...addedNodes].map(({ data }) => [data, state.getAttribute("aria-busy")]);
        new MutationObserver((all) => said.push(...all.flatMap(added))).observe(state, { childList: true });"""
    )
    for done in (1, 1, 2):
        held(1, "load", progress={"done": done * 1e6, "all": 2e6})
    held(1, "load", result=LOADED)
    paste(browser, "eins")
    for done in (0, 1, 2):
        held(2, "translate", progress={"done": done, "all": 3})
    held(2, "translate", result=[{"text": "one", "finished": True}])
    *said, (last, busy) = browser.execute_script("return said")
    assert said == [
        ["Loading, 1 of 2 MB.", "true"],
        ["Loading, 2 of 2 MB.", "true"],
        ["Ready.", "false"],
        ["Translating.", "true"],
    ]
    assert last.startswith("Translated in")
    assert busy == "false"


# --------------------------------------------------------------------------- several directions


@pytest.fixture(scope="module")
def several(tokenizer: BytePairTokenizer) -> TranslatorParts:
    """A model of two directions, by symbols of languages."""
    both = LanguageTokenizer(tokenizer, ["de", "en"])
    sizes = {"width": 16, "heads": 2, "inner": 24, "encoder_layers": 1, "decoder_layers": 1, "tie_embeddings": True}
    config = TransformerConfig(source_vocab=len(both), target_vocab=len(both), **sizes)
    torch.manual_seed(3)
    weights = {name: 3 * value if value.dim() > 1 else value for name, value in Transformer(config).named_parameters()}
    directions = (Direction("de", "en"), Direction("en", "de"))
    search = Search(beam=2, length_factor=1, length_margin=2)
    return TranslatorParts(config, weights, both, both, search, directions=directions)


def test_the_symbol_of_the_chosen_language_begins_every_source(several: TranslatorParts, open_site: Open) -> None:
    assert web.refusals(several) == []
    page, lines = open_site(several), ["Zwei Hunde rennen.", "", ">>de<< Park"]
    texts, found = [line for line in lines if line], dict[Direction, Any]()
    for direction in several.directions:
        own, there = several.toward(direction), page.toward(direction)
        expected = own.source_tokenizer.encode_batch(lines)
        assert there.encode(lines) == expected
        assert expected[0][0] == several.source_tokenizer.id_of(direction.target)  # type: ignore[attr-defined]
        assert there.decode([[*row, len(several.source_tokenizer) - 1] for row in expected]) == lines
        found[direction] = expected, there.translations(texts, own.generation)
    script = """
    const { load } = await import("/multihead.js");
    const translator = await load(), found = [translator.directions];
    for (const options of [{}, { target: "fr" }, { target: "EN" }]) {
      found.push(await translator.translate("Park", options).then(() => "translated", (error) => error.message));
    }
    translator.close();
    return found;
    """
    directions, undecided, unknown, known = page.run(script)
    assert [tuple(pair) for pair in directions] == [tuple(one) for one in several.directions]
    assert undecided == unknown == "this model translates de-en, en-de; say which, by target (and source)"
    assert known == "translated"
    for direction, (ids, translations) in found.items():
        own = several.toward(direction)
        fixed = open_site(own)  # exported for one direction
        assert fixed.encode(lines) == ids
        assert fixed.translations(texts, own.generation) == translations


def test_the_certificate_compares_every_direction(several: TranslatorParts, open_site: Open) -> None:
    lines = Lines(random_lines(several.source_tokenizer, 11, 1), "random")
    terms, rounded = Terms("web", lines, 3, web.allowed("int8"), "int8"), web.represented(several, "int8")
    found = _certify_directions(rounded, open_site(several), terms, lambda _: None)
    assert found.state == "passed", found.reason
    assert (found.lines, found.origin) == (11, "random, divided among de-en, en-de")
    assert [one.lines for one in found.searches] == [11, 11]
    assert found.tokenizer is not None
    assert (found.tokenizer.lines, found.tokenizer.equal_ids) == (11, 11)
    exchanged = {"source_tokenizer": LanguageTokenizer(several.source_tokenizer.inner, ["en", "de"])}  # type: ignore[attr-defined]
    wrong = _certify_directions(rounded, open_site(replace(several, **exchanged)), terms, lambda _: None)
    assert wrong.state == "failed"
    assert "de-en: " in wrong.reason
    assert "its tokenizer gives other ids" in wrong.reason


def test_the_reader_chooses_the_target_language(browser: Chrome, several: TranslatorParts, tmp_path: Path) -> None:
    web.write(several, tmp_path)
    site = Site(tmp_path)
    browser.get_log("browser")
    try:
        browser.get(site.url)
        wait = WebDriverWait(browser, 20, 0.02)
        wait.until(lambda _: browser.find_element(By.ID, "state").text == "Ready.")
        choice = Select(browser.find_element(By.ID, "target"))
        assert [option.text for option in choice.options] == ["English", "German"]
        paste(browser, "Zwei Hunde rennen.")
        translation, found = browser.find_element(By.ID, "translation"), dict[str, str | None]()
        for code in ("en", "de", "en"):
            choice.select_by_value(code)
            wait.until(lambda _: browser.find_element(By.ID, "state").text.startswith("Translated"))
            wait.until(lambda _: translation.get_attribute("aria-busy") == "false")
            assert translation.get_attribute("lang") == code
            assert found.setdefault(code, translation.get_attribute("value")) == translation.get_attribute("value")
        assert found["de"] != found["en"]
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    finally:
        browser.get("about:blank")
        site.close()


def test_all_directions_are_exported_unless_one_is_named(several: TranslatorParts, tmp_path: Path) -> None:
    model = tmp_path / "model"
    parts = vars(several)
    bundle = Bundle(
        several.build(model), parts["source_tokenizer"], parts["target_tokenizer"], several.generation,
        directions=several.directions,
    )  # fmt: skip
    save_bundle(model, bundle, {}, "Made by a test.")
    for target, directions, before in (
        (None, [["de", "en"], ["en", "de"]], []),
        ("de", None, [len(bundle.source_tokenizer) - 2]),
    ):
        site = tmp_path / f"site-{target}"
        export_model(
            model, "web", site, ExportOptions(certificate=False, languages=Languages(None, target)), lambda _: None
        )
        found = json.loads((site / "model.json").read_text(encoding="utf-8"))
        assert (found.get("directions"), found["source_tokenizer"]["before"]) == (directions, before)
        assert (found["source_language"], found["target_language"]) == (("en", "de") if target else (None, None))


# --------------------------------------------------------------------------- refusals


def test_what_a_page_lacks_is_named(make_parts: Callable[..., TranslatorParts]) -> None:
    parts = make_parts()
    assert web.refusals(parts) == []
    changes = {"no_repeat": 3, "without": ("Hund",)}
    other: dict[str, Any] = {"generation": parts.generation.model_copy(update=changes)}
    found = web.refusals(replace(parts, **other))
    assert [name for name in changes if any(name in reason for reason in found)] == list(changes)
    assert "the end symbol of a source" in web.refusals(make_parts(source_end=False))[0]


def test_another_pattern_is_refused(make_parts: Callable[..., TranslatorParts]) -> None:
    parts = make_parts()
    tokenizer = parts.source_tokenizer
    assert isinstance(tokenizer, BytePairTokenizer)
    content = json.loads(tokenizer.to_json())
    content["pre_tokenizer"]["pattern"]["Regex"] = r"\p{L}+"
    other: dict[str, Any] = {"source_tokenizer": Tokenizer.from_json(json.dumps(content))}
    assert "pattern" in web.refusals(replace(parts, **other))[0]


def test_the_page_lists_what_is_refused(make_parts: Callable[..., TranslatorParts]) -> None:
    """docs/web.md"""
    text = (ROOT / "docs/web.md").read_text(encoding="utf-8")
    listed = " ".join(text.partition("A model is refused")[2].partition("The export supports")[0].split())
    networks: dict[str, dict[str, Any]] = {
        "RMS norms": {"norm_kind": "rms"},
        "the end symbol of a source": {"source_end": False},
        **{f"`{kind}`": {"positions": kind} for kind in ("relative", "shaw")},
        **{f"`{kind}`": {"feed_forward": kind} for kind in ("gelu_tanh", "geglu_tanh")},
    }
    parts = make_parts()
    for named, changes in networks.items():
        assert len(web.refusals(replace(parts, config=parts.config.model_copy(update=changes)))) == 1
        assert named in listed
    backwards: dict[str, Any] = {"target_tokenizer": BackwardsTokenizer(parts.target_tokenizer)}
    assert "from right to left" in web.refusals(replace(parts, **backwards))[0]
    words = ("from right to left", "placeholders", "source factor", "context", "marks the ends of words", "pattern")
    assert [word for word in words if word not in listed] == []


def test_a_tiny_model_fits_into_six_megabytes(make_parts: Callable[..., TranslatorParts]) -> None:
    """The preset without its vocabulary of 8,000 entries, whose matrix and strings are added."""
    sizes = {"width": 128, "heads": 4, "inner": 256, "encoder_layers": 4, "decoder_layers": 4}
    _, weights = web.network_of(make_parts(**sizes).build(Path("tiny")))
    fixed = sum(file.stat().st_size for file in web.SITE.iterdir())
    assert len(weights) + fixed + 8_000 * (128 + 4 + 40) < 6e6


def test_the_page_names_the_sizes_of_the_files() -> None:
    """docs/web.md, within a hundredth for files that people write; its sum is that of the rows."""
    text = (ROOT / "docs/web.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*) \| .* \| ([\d,]+) \|$", text, re.MULTILINE)
    said = {files.split("`")[1]: int(number.replace(",", "")) for files, number in rows}
    sizes = {file.name: file.stat().st_size for file in web.SITE.iterdir()}
    page = sum(sizes.pop(name) for name in ("index.html", "page.js", "texts.js", "style.css"))
    assert said["decoding.wasm"] == sizes.pop("decoding.wasm")
    assert said["example.html"] == sizes.pop("example.html")
    assert said["index.html"] == pytest.approx(page, rel=0.01)
    assert said["multihead.js"] == pytest.approx(sum(sizes.values()), rel=0.01)
    assert f"Together they are {sum(said.values()) / 1e6:.2f} MB" in text


def builder() -> ModuleType:
    """tools/build_wasm.py"""
    spec = importlib.util.spec_from_file_location("build_wasm", ROOT / "tools" / "build_wasm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_module_was_built_from_these_sources() -> None:
    tool = builder()
    found = tool.recorded(tool.MODULE.read_bytes())
    assert found == tool.describe(found["compiler"].removeprefix("zig ")), "run `make wasm`"


@pytest.mark.proof
def test_a_thousand_lines_of_a_trained_model_are_equal(trained: Path, numbers: Any, tmp_path: Path) -> None:
    """The whole export, with a browser of its own."""
    pairs = numbers.pairs(1000, seed=9)
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"{source}\n" for source, _ in pairs), encoding="utf-8")
    found = export_model(trained, "web", tmp_path / "site", ExportOptions(lines=lines, count=1000))
    assert found.state == "passed", found.reason
    assert [one.lines for one in found.searches] == [1000, 1000]
    assert all(one.equal + one.near_ties == 1000 for one in found.searches)
    if EXACT:
        assert [one.equal for one in found.searches] == [1000, 1000]
    assert (tmp_path / "site" / "certificate.json").exists()


@pytest.mark.proof
def test_an_imported_opus_mt_model_translates_in_the_browser(opus_mt: tuple[Any, Path], tmp_path: Path) -> None:
    found = export_model(opus_mt[1], "web", tmp_path / "site", ExportOptions(count=100))
    assert found.state == "passed", found.reason
    if EXACT:
        assert [one.equal for one in found.searches] == [100, 100]


@pytest.mark.proof
def test_the_module_can_be_rebuilt() -> None:
    tool = builder()
    compiler = tool.find_compiler()
    if compiler is None:
        pytest.skip("Zig is not installed: pip install ziglang")
    recorded = tool.recorded(tool.MODULE.read_bytes())["compiler"]
    if recorded != f"zig {tool.version_of(compiler)}":
        pytest.skip(f"the module was built by {recorded}, here is {tool.version_of(compiler)}")
    assert tool.build(compiler) == tool.MODULE.read_bytes()
