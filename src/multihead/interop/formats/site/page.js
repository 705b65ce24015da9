// The page: what is typed is translated, in a thread of its own.

import { load } from "./multihead.js";
import { LANGUAGES, languageName, preferred, say, write } from "./texts.js";

const WAIT = 150; // milliseconds without a key before a text is translated
const find = (name) => document.getElementById(name);
const [source, translation, state, progress, language] =
  ["source", "translation", "state", "progress", "language"].map(find);

let stop = new AbortController();
let timer = 0;
let shown = null; // the text of the state, made anew in another language

function show(text, share = null) {
  shown = text;
  state.setAttribute("aria-busy", String(share !== null)); // not read aloud until it is done
  writeState();
  progress.hidden = share === null;
  if (share !== null) progress.value = share;
}

/** Writes the state where it has changed: what is written is read aloud. */
function writeState() {
  const text = shown();
  if (state.textContent !== text) state.textContent = text;
}

/** Writes the page in the chosen language. */
function speak(translator) {
  write(language.value);
  offerTargets([...new Set(translator?.directions.map((direction) => direction[1]))]);
  const [from, to] = [translator?.source, find("target").value || translator?.target];
  if (to) translation.lang = to;
  find("source-name").textContent = languageName(from, say("text"));
  find("target-name").textContent = languageName(to, say("translation"));
  const title = from && to ? `${languageName(from)} → ${languageName(to)}` : say("title");
  document.title = find("title").textContent = title;
  if (shown) writeState();
}

async function translate(translator) {
  stop.abort();
  stop = new AbortController();
  const { signal } = stop;
  const tell = (done, all) => signal.aborted || show(() => say("translating"), done / all);
  const options = { signal, sentences: true, progress: tell };
  if (find("greedy").checked) options.beam = 1;
  if (translator.directions.length) options.target = find("target").value;
  const began = performance.now();
  translation.setAttribute("aria-busy", "true");
  try {
    const [found] = await translator.translations([source.value.toWellFormed()], options);
    if (signal.aborted) return; // it came just after
    translation.value = found.text;
    const seconds = (performance.now() - began) / 1000;
    const empty = !source.value;
    show(() => (empty ? say("ready") : [say("done", { seconds }), ...(found.finished ? [] : [say("cut")])].join(" ")));
  } catch (error) {
    if (signal.aborted) return; // a newer text is being translated
    show(() => say("failed", { message: error.message }));
  }
  translation.setAttribute("aria-busy", "false");
}

/** Offers the target languages of a model that has several, by their names in the language of the page. */
function offerTargets(codes) {
  const choice = find("target"), chosen = choice.value;
  choice.replaceChildren(...codes.map((code) => new Option(languageName(code), code)));
  if (chosen) choice.value = chosen;
  find("into").hidden = !codes.length;
}

language.append(...Object.entries(LANGUAGES).map(([code, name]) => new Option(name, code)));
language.value = preferred();
speak(null);
let translator = null;
language.addEventListener("change", () => speak(translator));
try {
  translator = await load(undefined, {
    progress: (done, all) => show(() => say("loading", { done: done / 1e6, all: all / 1e6 }), done / all),
  });
  if (translator.source) source.lang = translator.source;
  find("target").addEventListener("change", () => (speak(translator), translate(translator)));
  show(() => say("ready"));
  speak(translator);
  source.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => translate(translator), WAIT);
  });
  find("greedy").addEventListener("change", () => translate(translator));
  find("copy").addEventListener("click", () => {
    translation.select();
    const copied = () => show(() => say("copied")), press = () => show(() => say("press"));
    if (navigator.clipboard) navigator.clipboard.writeText(translation.value).then(copied, press);
    else press(); // without HTTPS
  });
  if (source.value) translate(translator);
} catch (error) {
  show(() => say("broken", { message: error.message }));
}
