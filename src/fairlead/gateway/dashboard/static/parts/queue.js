// The waiting jobs of a service by band.
import { number, plural } from "../format.js";
import { html } from "../html.js";
import { Age } from "./bits.js";

const BANDS = ["high", "medium", "low"];

/** NaN while the dispatcher is unreachable. */
export function waitingIn(service) {
  const { waiting } = service;
  if (!waiting) return NaN;
  return BANDS.reduce((sum, band) => sum + (waiting[band] || 0), 0) + (service.retrying || 0);
}

/** The bands as one bar, scaled to the longest queue of the page, and their counts. */
export function Queue({ service, widest, active = true }) {
  const waiting = service.waiting || {};
  const parts = [["retry", service.retrying || 0], ...BANDS.map((band) => [band, waiting[band] || 0])];
  const total = waitingIn(service);
  const words = Number.isNaN(total) ? "waiting jobs are unknown" : total === 0 ? "no waiting jobs" : parts.filter(([, count]) => count > 0).map(([band, count]) => `${count} ${band}`).join(", ");
  return html`<div class="queue">
    <div class="queue-head"><strong class="count">${number(total)}</strong> <span class="muted">waiting</span>
      ${service.oldest_since && total > 0 && html`<span class="oldest">oldest <${Age} since=${service.oldest_since} active=${active} />
        </span>`}</div>
    <div class="bar" role="img" aria-label=${words}>
      ${total > 0 && parts.map(([band, count]) => count > 0 && html`<span key=${band} class=${`band ${band}`} title=${plural(count, `${band} job`)}
        style=${{ width: `${(100 * count) / Math.max(widest, total, 1)}%` }}></span>`)}
    </div>
    ${total > 0 && html`<ul class="legend" aria-hidden="true">${parts.map(([band, count]) => count > 0
      && html`<li key=${band}><span class=${`key ${band}`}></span>${band} <b>${number(count)}</b></li>`)}</ul>`}
  </div>`;
}
