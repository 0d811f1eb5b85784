// Keyboard shortcuts and their help dialog. They can be disabled, because speech recognition software types letters.
import { useApp } from "../context.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { sectionsFor } from "../pages.js";
import { go, to } from "../router.js";
import { setShortcuts, shortcutsOn } from "../settings.js";

const isTyping = (element) => element.closest("input, textarea, select, [contenteditable], dialog[open]") !== null;

export function Shortcuts({ open, onOpen, onClose, onSearch }) {
  const { session } = useApp();
  const dialog = useRef(null);
  const [on, setOn] = useState(shortcutsOn);
  const sections = sectionsFor(session);

  useEffect(() => {
    if (!on) return undefined;
    let afterG = 0;
    const pressed = (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key === "k" && document.querySelector("dialog[open]") === null) {
        event.preventDefault();
        onSearch();
      }
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      const section = sections.find((each) => each.shortcut === event.key);
      if (section && event.timeStamp - afterG < 1500) go(to([section.name]));
      else if (event.key === "?") onOpen();
      else if (event.key === "t") document.querySelector("[data-testid=theme]").click();
      else if (event.key === "/" || event.key === "f") {
        if (event.key === "/") onSearch();
        else document.querySelector("main input[type=search]")?.focus();
        event.preventDefault();
      }
      afterG = event.key === "g" ? event.timeStamp : 0;
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [on, session]);

  useEffect(() => {
    if (open) dialog.current.showModal();
    else dialog.current.close();
  }, [open]);

  const change = (event) => {
    setShortcuts(event.target.checked);
    setOn(event.target.checked);
  };
  return html`<dialog ref=${dialog} class="confirm" aria-labelledby="shortcuts-title" onClose=${onClose}>
    <h2 id="shortcuts-title">Keyboard shortcuts</h2>
    <dl class="shortcuts">
      ${sections.map((section) => html`<${Row} key=${section.name} keys=${["g", section.shortcut]} does=${section.title} />`)}
      <${Row} keys=${["/"]} does="Search, also with Ctrl K" />
      <${Row} keys=${["f"]} does="Filter the list" />
      <${Row} keys=${["t"]} does="Switch between light and dark" />
      <${Row} keys=${["?"]} does="This list" />
      <${Row} keys=${["Esc"]} does="Close a dialog without changes" />
    </dl>
    <label class="check"><input type="checkbox" checked=${on} onChange=${change} /> Enable shortcuts</label>
    <div class="buttons"><button class="primary" onClick=${() => dialog.current.close()}>Close</button></div>
  </dialog>`;
}

const Row = ({ keys, does }) => html`<div><dt>${keys.map((key, index) => html`${index > 0 && " then "}<kbd>${key}</kbd>`)}</dt>
  <dd>${does}</dd></div>`;
