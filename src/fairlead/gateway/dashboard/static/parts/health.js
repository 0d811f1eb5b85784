// The health of the system; if something is wrong, the findings of the doctor and their fixes.
import { liftLimit, rebuildService, undrainWorker, unpauseService } from "../actions.js";
import { mayOperate, sees, useApp } from "../context.js";
import { capital, duration, moment, number, plural, text } from "../format.js";
import { html } from "../html.js";
import { to } from "../router.js";
import { Act } from "./act.js";
import { Copy } from "./bits.js";
import { shortWorker } from "./slots.js";

const WORST = ["error", "warning"];
const CALM = { ok: "Healthy", unknown: "Checking…" };
const AWAY = "The dispatcher is unreachable";
const MAX_ALIKE = 2;
const SLOW_OUTBOX = 5; // seconds

export function Health({ health }) {
  if (!health) return null;
  const wrong = Object.entries(health.findings || {}).filter(([, finding]) => WORST.includes(finding.level))
    .sort(([, one], [, other]) => WORST.indexOf(one.level) - WORST.indexOf(other.level));
  // Health is unknown until the first check; while the dispatcher is unreachable, the last check is outdated.
  const level = health.unknown ? "error" : health.findings ? wrong[0]?.[1].level || "ok" : "unknown";
  return html`<section class=${`health ${level}`} aria-label="Health" data-testid="health">
    <div class="health-head">
      <p class="verdict" role="status"><span class="dot" aria-hidden="true"></span>${health.unknown ? AWAY : CALM[level] || verdict(wrong)}</p>
      <ul class="parts">
        <${Leaders} leaders=${health.leaders} />
        <li class=${health.workers ? "" : "bad"}>${health.workers ? plural(health.workers, "worker") : "no worker"}</li>
        <li>${plural(health.managers || 0, "manager")}, ${plural(health.gateways || 0, "gateway")}</li>
        <li class=${health.outbox_age > SLOW_OUTBOX ? "bad" : ""}
          title="age of the oldest change that is not applied to the queue yet">outbox ${health.outbox_age > 0 ? `${duration(health.outbox_age)} behind` : "empty"}</li>
        ${health.unknown && html`<li class="bad">slots are unknown: ${health.unknown}</li>`}
        ${health.rebuilding?.length > 0 && html`<li class="bad">rebuilding ${health.rebuilding.join(", ")}</li>`}
      </ul>
    </div>
    ${alike(wrong).map(([code, found]) => html`<${Findings} key=${code} findings=${found} />`)}
  </section>`;
}

function verdict(wrong) {
  const errors = wrong.filter(([, finding]) => finding.level === "error").length;
  const warnings = wrong.length - errors;
  return [errors && plural(errors, "error"), warnings && plural(warnings, "warning")].filter(Boolean).join(", ");
}

/** Group findings by code, most severe first. */
function alike(wrong) {
  const kinds = new Map();
  for (const each of wrong) kinds.set(each[1].code, [...(kinds.get(each[1].code) || []), each]);
  return [...kinds];
}

function Findings({ findings }) {
  const few = findings.length > MAX_ALIKE + 1 ? MAX_ALIKE : findings.length; // "1 more" would be as long as the finding
  const list = (some) => html`<ul class="findings">${some.map(([id, finding]) => html`<${Finding} key=${id} finding=${finding} />`)}</ul>`;
  return html`${list(findings.slice(0, few))}${few < findings.length && html`<details class="alike">
    <summary>${number(findings.length - few)} more like this</summary>${list(findings.slice(few))}</details>`}`;
}

function Leaders({ leaders }) {
  const all = Object.entries(leaders || {});
  if (all.length === 0) return null; // one process does everything
  return all.map(([shard, leader]) => {
    const name = typeof leader === "string" ? leader : leader?.leader;
    const where = all.length > 1 ? `${shard}: ` : "";
    return html`<li key=${shard} class=${name ? "" : "bad"}>${where}${name ? html`<span
      title=${name}>led by ${shortWorker(name)}</span>` : "no leader"}</li>`;
  });
}

/** The doctor writes times in UTC; the dashboard shows local time. */
const inOwnTime = (words) => words.replace(/\b\d{4}-\d\d-\d\dT[\d:.]+Z/g, moment);

/** What a reader can do about a finding here, by code: an action, or a page to open. For other findings, the doctor's text is shown. */
const REMEDIES = {
  "service-paused": (finding) => html`<${Act} look="small primary" question=${() => unpauseService(finding.about, NaN)}>Unpause<//>`,
  "limit-overridden": (finding) => html`<${Act} look="small" question=${() => liftLimit(finding.about)}>Remove override<//>`,
  "not-in-line": (finding) => html`<${Act} look="small primary" question=${() => rebuildService(finding.about)}>Rebuild queue<//>`,
  "worker-draining": (finding) => html`<${Act} look="small primary" question=${() => undrainWorker(finding.about)}>Let it claim<//>`,
  "dead-letters-growing": () => html`<a class="button small" href=${to(["dead"])}>Dead letters</a>`,
};
const ABOUT_SERVICE = /^(service-paused|limit-|above-limit|held-|workers-full|waiting-while|region-|not-in-line|no-worker)/;
const ABOUT_WORKER = /^(worker-|no-worker|workers-full|event-loop|versions-differ|clock-skew)/;
const OPERATES = ["service-paused", "limit-overridden", "not-in-line", "worker-draining"];

function Remedies({ finding }) {
  const { session } = useApp();
  const remedy = Object.hasOwn(REMEDIES, finding.code) && (mayOperate(session) || !OPERATES.includes(finding.code)) ? REMEDIES[finding.code](finding) : null;
  const [service] = text(finding.about).split(" ");
  return html`<div class="acts">${remedy}
    ${ABOUT_SERVICE.test(finding.code) && service && html`<a class="button small" href=${to(["services", service])}>${service}</a>`}
    ${ABOUT_WORKER.test(finding.code) && sees(session, "all") && html`<a class="button small" href=${to(["workers"])}>Workers</a>`}</div>`;
}

/** Commands in backticks are shown as code and can be copied; an action on this page replaces them. */
function Finding({ finding }) {
  const { session } = useApp();
  const parts = capital(text(finding.fix)).split("`");
  const here = Object.hasOwn(REMEDIES, finding.code) && (mayOperate(session) || !OPERATES.includes(finding.code));
  return html`<li class=${finding.level}>
    <h2><span class="hidden">${finding.level}: </span>${capital(text(finding.title))}</h2>
    <p>${capital(inOwnTime(text(finding.text)))}.</p>
    ${finding.fix && !here && html`<p class="fix">${parts.map((part, index) => (index % 2 ? html`<code>${part}</code>` : part))}
      ${parts.length === 3 && html` <${Copy} text=${parts[1]} what="the command" />`}</p>`}
    <${Remedies} finding=${finding} />
  </li>`;
}
