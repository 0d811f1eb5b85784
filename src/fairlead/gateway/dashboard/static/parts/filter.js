// A field that filters a list on the page. `f` focuses it.
import { html } from "../html.js";

export const Filter = ({ label, hint = label, value, onChange }) => html`<input type="search" aria-label=${label} placeholder=${hint}
  value=${value} onInput=${(event) => onChange(event.target.value)} />`;
