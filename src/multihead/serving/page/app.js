// The page of `multihead serve`: connects its parts, keeps the selection.
//
// The parts are the typed text (source.js), its translation by lines (lines.js, output.js) and the details of a word
// (inspector.js, links.js). The state they share is the selected word.
import { Server } from "./api.js";
import { Inspector } from "./inspector.js";
import { Lines } from "./lines.js";
import { Links } from "./links.js";
import { Notice } from "./notice.js";
import { Output, wordPlaces } from "./output.js";
import { Settings } from "./settings.js";
import { Source } from "./source.js";

const TYPING_PAUSE = 250; // milliseconds without a key before a text is translated

const MIN_WEIGHT = 0.05; // attention weight of a word from which on a curve is drawn

const byId = (id) => document.getElementById(id);
const server = new Server();
const source = new Source(byId("source"), byId("mirror"));
const links = new Links(byId("links"), byId("sheet"));
const inspector = new Inspector({ retranslate, back });
const output = new Output(byId("output"), { select, hover, retranslate });
const request = (text) => ({ ...settings.request(text), ...languages });
const lines = new Lines(server, request, lineChanged, (problem) => notice.show(problem));
const settings = new Settings(byId("settings-form"), byId("settings-summary"), () => lines.retranslateAll());
const notice = new Notice(byId("notice"), server, start);

/** The selected word, {line, word}, or null; and the word to focus when its line is done. */
let selected = null;
let focusNext = null;
let info = null;

/** The chosen languages, {source, target}; empty on a server with one model. */
let languages = {};

async function start() {
  try {
    if (!info) {
      showModel(await server.info(languages));
      showPairs(await server.pairs());
    }
    lines.resume();
  } catch (problem) {
    if (!problem.kind) throw problem;
    notice.show(problem);
  }
}

function showModel(received) {
  info = received;
  const [from, to] = [info.source_language, info.target_language];
  byId("source").lang = from ?? "";
  byId("output").lang = to ?? "";
  byId("source-language").textContent = languageName(from, "Source");
  byId("target-language").textContent = languageName(to, "Translation");
  if (from && to) {
    byId("model").textContent = `${languageName(from)} → ${languageName(to)}`;
    byId("source").placeholder = `Type or paste ${languageName(from)}`;
    document.title = `${languageName(from)} → ${languageName(to)} · multihead`;
  }
  byId("what").textContent = `${info.model}. `;
  settings.setDefaults(info);
}

/** Lists the languages of a server with several models. */
function showPairs(pairs) {
  const several = pairs.length > 1;
  byId("pair").hidden = !several;
  byId("model").hidden = several;
  if (!several || byId("pair").options.length) return;
  const first = pairs.findIndex(({ source, target }) => source === info.source_language && target === info.target_language);
  byId("pair").append(
    ...pairs.map(({ source, target }, place) => new Option(`${languageName(source)} → ${languageName(target)}`, place)),
  );
  byId("pair").value = String(Math.max(first, 0));
  byId("pair").addEventListener("change", () => {
    languages = pairs[byId("pair").value];
    info = null;
    lines.pause();
    lines.retranslateAll();
    start();
  });
}

/** The name of a language: "German" for "de". */
function languageName(code, otherwise = code) {
  try {
    return code ? new Intl.DisplayNames(["en"], { type: "language" }).of(code) : otherwise;
  } catch {
    return code;
  }
}

// ---- progress of the lines

function lineChanged(line) {
  const focused = output.focused;
  if (line) output.draw(line);
  else output.arrange(lines.all);
  if (selected && (!lines.all.includes(selected.line) || selected.line.state !== "done")) {
    if (focused === selected.line) focusNext = selected;
    deselect();
  }
  if (focusNext && focusNext.line === line && line.state === "done") {
    const word = Math.min(focusNext.word, wordPlaces(line).length - 1);
    focusNext = null;
    output.word(line, word)?.focus();
  }
  if (focusNext?.line.state === "refused") focusNext = null;
  updateSummary();
}

