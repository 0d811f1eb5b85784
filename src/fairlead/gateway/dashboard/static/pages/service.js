// One service: slots, queue, shares, regions and actions.
import { changeLimit, changeRate, liftLimit, liftRate, pauseService, rebuildService, unpauseService } from "../actions.js";
import { mayOperate, useApp } from "../context.js";
import { duration, number, text } from "../format.js";
import { html, useState } from "../html.js";
import { useView } from "../live.js";
import { Act } from "../parts/act.js";
import { Age, Fact, JobLink, Left, Priority, ShowAll, Tag, UserLink, rowLink } from "../parts/bits.js";
import { Failures } from "../parts/failures.js";
import { HistoryCard } from "../parts/history.js";
import { Queue, waitingIn } from "../parts/queue.js";
import { Missing } from "../parts/missing.js";
import { Models } from "../parts/models.js";
import { rateOf, RateUse, rateWords } from "../parts/rates.js";
import { Regions } from "../parts/regions.js";
import { Shares } from "../parts/shares.js";
import { Slots } from "../parts/slots.js";
import { Tags } from "../parts/tags.js";
import { to } from "../router.js";

const FIRST = 8; // queued jobs shown by default

export function Page({ subject: name }) {
  const { live, session } = useApp();
  const { state, error } = useView(live, { view: "service", service: name });
  if (!state || error) return html`<h1>${name}</h1><${Missing} what="service" list="overview" error=${error} />`;
  const service = state;
  const waiting = waitingIn(service);
  const limits = service.limits || {};
  return html`<div class="page-head">
      <h1>${name}</h1><${Tags} service=${service} />
      ${mayOperate(session) && html`<div class="acts">
        <${Act} question=${() => changeLimit(name, service.limit)}>Change limit<//>
        <${Act} when=${service.limit_source === "override"} question=${() => liftLimit(name, limits.configured)}>Remove override<//>
        <${Act} look="quiet" question=${() => changeRate(rateOf.service(name), { rate: limits.rate, unit: service.unit })}>Change rate<//>
        <${Act} when=${limits.rate_overridden} look="quiet" question=${() => liftRate(rateOf.service(name))}>Remove rate override<//>
        <${Act} when=${service.paused} look="primary" question=${() => unpauseService(name, waiting)}>Unpause<//>
        <${Act} when=${!service.paused} look="danger" question=${() => pauseService(name, waiting)}>Pause<//>
        <${Act} look="quiet" question=${() => rebuildService(name)}>Rebuild queue<//>
      </div>`}
    </div>
    <dl class="facts" aria-label="Figures">
      <${Fact} name="Slots in use" look="running">${number(service.in_use)}<small class="muted"> of ${number(service.limit)}</small><//>
      ${service.held > 0 && html`<${Fact} name="Held" look="held">${number(service.held)}<//>`}
      <${Fact} name="Jobs waiting" look="waiting">${number(waiting)}<//>
      <${Fact} name="Wait, last 5 min">${duration(service.wait_p50)}<small class="muted"> p95 ${duration(service.wait_p95)}</small><//>
      <${Limit} service=${service} limits=${limits} />
      ${limits.user_limit && html`<${Fact} name="Limit per user">${number(limits.user_limit)}<//>`}
      ${(service.rates || []).map((use) => html`<${Rate} use=${use} />`)}
      ${limits.user_rate && html`<${Fact} name="Rate per user">${rateWords(limits.user_rate, service.unit)}<//>`}
    </dl>
    <section class="card stack"><h2>Slots and queue</h2>
      <${Slots} service=${service} name=${name} /><${Queue} service=${service} widest=${waiting} /></section>
    <${Models} models=${Object.entries(service.models || {})} />
    <${Next} next=${service.next || []} order=${service.order} />
    <${Shares} users=${service.users || {}} />
    <${Regions} regions=${service.regions || {}} service=${name} />
    <${HistoryCard} history=${service.history} wide=${true} />
    <section class="card"><h2>Failed calls, last hour</h2><${Failures} failures=${service.failures} /></section>
    <${AutoLimit} history=${limits.auto?.history} />`;
}

function Limit({ service, limits }) {
  const words = {
    override: Number.isFinite(limits.configured) ? `changed, configured ${limits.configured}` : "changed",
    auto: limits.auto ? `automatic, ${limits.auto.min} to ${limits.auto.max}` : "automatic",
    config: "as configured",
  };
  return html`<${Fact} name="Limit">${number(service.limit)}<small class="muted"> ${words[service.limit_source] || ""}</small><//>`;
}

function Rate({ use }) {
  const name = use.of === "service" ? "Rate" : `Rate of ${use.of} ${use.name}`;
  if (use.resting_until) return html`<${Fact} name=${name} look="held">resting<small class="muted"> <${Left} until=${use.resting_until} /></small><//>`;
  return html`<${Fact} name=${name} look=${use.full ? "waiting" : ""}><${RateUse} use=${use} /><//>`;
}

function Next({ next: all, order }) {
  const [whole, setWhole] = useState(false);
  const next = whole ? all : all.slice(0, FIRST);
  return html`<section class="card"><h2>Next jobs</h2>
    ${next.length === 0 ? html`<p class="muted">No waiting jobs. A new job starts as soon as a slot is free.</p>` : html`
    <div class="table-box"><table class="rows next"><caption class="hidden">The first jobs in the queue, in order</caption>
      <thead><tr><th scope="col" class="n">#</th><th scope="col">User</th><th scope="col">Job</th><th scope="col">Priority</th>
        ${order !== "fifo" && html`<th scope="col" class="n"
          title="slot time of the user divided by weight; the lowest goes next">Virtual time</th>
          <th scope="col" class="n">Weight</th>`}
        <th scope="col">Why here</th></tr></thead>
      <tbody>${next.map((each) => html`<tr key=${each.job_id} ...${rowLink(to(["jobs", each.job_id]))}>
        <td class="n" data-label="#">${each.rank}</td>
        <td data-label="User"><${UserLink} id=${each.user_id} /></td>
        <td data-label="Job"><${JobLink} id=${each.job_id} /></td>
        <td data-label="Priority">
          <${Priority} priority=${each.priority || each.band} />${each.promoted && html` <${Tag} look="ok"
            title="moved up after a long wait">promoted<//>`}</td>
        ${order !== "fifo" && html`<td class="n" data-label="Virtual time">${number(each.virtual_time)}</td>
          <td class="n" data-label="Weight">${number(each.weight)}</td>`}
        <td class="why" data-label="Why here">${text(each.why)}</td></tr>`)}</tbody></table></div>`}
    <${ShowAll} count=${all.length} first=${FIRST} whole=${whole} onChange=${setWhole} />
  </section>`;
}

function AutoLimit({ history }) {
  if (!history?.length) return null;
  return html`<section class="card"><h2>History of the automatic limit</h2>
    <ol class="steps" reversed>${[...history].reverse().map((change) => html`<li key=${change.at}>
    <b>${number(change.limit)}</b> <span class="muted"><${Age} since=${change.at} /> ago</span> ${text(change.why)}</li>`)}</ol></section>`;
}
