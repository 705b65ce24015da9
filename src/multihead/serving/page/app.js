// The page of `multihead serve`: connects its parts, keeps the selection.
//
// The parts are the typed text (source.js), its translation by lines (lines.js, output.js), the details of a word
// (inspector.js, links.js) and the translation of a file (file_card.js). The state they share is the selected word.
import { Server } from "./api.js";
import { Choices } from "./choices.js";
import { FileCard } from "./file_card.js";
import { Inspector } from "./inspector.js";
import { languageName, number, say } from "./language.js";
import { Lines } from "./lines.js";
import { Links } from "./links.js";
import { Notice } from "./notice.js";
import { Output, wordPlaces } from "./output.js";
import { setUp } from "./preferences.js";
import { Settings } from "./settings.js";
import { Source } from "./source.js";

const TYPING_PAUSE = 250; // milliseconds without a key before a text is translated

const MIN_WEIGHT = 0.05; // attention weight of a word from which on a curve is drawn

const TWO_DIGITS = { minimumFractionDigits: 2, maximumFractionDigits: 2 };

const byId = (id) => document.getElementById(id);
setUp(writeAgain);
const server = new Server();
const source = new Source(byId("source"), byId("mirror"));
const links = new Links(byId("links"), byId("sheet"));
const inspector = new Inspector({ retranslate, back });
const output = new Output(byId("output"), { select, hover, retranslate });
const choices = new Choices(byId("pair"), chooseModel);
const request = (text) => ({ ...settings.request(text), ...choices.chosen });
const lines = new Lines(server, request, lineChanged, (problem) => notice.show(problem));
const settings = new Settings(byId("settings-form"), byId("settings-summary"), () => lines.retranslateAll());
const notice = new Notice(byId("notice"), server, start);
const fileCard = new FileCard(server, describeFile, announce);

/** The selected word, {line, word}, or null; and the word to focus when its line is done. */
let selected = null;
let focusNext = null;
let info = null;

async function start() {
  const asked = choices.chosen;
  try {
    if (!info) {
      const received = await server.info(asked);
      if (asked !== choices.chosen) return; // another model was chosen meanwhile
      if (!choices.several) choices.set(await server.pairs(), await server.models(), received);
      info = received;
      settings.setDefaults(info);
      showModel();
    }
    notice.hide();
    lines.resume();
  } catch (problem) {
    if (!problem.kind) throw problem;
    if (asked === choices.chosen) notice.show(problem);
  }
}

function showModel() {
  const [from, to] = [info?.source_language, info?.target_language];
  byId("source").lang = from ?? "";
  byId("output").lang = to ?? "";
  byId("source-language").textContent = languageName(from, say("source"));
  byId("target-language").textContent = languageName(to, say("translation"));
  byId("pair").hidden = !choices.several;
  byId("model").hidden = choices.several;
  if (from && to) {
    byId("model").textContent = `${languageName(from)} → ${languageName(to)}`;
    document.title = `${languageName(from)} → ${languageName(to)} · multihead`;
  }
  byId("source").placeholder = from ? say("placeholder_in", { language: languageName(from) }) : say("placeholder");
  if (!info) return;
  const averaged = info.ensemble > 1 ? [say("averaged", { count: info.ensemble })] : [];
  const chooses = info.chooses ? [say("chooses")] : [];
  byId("what").textContent = [`${info.model}.`, ...averaged, ...chooses].join(" ");
}

/** Translates everything again, by another model. */
function chooseModel() {
  info = null;
  lines.pause();
  for (const line of lines.all) line.prefix = ""; // a choice among the words of the other model
  lines.retranslateAll();
  start();
}

/** Writes in another language what is not in index.html. */
function writeAgain() {
  choices.write();
  settings.summarize();
  notice.write();
  fileCard.write();
  showModel();
  deselect();
  lineChanged(null);
}

// ---- progress of the lines

function lineChanged(line, grown = false) {
  const focused = output.focused;
  if (line) output.draw(line);
  else output.arrange(lines.all);
  if (selected && (!lines.all.includes(selected.line) || selected.line.state !== "done")) {
    if (focused === selected.line) focusNext = selected;
    deselect();
  } else if (selected) {
    output.mark(selected.line, selected.word);
    if (!line) showAttention(selected.line, selected.word); // all words are new
  }
  if (focusNext && focusNext.line === line && line.state === "done") {
    const word = Math.min(focusNext.word, wordPlaces(line).length - 1);
    focusNext = null;
    output.word(line, word)?.focus();
  }
  if (focusNext?.line.state === "refused") {
    if (document.activeElement === document.body) output.way(focusNext.line)?.focus(); // what had the focus is gone
    focusNext = null;
  }
  if (!grown) updateSummary(); // for every word of a translation, it would walk the whole text
}

/** Updates the parts of the page that concern the whole text; none of them depends on unfinished translations. */
function updateSummary() {
  const text = translation();
  const busy = lines.unfinished;
  byId("output").classList.toggle("busy", busy);
  byId("output").setAttribute("aria-busy", String(busy));
  byId("clear").hidden = source.text === "";
  byId("copy").hidden = busy || text.trim() === "";
  byId("copy").textContent = say("copy");
  const slowest = Math.max(0, ...lines.all.map((line) => line.seconds));
  byId("took").textContent = busy || !slowest ? "" : say("seconds", { seconds: number(slowest, TWO_DIGITS) });
  const limit = info?.limits?.characters;
  const longest = Math.max(0, ...lines.all.map((line) => line.characters));
  byId("count").textContent = limit && longest > limit * 0.8 ? `${number(longest)} / ${number(limit)}` : "";
  byId("count").classList.toggle("over", longest > limit);
  if (!selected) showOverview();
  if (!busy && text.trim() && lines.all.some((line) => line.state === "done")) announce(say("announced", { text }));
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
  if (attended) announce(say("looked_at", { words: attended }));
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

// ---- copy, files

byId("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(translation());
    byId("copy").textContent = say("copied");
  } catch {
    getSelection().selectAllChildren(byId("output")); // no clipboard without HTTPS: the user copies the selection
    byId("copy").textContent = say("selected");
  }
  setTimeout(() => (byId("copy").textContent = say("copy")), 1500);
});

/** The settings and the model that translate a file, and its languages. */
function describeFile() {
  const { chosen } = choices;
  const languages = { source: info?.source_language ?? chosen.source, target: info?.target_language ?? chosen.target };
  return [{ ...settings.search, ...chosen }, languages];
}

showModel();
textChanged(0); // the browser may have kept the text from before a reload
start();
