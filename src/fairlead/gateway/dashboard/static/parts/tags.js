// What is special about a service, in a word each.
import { html } from "../html.js";
import { Tag } from "./bits.js";

export const Tags = ({ service }) => html`<span class="tags">
  ${service.order === "fifo" && html`<${Tag} title="first come, first served">fifo<//>`}
  ${service.paused && html`<${Tag} look="warning" title="an operator paused it: nothing is started">paused<//>`}
  ${service.limit_source === "override" && html`<${Tag} look="warning" title="an operator changed the limit while it runs">limit changed<//>`}
  ${service.limit_source === "auto" && html`<${Tag} title="the limit is found by itself">auto limit<//>`}
</span>`;