/** Updates the parts of the page that concern the whole text. */
function updateSummary() {
  const text = translation();
  const busy = lines.unfinished;
  byId("output").classList.toggle("busy", busy);
  byId("output").setAttribute("aria-busy", String(busy));
  byId("clear").hidden = source.text === "";
  byId("copy").hidden = busy || text.trim() === "";
  const slowest = Math.max(0, ...lines.all.map((line) => line.seconds));
  byId("took").textContent = busy || !slowest ? "" : `${slowest.toFixed(2)} s`;
  const limit = info?.limits?.characters;
  const longest = Math.max(0, ...lines.all.map((line) => [...line.source].length)); // code points, as the server counts
  byId("count").textContent = limit && longest > limit * 0.8 ? `${longest} / ${limit}` : "";
  byId("count").classList.toggle("over", longest > limit);
  if (!selected) showOverview();
  if (!busy && text.trim() && lines.all.some((line) => line.state === "done")) announce(`Translation: ${text}`);
}

function translation() {
  return lines.all.map((line) => line.text).join("\n");
}

let announced = "";

/** Announces a text to screen readers, once. */
function announce(text) {
  if (text !== announced) byId("live").textContent = announced = text;
}

// ---- typing

function textChanged(wait = TYPING_PAUSE) {
  source.reflect();
  lines.set(source.text, wait);
}

byId("source").addEventListener("input", () => textChanged());
byId("source").addEventListener("keydown", (event) => {
  if (event.key === "Escape") lines.stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) textChanged(0);
});
byId("clear").addEventListener("click", () => {
  source.text = "";
  textChanged(0);
  byId("source").focus();
});

// ---- the selected word

function select(line, word) {
  if (selected?.line === line && selected.word === word) return;
  selected = { line, word };
  inspector.stale = false;
  output.mark(line, word);
  const attended = inspector.show(line, word);
  showAttention(line, word);
  if (attended) announce(`looked at ${attended}`);
}

/** Shows the attention of the word under the pointer, or else of the selected one. */
function hover(line, word) {
  if (line) showAttention(line, word);
  else if (selected) showAttention(selected.line, selected.word);
  else deselect();
}

function showAttention(line, word) {
  const alignment = line.result?.alignment;
  if (!alignment) return hideAttention();
  const weights = alignment.weights[word];
  const marks = source.shade(lines.all.indexOf(line), alignment.source_words, weights);
  const to = output.word(line, word);
  const curves = marks.map((from, number) => ({ from, to, weight: weights[number] }));
  links.draw(curves.filter(({ weight }) => weight >= MIN_WEIGHT));
}

function hideAttention() {
  source.reflect();
  links.clear();
}

function deselect() {
  selected = null;
  output.mark(null);
  hideAttention();
  showOverview();
}

/** Shows the n best translations and the whole alignment of a text of one line, while no word is selected. */
function showOverview() {
  inspector.stale = lines.unfinished;
  if (lines.unfinished) return links.clear();
  const full = lines.all.filter((line) => line.state !== "empty");
  const only = full.length === 1 && full[0].state === "done" ? full[0] : null;
  inspector.clear(only);
  if (!only?.result.alignment) return links.clear();
  const { source_words, target_words, links: pairs } = only.result.alignment;
  const marks = source.shade(lines.all.indexOf(only), source_words, source_words.map(() => 0));
  const words = target_words.map((_, number) => output.word(only, number));
  links.draw(pairs.map(([from, to]) => ({ from: marks[from], to: words[to], weight: 0 })));
}

function back() {
  if (selected) output.word(selected.line, selected.word)?.focus();
}

byId("output").addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    deselect();
    byId("source").focus();
  } else if (event.key === "ArrowDown" && selected) {
    inspector.focus();
    event.preventDefault();
  }
});

// ---- other translations

/** Translates a line again, beginning with `prefix`; then focuses word number `word`. */
function retranslate(line, prefix, word) {
  focusNext = { line, word };
  lines.retranslate(line, prefix);
}

// ---- copy, light and dark

byId("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(translation());
    byId("copy").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(byId("output")); // no clipboard without HTTPS: the user copies the selection
    byId("copy").textContent = "Selected";
  }
  setTimeout(() => (byId("copy").textContent = "Copy"), 1500);
});

const dark = matchMedia("(prefers-color-scheme: dark)");

function showTheme() {
  const chosen = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  byId("theme").setAttribute("aria-checked", String(chosen === "dark"));
}

byId("theme").addEventListener("click", () => {
  const theme = byId("theme").getAttribute("aria-checked") === "true" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("multihead.theme", theme);
  } catch {
    // storage is disabled: the theme lasts until the page is closed
  }
  showTheme();
});
dark.addEventListener("change", showTheme);

showTheme();
textChanged(0); // the browser may have kept the text from before a reload
start();
