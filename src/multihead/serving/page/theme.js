// Light or dark: what was chosen before, and otherwise what the system says. Runs before the first paint, so that a
// dark page never flashes white; that is why it is no module. The switch itself is wired in app.js.
(() => {
  try {
    const chosen = localStorage.getItem("multihead.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // storage may be forbidden: the system's choice stands
  }
})();
