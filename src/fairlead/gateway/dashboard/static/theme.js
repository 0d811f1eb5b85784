// A classic script that runs before the first paint, so that the page does not flash in the wrong theme.
(() => {
  try {
    const chosen = localStorage.getItem("fairlead.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Without storage, use the system's theme.
  }
})();
