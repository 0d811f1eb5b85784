// Batches, newest first, each with how far it is.
import { useApp } from "../context.js";
import { number, percent, text } from "../format.js";
import { html } from "../html.js";
import { useView } from "../live.js";
import { Command, Left, Loading, Moment, UserLink } from "../parts/bits.js";
import { BatchBar } from "../parts/batchbar.js";
import { Empty } from "../parts/empty.js";
import { Table } from "../parts/table.js";
import { to } from "../router.js";

const COLUMNS = [
  { name: "name", title: "Batch", value: (batch) => text(batch.name), show: (batch) => html`<a class="clip" href=${to(["batches", batch.batch_id])} title=${batch.batch_id}>${text(batch.name) || batch.batch_id}</a>` },
  { name: "user", title: "User", value: (batch) => text(batch.user_id), show: (batch) => html`<${UserLink} id=${text(batch.user_id)} />` },
  { name: "progress", title: "Progress", value: (batch) => batch.progress, show: (batch) => html`<span class="share"><${BatchBar} batch=${batch} /><span class="n">${percent(batch.progress)}</span></span>` },
  { name: "total", title: "Items", number: true, value: (batch) => batch.total, show: (batch) => number(batch.total) },
  { name: "failed", title: "Failed", number: true, value: (batch) => batch.counts?.FAILED, show: (batch) => number(batch.counts?.FAILED || 0) },
  { name: "created", title: "Submitted", number: true, value: (batch) => batch.created_at, show: (batch) => html`<${Moment} at=${batch.created_at} />` },
  { name: "end", title: "End", number: true, value: (batch) => batch.finished_at || batch.estimated_end, show: (batch) => html`<${End} batch=${batch} />` },
];

function End({ batch }) {
  if (batch.finished_at) return html`<${Moment} at=${batch.finished_at} />`;
  return batch.estimated_end ? html`<span class="muted">in about <${Left} until=${batch.estimated_end} over="a moment" /></span>` : "–";
}

export function Page() {
  const { live, session } = useApp();
  const { state, error } = useView(live, { view: "batches" });
  if (!state) return html`<h1>Batches</h1><${Loading} error=${error} />`;
  const rows = Object.values(state.batches || {});
  const columns = session.role === "user" ? COLUMNS.filter((column) => column.name !== "user") : COLUMNS;
  return html`<div class="page-head"><h1>Batches</h1></div>
    ${rows.length === 0 ? html`<${Empty} title="No batches yet"><p>Many jobs submitted as one, with counts and an end of their own:</p>
        <${Command} text=${example(session.signed_in)} what="the request" /><//>`
      : html`<section class="card flush"><${Table} caption="Batches" columns=${columns} rows=${rows} keyOf=${(batch) => batch.batch_id} sort=${{ by: "created", down: true }} /></section>`}`;
}

function example(needsKey) {
  const key = needsKey ? " \\\n  -H \"Authorization: Bearer $FAIRLEAD_API_KEY\"" : "";
  const body = { user_id: "ada", name: "first batch", feature_name: "text_only", items: [{ custom_id: "q1", input_data: { prompt: "one" } }, { custom_id: "q2", input_data: { prompt: "two" } }] };
  return `curl -s ${window.location.origin}/api/v1/batches \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${JSON.stringify(body)}'`;
}
