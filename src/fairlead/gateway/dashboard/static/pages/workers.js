// Processes with their heartbeats and running calls; draining of workers.
import { drainWorker, undrainWorker } from "../actions.js";
import { mayOperate, useApp } from "../context.js";
import { duration, number, text } from "../format.js";
import { html, useState } from "../html.js";
import { useView } from "../live.js";
import { Act } from "../parts/act.js";
import { Age, Command, JobLink, Loading, ShowAll, Tag, rowLink } from "../parts/bits.js";
import { Empty } from "../parts/empty.js";
import { to } from "../router.js";

const FIRST = 20; // calls of a worker
const MAX_NAMED = 12; // services listed by name
const SKEWED = 1; // seconds of clock skew that make times on this page misleading

const rolesOf = (process) => process.roles || [];

export function Page() {
  const { live } = useApp();
  const { state, error } = useView(live, { view: "workers" });
  if (!state) return html`<h1>Workers and managers</h1><${Loading} error=${error} />`;
  const all = Object.entries(state.processes || {}).sort(([one, a], [other, b]) => (a.alive === b.alive ? one.localeCompare(other) : a.alive ? -1 : 1));
  const workers = all.filter(([, process]) => rolesOf(process).includes("worker") || Object.keys(process.slots || {}).length > 0);
  const others = all.filter((each) => !workers.includes(each));
  return html`<div class="page-head"><h1>Workers and managers</h1></div>
    <p class="muted lead">Every process sends a heartbeat every two seconds, and counts as gone after ten.
      A draining worker finishes its calls and claims no more.</p>
    ${workers.length === 0 && html`<${Empty} title="No worker">
      <p>Jobs are accepted and wait. Start a worker that can reach the services:</p>
      <${Command} text="fairlead worker my_module:app" what="the command" /><//>`}
    <h2 class="hidden">Workers</h2>
    <ul class="processes">${workers.map(([name, process]) => html`<${Process} key=${name} name=${name} process=${process} />`)}</ul>
    ${others.length > 0 && html`<h2>Managers and gateways</h2>
      <ul class="processes">${others.map(([name, process]) => html`<${Process} key=${name} name=${name} process=${process} />`)}</ul>`}`;
}

const Names = ({ names }) => (names.length <= MAX_NAMED ? names.join(", ")
  : html`<details><summary>${number(names.length)} services</summary><p>${names.join(", ")}</p></details>`);

function Process({ name, process }) {
  const { session } = useApp();
  const works = rolesOf(process).includes("worker");
  const draining = process.draining || process.drain_asked;
  return html`<li class=${`card process${process.alive ? "" : " gone"}`} data-testid=${`process-${name}`} data-worker=${name}>
    <div class="group-head"><h3 class="mono wrap">${name}</h3>
      <span class="tags">${rolesOf(process).map((role) => html`<${Tag} key=${role}>${role}<//>`)}${process.leads?.length > 0 && html`<${Tag}
        look="ok">leads ${process.leads.join(", ")}<//>`}
        ${draining && html`<${Tag} look="warning">draining<//>`}${!process.alive && html`<${Tag} look="failed"
          title="its calls are recovered when their leases expire">gone<//>`}</span>
      ${mayOperate(session) && works && process.alive && html`<div class="acts">${draining
        ? html`<${Act} look="small primary" label=${`Claim again: ${name}`} question=${() => undrainWorker(name)}>Claim again<//>`
        : html`<${Act} look="small danger" label=${`Drain ${name}`} question=${() => drainWorker(name)}>Drain<//>`}</div>`}</div>
    <dl class="inline-facts">
      <div><dt>Heartbeat</dt><dd>${process.seen_at ? html`<${Age} since=${process.seen_at} /> ago` : "none"}</dd></div>
      ${works && html`<div><dt>Running</dt><dd><b>${number(process.running)}</b> of ${number(process.concurrency)}</dd></div>`}
      ${works && process.bands?.length > 0 && process.bands.length < 3 && html`<div><dt>Only</dt><dd>${process.bands.join(", ")}</dd>
        </div>`}
      ${works && process.services?.length > 0 && html`<div><dt>Services</dt><dd>
        <${Names} names=${process.services} /></dd></div>`}
      ${(process.pools || []).map((pool) => html`<div key=${pool.name}><dt>Pool ${pool.name}</dt><dd>
        <b>${number(pool.running)}</b> of ${number(pool.concurrency)}</dd></div>`)}
      ${Math.abs(process.clock_skew || 0) > SKEWED && html`<div><dt>Clock</dt><dd>
        <${Tag} look="warning" title="synchronize the clocks of all machines with NTP">${duration(Math.abs(process.clock_skew))} ${process.clock_skew > 0 ? "ahead" : "behind"}<//>
        </dd></div>`}
      ${process.version && html`<div><dt>Version</dt><dd>${process.version}</dd></div>`}
    </dl>
    ${process.problem && html`<p class="trouble">${text(process.problem)}</p>`}
    <${Calls} name=${name} calls=${Object.entries(process.slots || {})} />
  </li>`;
}

function Calls({ name, calls }) {
  const [whole, setWhole] = useState(false);
  if (calls.length === 0) return null;
  return html`<table class="rows small"><caption class="hidden">Running calls of ${name}</caption>
      <thead><tr><th scope="col">Service</th><th scope="col">Job</th><th scope="col">User</th><th scope="col" class="n">Running for</th>
        </tr></thead>
      <tbody>${(whole ? calls : calls.slice(0, FIRST)).map(([lease, call]) => html`<tr key=${lease} ...${rowLink(to(["jobs", call.job_id]))}>
        <td data-label="Service">${text(call.service)}</td><td data-label="Job"><${JobLink} id=${call.job_id} /></td>
        <td data-label="User"><span class="clip user" title=${text(call.user_id)}>${text(call.user_id)}</span></td>
        <td class="n" data-label="Running for"><${Age} since=${call.since} /></td></tr>`)}</tbody></table>
    <${ShowAll} count=${calls.length} first=${FIRST} whole=${whole} onChange=${setWhole} />`;
}
