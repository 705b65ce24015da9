// Attention by layer and head: small pictures of all to choose from, and the chosen one in full.
const KINDS = [["cross", "From output to source"], ["encoder", "Within the source"], ["decoder", "Within the output"]]
  .filter(([kind]) => data.attention[kind] !== null);
const at = { kind: 0, layer: 0, head: -1 }; // head -1: the mean

function mean(heads) {
  return heads[0].map((row, r) => row.map((_, c) => heads.reduce((sum, head) => sum + head[r][c], 0) / heads.length));
}

function weightsOf(layer, head) {
  const heads = data.attention[KINDS[at.kind][0]].layers[layer];
  return head < 0 ? mean(heads) : heads[head];
}

function thumbnail(weights) {
  const picture = make("canvas", { width: weights[0].length, height: weights.length });
  const [red, green, blue] = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim().split(/\s+/);
  const context = picture.getContext("2d");
  weights.forEach((row, r) => row.forEach((weight, c) => {
    context.fillStyle = `rgb(${red} ${green} ${blue} / ${Math.sqrt(weight / 1000)})`;
    context.fillRect(c, r, 1, 1);
  }));
  return picture;
}

function drawThumbs() {
  const { layers } = data.attention[KINDS[at.kind][0]];
  const several = layers[0].length > 1;
  const heads = [...(several ? [-1] : []), ...layers[0].keys()];
  const place = byId("thumbs");
  place.style.gridTemplateColumns = `repeat(${heads.length + 1}, max-content)`;
  place.replaceChildren(make("span"), ...heads.map((head) => make("span", {}, head < 0 ? "mean" : `head ${head + 1}`)));
  layers.forEach((_, layer) => {
    place.append(make("span", { class: "layer" }, `layer ${layer + 1}`));
    for (const head of heads) {
      const pressed = layer === at.layer && head === at.head;
      place.append(make("button", { type: "button", "aria-pressed": String(pressed), "data-map": `${layer}-${head}`,
        "aria-label": `Layer ${layer + 1}, ${head < 0 ? "mean of all heads" : "head " + (head + 1)}`,
        onclick: () => go({ layer, head }) }, thumbnail(weightsOf(layer, head))));
    }
  });
}

function drawMap() {
  const { rows, columns, layers } = data.attention[KINDS[at.kind][0]];
  const weights = weightsOf(at.layer, at.head);
  const most = weights.flat().reduce((a, b) => Math.max(a, b), 1);
  const told = byId("told");
  const which = `Layer ${at.layer + 1} of ${layers.length}, ${at.head < 0 ? `mean of ${layers[0].length} heads` : `head ${at.head + 1}`}`;
  told.textContent = `${which}; each row adds up to 100%.`;
  const head = make("thead", {}, make("tr", {}, make("td"), ...columns.map((name) => make("th", { scope: "col" }, name))));
  const body = make("tbody", {}, ...rows.map((name, r) => make("tr", {}, make("th", { scope: "row" }, name),
    ...columns.map((column, c) => {
      const share = weights[r][c] / 1000;
      const strong = weights[r][c] / most > 0.6;
      return make("td", { class: strong ? "strong" : "", "--weight": (weights[r][c] / most).toFixed(3), "data-at": `${r}-${c}`,
        "aria-label": percent(share) },
        share >= 0.095 ? String(Math.round(100 * share)) : "");
    }))));
  const table = make("table", { class: "map" }, head, body);
  table.addEventListener("mouseover", (event) => {
    const cell = event.target.closest("td[data-at]");
    for (const lit of table.querySelectorAll(".lit")) lit.classList.remove("lit");
    if (!cell) return;
    const [r, c] = cell.dataset.at.split("-").map(Number);
    head.rows[0].cells[c + 1].classList.add("lit");
    body.rows[r].cells[0].classList.add("lit");
    told.textContent = `${which}: ${rows[r]} attends to ${columns[c]} with ${percent(weights[r][c] / 1000)}.`;
  });
  byId("map").replaceChildren(table);
}

function go(change) {
  const before = document.activeElement?.dataset?.map;
  Object.assign(at, change);
  const { layers } = data.attention[KINDS[at.kind][0]];
  at.layer = Math.min(at.layer, layers.length - 1);
  at.head = layers[0].length === 1 ? 0 : Math.min(at.head, layers[0].length - 1);
  segments(byId("kinds"), KINDS.map(([, name]) => name), at.kind, (kind) => { go({ kind }); byId("kinds").children[kind].focus(); });
  drawThumbs();
  drawMap();
  if (before) byId("thumbs").querySelector(`[data-map="${before}"]`)?.focus();
}

if (KINDS.length) {
  go({ layer: Math.max(data.attention[KINDS[0][0]].layers.length - 2, 0) });
  document.addEventListener("themed", drawThumbs);
  byId("thumbs").addEventListener("keydown", (event) => {
    const buttons = [...byId("thumbs").querySelectorAll("button")];
    const across = buttons.length / data.attention[KINDS[at.kind][0]].layers.length;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
    const next = step && buttons[buttons.indexOf(document.activeElement) + step];
    if (next) { next.focus(); next.click(); event.preventDefault(); }
  });
}
