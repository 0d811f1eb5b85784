// Rates: as words, how much of them is used, and the buttons that change them.
import { changeRate, liftRate } from "../actions.js";
import { duration, number } from "../format.js";
import { html } from "../html.js";
import { Act } from "./act.js";

export const rateWords = (rate, unit) =>
  [rate.requests != null && `${number(rate.requests)} calls`, rate.units != null && `${number(rate.units)} ${unit}`].filter(Boolean).join(", ") + ` in ${duration(rate.per)}`;

export const RateUse = ({ use }) => html`${[use.rate.requests != null && number(use.requests), use.rate.units != null && `${number(use.units)} ${use.unit}`]
  .filter(Boolean).join(", ")}<small class="muted"> of ${rateWords(use.rate, use.unit)}</small>`;

/** `of` is one of `rateOf`; `state` has its rate, unit and whether an operator set it. */
export const RateActs = ({ of, state }) => html`<span class="nowrap">
  <${Act} look="quiet small" label=${`Change the rate of ${of.name}`} question=${() => changeRate(of, state)}>Change rate<//>
  <${Act} when=${state.overridden} look="quiet small" label=${`Remove the rate override of ${of.name}`} question=${() => liftRate(of)}>Remove override<//></span>`;
