// The text that is typed, with the words shaded that a word of the translation looked at. A textarea cannot shade its
// words: a mirror with the same letters, invisible but for the shades, lies beneath it and also gives it its height.
import { fill, locate } from "./words.js";

export class Source {
  #area;
  #mirror;

  constructor(area, mirror) {
    this.#area = area;
    this.#mirror = mirror;
  }

  get text() {
    return this.#area.value;
  }

  set text(value) {
    this.#area.value = value;
  }

  /** The mirror, letter for letter. */
  reflect() {
    this.#mirror.replaceChildren(...this.text.split("\n").map((text) => row(text)));
  }

  /** Shades the words of one line by weight (0 to 1); gives the element of each word, null where it is not found. */
  shade(number, words, weights) {
    this.reflect();
    const found = words.map(() => null);
    const line = this.text.split("\n")[number];
    if (line === undefined) return found;
    fill(this.#mirror.children[number], line, locate(line, words), (place, word) => {
      const mark = document.createElement("span");
      mark.className = "mark";
      mark.dataset.source = String(place);
      mark.dataset.weight = weights[place].toFixed(3);
      mark.style.setProperty("--weight", String(weights[place]));
      mark.textContent = word;
      found[place] = mark;
      return mark;
    });
    return found;
  }
}

function row(text) {
  const element = document.createElement("div");
  element.textContent = text || "\u200b"; // an empty line has a height, too
  return element;
}
