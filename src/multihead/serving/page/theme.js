// Light or dark theme: the stored choice, otherwise the system's.
//
// Runs before the first paint, so that a dark page never flashes white; modules run too late for that. app.js handles
// the switch.
(() => {
  try {
    const chosen = localStorage.getItem("multihead.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // storage is disabled: use the system's theme
  }
})();
