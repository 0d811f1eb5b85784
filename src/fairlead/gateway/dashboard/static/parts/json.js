// JSON of any size, collapsed by default and copied as a whole.
import { html, useState } from "../html.js";
import { Copy } from "./bits.js";

const MAX_SHOWN = 200_000; // characters that a browser can lay out at once

export function Json({ title, value, open: opened = false }) {
  const [open, setOpen] = useState(opened);
  if (value === null || value === undefined) return null;
  const written = () => JSON.stringify(value, null, 2);
  return html`<details class="json" open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)} data-testid="json">
    <summary>${title} <span class="muted">${sizeOf(value)}</span></summary>
    ${open && html`<div class="command"><pre tabindex="0" aria-label=${title}>${clipped(written())}</pre>
      <${Copy} text=${written} what=${title} /></div>`}
  </details>`;
}

function clipped(text) {
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}\n… ${text.length - MAX_SHOWN} more characters; copy to see all` : text;
}

function sizeOf(value) {
  if (Array.isArray(value)) return `${value.length} ${value.length === 1 ? "item" : "items"}`;
  if (typeof value === "object") {
    const names = Object.keys(value);
    return names.slice(0, 4).join(", ") + (names.length > 4 ? `, and ${names.length - 4} more` : "");
  }
  return "";
}
