// Receivers of events, and the log of deliveries.
import { enableEndpoint, disableEndpoint, replayDelivery } from "../actions.js";
import { mayOperate, useApp } from "../context.js";
import { number, text } from "../format.js";
import { html, useState } from "../html.js";
import { useView } from "../live.js";
import { Act } from "../parts/act.js";
import { Age, JobLink, Loading, Moment, Tag } from "../parts/bits.js";
import { Empty } from "../parts/empty.js";
import { Filter } from "../parts/filter.js";
import { More } from "../parts/more.js";
import { useOlder, useTogether } from "../parts/older.js";
import { to } from "../router.js";

const LOOKS = { pending: "running", delivered: "ok", failed: "failed" };
const idOf = (row) => row.id;
const orderOf = (row) => `${row.created_at} ${row.id}`;

export function Page() {
  const { live } = useApp();
  const { state, error } = useView(live, { view: "webhooks" });
  const older = useOlder("/api/v1/webhooks/deliveries", {}, state?.next_cursor);
  const all = useTogether(state?.deliveries, older, idOf, orderOf);
  const [query, setQuery] = useState("");
  if (!state) return html`<h1>Webhooks</h1><${Loading} error=${error} />`;
  const endpoints = Object.values(state.endpoints || {});
  const fits = (row) => `${row.id} ${row.event} ${row.state} ${text(row.user_id)} ${text(row.url || row.endpoint_id)}`.toLowerCase().includes(query.toLowerCase());
  const shown = all.filter(fits);
  return html`<div class="page-head"><h1>Webhooks</h1>
      ${all.length > 0 && html`<${Filter} label="Filter the deliveries" hint="Filter by id, event, state, user, receiver" value=${query}
        onChange=${setQuery} />`}</div>
    ${endpoints.length > 0 && html`<${Endpoints} rows=${endpoints} />`}
    ${all.length === 0 ? html`<${Empty} title="No deliveries yet">
      <p>Jobs with a <code>webhook_url</code>, and endpoints made with <code>fairlead webhooks create</code>, receive requests
        when jobs and batches end. Each is listed here with its attempts.</p><//>`
      : html`<${Deliveries} rows=${shown} />
        <${More} shown=${shown.length} older=${{ ...older, rows: older.rows.filter(fits) }} what="deliveries" />`}`;
}

function Endpoints({ rows }) {
  const { session } = useApp();
  return html`<h2>Endpoints</h2><section class="card flush"><div class="table-box"><table class="rows" data-testid="endpoints">
    <caption class="hidden">Endpoints that receive events</caption>
    <thead><tr><th scope="col">URL</th><th scope="col">User</th><th scope="col">Events</th><th scope="col">State</th>
      <th scope="col"><span class="hidden">Actions</span></th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.id}>
      <td data-label="URL"><span class="wrap">${text(row.url)}</span> <span class="muted mono wrap">${row.id}</span></td>
      <td data-label="User"><span class="wrap">${row.user_id ? text(row.user_id) : "all users"}</span></td>
      <td data-label="Events">${row.events.join(", ")}</td>
      <td data-label="State"><${State} row=${row} /></td>
      <td class="acts">${mayOperate(session) && !row.name && (row.disabled_at
        ? html`<${Act} look="small primary" label=${`Enable ${row.id}`} question=${() => enableEndpoint(row)}>Enable<//>`
        : html`<${Act} look="small danger" label=${`Disable ${row.id}`} question=${() => disableEndpoint(row)}>Disable<//>`)}</td>
      </tr>`)}</tbody></table></div></section>`;
}

function State({ row }) {
  if (row.disabled_at) return html`<${Tag} look="failed">disabled<//> <span class="wrap">${text(row.disabled_reason)}</span>`;
  if (row.failing_since) return html`<${Tag} look="warning">failing<//> for <${Age} since=${row.failing_since} />`;
  return html`<${Tag} look="ok">enabled<//>`;
}

function Deliveries({ rows }) {
  const { session } = useApp();
  return html`<h2>Deliveries</h2><section class="card flush"><div class="table-box"><table class="rows" data-testid="deliveries">
    <caption class="hidden">Deliveries, newest first</caption>
    <thead><tr><th scope="col">When</th><th scope="col">Event</th><th scope="col">Of</th><th scope="col">To</th>
      <th scope="col">State</th><th scope="col">Attempts</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.id}>
      <td data-label="When"><${Moment} at=${row.created_at} /></td><td data-label="Event"><code>${row.event}</code></td>
      <td data-label="Of"><${Subject} row=${row} /></td>
      <td data-label="To"><span class="wrap">${text(row.url || row.endpoint_id)}</span></td>
      <td data-label="State"><${Tag} look=${LOOKS[row.state]}>${row.state}<//></td>
      <td data-label="Attempts"><${Attempts} attempts=${row.attempts || []} /></td>
      <td class="acts">${mayOperate(session) && row.state !== "pending" && html`<${Act} look="small"
        label=${`Send ${row.id} again`} question=${() => replayDelivery(row)}>Send again<//>`}</td></tr>`)}</tbody></table></div></section>`;
}

function Subject({ row }) {
  if (row.job_id) return html`<${JobLink} id=${row.job_id} />`;
  return row.batch_id ? html`<a class="mono nowrap" href=${to(["batches", row.batch_id])}>batch</a>` : "";
}

function Attempts({ attempts }) {
  const last = attempts.at(-1);
  if (!last) return html`<span class="muted">none yet</span>`;
  const status = last.status ? String(last.status) : "no response";
  return html`<details><summary>${number(attempts.length)}, last: ${status}</summary>
    <ul>${attempts.map((each) => html`<li key=${each.at}><${Moment} at=${each.at} /> ${each.status || ""} ${number(each.duration_ms)} ms
      <span class="wrap">${text(each.response)}</span></li>`)}</ul></details>`;
}
