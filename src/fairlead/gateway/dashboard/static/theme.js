// Loaded before the first paint, and so no module: a choice of light or dark must not flash in the other.
(() => {
  try {
    const chosen = localStorage.getItem("fairlead.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Without storage the system's choice holds.
  }
})();
