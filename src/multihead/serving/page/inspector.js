// Details of the selected word: attention weights and alternatives.
//
// They are lists of buttons, as are other translations of the line; app.js reacts to them.
import { number, say } from "./language.js";
import { wordPlaces } from "./output.js";
import { percent } from "./words.js";

const MAX_WEIGHTS = 5;
const LEAST = 0.001; // probability of an alternative that is shown
const TWO_DIGITS = { minimumFractionDigits: 2, maximumFractionDigits: 2 };
const byId = (id) => document.getElementById(id);

export class Inspector {
  #handlers;

  /** @param handlers `retranslate(line, prefix, word)` and `back()`, which returns the focus to the word. */
  constructor(handlers) {
    this.#handlers = handlers;
    for (const list of [byId("alternatives-list"), byId("others-list")]) {
      list.addEventListener("keydown", (event) => this.#key(event, list));
    }
  }

  /** Shows that no word is selected; `line` is the only line of the text if it is finished, otherwise null. */
  clear(line) {
    byId("looked").hidden = byId("alternatives").hidden = true;
    byId("empty").hidden = false;
    this.#showOthers(line);
  }

  /** Whether the lists are about to be replaced: they stay visible until then, but are inert. */
  set stale(value) {
    for (const id of ["looked", "alternatives", "others"]) byId(id).inert = value;
  }

  /** Shows word number `place` of a finished line; returns its attention as text. */
  show(line, place) {
    const { alignment, alternatives } = line.result;
    const places = wordPlaces(line);
    const [start, end] = places[place];
    const word = line.text.slice(start, end);
    const before = line.text.slice(0, start);
    byId("empty").hidden = true;
    const attended = alignment ? strongest(alignment.source_words, alignment.weights[place]) : [];
    byId("looked").hidden = !attended.length;
    byId("looked-word").textContent = word;
    byId("looked-list").replaceChildren(...attended.map(({ text, share, end }) => {
      const row = bar("span", text, share, percent(share));
      row.classList.toggle("end", end);
      return item(row);
    }));
    const others = alternatives?.length === places.length ? alternatives[place] : [];
    const likely = others.filter(({ probability }) => probability >= LEAST);
    byId("alternatives").hidden = !likely.length;
    byId("alternatives-word").textContent = word;
    byId("alternatives-list").replaceChildren(
      ...likely.map(({ text, probability }) => {
        const button = bar("button", text, probability, percent(probability));
        button.addEventListener("click", () => this.#handlers.retranslate(line, before + text, place));
        return item(button);
      }),
    );
    this.#showOthers(line);
    return attended.map(({ text, share }) => `${text} ${percent(share)}`).join(", ");
  }

  /** Focuses the first alternative, or else the first other translation. */
  focus() {
    document.querySelector("#alternatives:not([hidden]) button, #others:not([hidden]) button")?.focus();
  }

  #showOthers(line) {
    const others = line?.result.n_best ?? [];
    byId("others").hidden = others.length < 2;
    byId("others-list").replaceChildren(
      ...others.map(({ text, score }) => {
        const button = bar("button", text, null, number(score, TWO_DIGITS));
        button.querySelector("span").dir = "auto";
        if (text === line.text) button.setAttribute("aria-current", "true");
        button.addEventListener("click", () => this.#handlers.retranslate(line, text, 0));
        return item(button);
      }),
    );
  }

  #key(event, list) {
    const buttons = [...list.querySelectorAll("button")];
    const index = buttons.indexOf(event.target);
    const first = event.key === "ArrowUp" && index === 0 && list.id === "alternatives-list";
    if (first || event.key === "Escape") this.#handlers.back();
    else if (event.key === "ArrowDown") buttons[index + 1]?.focus();
    else if (event.key === "ArrowUp") buttons[index - 1]?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function strongest(words, weights) {
  const end = 1 - weights.reduce((sum, weight) => sum + weight, 0); // the remainder is attention to the end symbol
  return [...words, say("the_end")]
    .map((text, place) => ({ text, share: weights[place] ?? end, end: place === words.length }))
    .filter(({ share }) => share >= 0.01)
    .sort((one, other) => other.share - one.share)
    .slice(0, MAX_WEIGHTS);
}

function item(content) {
  const element = document.createElement("li");
  element.append(content);
  return element;
}

/** Text, a number, and a bar of length `share` (null for none). */
function bar(kind, text, share, figure) {
  const element = document.createElement(kind);
  element.className = "bar";
  if (kind === "button") element.type = "button";
  const [words, amount] = [document.createElement("span"), document.createElement("span")];
  words.textContent = text;
  words.className = "words";
  amount.textContent = figure;
  amount.className = "figure";
  element.append(words, " ", amount);
  if (share >= 0.005) element.style.setProperty("--share", String(share));
  return element;
}
