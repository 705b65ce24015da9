// Positions of words in a text.
//
// The server lists the words in order; locating them keeps every space and punctuation mark of the text, which joining
// the words would not.
import { number } from "./language.js";

/** [[start, end], ...] for each word, in order; null for a word not found after the previous one. */
export function locate(text, words) {
  let from = 0;
  return words.map((word) => {
    const start = word ? text.indexOf(word, from) : -1;
    if (start < 0) return null;
    from = start + word.length;
    return [start, from];
  });
}

/** Fills `element` with `text`; the words at `places` are elements from `make(number, word)`. Never parses HTML. */
export function fill(element, text, places, make) {
  const parts = [];
  let from = 0;
  places.forEach((place, number) => {
    if (!place) return;
    parts.push(text.slice(from, place[0]), make(number, text.slice(...place)));
    from = place[1];
  });
  parts.push(text.slice(from));
  element.replaceChildren(...parts.filter((part) => part !== ""));
  return element;
}

/** Formats a probability of at least 0.1%. */
export function percent(share) {
  return number(share, { style: "percent", maximumFractionDigits: share < 0.01 ? 1 : 0 });
}
