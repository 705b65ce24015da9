// The page of `multihead serve`: what is typed becomes lines (lines.js), lines become a translation (output.js), and a
// word of it shows what lies behind it (inspector.js, source.js, links.js). Here these are joined, and here is the one
// piece of state they share: which word is chosen.
import { Server } from "./api.js";
import { Inspector } from "./inspector.js";
import { Lines } from "./lines.js";
import { Links } from "./links.js";
import { Notice } from "./notice.js";
import { Output, placesOf } from "./output.js";
import { Settings } from "./settings.js";
import { Source } from "./source.js";

const PAUSE = 250; // milliseconds without a key before a text is asked for

const LEAST = 0.05; // a word that got less of the attention has no thread

const byId = (id) => document.getElementById(id);
const server = new Server();
const source = new Source(byId("source"), byId("mirror"));
const links = new Links(byId("links"), byId("sheet"));
const inspector = new Inspector({ begins, back });
const output = new Output(byId("output"), { chosen, hovered, begins });
const lines = new Lines(server, (text) => settings.wish(text), changed, (problem) => notice.show(problem));
const settings = new Settings(byId("settings-form"), byId("settings-summary"), () => lines.renew());
const notice = new Notice(byId("notice"), server, begin);

/** The chosen word, {line, word}, or null; and the one that is to have the focus when its line is done. */
let choice = null;
let next = null;
let info = null;

async function begin() {
  try {
    if (!info) learn(await server.info());
    lines.go();
  } catch (problem) {
    if (!problem.kind) throw problem;
    notice.show(problem);
  }
}

function learn(said) {
  info = said;
  const [from, to] = [info.source_language, info.target_language];
  byId("source").lang = from ?? "";
  byId("output").lang = to ?? "";
  byId("source-language").textContent = named(from, "Source");
  byId("target-language").textContent = named(to, "Translation");
  if (from && to) {
    byId("model").textContent = `${named(from)} → ${named(to)}`;
    byId("source").placeholder = `Type or paste ${named(from)}`;
    document.title = `${named(from)} → ${named(to)} · multihead`;
  }
  byId("what").textContent = `${info.model}. `;
  settings.learn(info);
}

/** "German" for "de". */
function named(code, otherwise = code) {
  try {
    return code ? new Intl.DisplayNames(["en"], { type: "language" }).of(code) : otherwise;
  } catch {
    return code;
  }
}

// ---- what the lines report

function changed(line) {
  const held = output.focused;
  if (line) output.draw(line);
  else output.arrange(lines.all);
  if (choice && (!lines.all.includes(choice.line) || choice.line.state !== "done")) {
    if (held === choice.line) next = choice;
    unmark();
  }
  if (next && next.line === line && line.state === "done") {
    const word = Math.min(next.word, placesOf(line).length - 1);
    next = null;
    output.word(line, word)?.focus();
  }
  if (next?.line.state === "refused") next = null;
  tell();
}

/** The parts of the page that speak of the whole. */
function tell() {
  const text = translation();
  const busy = lines.unfinished;
  byId("output").classList.toggle("busy", busy);
  byId("output").setAttribute("aria-busy", String(busy));
  byId("clear").hidden = source.text === "";
  byId("copy").hidden = busy || text.trim() === "";
  const slowest = Math.max(0, ...lines.all.map((line) => line.seconds));
  byId("took").textContent = busy || !slowest ? "" : `${slowest.toFixed(2)} s`;
  const most = info?.limits?.characters;
  const longest = Math.max(0, ...lines.all.map((line) => [...line.source].length)); // as the server counts
  byId("count").textContent = most && longest > most * 0.8 ? `${longest} / ${most}` : "";
  byId("count").classList.toggle("over", longest > most);
  if (!choice) rest();
  if (!busy && text.trim() && lines.all.some((line) => line.state === "done")) say(`Translation: ${text}`);
}

function translation() {
  return lines.all.map((line) => line.text).join("\n");
}

let said = "";

/** To a screen reader, once. */
function say(words) {
  if (words !== said) byId("live").textContent = said = words;
}

// ---- what is typed

function typed(wait = PAUSE) {
  source.reflect();
  lines.set(source.text, wait);
}

byId("source").addEventListener("input", () => typed());
byId("source").addEventListener("keydown", (event) => {
  if (event.key === "Escape") lines.stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) typed(0);
});
byId("clear").addEventListener("click", () => {
  source.text = "";
  typed(0);
  byId("source").focus();
});

// ---- the chosen word

function chosen(line, word) {
  if (choice?.line === line && choice.word === word) return;
  choice = { line, word };
  inspector.stale = false;
  output.mark(line, word);
  const looked = inspector.show(line, word);
  light(line, word);
  if (looked) say(`looked at ${looked}`);
}

/** Words of the source and threads to them: of the word under the pointer, else of the chosen one. */
function hovered(line, word) {
  if (line) light(line, word);
  else if (choice) light(choice.line, choice.word);
  else unmark();
}

function light(line, word) {
  const alignment = line.result?.alignment;
  if (!alignment) return dim();
  const weights = alignment.weights[word];
  const marks = source.shade(lines.all.indexOf(line), alignment.source_words, weights);
  const to = output.word(line, word);
  const threads = marks.map((from, number) => ({ from, to, weight: weights[number] }));
  links.draw(threads.filter(({ weight }) => weight >= LEAST));
}

function dim() {
  source.reflect();
  links.clear();
}

function unmark() {
  choice = null;
  output.mark(null);
  dim();
  rest();
}

/** What is to be seen while no word is chosen: of a text of one line its n best, and where all of it looked. */
function rest() {
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
  if (choice) output.word(choice.line, choice.word)?.focus();
}

byId("output").addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    unmark();
    byId("source").focus();
  } else if (event.key === "ArrowDown" && choice) {
    inspector.focus();
    event.preventDefault();
  }
});

// ---- other ways to say it

/** The line once more, beginning with `text`; then the word of this number has the focus. */
function begins(line, text, word) {
  next = { line, word };
  lines.begin(line, text);
}

// ---- copy, light and dark

byId("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(translation());
    byId("copy").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(byId("output")); // there is no clipboard without https: to be copied by hand
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
    // then it holds until the page is closed
  }
  showTheme();
});
dark.addEventListener("change", showTheme);

showTheme();
typed(0); // a browser may have kept the text of the page before
begin();
