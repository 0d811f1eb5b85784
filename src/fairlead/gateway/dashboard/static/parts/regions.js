// The regions of a service with their breaker, slots and latency.
import { mayOperate, useApp } from "../context.js";
import { duration, number, plural } from "../format.js";
import { html } from "../html.js";
import { Left, Tag } from "./bits.js";
import { RateActs, rateOf, rateWords } from "./rates.js";

const BREAKER = {
  closed: ["ok", "working"], working: ["ok", "working"],
  resting: ["failed", "resting"], probing: ["warning", "probing with one call"],
};

export function Regions({ regions, service }) {
  const { session } = useApp();
  const rows = Object.entries(regions).sort(([one], [other]) => one.localeCompare(other));
  if (rows.length === 0) return null;
  const rated = mayOperate(session) || rows.some(([, region]) => region.rate);
  return html`<section class="card"><h2>Regions</h2><div class="table-box"><table class="rows">
    <caption class="hidden">Regions with their slots, breaker and latency</caption>
    <thead><tr><th scope="col">Region</th><th scope="col">State</th><th scope="col" class="n">In use</th>
      <th scope="col" class="n">Limit</th>
      <th scope="col" class="n">Waiting</th><th scope="col" class="n">Retrying</th><th scope="col" class="n">Latency</th>
      ${rated && html`<th scope="col">Rate</th>`}</tr></thead>
    <tbody>${rows.map(([name, region]) => html`<tr key=${name}>
      <th scope="row" data-label="Region">${name}</th>
      <td data-label="State"><${Breaker} region=${region} /></td>
      <td class="n" data-label="In use">${number(region.in_use)}</td><td class="n" data-label="Limit">${number(region.limit)}</td>
      <td class="n" data-label="Waiting">${number(region.waiting)}</td><td class="n" data-label="Retrying">${number(region.retrying)}</td>
      <td class="n" data-label="Latency">${duration(region.latency)}</td>
      ${rated && html`<td data-label="Rate">${region.rate ? rateWords(region.rate, region.unit) : "–"}
        ${mayOperate(session) && html` <${RateActs} of=${rateOf.region(service, name)} state=${region} />`}</td>`}</tr>`)}</tbody></table></div></section>`;
}

function Breaker({ region }) {
  const [look, word] = BREAKER[region.breaker] || ["idle", region.breaker || "unknown"];
  return html`<${Tag} look=${look}>${word}<//>${region.breaker === "resting" && region.resting_until
    && html` <span class="muted">for <${Left} until=${region.resting_until} /></span>`}${region.failures > 0
    && html`<span class="muted">${region.breaker === "resting" ? ", " : " "}${plural(region.failures, "failure")} in a row</span>`}`;
}
