// One batch: counts, items and actions.
import { cancelBatch, retryBatch, retryItem } from "../actions.js";
import { get, path } from "../api.js";
import { useApp } from "../context.js";
import { number, percent, plural, text } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { useView } from "../live.js";
import { Act } from "../parts/act.js";
import { BatchBar } from "../parts/batchbar.js";
import { Copy, Fact, JobLink, Left, Moment, Announced, Status, UserLink, rowLink } from "../parts/bits.js";
import { Json } from "../parts/json.js";
import { Missing } from "../parts/missing.js";
import { to } from "../router.js";

const OPEN = ["SCHEDULED", "PENDING", "RUNNING", "RETRYING"];
const PAGE = 100;

export function Page({ subject: batchId }) {
  const { live } = useApp();
  const { state, error } = useView(live, { view: "batch", batch_id: batchId });
  if (!state || error) return html`<h1>Batch</h1><${Missing} what="batch" list="batches" error=${error} />`;
  const { batch } = state;
  const counts = Object.entries(batch.counts || {}).filter(([, count]) => count > 0);
  const open = OPEN.reduce((sum, status) => sum + (batch.counts?.[status] || 0), 0);
  const failed = batch.counts?.FAILED || 0;
  return html`<div class="page-head"><h1><span class="clip">${text(batch.name) || "Batch"}</span></h1>
      <div class="acts">
        <a class="button" href=${path`/api/v1/batches/${batch.batch_id}/results`} download=${`${batch.batch_id}.jsonl`}>Results</a>
        <${Act} when=${failed > 0} look="primary" question=${() => retryBatch(batch, failed)}>Retry failed (${number(failed)})<//>
        <${Act} when=${open > 0} look="danger" question=${() => cancelBatch(batch, open)}>Cancel<//>
      </div>
      <p class="subtitle"><span class="mono">${batch.batch_id}</span> <${Copy} text=${batch.batch_id} what="the batch's id" /></p></div>
    <dl class="facts" aria-label="Facts">
      <${Fact} name="User"><${UserLink} id=${text(batch.user_id)} /><//>
      <${Fact} name="Progress">${percent(batch.progress)}<//>
      <${Fact} name="Items">${number(batch.total)}<//>
      <${Fact} name="Submitted"><${Moment} at=${batch.created_at} /><//>
      ${batch.finished_at ? html`<${Fact} name="Ended"><${Moment} at=${batch.finished_at} /><//>`
        : batch.estimated_end && html`<${Fact} name="Ends in about"><${Left} until=${batch.estimated_end} over="a moment" /><//>`}
    </dl>
    <${Announced}>${`${Math.floor((batch.progress || 0) * 10) * 10} % of the batch is done, ${plural(failed, "item")} failed`}<//>
    <section class="card stack"><h2>Items by status</h2><div class="large-bar"><${BatchBar} batch=${batch} /></div>
      <ul class="counts">${counts.map(([status, count]) => html`<li key=${status}><${Status} status=${status} /> <b>${number(count)}</b>
        </li>`)}</ul>
      <${Json} title="Metadata" value=${batch.metadata} /></section>
    <${Items} batch=${batch} live=${state.items} cursor=${state.next_cursor} />`;
}

/** The first items are live while all statuses are shown; items of one status and later pages are loaded on demand. */
function useItems(batch, live, liveCursor) {
  const start = { items: [], cursor: undefined, trouble: null };
  const [status, setStatus] = useState("");
  const [read, setRead] = useState(start);
  const more = async (cursor) => {
    try {
      const page = await get(path`/api/v1/batches/${batch.batch_id}/items`, { status, limit: PAGE, cursor });
      setRead((before) => ({ items: cursor ? [...before.items, ...page.data] : page.data, cursor: page.next_cursor, trouble: null }));
    } catch (problem) {
      setRead((before) => ({ ...before, trouble: problem.message }));
    }
  };
  useEffect(() => {
    setRead(start);
    if (status) more(null);
  }, [status]);
  const first = status ? [] : Object.values(live || {}).sort((one, other) => one.item - other.item);
  const cursor = read.cursor === undefined && !status ? liveCursor : read.cursor;
  return { items: [...first, ...read.items], trouble: read.trouble, status, setStatus, more: cursor ? () => more(cursor) : null };
}

function Items({ batch, live, cursor }) {
  const { items, trouble, status, setStatus, more } = useItems(batch, live, cursor);
  return html`<section class="card flush"><div class="section-head"><h2>Items</h2>
      <label class="inline"><span>Status</span><select value=${status} onChange=${(event) => setStatus(event.target.value)}>
        <option value="">all</option>
        ${[...OPEN, "COMPLETED", "FAILED", "CANCELLED"].map((each) => html`<option key=${each}
          value=${each}>${each.toLowerCase()}</option>`)}</select>
          </label></div>
    ${trouble && html`<p class="trouble" role="alert">${trouble}</p>`}
    <div class="table-box"><table class="rows"><caption class="hidden">Items of the batch</caption>
      <thead><tr><th scope="col">Item</th><th scope="col">Job</th><th scope="col">Status</th><th scope="col">Error</th>
        <th scope="col" class="n">Ended</th><th scope="col"><span class="hidden">Actions</span></th></tr></thead>
      <tbody>${items.map((item) => html`<tr key=${item.item} ...${item.job_id ? rowLink(to(["jobs", item.job_id])) : {}}>
        <td data-label="Item"><span class="clip">${text(item.custom_id) || number(item.item)}</span></td>
        <td data-label="Job">${item.job_id ? html`<${JobLink} id=${item.job_id} />` : "–"}</td>
        <td data-label="Status"><${Status} status=${item.status} /></td>
        <td class="error" data-label="Error">${item.error ? html`<code>${text(item.error.code)}</code> <span
          class="clip">${text(item.error.message)}</span>` : ""}</td>
        <td class="n" data-label="Ended"><${Moment} at=${item.finished_at} /></td>
        <td class="n">
          <${Act} when=${item.status === "FAILED"} look="quiet small" label=${`Retry item ${text(item.custom_id) || item.item}`}
            question=${() => retryItem(item)}>Retry<//>
          </td></tr>`)}</tbody></table></div>
    ${more && html`<p><button class="quiet" onClick=${more}>More items</button></p>`}
    ${items.length === 0 && !trouble && html`<p class="muted">No item has this status. <a href=${to(["batches"])}>All batches</a></p>`}
  </section>`;
}
