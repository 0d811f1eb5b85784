// Actions of operators, newest first.
import { useApp } from "../context.js";
import { shortId, text } from "../format.js";
import { html, useState } from "../html.js";
import { useView } from "../live.js";
import { JobLink, Loading, Moment, Tag } from "../parts/bits.js";
import { Empty } from "../parts/empty.js";
import { Filter } from "../parts/filter.js";
import { More } from "../parts/more.js";
import { useOlder, useTogether } from "../parts/older.js";
import { to } from "../router.js";

const idOf = (row) => row.id; // ids grow with time, so they order rows as well

export function Page() {
  const { live } = useApp();
  const { state, error } = useView(live, { view: "audit" });
  const older = useOlder("/admin/audit", {}, state?.next_cursor);
  const all = useTogether(state?.rows, older, idOf, idOf);
  const [query, setQuery] = useState("");
  if (!state) return html`<h1>Audit</h1><${Loading} error=${error} />`;
  const fits = (row) => `${text(row.who)} ${row.action} ${text(row.target)}`.toLowerCase().includes(query.toLowerCase());
  const shown = all.filter(fits);
  return html`<div class="page-head"><h1>Audit</h1>
      ${all.length > 0 && html`<${Filter} label="Filter the audit log" hint="Filter by who, action, target" value=${query}
        onChange=${setQuery} />`}</div>
    ${all.length === 0 ? html`<${Empty} title="No actions yet">
      <p>Every pause, limit change, requeue, purge, drain and key is recorded here, and every action of an operator on a
        user's job or batch, from the dashboard, the command line or the API.</p>
      <//>`
      : html`<section class="card flush"><div class="table-box"><table class="rows" data-testid="audit">
        <caption class="hidden">Actions of operators, newest first</caption>
        <thead><tr><th scope="col">When</th><th scope="col">Who</th><th scope="col">Action</th><th scope="col">Target</th>
          <th scope="col">Details</th><th scope="col">Outcome</th></tr></thead>
        <tbody>${shown.map((row) => html`<tr key=${row.id}>
          <td data-label="When"><${Moment} at=${row.at} /></td><td data-label="Who"><span class="wrap">${text(row.who)}</span></td>
          <td data-label="Action"><code>${row.action}</code></td><td data-label="Target"><${Target} row=${row} /></td>
          <td data-label="Details" class="details"><${Details} details=${row.details} /></td><td data-label="Outcome">
            <${Outcome} outcome=${row.outcome} /></td></tr>`)}</tbody></table></div></section>
        <${More} shown=${shown.length} older=${{ ...older, rows: older.rows.filter(fits) }} what="actions" />`}`;
}

/** A link, if the target still exists. */
function Target({ row }) {
  const target = text(row.target);
  if (/^(job|turn)\./.test(row.action) && row.action !== "job.delete") return html`<${JobLink} id=${target} />`;
  if (row.action.startsWith("batch.")) return html`<a class="mono nowrap" href=${to(["batches", target])}
    title=${`batch ${target}`}>${shortId(target)}</a>`;
  return html`<span class="wrap">${target}</span>`;
}

const Details = ({ details }) => Object.entries(details || {}).filter(([, value]) => value !== null).map(([name, value]) => html`<span key=${name} class="detail">
  <span class="muted">${name}</span> ${text(value)} </span>`);

function Outcome({ outcome }) {
  if (!outcome) return html`<${Tag} look="running" title="running, or its process died">unknown<//>`;
  const { status, ...rest } = outcome;
  return html`<${Tag} look=${status === "done" ? "ok" : "failed"}>${text(status)}<//> <${Details} details=${rest} />`;
}
