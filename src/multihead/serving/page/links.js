// Threads from words of the source to words of the translation, as thick as the weight; drawn beneath the text, and
// drawn again wherever the words move to.

export class Links {
  #svg;
  #threads = [];

  constructor(svg, frame) {
    this.#svg = svg;
    new ResizeObserver(() => this.draw(this.#threads)).observe(frame);
  }

  /** @param threads {from, to, weight}: two elements (null for a word that is not shown), and 0 (a hair) to 1. */
  draw(threads) {
    this.#threads = threads.filter(({ from, to }) => from?.isConnected && to?.isConnected);
    const frame = this.#svg.getBoundingClientRect();
    const strongestLast = [...this.#threads].sort((one, other) => one.weight - other.weight);
    this.#svg.replaceChildren(...strongestLast.map((thread) => drawn(thread, frame)));
  }

  clear() {
    this.draw([]);
  }
}

/** From the middle below a word to the middle above the other, leaving and arriving upright. */
function drawn({ from, to, weight }, frame) {
  const [start, end] = [from.getClientRects()[0], to.getClientRects()[0]];
  const [x, y] = [start.x + start.width / 2 - frame.x, start.bottom - frame.y];
  const [across, down] = [end.x + end.width / 2 - frame.x, end.top - frame.y];
  const middle = (y + down) / 2;
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", `M${x} ${y}C${x} ${middle} ${across} ${middle} ${across} ${down}`);
  path.setAttribute("stroke-width", String(1.25 + 3.25 * weight));
  path.setAttribute("stroke-opacity", String(0.35 + 0.65 * weight));
  return path;
}
