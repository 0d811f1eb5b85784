// What was just done, said once and politely.
import { html } from "../html.js";

export const Toasts = ({ said }) => html`<div class="toasts" role="status" aria-live="polite" data-testid="said">
  ${said.map(({ id, message }) => html`<p key=${id}>${message}</p>`)}
</div>`;
