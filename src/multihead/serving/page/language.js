// The language of the page: texts, numbers, names of languages.
//
// The texts of a language are in the file of its code. Elements name theirs: `data-text` is their content, in which a
// child with `data-slot="word"` stands for "{word}"; `data-name` is their accessible name.
import de from "./de.js";
import en from "./en.js";
import fr from "./fr.js";
import zh from "./zh.js";

const KEY = "multihead.language";
const TEXTS = { en, zh, de, fr };

/** The languages of the page by code, each in its own words. */
export const LANGUAGES = { en: "English", zh: "中文", de: "Deutsch", fr: "Français" };

let current = "en";

/** The language that was chosen here, or else the first of the browser's that the page has, or else English. */
export function preferredLanguage() {
  const wanted = [stored(), ...navigator.languages].map((code) => (code ?? "").split("-")[0].toLowerCase());
  return wanted.find((code) => Object.hasOwn(TEXTS, code)) ?? "en";
}

/** Writes the page in a language. */
export function useLanguage(code) {
  current = code;
  document.documentElement.lang = code === "zh" ? "zh-Hans" : code;
  writeTexts(document);
}

/** Remembers a choice. */
export function keepLanguage(code) {
  try {
    localStorage.setItem(KEY, code);
  } catch {
    // storage is disabled: the choice lasts until the page is closed
  }
}

/** Writes the texts of all elements below `root`. */
export function writeTexts(root) {
  for (const element of root.querySelectorAll("[data-text]")) {
    const slots = Object.fromEntries([...element.children].map((child) => [child.dataset.slot, child]));
    const parts = TEXTS[current][element.dataset.text].split(/\{(\w+)\}/);
    element.replaceChildren(...parts.map((part, place) => (place % 2 ? slots[part] : part)));
  }
  for (const element of root.querySelectorAll("[data-name]")) {
    element.setAttribute("aria-label", TEXTS[current][element.dataset.name]);
  }
  for (const element of root.querySelectorAll("[data-empty]")) element.dataset.empty = TEXTS[current].empty;
}

/** A text in the language of the page, with values in place of "{name}"; `otherwise`, as it is, if it has none. */
export function say(key, values = {}, otherwise = key) {
  const text = TEXTS[current][key];
  if (text === undefined) return otherwise;
  return text.replace(/\{(\w+)\}/g, (whole, name) => {
    const value = values[name];
    return value === undefined ? whole : typeof value === "number" ? number(value) : value;
  });
}

/** A number as the language writes it. */
export function number(value, options = {}) {
  return new Intl.NumberFormat(current, options).format(value).replace("-", "−");
}

/** The name of a language: "German" for "de". */
export function languageName(code, otherwise = code) {
  try {
    return code ? new Intl.DisplayNames([current], { type: "language" }).of(code) : otherwise;
  } catch {
    return code;
  }
}

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}
