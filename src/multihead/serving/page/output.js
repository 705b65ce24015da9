// The translation: a paragraph for each line, growing while it is searched, its words buttons when it is there.
// Which word is chosen, and what follows from it, is app.js's.
import { sentence } from "./api.js";
import { fill, locate } from "./words.js";

/** A paragraph for each line; `told` is asked for `chosen(line, word)`, `hovered(line, word or null)` and
 *  `begins(line, text, word)`. */
export class Output {
  #element;
  #told;
  #shown = new Map();

  constructor(element, told) {
    this.#element = element;
    this.#told = told;
    element.addEventListener("click", (event) => this.#at(event, this.#told.chosen));
    element.addEventListener("focusin", (event) => this.#at(event, this.#told.chosen));
    element.addEventListener("pointerover", (event) => {
      if (event.pointerType === "mouse") this.#at(event, this.#told.hovered);
    });
    element.addEventListener("pointerleave", () => this.#told.hovered(null, null));
    element.addEventListener("keydown", (event) => this.#key(event));
  }

  /** All lines anew: there are more or fewer of them, or in another order. */
  arrange(lines) {
    const before = this.#shown;
    this.#shown = new Map(lines.map((line) => [line, before.get(line) ?? document.createElement("div")]));
    this.#element.replaceChildren(...this.#shown.values());
    lines.forEach((line) => this.draw(line));
  }

  /** One line as it now is. */
  draw(line) {
    const place = this.#shown.get(line);
    if (!place) return;
    place.className = `line ${line.state}`;
    place.setAttribute("aria-busy", String(line.state === "waiting" || line.state === "running"));
    const text = document.createElement("p");
    text.dir = "auto";
    if (line.state === "done") {
      fill(text, line.text, placesOf(line), (number, word) => this.#word(line, number, word));
      this.#roving(text.querySelector(".word"));
    } else {
      text.textContent = line.text;
    }
    place.replaceChildren(text, ...remarks(line).map(remark), ...this.#ways(line));
  }

  /** The element of a word, or undefined. */
  word(line, number) {
    return this.#shown.get(line)?.querySelector(`[data-word="${number}"]`);
  }

  /** The line whose words somebody is at, or null. */
  get focused() {
    return [...this.#shown].find(([, place]) => place.contains(document.activeElement))?.[0] ?? null;
  }

  /** Marks one word as chosen, or none; it is also where Tab comes in. */
  mark(line, number) {
    this.#element.querySelector('[aria-pressed="true"]')?.setAttribute("aria-pressed", "false");
    const word = line && this.word(line, number);
    if (!word) return;
    word.setAttribute("aria-pressed", "true");
    this.#roving(word);
  }

  #word(line, number, word) {
    const span = document.createElement("span");
    const given = line.prefix && placesOf(line)[number][1] <= line.prefix.length;
    span.className = given ? "word given" : "word";
    span.dataset.word = String(number);
    span.setAttribute("role", "button");
    span.setAttribute("aria-pressed", "false");
    span.tabIndex = -1;
    span.textContent = word;
    return span;
  }

  /** What can be done about a line that was refused or stopped, or begins as somebody chose. */
  #ways(line) {
    const [words, prefix] = line.state === "refused" ? ["Try again", line.prefix] : ["Undo my choice", ""];
    if (line.state !== "refused" && !(line.state === "done" && line.prefix)) return [];
    const button = document.createElement("button");
    button.type = "button";
    button.className = "way";
    button.textContent = words;
    button.addEventListener("click", () => this.#told.begins(line, prefix, 0));
    return [button];
  }

  /** One stop of the Tab key for all words: the one that was chosen last, at first the first. */
  #roving(word) {
    if (!word) return;
    this.#element.querySelectorAll('.word[tabindex="0"]').forEach((other) => (other.tabIndex = -1));
    word.tabIndex = 0;
  }

  #at(event, tell) {
    const word = event.target.closest(".word");
    const line = word && [...this.#shown].find(([, place]) => place.contains(word))?.[0];
    if (line) tell(line, Number(word.dataset.word));
    else if (tell === this.#told.hovered) tell(null, null);
  }

  #key(event) {
    const word = event.target.closest(".word");
    if (!word) return;
    const words = [...this.#element.querySelectorAll(".word")];
    const here = words.indexOf(word);
    const forwards = getComputedStyle(word).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
    const backwards = forwards === "ArrowLeft" ? "ArrowRight" : "ArrowLeft";
    const there = { [forwards]: here + 1, [backwards]: here - 1, Home: 0, End: words.length - 1 }[event.key];
    if (there !== undefined) words[there]?.focus();
    else if (event.key === "Enter" || event.key === " ") word.click();
    else return;
    event.preventDefault();
  }
}

/** Where the words of a finished line stand in its translation. */
export function placesOf(line) {
  const words = line.result?.alignment?.target_words ?? line.text.match(/\S+/gu) ?? [];
  return locate(line.text, words);
}

/** What the reader of a line should know, [words, whether it is bad]: that it was refused, that it is cut, what the
 *  guard says. */
function remarks(line) {
  const { problem, result } = line;
  if (problem) return [[problem.message, problem.kind === "refused"]];
  if (!result) return [];
  const said = [];
  if (result.finished === false) said.push(["Cut at the length limit: this is not the whole translation.", true]);
  if (result.warning) said.push([sentence(result.warning), true]);
  const { guard } = result;
  const again = guard?.retried ? ", though searched again" : "";
  if (guard?.suspicious) said.push([`Doubtful${again}: ${guard.reasons.join("; ")}.`, true]);
  else if (guard?.retried) said.push(["The first translation was doubtful; this is a second one.", false]);
  return said;
}

function remark([words, bad]) {
  const element = document.createElement("p");
  element.className = bad ? "remark bad" : "remark";
  element.textContent = words;
  return element;
}
