// The end of a list: the number of rows, and a button for more.
import { number } from "../format.js";
import { html } from "../html.js";

export const More = ({ shown, older, what }) => html`<div class="foot muted">
  <span role="status">${number(shown)} shown${older.rows.length > 0
  ? `; ${number(older.rows.length)} of them not updated since loading` : ""}.</span>
  ${older.left && html`<button class="quiet small" disabled=${older.busy}
    onClick=${older.more}>${older.busy ? "Loading…" : `Older ${what}`}</button>`}
  ${older.failure && html`<span class="trouble" role="alert">${older.failure}</span>`}</div>`;
