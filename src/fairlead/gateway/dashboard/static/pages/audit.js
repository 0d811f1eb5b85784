// Who did what, newest first.
import { useApp } from "../context.js";
import { text } from "../format.js";
import { html, useState } from "../html.js";
import { useView } from "../live.js";
import { Loading, Moment, Tag } from "../parts/bits.js";
import { Empty } from "../parts/empty.js";
import { Filter } from "../parts/filter.js";

export function Page() {
  const { live } = useApp();
  const { state, error } = useView(live, { view: "audit" });
  const [wanted, setWanted] = useState("");
  if (!state) return html`<h1>Audit</h1><${Loading} error=${error} />`;
  const all = Object.entries(state.rows || {}).sort(([one, a], [other, b]) => (a.at === b.at ? (one < other ? 1 : -1) : a.at < b.at ? 1 : -1));
  const shown = all.filter(([, row]) => `${text(row.who)} ${row.action} ${text(row.target)}`.toLowerCase().includes(wanted.toLowerCase()));
  return html`<div class="page-head"><h1>Audit</h1>
      ${all.length > 0 && html`<${Filter} label="Filter the audit" hint="Filter by who, action, target" value=${wanted}
        onChange=${setWanted} />`}</div>
    ${all.length === 0 ? html`<${Empty} title="Nothing was done yet">
      <p>Every pause, changed limit, requeue, purge, drain and key leaves a row here, whoever did it and however:
        from this page, the command line or the API.</p>
      <//>`
      : html`<section class="card flush"><div class="table-box"><table class="rows" data-testid="audit">
        <caption class="hidden">What operators did, newest first</caption>
        <thead><tr><th scope="col">When</th><th scope="col">Who</th><th scope="col">Action</th><th scope="col">Target</th>
          <th scope="col">Details</th><th scope="col">Outcome</th></tr></thead>
        <tbody>${shown.map(([id, row]) => html`<tr key=${id}>
          <td data-label="When"><${Moment} at=${row.at} /></td><td data-label="Who"><span class="wrap">${text(row.who)}</span></td>
          <td data-label="Action"><code>${row.action}</code></td><td data-label="Target"><span class="wrap">${text(row.target)}</span></td>
          <td data-label="Details" class="details"><${Details} details=${row.details} /></td><td data-label="Outcome">
            <${Outcome} outcome=${row.outcome} /></td></tr>`)}</tbody></table></div></section>
        <p class="muted">The newest ${all.length}. Older ones: <code>fairlead audit</code></p>`}`;
}

const Details = ({ details }) => Object.entries(details || {}).filter(([, value]) => value !== null).map(([name, value]) => html`<span key=${name} class="detail">
  <span class="muted">${name}</span> ${text(value)} </span>`);

function Outcome({ outcome }) {
  if (!outcome) return html`<${Tag} look="running" title="under way, or its process died with it">not told<//>`;
  const { status, ...rest } = outcome;
  return html`<${Tag} look=${status === "done" ? "ok" : "failed"}>${text(status)}<//> <${Details} details=${rest} />`;
}
