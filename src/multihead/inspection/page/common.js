"use strict";
// What the parts of the page share: the data, and elements made from text alone (never from markup).
const data = JSON.parse(document.getElementById("data").textContent);
document.documentElement.classList.add("js");

const byId = (id) => document.getElementById(id);

function make(name, given = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (key === "class") element.className = value;
    else if (key.startsWith("--")) element.style.setProperty(key, value);
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function drawn(name, given = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(given)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// 0.943 as 94%, and what is nearly nothing not as 0.
function percent(share) {
  if (share > 0 && share < 0.001) return "<0.1%";
  return share < 0.0995 ? (100 * share).toFixed(1) + "%" : Math.round(100 * share) + "%";
}

// Alternatives below this are not shown: they say nothing, and lists of them hide the others.
const LEAST = 0.001;
const likely = (one) => one.probability >= LEAST;

function bar(name, probability, own = false) {
  const filled = make("i");
  filled.style.width = 100 * probability + "%";
  return make("li", own ? { class: "own" } : {}, make("span", { class: "name" }, name),
    make("span", { class: "bar" }, filled), make("span", { class: "number" }, percent(probability)));
}

// Buttons of which one is pressed.
function segments(place, names, chosen, choose) {
  place.replaceChildren(...names.map((name, at) =>
    make("button", { type: "button", "aria-pressed": String(at === chosen), onclick: () => choose(at) }, name)));
}

// The button says what it does.
const system = matchMedia("(prefers-color-scheme: dark)");
const themeAfter = () => {
  const now = document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light");
  return now === "dark" ? "light" : "dark";
};

function themed() {
  byId("theme").textContent = themeAfter() === "dark" ? "Dark colors" : "Light colors";
  document.dispatchEvent(new Event("themed"));
}

byId("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = themeAfter();
  themed();
});
system.addEventListener("change", themed);
themed();
