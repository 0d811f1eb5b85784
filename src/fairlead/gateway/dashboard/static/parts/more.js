// The end of a list: how much is shown, and a way to more of it.
import { number } from "../format.js";
import { html } from "../html.js";

export const More = ({ shown, older, what }) => html`<div class="foot muted">
  <span role="status">${number(shown)} shown${older.rows.length > 0
  ? `; ${number(older.rows.length)} of them as they were when read` : ""}.</span>
  ${older.left && html`<button class="quiet small" disabled=${older.busy}
    onClick=${older.more}>${older.busy ? "Reading…" : `Older ${what}`}</button>`}
  ${older.trouble && html`<span class="trouble" role="alert">${older.trouble}</span>`}</div>`;
