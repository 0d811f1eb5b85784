// Shown for an address of something that does not exist or that the key may not see.
import { html } from "../html.js";
import { to } from "../router.js";
import { Loading } from "./bits.js";

const MISSING = ["not_found", "invalid_input"];

/** Shown instead of one `what` without a state. `list` is the page with all of them. */
export const Missing = ({ what, list, error }) => MISSING.includes(error?.code)
  ? html`<section class="card" data-testid="missing"><h2>No such ${what}</h2>
      <p>It was deleted, never existed, or belongs to another user. <a href=${to([list])}>Show all</a></p></section>`
  : html`<${Loading} error=${error} />`;
