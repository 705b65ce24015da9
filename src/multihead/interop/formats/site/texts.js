// The texts of the page in each of its languages. Those of index.html are in English; `write` replaces them.

const TEXTS = {
  en: {
    title: "Translator", text: "Text", translation: "Translation", language: "Language of this page", into: "Into",
    fast: "Fast (greedy search)", copy: "Copy the translation", copied: "Copied.", press: "Press Ctrl+C to copy.",
    note: "Everything is computed in this browser. No text leaves this device.",
    loading: "Loading, {done} of {all} MB.", ready: "Ready.", translating: "Translating.",
    done: "Translated in {seconds} s.", cut: "A sentence was cut at its length limit.",
    failed: "This text could not be translated: {message}", broken: "The model could not be loaded: {message}",
  },
  zh: {
    title: "翻译", text: "原文", translation: "译文", language: "本页语言", into: "译成",
    fast: "快速（贪心搜索）", copy: "复制译文", copied: "已复制。", press: "请按 Ctrl+C 复制。",
    note: "一切都在这个浏览器中计算，文本不会离开这台设备。",
    loading: "正在加载，{done} / {all} MB。", ready: "就绪。", translating: "正在翻译。",
    done: "已翻译，用时 {seconds} 秒。", cut: "有一个句子达到长度上限而被截断。",
    failed: "无法翻译这段文本：{message}", broken: "无法加载模型：{message}",
  },
  de: {
    title: "Übersetzer", text: "Text", translation: "Übersetzung", language: "Sprache dieser Seite", into: "Nach",
    fast: "Schnell (gierige Suche)", copy: "Übersetzung kopieren", copied: "Kopiert.", press: "Mit Strg+C kopieren.",
    note: "Alles wird in diesem Browser berechnet. Kein Text verlässt dieses Gerät.",
    loading: "{done} von {all} MB sind geladen.", ready: "Bereit.", translating: "Es wird übersetzt.",
    done: "In {seconds} s übersetzt.", cut: "Ein Satz wurde an seiner Längengrenze abgeschnitten.",
    failed: "Dieser Text konnte nicht übersetzt werden: {message}",
    broken: "Das Modell konnte nicht geladen werden: {message}",
  },
  fr: {
    title: "Traducteur", text: "Texte", translation: "Traduction", language: "Langue de cette page", into: "Vers",
    fast: "Rapide (recherche gloutonne)", copy: "Copier la traduction", copied: "Copié.", press: "Ctrl+C pour copier.",
    note: "Tout est calculé dans ce navigateur. Aucun texte ne quitte cet appareil.",
    loading: "Chargement, {done} Mo sur {all}.", ready: "Prêt.", translating: "Traduction en cours.",
    done: "Traduit en {seconds} s.", cut: "Une phrase a été coupée à sa limite de longueur.",
    failed: "Ce texte n’a pas pu être traduit : {message}", broken: "Le modèle n’a pas pu être chargé : {message}",
  },
};

/** The languages by code, each in its own words. */
export const LANGUAGES = { en: "English", zh: "中文", de: "Deutsch", fr: "Français" };

let current = "en";

/** The first of the browser's languages that the page has, or English. */
export function preferred() {
  return navigator.languages.map((code) => code.split("-")[0]).find((code) => Object.hasOwn(TEXTS, code)) ?? "en";
}

/** Writes the page in a language. */
export function write(code) {
  current = code;
  document.documentElement.lang = code === "zh" ? "zh-Hans" : code;
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = say(element.dataset.text);
  for (const element of document.querySelectorAll("[data-name]")) element.ariaLabel = say(element.dataset.name);
}

/** A text with values in place of "{name}"; numbers are written as the language does. */
export function say(key, values = {}) {
  return TEXTS[current][key].replace(/\{(\w+)\}/g, (_, name) => {
    const value = values[name];
    const digits = { maximumFractionDigits: 2, useGrouping: false };
    return typeof value === "number" ? new Intl.NumberFormat(current, digits).format(value) : value;
  });
}

/** The name of a language, or the words in its place. */
export function languageName(code, instead) {
  try {
    return code ? new Intl.DisplayNames(current, { type: "language" }).of(code) : instead;
  } catch {
    return code;
  }
}
