// Messages about completed actions.
import { html } from "../html.js";

export const Toasts = ({ messages }) => html`<div class="toasts" role="status" aria-live="polite" data-testid="toasts">
  ${messages.map(({ id, message }) => html`<p key=${id}>${message}</p>`)}
</div>`;
