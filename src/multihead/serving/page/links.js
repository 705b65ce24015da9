// Curves between words, as thick as the attention weight.
//
// They lead from words of the source to words of the translation, are drawn below the text, and again whenever its
// layout changes.

export class Links {
  #svg;
  #curves = [];

  constructor(svg, frame) {
    this.#svg = svg;
    new ResizeObserver(() => this.draw(this.#curves)).observe(frame);
  }

  /** @param curves {from, to, weight}: two elements (null for a word that is not shown), and 0 (thin) to 1. */
  draw(curves) {
    this.#curves = curves.filter(({ from, to }) => from?.isConnected && to?.isConnected);
    const frame = this.#svg.getBoundingClientRect();
    const strongestLast = [...this.#curves].sort((one, other) => one.weight - other.weight);
    this.#svg.replaceChildren(...strongestLast.map((one) => curve(one, frame)));
  }

  clear() {
    this.draw([]);
  }
}

/** A curve from the bottom center of one word to the top center of the other, vertical at both ends. */
function curve({ from, to, weight }, frame) {
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
