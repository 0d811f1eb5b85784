// The system at a glance: health, running and waiting jobs, and the last hour.
import { useApp } from "../context.js";
import { number, percent } from "../format.js";
import { html, memo, useEffect, useRef, useState } from "../html.js";
import { useView } from "../live.js";
import { Age, Fact, Loading } from "../parts/bits.js";
import { NoJobs, NoServices } from "../parts/empty.js";
import { Filter } from "../parts/filter.js";
import { Failures } from "../parts/failures.js";
import { Health } from "../parts/health.js";
import { HistoryCard } from "../parts/history.js";
import { Models } from "../parts/models.js";
import { Pools } from "../parts/pools.js";
import { Queue, waitingIn } from "../parts/queue.js";
import { Slots } from "../parts/slots.js";
import { Tags } from "../parts/tags.js";
import { to } from "../router.js";

const FEW = 2; // slots: two services with at most this many share a row
const FILTER_FROM = 9; // number of services from which on the filter is shown
const TROUBLE = "trouble first";
const MOST_WAITING = "most waiting";
const ORDERS = [TROUBLE, "by name", MOST_WAITING];
const HOUR = 60; // minutes of the history

export function Page() {
  const { live } = useApp();
  const { state, error } = useView(live, { view: "overview" });
  if (!state) return html`<h1>Overview</h1><${Loading} error=${error} />`;
  const services = Object.entries(state.services || {}).sort(([one], [other]) => one.localeCompare(other));
  const done = lastHour(state.history?.finished) + lastHour(state.history?.failed);
  const idle = done === 0 && services.every(([, service]) => waitingIn(service) === 0 && !service.in_use);
  return html`<h1 class="hidden">Overview</h1>
    <${Health} health=${state.health} />
    <${Totals} services=${services} history=${state.history} />
    ${services.length > 0 && idle && html`<${NoJobs} />`}
    <div class="overview">
      <${Services} services=${services} findings=${state.health?.findings} />
      <aside aria-label="Pools and history">
        <${Pools} pools=${state.pools} />
        <${Models} models=${services.flatMap(([name, each]) => Object.entries(each.models || {}).map(([model, figures]) => [several(services, model) ? `${model} (${name})` : model, figures]))} />
        <${HistoryCard} history=${state.history} />
        <section class="card"><h2>Failed calls, last hour</h2><${Failures} failures=${state.failures} /></section>
      </aside>
    </div>`;
}

/** Whether several services have a model of this name. */
const several = (services, model) => services.filter(([, each]) => each.models?.[model]).length > 1;

const lastHour = (values) => (values || []).slice(-HOUR).reduce((whole, value) => whole + (value || 0), 0);

function Totals({ services, history }) {
  const total = (value) => services.reduce((whole, [, service]) => whole + (value(service) || 0), 0);
  const [limit, used, held] = [total((each) => each.limit), total((each) => each.in_use), total((each) => each.held)];
  const known = services.every(([, service]) => service.in_use !== undefined);
  const oldest = Math.min(Infinity, ...services.map(([, service]) => service.oldest_since ?? Infinity));
  const [finished, failed] = [lastHour(history?.finished), lastHour(history?.failed)];
  return html`<dl class="facts" aria-label="Totals">
    <${Fact} name="Slots in use" look="running">${known ? number(used) : "–"}<small class="muted"> of ${number(limit)}</small><//>
    ${held > 0 && html`<${Fact} name="Held" look="held">${number(held)}<//>`}
    <${Fact} name="Jobs waiting" look="waiting">${known ? number(total(waitingIn)) : "–"}<//>
    <${Fact} name="Oldest wait">${oldest === Infinity ? "–" : html`<${Age} since=${oldest} />`}<//>
    <${Fact} name="Calls finished, last hour" look="ok">${number(finished)}<//>
    <${Fact} name="Calls failed, last hour" look=${failed ? "failed" : ""}>${number(failed)}${failed > 0 && html`<small
      class="muted"> ${percent(failed / (failed + finished))}</small>`}<//>
  </dl>`;
}

/** The number of waiting jobs on a logarithmic scale, so that the order of services does not change with every job. */
const steps = (service) => Math.ceil(Math.log2(1 + (waitingIn(service) || 0)));

/** Pairs of adjacent small services; a single one would leave half of its row empty. */
function paired(services) {
  const names = new Set();
  for (let at = 0; at + 1 < services.length; at += 1) {
    const [[one, first], [other, second]] = services.slice(at, at + 2);
    if (first.limit <= FEW && second.limit <= FEW) {
      names.add(one).add(other);
      at += 1;
    }
  }
  return names;
}

/** How much is wrong with a service: 3 for an error of the doctor, 2 for a warning or a pause, 1 for held slots. */
function troubleOf(name, service, findings) {
  const levels = Object.values(findings || {}).filter(({ about }) => about === name || about?.startsWith(`${name} `)).map(({ level }) => SEVERITY[level] || 0);
  return Math.max(0, service.paused ? 2 : 0, service.held > 0 ? 1 : 0, ...levels);
}

const SEVERITY = { error: 3, warning: 2 };

function Services({ services, findings }) {
  const [query, setQuery] = useState("");
  const [order, setOrder] = useState(ORDERS[0]);
  // Rounded up to a power of two; otherwise each new job in the longest queue would render all queues again.
  const widest = 2 ** Math.ceil(Math.log2(Math.max(1, ...services.map(([, service]) => waitingIn(service) || 0))));
  const shown = services.filter(([name]) => name.toLowerCase().includes(query.toLowerCase()));
  if (order === TROUBLE) shown.sort(([one, first], [other, second]) => troubleOf(other, second, findings) - troubleOf(one, first, findings));
  if (order === MOST_WAITING) shown.sort(([, one], [, other]) => steps(other) - steps(one));
  const small = paired(shown);
  return html`<section aria-labelledby="services-title">
    <div class="section-head"><h2 id="services-title">Services <span class="muted">${services.length}</span></h2>
      ${services.length >= FILTER_FROM && html`<div class="acts"><select aria-label="Order of services" value=${order}
          onChange=${(event) => setOrder(event.target.value)}>${ORDERS.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>
        <${Filter} label="Filter services" value=${query} onChange=${setQuery} /></div>`}</div>
    <ul class="services">${shown.map(([name, service]) => html`<${Row} key=${name} name=${name}
      service=${service} widest=${widest} small=${small.has(name)} />`)}</ul>
    ${services.length === 0 && html`<${NoServices} />`}
  </section>`;
}

/** Whether an element is visible; ages of invisible services need not tick. */
function useInSight(element) {
  const [inSight, setInSight] = useState(true);
  useEffect(() => {
    const watch = new IntersectionObserver(([entry]) => setInSight(entry.isIntersecting), { rootMargin: "200px" });
    watch.observe(element.current);
    return () => watch.disconnect();
  }, []);
  return inSight;
}

const Row = memo(({ name, service, widest, small }) => {
  const element = useRef(null);
  const inSight = useInSight(element);
  return html`<li ref=${element} class=${`card service${small ? " small" : ""}`} data-testid=${`service-${name}`} data-service=${name}>
    <div class="service-head">
      <h3><a href=${to(["services", name])}>${name}</a></h3>
      <${Tags} service=${service} />
      <span class="used muted">${service.kind} · <b>${number(service.in_use)}</b> of ${number(service.limit)} ${service.limit === 1 ? "slot" : "slots"}</span>
    </div>
    <${Slots} service=${service} name=${name} active=${inSight} />
    <${Queue} service=${service} widest=${widest} active=${inSight} />
  </li>`;
});
