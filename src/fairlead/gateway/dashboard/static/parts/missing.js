// Where an address leads to something that is not there, or not for this key.
import { html } from "../html.js";
import { to } from "../router.js";
import { Loading } from "./bits.js";

const NOT_THERE = ["not_found", "invalid_input"];

/** What to show instead of one `what`, while its state is not there. `list` is the page that has them all. */
export const Missing = ({ what, list, error }) => NOT_THERE.includes(error?.code)
  ? html`<section class="card" data-testid="missing"><h2>There is no such ${what}</h2>
      <p>It was removed, or never was, or is somebody else's. <a href=${to([list])}>All there are</a></p></section>`
  : html`<${Loading} error=${error} />`;
