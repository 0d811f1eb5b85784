// Special states of a service, one tag each.
import { html } from "../html.js";
import { Tag } from "./bits.js";

export const Tags = ({ service }) => html`<span class="tags">
  ${service.order === "fifo" && html`<${Tag} title="first come, first served">fifo<//>`}
  ${service.pool && html`<${Tag} title="shares the slots of this pool with other services">pool ${service.pool}<//>`}
  ${service.paused && html`<${Tag} look="warning" title="an operator paused the service: no calls are started">paused<//>`}
  ${service.limit_source === "override" && html`<${Tag} look="warning" title="an operator overrode the configured limit">limit changed<//>`}
  ${service.limit_source === "auto" && html`<${Tag} title="Fairlead discovers the limit">auto limit<//>`}
</span>`;
