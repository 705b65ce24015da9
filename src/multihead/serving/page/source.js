// The source text, with words shaded by attention weight.
//
// A textarea cannot shade words, so a mirror with the same text lies below it: only its shades are visible, and it
// determines the height of the textarea.
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

  /** Copies the text to the mirror, without shades. */
  reflect() {
    this.#mirror.replaceChildren(...this.text.split("\n").map((text) => row(text)));
  }

  /** Shades the words of a line by weight (0 to 1); returns the element of each word, null if it is not marks. */
  shade(number, words, weights) {
    this.reflect();
    const marks = words.map(() => null);
    const line = this.text.split("\n")[number];
    if (line === undefined) return marks;
    fill(this.#mirror.children[number], line, locate(line, words), (place, word) => {
      const mark = document.createElement("span");
      mark.className = "mark";
      mark.dataset.source = String(place);
      mark.dataset.weight = weights[place].toFixed(3);
      mark.style.setProperty("--weight", String(weights[place]));
      mark.textContent = word;
      marks[place] = mark;
      return mark;
    });
    return marks;
  }
}

function row(text) {
  const element = document.createElement("div");
  element.textContent = text || "\u200b"; // gives an empty line its height
  return element;
}
