// A button that asks before it acts. Whoever may only look does not see it.
import { useApp } from "../context.js";
import { html } from "../html.js";

export function Act({ question, children, look = "", label, when = true }) {
  const { ask, session } = useApp();
  if (!session.may_act || !when) return null;
  return html`<button type="button" class=${look} aria-label=${label} onClick=${() => ask(question())}>${children}</button>`;
}
