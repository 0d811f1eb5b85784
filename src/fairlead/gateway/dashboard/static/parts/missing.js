// Shown for the address of a job, batch or service that does not exist or that the key may not see.
import { html } from "../html.js";
import { to } from "../router.js";
import { Loading } from "./bits.js";

const MISSING = ["not_found", "invalid_input"];

/** Shown while there is no state of one `what` ("job", for example). `list` is the page with all of them. */
export const Missing = ({ what, list, error }) => MISSING.includes(error?.code)
  ? html`<section class="card" data-testid="missing"><h2>No such ${what}</h2>
      <p>It was deleted, never existed, or belongs to another user. <a href=${to([list])}>Show all</a></p></section>`
  : html`<${Loading} error=${error} />`;
