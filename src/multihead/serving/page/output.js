// The translation: one paragraph per line, growing during the search.
//
// Words of a finished line are buttons. app.js keeps the selection.
import { sentence } from "./api.js";
import { number, say } from "./language.js";
import { fill, locate } from "./words.js";

/** A paragraph for each line. Handlers: `select(line, word)`, `hover(line, word)` (null: no word) and
 *  `retranslate(line, prefix, word)`. */
export class Output {
  #element;
  #handlers;
  #shown = new Map();

  constructor(element, handlers) {
    this.#element = element;
    this.#handlers = handlers;
    element.addEventListener("click", (event) => this.#dispatch(event, this.#handlers.select));
    element.addEventListener("focusin", (event) => this.#dispatch(event, this.#handlers.select));
    element.addEventListener("pointerover", (event) => {
      if (event.pointerType === "mouse") this.#dispatch(event, this.#handlers.hover);
    });
    element.addEventListener("pointerleave", () => this.#handlers.hover(null, null));
    element.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Draws all lines, after lines were added, removed or reordered. */
  arrange(lines) {
    const before = this.#shown;
    this.#shown = new Map(lines.map((line) => [line, before.get(line) ?? document.createElement("div")]));
    this.#element.replaceChildren(...this.#shown.values());
    lines.forEach((line) => this.draw(line));
  }

  /** Draws one line. */
  draw(line) {
    const place = this.#shown.get(line);
    if (!place) return;
    place.className = `line ${line.state}`;
    place.setAttribute("aria-busy", String(line.state === "waiting" || line.state === "running"));
    const text = document.createElement("p");
    text.dir = "auto";
    if (line.state === "done") {
      fill(text, line.text, wordPlaces(line), (number, word) => this.#word(line, number, word));
      this.#setTabStop(text.querySelector(".word"));
    } else {
      text.textContent = line.text;
    }
    place.replaceChildren(text, ...remarks(line).map(remark), ...this.#actions(line));
  }

  /** The element of a word, or undefined. */
  word(line, number) {
    return this.#shown.get(line)?.querySelector(`[data-word="${number}"]`);
  }

  /** The button below a line, if it has one. */
  way(line) {
    return this.#shown.get(line)?.querySelector(".way");
  }

  /** The line that has the focus, or null. */
  get focused() {
    return [...this.#shown].find(([, place]) => place.contains(document.activeElement))?.[0] ?? null;
  }

  /** Marks a word as selected (null: none); Tab enters the text at it. */
  mark(line, number) {
    this.#element.querySelector('[aria-pressed="true"]')?.setAttribute("aria-pressed", "false");
    const word = line && this.word(line, number);
    if (!word) return;
    word.setAttribute("aria-pressed", "true");
    this.#setTabStop(word);
  }

  #word(line, number, word) {
    const span = document.createElement("span");
    const given = line.prefix && wordPlaces(line)[number][1] <= line.prefix.length;
    span.className = given ? "word given" : "word";
    span.dataset.word = String(number);
    span.setAttribute("role", "button");
    span.setAttribute("aria-pressed", "false");
    span.tabIndex = -1;
    span.textContent = word;
    return span;
  }

  /** Buttons of a line that was refused or stopped, or has a prefix. */
  #actions(line) {
    const [key, prefix] = line.state === "refused" ? ["retry", line.prefix] : ["undo", ""];
    if (line.state !== "refused" && !(line.state === "done" && line.prefix)) return [];
    const button = document.createElement("button");
    button.type = "button";
    button.className = "way";
    button.textContent = say(key);
    button.addEventListener("click", () => this.#handlers.retranslate(line, prefix, 0));
    return [button];
  }

  /** Makes `word` the only one reachable by Tab (roving tabindex). */
  #setTabStop(word) {
    if (!word) return;
    this.#element.querySelectorAll('.word[tabindex="0"]').forEach((other) => (other.tabIndex = -1));
    word.tabIndex = 0;
  }

  #dispatch(event, handler) {
    const word = event.target.closest(".word");
    const line = word && [...this.#shown].find(([, place]) => place.contains(word))?.[0];
    if (line) handler(line, Number(word.dataset.word));
    else if (handler === this.#handlers.hover) handler(null, null);
  }

  #key(event) {
    const word = event.target.closest(".word");
    if (!word) return;
    const words = [...this.#element.querySelectorAll(".word")];
    const index = words.indexOf(word);
    const forward = getComputedStyle(word).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
    const backward = forward === "ArrowLeft" ? "ArrowRight" : "ArrowLeft";
    const target = { [forward]: index + 1, [backward]: index - 1, Home: 0, End: words.length - 1 }[event.key];
    if (target !== undefined) words[target]?.focus();
    else if (event.key === "Enter" || event.key === " ") word.click();
    else return;
    event.preventDefault();
  }
}

/** Positions of the words of a finished line in its translation. */
export function wordPlaces(line) {
  const words = line.result?.alignment?.target_words ?? line.text.match(/\S+/gu) ?? [];
  return locate(line.text, words);
}

/** Remarks on a line, [text, whether it is a warning]. */
function remarks({ problem, result }) {
  if (problem) return [[problem.message, problem.kind === "refused"]];
  return result ? remarksOn(result) : [];
}

/** Remarks on a translation, [text, whether it is a warning]: cut, judged by the guard. */
export function remarksOn({ finished, warning, guard }) {
  const found = [];
  if (finished === false) found.push([say("cut"), true]);
  if (warning) found.push([sentence(warning), true]);
  const doubtful = guard?.retried ? "doubtful_again" : "doubtful";
  if (guard?.suspicious) found.push([say(doubtful, { reasons: guard.reasons.map(reason).join("; ") }), true]);
  else if (guard?.retried) found.push([say("second"), false]);
  return found;
}

/** A reason of the guard, such as "copy: 83% of its words are copied from the source", in the language of the page. */
function reason(text) {
  const [, name, value, percent] = text.match(/^(\w+): \D*([\d.]+)(%?)/) ?? [];
  const style = { style: percent ? "percent" : "decimal" };
  return say(`sign_${name}`, { value: number(Number(value) / (percent ? 100 : 1), style) }, text);
}

function remark([text, warning]) {
  const element = document.createElement("p");
  element.className = warning ? "remark bad" : "remark";
  element.textContent = text;
  return element;
}
