// The controls at the top of the page: its language, light or dark.
import { LANGUAGES, keepLanguage, preferredLanguage, say, useLanguage } from "./language.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const [theme, language] = ["theme", "language"].map((id) => document.getElementById(id));

/** Writes the page in the user's language, and calls `changed` when another is chosen. */
export function setUp(changed) {
  language.append(...Object.entries(LANGUAGES).map(([code, name]) => {
    const option = new Option(name, code);
    option.lang = code;
    return option;
  }));
  language.value = preferredLanguage();
  language.addEventListener("change", () => {
    keepLanguage(language.value);
    write();
    changed();
  });
  theme.addEventListener("click", () => {
    const chosen = theme.dataset.to;
    document.documentElement.dataset.theme = chosen;
    try {
      localStorage.setItem("multihead.theme", chosen);
    } catch {
      // storage is disabled: the theme lasts until the page is closed
    }
    showTheme();
  });
  dark.addEventListener("change", showTheme);
  write();
}

function write() {
  useLanguage(language.value);
  showTheme();
}

/** The button says what it does. */
function showTheme() {
  const shown = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  theme.dataset.to = shown === "dark" ? "light" : "dark";
  theme.querySelector("span").textContent = say(theme.dataset.to);
}
