// What is known of the chosen word and its sentence: weights, alternatives, other translations. Lists of buttons; what
// a choice leads to is app.js's.
import { placesOf } from "./output.js";
import { percent } from "./words.js";

const WEIGHTS = 5;
const byId = (id) => document.getElementById(id);

export class Inspector {
  #told;

  /** `told` is asked for `begins(line, text, word)`, a translation that begins so, and `back()` to the word. */
  constructor(told) {
    this.#told = told;
    for (const list of [byId("alternatives-list"), byId("others-list")]) {
      list.addEventListener("keydown", (event) => this.#key(event, list));
    }
  }

  /** No word is chosen; `line` is the one line that there is, if it is finished. */
  clear(line) {
    byId("looked").hidden = byId("alternatives").hidden = true;
    byId("empty").hidden = false;
    this.#others(line);
  }

  /** Whether what is shown is about to be replaced: it stays in its place until then, but can do nothing. */
  set stale(value) {
    for (const id of ["looked", "alternatives", "others"]) byId(id).inert = value;
  }

  /** Word `number` of a finished line; gives in words where it looked. */
  show(line, number) {
    const { alignment, alternatives } = line.result;
    const places = placesOf(line);
    const place = places[number];
    const word = line.text.slice(...place);
    const before = line.text.slice(0, place[0]);
    byId("empty").hidden = true;
    const looked = alignment ? strongest(alignment.source_words, alignment.weights[number]) : [];
    byId("looked").hidden = !looked.length;
    byId("looked-word").textContent = word;
    byId("looked-list").replaceChildren(...looked.map(({ text, share, end }) => {
      const row = bar("span", text, share, percent(share));
      row.classList.toggle("end", end);
      return item(row);
    }));
    const instead = alternatives?.length === places.length ? alternatives[number] : [];
    byId("alternatives").hidden = !instead.length;
    byId("alternatives-word").textContent = word;
    byId("alternatives-list").replaceChildren(
      ...instead.map(({ text, probability }) => {
        const button = bar("button", text, probability, percent(probability));
        button.addEventListener("click", () => this.#told.begins(line, before + text, number));
        return item(button);
      }),
    );
    this.#others(line);
    return looked.map(({ text, share }) => `${text} ${percent(share)}`).join(", ");
  }

  /** The first alternative takes the focus, or else the first other translation. */
  focus() {
    document.querySelector("#alternatives:not([hidden]) button, #others:not([hidden]) button")?.focus();
  }

  #others(line) {
    const others = line?.result.n_best ?? [];
    byId("others").hidden = others.length < 2;
    byId("others-list").replaceChildren(
      ...others.map(({ text, score }) => {
        const button = bar("button", text, null, score.toFixed(2).replace("-", "−"));
        button.querySelector("span").dir = "auto";
        if (text === line.text) button.setAttribute("aria-current", "true");
        button.addEventListener("click", () => this.#told.begins(line, text, 0));
        return item(button);
      }),
    );
  }

  #key(event, list) {
    const buttons = [...list.querySelectorAll("button")];
    const here = buttons.indexOf(event.target);
    const above = event.key === "ArrowUp" && here === 0 && list.id === "alternatives-list";
    if (above || event.key === "Escape") this.#told.back();
    else if (event.key === "ArrowDown") buttons[here + 1]?.focus();
    else if (event.key === "ArrowUp") buttons[here - 1]?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function strongest(words, weights) {
  const end = 1 - weights.reduce((sum, weight) => sum + weight, 0); // what no word got went to the end symbol
  return [...words, "the end"]
    .map((text, number) => ({ text, share: weights[number] ?? end, end: number === words.length }))
    .filter(({ share }) => share >= 0.01)
    .sort((one, other) => other.share - one.share)
    .slice(0, WEIGHTS);
}

function item(content) {
  const element = document.createElement("li");
  element.append(content);
  return element;
}

/** Words, a figure, and a bar as long as the share (null for none). */
function bar(kind, text, share, figure) {
  const element = document.createElement(kind);
  element.className = "bar";
  if (kind === "button") element.type = "button";
  const [words, number] = [document.createElement("span"), document.createElement("span")];
  words.textContent = text;
  words.className = "words";
  number.textContent = figure;
  number.className = "figure";
  element.append(words, " ", number);
  if (share >= 0.005) element.style.setProperty("--share", String(share));
  return element;
}
