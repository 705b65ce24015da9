// The pair: links between words while one is pointed at or has the focus, and a panel for the word that is chosen.
const pair = document.querySelector(".pair");
const canvas = pair.appendChild(drawn("svg", { "aria-hidden": "true" }));
const sides = { source: [...pair.querySelectorAll(".source .word")], target: [...pair.querySelectorAll(".target .word")] };
const between = data.word_attention;
let chosenWord = null;

function middle(word, bottom) {
  const box = word.getBoundingClientRect(), origin = pair.getBoundingClientRect();
  return [box.left + box.width / 2 - origin.left, (bottom ? box.bottom : box.top) - origin.top];
}

function curve(source, target, weight) {
  const [x, y] = middle(sides.source[source], true), [u, v] = middle(sides.target[target], false);
  const bend = (v - y) / 2;
  return drawn("path", { d: `M${x},${y + 1} C${x},${y + bend} ${u},${v - bend} ${u},${v + 2}`,
    "stroke-width": 1 + 4 * weight, opacity: 0.15 + 0.85 * weight, "data-link": `${source}-${target}` });
}

// Each link faintly, where nothing is pointed at and each sentence is one line: of several lines they would be a tangle.
function atRest() {
  if (document.activeElement?.classList.contains("word")) return document.activeElement.dispatchEvent(new Event("focus"));
  show(null);
  const oneLine = Object.values(sides).every((words) => words.every((word) => word.offsetTop === words[0].offsetTop));
  if (oneLine) canvas.append(...data.links.map(([source, target]) => curve(source, target, 0.15)));
}

function show(side, at) {
  canvas.replaceChildren();
  for (const word of [...sides.source, ...sides.target]) word.classList.remove("on");
  for (const word of sides.source) {
    word.style.removeProperty("--weight");
    word.querySelector("small").textContent = "";
  }
  if (side === null) return;
  sides[side][at].classList.add("on");
  if (between === null) return;
  const weights = side === "target" ? between[at] : between.map((row) => row[at]);
  weights.forEach((weight, other) => {
    const [source, target] = side === "target" ? [other, at] : [at, other];
    const linked = data.links.some((link) => link[0] === source && link[1] === target);
    if (weight >= 0.05 || linked) canvas.append(curve(source, target, Math.min(weight, 1)));
    if (side === "target") {
      sides.source[source].style.setProperty("--weight", (0.75 * weight).toFixed(3));
      if (weight >= 0.005) sides.source[source].querySelector("small").textContent = percent(weight);
    } else if (linked) sides.target[target].classList.add("on");
  });
}

function choose(at) {
  chosenWord = at;
  sides.target.forEach((word, place) => {
    word.classList.toggle("chosen", place === at);
    word.setAttribute("aria-pressed", String(place === at));
  });
  const word = data.words[at];
  const others = word.alternatives.filter(likely).map((other) => bar(other.text, other.probability));
  const tokens = data.pieces.filter((piece) => piece.word === at);
  byId("alternatives").replaceChildren(
    make("h3", {}, "Instead of ", make("em", {}, word.text)),
    make("ul", { class: "bars" }, bar(word.text, word.probability, true), ...others));
  byId("choices").replaceChildren(...tokens.flatMap((piece) => [
    make("h3", {}, "Token ", make("em", {}, piece.text), `, rank ${piece.rank}`),
    make("ul", { class: "bars tokens" },
      ...(piece.candidates.some((other) => other.text === piece.text) ? [] : [bar(piece.text, piece.probability, true)]),
      ...piece.candidates.filter((other) => likely(other) || other.text === piece.text).map((other) => bar(other.text, other.probability, other.text === piece.text)))]));
}

for (const [side, words] of Object.entries(sides)) {
  words.forEach((word, at) => {
    word.addEventListener("mouseenter", () => show(side, at));
    word.addEventListener("focus", () => show(side, at));
    word.addEventListener("mouseleave", atRest);
    word.addEventListener("blur", () => setTimeout(atRest));
    if (side === "target") word.addEventListener("click", () => choose(at));
    word.addEventListener("keydown", (event) => {
      const forward = getComputedStyle(word).direction === "rtl" ? -1 : 1;
      const step = { ArrowRight: forward, ArrowLeft: -forward }[event.key];
      const across = { ArrowDown: "target", ArrowUp: "source" }[event.key];
      const next = step ? words[at + step] : across && across !== side ? sides[across][partner(side, at)] : null;
      if (next) { next.focus(); event.preventDefault(); }
    });
  });
}

function partner(side, at) {
  const here = side === "source" ? 0 : 1;
  const link = data.links.find((pairOf) => pairOf[here] === at);
  return link ? link[1 - here] : 0;
}

addEventListener("resize", atRest);
document.fonts?.ready.then(atRest);
atRest();
// To begin with, the word that the model was least sure of.
if (data.words.length) choose(data.words.reduce((least, word, at) => (word.probability < data.words[least].probability ? at : least), 0));
