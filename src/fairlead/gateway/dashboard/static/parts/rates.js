// Rates: as words, how much of them is used, and the buttons that change them.
import { changeRate, liftRate } from "../actions.js";
import { path } from "../api.js";
import { duration, number } from "../format.js";
import { html } from "../html.js";
import { Act } from "./act.js";

export const rateWords = (rate, unit) =>
  [rate.requests != null && `${number(rate.requests)} calls`, rate.units != null && `${number(rate.units)} ${unit}`].filter(Boolean).join(", ") + ` in ${duration(rate.per)}`;

export const RateUse = ({ use }) => html`${[use.rate.requests != null && number(use.requests), use.rate.units != null && `${number(use.units)} ${use.unit}`]
  .filter(Boolean).join(", ")}<small class="muted"> of ${rateWords(use.rate, use.unit)}</small>`;

/** Whose rates operators change: what is said about it, the route, and what the request adds. */
export const rateOf = {
  service: (name) => ({ name, route: path`/admin/services/${name}/rate`, says: html`What the endpoint of <b>${name}</b> gets` }),
  region: (service, region) => ({ ...rateOf.service(service), name: `${service} in ${region}`, adds: { region }, says: html`What <b>${service}</b> gets in <b>${region}</b>` }),
  pool: (name) => ({ name: `the pool ${name}`, route: path`/admin/rates/pool/${name}`, says: html`What all services of the pool <b>${name}</b> get together` }),
  plan: (name) => ({ name: `the plan ${name}`, route: path`/admin/rates/plan/${name}`, says: html`What each user of the plan <b>${name}</b> gets in each service` }),
  group: (name) => ({ name: `the group ${name}`, route: `/admin/rates/group/${name.split("/").map(encodeURIComponent).join("/")}`, says: html`What all members of the group <b>${name}</b> get together in each service` }),
};

/** `of` is one of `rateOf`; `state` has its rate, unit and whether an operator set it. */
export const RateActs = ({ of, state }) => html`<span class="nowrap">
  <${Act} look="quiet small" label=${`Change rate of ${of.name}`} question=${() => changeRate(of, state)}>Change rate<//>
  <${Act} when=${state.overridden} look="quiet small" label=${`Remove override of the rate of ${of.name}`} question=${() => liftRate(of)}>Remove override<//></span>`;
