// The slots of a service: free, in use, held. Few slots are cards with details, more are cells, and many are squares with a tooltip.
import { useNow } from "../clock.js";
import { age, shortAge, text } from "../format.js";
import { html, useRef } from "../html.js";
import { to } from "../router.js";

const MAX_CARDS = 6;
const MAX_CELLS = 16;
const MAX_FREE = 64;

export function Slots({ service, name, active = true }) {
  const now = useNow(active);
  const taken = Object.entries(service.slots || {}).sort(([, one], [, other]) => one.since - other.since);
  const holds = Object.entries(service.holds || {});
  const more = service.more_slots || 0;
  // Without the dispatcher it is unknown which slots are free.
  if (service.in_use === undefined) return html`<p class="slots-unknown muted">The use of its slots is unknown.</p>`;
  const free = Math.max(0, (service.limit || 0) - (service.in_use || 0));
  const cards = (service.limit || 0) <= MAX_CARDS && more === 0;
  const label = `slots of ${name}: ${taken.length + more} running, ${holds.length} held, ${free} free`;
  const look = cards ? "cards" : (service.limit || 0) > MAX_CELLS ? "dense" : "cells";
  return html`<ul class=${`slots ${look}`} aria-label=${label} style=${{ "--slots": service.limit }}>
    ${taken.map(([lease, slot]) => html`<${Taken} key=${lease} slot=${slot} now=${now} show=${cards ? age : shortAge} />`)}
    ${more > 0 && html`<li class="slot-more">+${more}</li>`}
    ${holds.map(([id, hold]) => html`<${Held} key=${id} hold=${hold} now=${now} show=${cards ? age : shortAge} />`)}
    ${Array.from({ length: Math.min(free, MAX_FREE) }, (_, index) => html`<li key=${`free ${index}`} class="slot free">
      <span class="slot-name">free</span></li>`)}
    ${free > MAX_FREE && html`<li class="slot-more">+${free - MAX_FREE} free</li>`}
  </ul>`;
}

function Taken({ slot, now, show }) {
  const left = slot.expires_at - now;
  // The data does not include the duration of a lease; the longest remaining time seen so far is close to it.
  const longest = useRef(1);
  longest.current = Math.max(longest.current, left);
  const step = slot.total_steps > 1 ? `step ${slot.step + 1} of ${slot.total_steps}` : null;
  const late = left < 3;
  const details = [
    `${text(slot.user_id)}: ${text(slot.feature_name)}${step ? `, ${step}` : ""}`,
    `running for ${age(now - slot.since)} on ${text(slot.worker)}${slot.region ? ` in ${slot.region}` : ""}`,
    `lease expires in ${age(left)}`,
  ];
  return html`<li class=${`slot taken${late ? " late" : ""}`}>
    <a href=${slot.job_id ? to(["jobs", slot.job_id]) : null} title=${details.join("\n")}>
      <span class="slot-name">${text(slot.user_id)}</span>
      <span class="slot-age">${show(now - slot.since)}</span>
      <span class="slot-what">${text(slot.feature_name)}${step && html` <span class="nowrap">${slot.step + 1}/${slot.total_steps}</span>`}</span>
      <span class="slot-where">${slot.region ? `${slot.region} · ` : ""}${shortWorker(slot.worker)}</span>
      <span class="slot-lease" title="remaining lease">
        <span class="lease-left" style=${{ width: `${Math.max(0, (100 * left) / longest.current)}%` }}></span></span>
      <span class="slot-left">lease ${age(left)}</span>
    </a>
  </li>`;
}

function Held({ hold, now, show }) {
  const left = age(hold.until - now);
  const words = `held: the call of a dead worker may still be running, for ${left} at most`;
  return html`<li class="slot held">
    <a href=${hold.job_id ? to(["jobs", hold.job_id]) : to([])} title=${words}>
      <span class="slot-name">held</span><span class="slot-age">${show(hold.until - now)}</span>
      <span class="slot-what">worker died</span>
    </a>
  </li>`;
}

/** host:pid:random/pool without the random part. */
export function shortWorker(worker) {
  const [process, pool] = text(worker).split("/");
  const parts = process.split(":");
  return `${parts.length > 2 ? parts.slice(0, -1).join(":") : process}${pool ? `/${pool}` : ""}`;
}
