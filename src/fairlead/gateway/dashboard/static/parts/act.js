// A button that opens a confirmation dialog. It is hidden from read-only sessions.
import { useApp } from "../context.js";
import { html } from "../html.js";

export function Act({ question, children, look = "", label, when = true }) {
  const { ask, session } = useApp();
  if (!session.may_act || !when) return null;
  return html`<button type="button" class=${look} aria-label=${label} onClick=${() => ask(question())}>${children}</button>`;
}
