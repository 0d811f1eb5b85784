// Pools: slots that several services share.
import { mayOperate, useApp } from "../context.js";
import { number } from "../format.js";
import { html } from "../html.js";
import { to } from "../router.js";
import { RateActs, rateOf, RateUse } from "./rates.js";

export function Pools({ pools }) {
  const { session } = useApp();
  const all = Object.entries(pools || {});
  if (all.length === 0) return null;
  return html`<section class="card"><h2>Pools</h2><ul class="pools" data-testid="pools">${all.map(([name, pool]) => html`<li key=${name}>
    <p><b>${name}</b> <span class="muted">${number(pool.in_use)} of ${number(pool.limit)} slots</span></p>
    <span class="track" role="img" aria-label=${`${number(pool.in_use)} of ${pool.limit} slots in use`}><span class="bar running"
      style=${{ width: `${Math.min(100, (100 * (pool.in_use || 0)) / pool.limit)}%` }}></span></span>
    <p class="muted">shared by ${pool.services.map((service, index) => html`${index > 0 && ", "}<a key=${service}
      href=${to(["services", service])}>${service}</a>`)}</p>
    ${pool.use && html`<p>Rate: <${RateUse} use=${pool.use} /></p>`}
    ${mayOperate(session) && html`<${RateActs} of=${rateOf.pool(name)} state=${pool.rate} />`}</li>`)}</ul></section>`;
}
