// Whether all is well, in a word; and when it is not: what is wrong, and what mends it.
import { capital, duration, moment, number, plural, text } from "../format.js";
import { html } from "../html.js";
import { Copy } from "./bits.js";
import { shortWorker } from "./slots.js";

const WORST = ["error", "warning"];
const CALM = { ok: "All is well", unknown: "Looking whether all is well…" };
const AWAY = "The line cannot be seen";
const MOST_ALIKE = 2;
const SLOW_OUTBOX = 5; // seconds

export function Health({ health }) {
  if (!health) return null;
  const wrong = Object.entries(health.findings || {}).filter(([, finding]) => WORST.includes(finding.level))
    .sort(([, one], [, other]) => WORST.indexOf(one.level) - WORST.indexOf(other.level));
  // Until somebody has looked, nobody can say that all is well; and while the line is away, the last look says little.
  const level = health.unknown ? "error" : health.findings ? wrong[0]?.[1].level || "ok" : "unknown";
  return html`<section class=${`health ${level}`} aria-label="Health" data-testid="health">
    <div class="health-head">
      <p class="verdict" role="status"><span class="dot" aria-hidden="true"></span>${health.unknown ? AWAY : CALM[level] || verdict(wrong)}</p>
      <ul class="parts">
        <${Leaders} leaders=${health.leaders} />
        <li class=${health.workers ? "" : "bad"}>${health.workers ? plural(health.workers, "worker") : "no worker"}</li>
        <li>${plural(health.managers || 0, "manager")}, ${plural(health.gateways || 0, "gateway")}</li>
        <li class=${health.outbox_age > SLOW_OUTBOX ? "bad" : ""}
          title="how long the oldest change waits to be told to the line">outbox ${health.outbox_age > 0 ? `${duration(health.outbox_age)} behind` : "empty"}</li>
        ${health.unknown && html`<li class="bad">slots are not known now: ${health.unknown}</li>`}
        ${health.rebuilding?.length > 0 && html`<li class="bad">rebuilding ${health.rebuilding.join(", ")}</li>`}
      </ul>
    </div>
    ${alike(wrong).map(([code, found]) => html`<${Findings} key=${code} found=${found} />`)}
  </section>`;
}

function verdict(wrong) {
  const errors = wrong.filter(([, finding]) => finding.level === "error").length;
  const warnings = wrong.length - errors;
  return [errors && plural(errors, "error"), warnings && plural(warnings, "warning")].filter(Boolean).join(", ");
}

/** What is wrong with every service is one thing that is wrong: together, the worst kind first. */
function alike(wrong) {
  const kinds = new Map();
  for (const each of wrong) kinds.set(each[1].code, [...(kinds.get(each[1].code) || []), each]);
  return [...kinds];
}

function Findings({ found }) {
  const few = found.length > MOST_ALIKE + 1 ? MOST_ALIKE : found.length; // "1 more" would take as much room as that one
  const list = (some) => html`<ul class="findings">${some.map(([id, finding]) => html`<${Finding} key=${id} finding=${finding} />`)}</ul>`;
  return html`${list(found.slice(0, few))}${few < found.length && html`<details class="alike">
    <summary>${number(found.length - few)} more like it</summary>${list(found.slice(few))}</details>`}`;
}

function Leaders({ leaders }) {
  const all = Object.entries(leaders || {});
  if (all.length === 0) return null; // one process does everything
  return all.map(([shard, leader]) => {
    const name = typeof leader === "string" ? leader : leader?.leader;
    const where = all.length > 1 ? `${shard}: ` : "";
    return html`<li key=${shard} class=${name ? "" : "bad"}>${where}${name ? html`<span
      title=${name}>led by ${shortWorker(name)}</span>` : "no manager leads"}</li>`;
  });
}

/** The doctor writes moments in UTC, for machines; everything else here is in the reader's time. */
const inOwnTime = (words) => words.replace(/\b\d{4}-\d\d-\d\dT[\d:.]+Z/g, moment);

/** Fixes quote commands in backticks: those are shown as such, and can be copied. */
function Finding({ finding }) {
  const parts = capital(text(finding.fix)).split("`");
  return html`<li class=${finding.level}>
    <h2><span class="hidden">${finding.level}: </span>${capital(text(finding.title))}</h2>
    <p>${capital(inOwnTime(text(finding.text)))}.</p>
    ${finding.fix && html`<p class="fix">${parts.map((part, index) => (index % 2 ? html`<code>${part}</code>` : part))}
      ${parts.length === 3 && html` <${Copy} text=${parts[1]} what="the command" />`}</p>`}
  </li>`;
}
