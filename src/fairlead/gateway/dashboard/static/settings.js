// Settings of the reader, stored in this browser.

function read(name) {
  try {
    return localStorage.getItem(`fairlead.${name}`);
  } catch {
    return null; // storage may be disabled; settings then last as long as the page
  }
}

function write(name, value) {
  try {
    if (value === null) localStorage.removeItem(`fairlead.${name}`);
    else localStorage.setItem(`fairlead.${name}`, value);
  } catch {
    // see read()
  }
}

export const shortcutsOn = () => read("shortcuts") !== "off";
export const setShortcuts = (on) => write("shortcuts", on ? null : "off");

const systemTheme = () => (window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

export const theme = () => document.documentElement.dataset.theme || systemTheme();

/** Toggle light and dark. A choice equal to the system's is not stored, so that the page follows the system again. */
export function toggleTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  if (next === systemTheme()) {
    delete document.documentElement.dataset.theme;
    write("theme", null);
  } else {
    document.documentElement.dataset.theme = next;
    write("theme", next);
  }
  return next;
}
