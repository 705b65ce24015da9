// The search as a tree: steps from left to right, what was found on top, and for each hypothesis what became of it.
const nodes = data.search.nodes.map((node, place) => ({ ...node, place_in_tree: place, children: [] }));
for (const node of nodes) if (node.parent !== null) nodes[node.parent].children.push(node);
for (const node of [...nodes].reverse()) { // the best that comes of it, so that what survives stands on top
  node.top = Math.min(node.rank ?? Infinity, ...node.children.map((child) => child.top));
  node.children.sort((one, other) => (one.top - other.top || other.log_probability - one.log_probability));
}
const ROW = 22, LEFT = 14, HEAD = 30;
const last = Math.max(...nodes.map((node) => node.step));
let focused = nodes.find((node) => node.rank === 1) ?? nodes[0];

function spelt(node) {
  if (node.parent === null) return "·";
  return node.piece.replaceAll("▁", " ").trim() || "␣";
}

// The room of a token: no link begins or ends within one, whatever its script.
const ruler = document.createElement("canvas").getContext("2d");
ruler.font = `600 12.5px ${getComputedStyle(document.documentElement).getPropertyValue("--mono")}`;
const widthOf = (node) => (node.width ??= Math.max(16, Math.ceil(ruler.measureText(spelt(node)).width)));

// In the beam once, or ended; the others were only candidates.
const wasInBeam = (node) => node.parent === null || node.place !== null || node.score !== null;

function said(node, until) {
  if (node.parent === null) return "Start of the translation.";
  const sum = `log p = ${node.log_probability.toFixed(2)}`;
  const score = node.score === null ? "" : `, score ${node.score.toFixed(3)}`;
  const kept = data.search.settings.beam / data.search.settings.groups;
  const others = kept === 1 ? "another was" : `${kept} others were`;
  const became = node.when > until ? "Still in the beam." : {
    extended: "Extended.",
    best: `Number ${node.rank} of the results.`,
    outscored: "Finished, but with a lower score than the results.",
    pruned: node.place === null ? `Not kept in step ${node.when}: others were more probable.`
      : `Pruned in step ${node.when}: ${others} more probable.`,
    stopped: `Unfinished when the search ended, in step ${node.when}.`,
  }[node.fate];
  return `${text(node) || "a blank"} — ${sum}${score}. ${became}`;
}

function text(node) {
  if (node.text !== null) return node.text;
  const pieces = [];
  for (let one = node; one.parent !== null; one = nodes[one.parent]) pieces.unshift(one.piece);
  return pieces.join("").replaceAll("▁", " ").trim();
}

function drawTree() {
  const until = Number(byId("until").value), all = byId("all").checked;
  const shown = (node) => node.step <= until && (all || wasInBeam(node));
  const widths = Array(until + 1).fill(0);
  const lowest = Array(until + 1).fill(-1);
  // A column is filled from the top in the order of the tree, so that no line crosses another, and what has ended takes
  // no room to the right of its end.
  const lay = (node) => {
    widths[node.step] = Math.max(widths[node.step], widthOf(node));
    node.row = ++lowest[node.step];
    node.children.filter(shown).forEach(lay);
  };
  lay(nodes[0]);
  const rows = Math.max(...lowest) + 1;
  const starts = [LEFT];
  for (const width of widths) starts.push(starts.at(-1) + width + 34);
  const svg = drawn("svg", { width: starts.at(-1) + LEFT, height: HEAD + rows * ROW + 8 });
  for (let step = 1; step <= until; step++)
    svg.append(drawn("text", { class: "step", x: starts[step], y: 14 }, String(step)));
  const visible = nodes.filter((node) => node.row !== undefined && shown(node));
  for (const best of [false, true]) for (const node of visible) {
    if (node.parent === null || (node.top < Infinity) !== best) continue;
    const parent = nodes[node.parent];
    const x = starts[parent.step] + widthOf(parent) + 8 + (parent.fate === "pruned" ? 12 : 0);
    const y = HEAD + (parent.row + 0.5) * ROW, u = starts[node.step] - 5, v = HEAD + (node.row + 0.5) * ROW;
    const elbow = starts[node.step] - 18;
    svg.append(drawn("path", { class: best ? "best" : "", id: `edge-${node.place_in_tree}`, d: `M${x},${y} H${elbow} C${elbow + 8},${y} ${elbow + 2},${v} ${u},${v}` }));
  }
  for (const node of visible) {
    const fate = node.top < Infinity ? "best" : node.when <= until ? node.fate : "open";
    const x = starts[node.step], y = HEAD + (node.row + 0.5) * ROW, width = widthOf(node);
    const mark = fate === "pruned" ? [drawn("text", { class: "mark", x: x + width + 4, y }, "×")] : [];
    const group = drawn("g", { class: `node ${fate}${node === focused ? " at" : ""}`, "data-node": node.place_in_tree,
      role: "treeitem", "aria-label": said(node, until), id: `node-${node.place_in_tree}` },
      drawn("rect", { x: x - 4, y: y - ROW / 2 + 1, width: width + 8, height: ROW - 2, rx: 4 }),
      drawn("text", { x, y }, spelt(node)), ...mark);
    group.addEventListener("mouseenter", () => tell(node));
    group.addEventListener("click", () => tell(node));
    svg.append(group);
  }
  byId("tree").replaceChildren(svg);
  byId("step").textContent = until === last ? `all ${last} steps` : `${until} of ${last} steps`;
  tell(shown(focused) ? focused : nodes[0]);
}

function tell(node) {
  byId(`node-${focused.place_in_tree}`)?.classList.remove("at");
  for (const edge of byId("tree").querySelectorAll(".way")) edge.classList.remove("way");
  for (let one = node; one.parent !== null; one = nodes[one.parent]) byId(`edge-${one.place_in_tree}`)?.classList.add("way");
  focused = node;
  byId(`node-${node.place_in_tree}`)?.classList.add("at");
  byId("tree").setAttribute("aria-activedescendant", `node-${node.place_in_tree}`);
  byId("fate").textContent = said(node, Number(byId("until").value));
}

byId("tree").addEventListener("keydown", (event) => {
  const drawnNodes = [...byId("tree").querySelectorAll("g.node")].map((group) => nodes[Number(group.dataset.node)]);
  const column = drawnNodes.filter((node) => node.step === focused.step).sort((one, other) => one.row - other.row);
  const next = {
    ArrowLeft: () => nodes[focused.parent],
    ArrowRight: () => focused.children.find((child) => drawnNodes.includes(child)),
    ArrowUp: () => column[column.indexOf(focused) - 1],
    ArrowDown: () => column[column.indexOf(focused) + 1],
  }[event.key];
  if (!next) return;
  event.preventDefault();
  if (next()) tell(next());
  byId(`node-${focused.place_in_tree}`).scrollIntoView({ block: "nearest", inline: "nearest" });
});

byId("until").max = last;
byId("until").value = Math.max(1, ...nodes.filter((node) => node.rank !== null).map((node) => node.step));
byId("until").addEventListener("input", drawTree);
byId("all").addEventListener("change", drawTree);
drawTree();
