// The page: what is typed is translated, in a thread of its own.

import { load } from "./multihead.js";

const WAIT = 150; // milliseconds without a key before a text is translated
const find = (name) => document.getElementById(name);
const [source, translation, state, progress] = ["source", "translation", "state", "progress"].map(find);

let stop = new AbortController();
let timer = 0;

/** The English name of a language, or the words in its place. */
function languageName(code, instead) {
  try {
    return code ? new Intl.DisplayNames("en", { type: "language" }).of(code) : instead;
  } catch {
    return code;
  }
}

function show(text, share = null) {
  state.textContent = text;
  progress.hidden = share === null;
  if (share !== null) progress.value = share;
}

async function translate(translator) {
  stop.abort();
  stop = new AbortController();
  const { signal } = stop;
  const options = { signal, sentences: true, progress: (done, all) => signal.aborted || show("Translating.", done / all) };
  if (find("greedy").checked) options.beam = 1;
  const began = performance.now();
  translation.setAttribute("aria-busy", "true");
  try {
    const [found] = await translator.translations([source.value.toWellFormed()], options);
    translation.value = found.text;
    const seconds = ((performance.now() - began) / 1000).toFixed(2);
    show(!source.value ? "Ready." : `Translated in ${seconds} s.${found.finished ? "" : " A sentence was cut at its length limit."}`);
  } catch (error) {
    if (signal.aborted) return; // a newer text is being translated
    show(`This text could not be translated: ${error.message}`);
  }
  translation.setAttribute("aria-busy", "false");
}

try {
  const translator = await load(undefined, {
    progress: (done, all) => show(`Loading, ${(done / 1e6).toFixed(1)} of ${(all / 1e6).toFixed(1)} MB.`, done / all),
  });
  const names = [languageName(translator.source, "Text"), languageName(translator.target, "Translation")];
  ["source-name", "target-name"].forEach((name, side) => (find(name).textContent = names[side]));
  if (translator.source) source.lang = translator.source;
  if (translator.target) translation.lang = translator.target;
  if (translator.source && translator.target) document.title = find("title").textContent = names.join(" → ");
  show("Ready.");
  source.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => translate(translator), WAIT);
  });
  find("greedy").addEventListener("change", () => translate(translator));
  find("copy").addEventListener("click", () => {
    translation.select();
    navigator.clipboard?.writeText(translation.value).then(() => show("Copied."), () => show("Press Ctrl+C to copy."));
  });
  if (source.value) translate(translator);
} catch (error) {
  show(`The model could not be loaded: ${error.message}`);
}
