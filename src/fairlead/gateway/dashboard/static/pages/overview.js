// The whole line at a glance: is it well, what runs, what waits, and how the last hour was.
import { useApp } from "../context.js";
import { number, percent } from "../format.js";
import { html, memo, useEffect, useRef, useState } from "../html.js";
import { useView } from "../live.js";
import { Age, Fact, Loading } from "../parts/bits.js";
import { NoJobs } from "../parts/empty.js";
import { Filter } from "../parts/filter.js";
import { Failures } from "../parts/failures.js";
import { Health } from "../parts/health.js";
import { History } from "../parts/history.js";
import { Line, waitingIn } from "../parts/line.js";
import { Slots } from "../parts/slots.js";
import { Tags } from "../parts/tags.js";
import { to } from "../router.js";

const FEW = 2; // slots: two services with so few share a row where there is room
const FILTER_FROM = 9; // services: fewer are found without a filter
const MOST_WAITING = "most waiting";
const ORDERS = ["by name", MOST_WAITING];

export function Page() {
  const { live } = useApp();
  const { state, error } = useView(live, { view: "overview" });
  if (!state) return html`<h1>Overview</h1><${Loading} error=${error} />`;
  const services = Object.entries(state.services || {}).sort(([one], [other]) => one.localeCompare(other));
  const done = sum(state.history?.finished) + sum(state.history?.failed);
  const idle = done === 0 && services.every(([, service]) => waitingIn(service) === 0 && !service.in_use);
  return html`<h1 class="hidden">Overview</h1>
    <${Health} health=${state.health} />
    <${Totals} services=${services} history=${state.history} />
    ${idle && html`<${NoJobs} />`}
    <div class="overview">
      <${Services} services=${services} />
      <aside aria-label="The last hour">
        <section class="card"><h2>The last hour</h2><${History} history=${state.history} /></section>
        <section class="card"><h2>Failures by class</h2><${Failures} failures=${state.failures} /></section>
      </aside>
    </div>`;
}

const sum = (values) => (values || []).reduce((whole, value) => whole + (value || 0), 0);

function Totals({ services, history }) {
  const total = (value) => services.reduce((whole, [, service]) => whole + (value(service) || 0), 0);
  const [limit, used, held] = [total((each) => each.limit), total((each) => each.in_use), total((each) => each.held)];
  const known = services.every(([, service]) => service.in_use !== undefined);
  const oldest = Math.min(Infinity, ...services.map(([, service]) => service.oldest_since ?? Infinity));
  const [finished, failed] = [sum(history?.finished), sum(history?.failed)];
  return html`<dl class="facts" aria-label="Totals">
    <${Fact} name="Slots in use" look="running">${known ? number(used) : "–"}<small class="muted"> of ${number(limit)}</small><//>
    ${held > 0 && html`<${Fact} name="Held" look="held">${number(held)}<//>`}
    <${Fact} name="Waiting" look="waiting">${known ? number(total(waitingIn)) : "–"}<//>
    <${Fact} name="Oldest wait">${oldest === Infinity ? "–" : html`<${Age} since=${oldest} />`}<//>
    <${Fact} name="Finished, last hour" look="ok">${number(finished)}<//>
    <${Fact} name="Failed, last hour" look=${failed ? "failed" : ""}>${number(failed)}${failed > 0 && html`<small
      class="muted"> ${percent(failed / (failed + finished))}</small>`}<//>
  </dl>`;
}

/** Of what waits, in steps of twice as much: services must not change places with every job, under somebody's pointer. */
const steps = (service) => Math.ceil(Math.log2(1 + (waitingIn(service) || 0)));

/** The small services that stand beside each other, two by two; one alone would leave half of its row empty. */
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

function Services({ services }) {
  const [wanted, setWanted] = useState("");
  const [order, setOrder] = useState(ORDERS[0]);
  // In steps, or every job that joins the longest line would have all lines drawn again.
  const widest = 2 ** Math.ceil(Math.log2(Math.max(1, ...services.map(([, service]) => waitingIn(service) || 0))));
  const shown = services.filter(([name]) => name.toLowerCase().includes(wanted.toLowerCase()));
  if (order === MOST_WAITING) shown.sort(([, one], [, other]) => steps(other) - steps(one));
  const small = paired(shown);
  return html`<section aria-labelledby="services-title">
    <div class="section-head"><h2 id="services-title">Services <span class="muted">${services.length}</span></h2>
      ${services.length >= FILTER_FROM && html`<div class="acts"><select aria-label="Order of services" value=${order}
          onChange=${(event) => setOrder(event.target.value)}>${ORDERS.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>
        <${Filter} label="Filter services" value=${wanted} onChange=${setWanted} /></div>`}</div>
    <ul class="services">${shown.map(([name, service]) => html`<${Row} key=${name} name=${name}
      service=${service} widest=${widest} small=${small.has(name)} />`)}</ul>
    ${services.length === 0 && html`<p
      class="card muted">No service is declared yet: a <code>[services.NAME]</code> in fairlead.toml, or <code>@app.service</code> in code.</p>`}
  </section>`;
}

/** Of two hundred services a screen shows ten: the others' ages need not tick. */
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
    <${Line} service=${service} widest=${widest} active=${inSight} />
  </li>`;
});
