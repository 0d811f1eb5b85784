// The items of a batch by status, as one bar.
import { html } from "../html.js";
import { lookOf } from "./bits.js";

const ORDER = ["COMPLETED", "FAILED", "CANCELLED", "REMOVED", "RUNNING", "RETRYING", "PENDING", "SCHEDULED"];

export function BatchBar({ batch }) {
  const counts = ORDER.map((status) => [status, batch.counts?.[status] || 0]).filter(([, count]) => count > 0);
  const words = counts.map(([status, count]) => `${count} ${status.toLowerCase()}`).join(", ");
  return html`<span class="track stacked" role="img" aria-label=${words} title=${words}>
    ${counts.map(([status, count]) => html`<span key=${status} class=${`bar ${lookOf(status)}`}
      style=${{ width: `${(100 * count) / Math.max(1, batch.total)}%` }}>
      </span>`)}</span>`;
}
