// Batches with their progress, newest first.
import { useApp } from "../context.js";
import { number, percent, text } from "../format.js";
import { html } from "../html.js";
import { useView } from "../live.js";
import { Left, Loading, Moment, UserLink } from "../parts/bits.js";
import { BatchBar } from "../parts/batchbar.js";
import { Empty, FirstRequest } from "../parts/empty.js";
import { More } from "../parts/more.js";
import { useOlder, useTogether } from "../parts/older.js";
import { Table } from "../parts/table.js";
import { to } from "../router.js";

const COLUMNS = [
  { name: "name", title: "Batch", value: (batch) => text(batch.name), show: (batch) => html`<a class="clip"
    href=${to(["batches", batch.batch_id])} title=${batch.batch_id}>${text(batch.name) || batch.batch_id}</a>` },
  { name: "user", title: "User", value: (batch) => text(batch.user_id), show: (batch) => html`<${UserLink} id=${text(batch.user_id)} />` },
  { name: "progress", title: "Progress", value: (batch) => batch.progress, show: (batch) => html`<span class="share">
    <${BatchBar} batch=${batch} /><span class="n">${percent(batch.progress)}</span></span>` },
  { name: "total", title: "Items", number: true, value: (batch) => batch.total, show: (batch) => number(batch.total) },
  { name: "failed", title: "Failed", number: true, value: (batch) => batch.counts?.FAILED, show: (batch) => number(batch.counts?.FAILED || 0) },
  { name: "created", title: "Submitted", number: true, value: (batch) => batch.created_at, show: (batch) => html`<${Moment}
    at=${batch.created_at} />` },
  { name: "end", title: "End", number: true, value: (batch) => batch.finished_at || batch.estimated_end, show: (batch) => html`<${End}
    batch=${batch} />` },
];

const orderOf = (batch) => `${batch.created_at} ${batch.batch_id}`;

function End({ batch }) {
  if (batch.finished_at) return html`<${Moment} at=${batch.finished_at} />`;
  return batch.estimated_end ? html`<span class="muted">in about <${Left} until=${batch.estimated_end} over="a moment" /></span>` : "–";
}

export function Page() {
  const { live, session } = useApp();
  const { state, error } = useView(live, { view: "batches" });
  const older = useOlder("/api/v1/batches", {}, state?.next_cursor);
  const rows = useTogether(state?.batches, older, (batch) => batch.batch_id, orderOf);
  if (!state) return html`<h1>Batches</h1><${Loading} error=${error} />`;
  const columns = session.role === "user" ? COLUMNS.filter((column) => column.name !== "user") : COLUMNS;
  return html`<div class="page-head"><h1>Batches</h1></div>
    ${rows.length === 0 ? html`<${NoBatches} />`
      : html`<section class="card flush">
        <${Table} caption="Batches" columns=${columns} rows=${rows} keyOf=${(batch) => batch.batch_id} hrefOf=${(batch) => to(["batches", batch.batch_id])} sort=${{ by: "created", down: true }}
          most=${Infinity} />
        </section>
        <${More} shown=${rows.length} older=${older} what="batches" />`}`;
}

const FIRST_BATCH = { name: "first batch", items: ["one", "two"].map((prompt, index) => ({ custom_id: `q${index + 1}`, input_data: { prompt } })) };

const NoBatches = () => html`<${Empty} title="No batches yet"><p>Submit many jobs at once, with counts and progress of their own:</p>
  <${FirstRequest} path="/api/v1/batches" body=${FIRST_BATCH} /><//>`;
