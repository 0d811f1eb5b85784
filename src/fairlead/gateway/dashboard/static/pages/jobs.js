// All jobs, newest first, filtered by the address.
import { cancelJobs, retryJobs } from "../actions.js";
import { serverNow } from "../clock.js";
import { useApp } from "../context.js";
import { number } from "../format.js";
import { html, useCallback, useEffect, useMemo, useState } from "../html.js";
import { useView } from "../live.js";
import { Act } from "../parts/act.js";
import { Loading, Status } from "../parts/bits.js";
import { Budgets } from "../parts/budgets.js";
import { Empty, NoJobs } from "../parts/empty.js";
import { JobRows } from "../parts/jobrows.js";
import { More } from "../parts/more.js";
import { useOlder, useTogether } from "../parts/older.js";
import { go, to } from "../router.js";

const STATUSES = ["PENDING", "RUNNING", "RETRYING", "SCHEDULED", "COMPLETED", "FAILED", "CANCELLED"];
const OPEN = ["PENDING", "RUNNING", "RETRYING", "SCHEDULED"];
const LIVE = 200; // the newest jobs are live
const BETWEEN = "between";
const SPANS = { "15 minutes": 900, hour: 3600, day: 86_400, week: 604_800 };

export function Page({ route }) {
  const { live, session } = useApp();
  const filters = Object.fromEntries(["user_id", "feature_name", "service", "error_code", "status", "last", "from", "to"].map((name) => [name, route.query.get(name) || ""]));
  const { since, until } = useMemo(() => spanOf(filters), [filters.last, filters.from, filters.to]);
  const { user_id, feature_name, service, error_code, status } = filters;
  const all = { user_id, feature_name, service, error_code, status, since, until };
  const query = Object.fromEntries(Object.entries(all).filter(([, value]) => value !== "" && value !== null));
  const { state, error } = useView(live, { view: "jobs", limit: LIVE, ...query });
  const older = useOlder("/api/v1/jobs", query, state?.next_cursor);
  const jobs = useTogether(state?.jobs, older, (job) => job.job_id, orderOf);
  const filtered = Object.keys(query).length > 0;
  const [selected, setSelected] = useState(new Set());
  useEffect(() => setSelected(new Set()), [JSON.stringify(query)]);
  const select = useCallback((ids, on) => setSelected((before) => {
    const after = new Set(before);
    for (const id of ids) on ? after.add(id) : after.delete(id);
    return after;
  }), []);
  return html`<div class="page-head"><h1>Jobs</h1><${Counts} counts=${state?.counts} filters=${filters} /></div>
    <${Filters} filters=${filters} own=${session.role === "user"} />
    ${user_id && html`<${Budgets} user=${user_id} />`}
    ${!state || error ? html`<${Loading} error=${error} />` : jobs.length === 0
      ? filtered ? html`<${Empty} title="No matching jobs">
          <p>${older.left ? "None of the newest jobs matches these filters." : "No job matches these filters."} <a href=${to(["jobs"])}>Show all jobs</a></p>
        <//>${older.left && html`<${More} shown=${0} older=${older} what="jobs" />`}` : html`<${NoJobs} />`
      : html`<${JobRows} jobs=${jobs} own=${session.role === "user"} onEnd=${older.more} selected=${session.may_act ? selected : null} onSelect=${select} />
        <${Picked} jobs=${jobs.filter((job) => selected.has(job.job_id))} onClear=${() => setSelected(new Set())} />
        <${More} shown=${jobs.length} older=${older} what="jobs" />`}`;
}

/** Actions on the selected jobs. */
function Picked({ jobs, onClear }) {
  const failed = jobs.filter((job) => job.status === "FAILED");
  const open = jobs.filter((job) => OPEN.includes(job.status));
  return jobs.length > 0 && html`<div class="picked" role="region" aria-label="Selected jobs"><b role="status">${number(jobs.length)} selected</b>
    <${Act} when=${failed.length > 0} look="primary" question=${() => retryJobs(failed)}>Retry ${number(failed.length)}<//>
    <${Act} when=${open.length > 0} look="danger" question=${() => cancelJobs(open)}>Cancel ${number(open.length)}<//>
    <button class="quiet" onClick=${onClear}>Clear selection</button></div>`;
}

/** The time range of submission. Compute it once per choice; otherwise each render would request another view. */
function spanOf({ last, from, to: end }) {
  if (last === BETWEEN) return { since: written(from), until: written(end) };
  return { since: Object.hasOwn(SPANS, last) ? new Date((serverNow() - SPANS[last]) * 1000).toISOString() : null, until: null };
}

/** The value of a local date and time field in ISO 8601; null if it is empty. */
function written(local) {
  const at = new Date(local);
  return Number.isNaN(at.getTime()) ? null : at.toISOString();
}

// Ids grow with time, so they order jobs of the same time.
const orderOf = (job) => `${job.created_at} ${job.job_id}`;

function Counts({ counts, filters }) {
  if (!counts) return null;
  const { status: _, ...rest } = filters;
  return html`<ul class="counts" aria-label="Jobs by status">${STATUSES.filter((status) => counts[status] > 0).map((status) => html`<li key=${status}>
    <a href=${to(["jobs"], { ...rest, status: filters.status === status ? "" : status })} aria-current=${filters.status === status ? "true" : null}
      title=${filters.status === status ? "show all" : "show only these"}><${Status} status=${status} /> <b>${number(counts[status])}</b>
        </a></li>`)}</ul>`;
}

/** The filters become part of the address shortly after typing, so that a filtered list can be shared. */
function Filters({ filters, own }) {
  const [typed, setTyped] = useState(filters);
  useEffect(() => setTyped(filters), [JSON.stringify(filters)]);
  useEffect(() => {
    if (JSON.stringify(typed) === JSON.stringify(filters)) return undefined;
    const timer = setTimeout(() => go(to(["jobs"], trimmed(typed)), { replace: true }), 300);
    return () => clearTimeout(timer);
  }, [JSON.stringify(typed)]);
  const set = (name) => (event) => setTyped({ ...typed, [name]: event.target.value });
  const any = Object.values(filters).some(Boolean);
  return html`<form class="filters" role="search" aria-label="Filter jobs" onSubmit=${(event) => event.preventDefault()}>
    ${!own && html`<label><span>User</span>
      <input type="search" name="user_id" value=${typed.user_id} placeholder="all" onInput=${set("user_id")} /></label>`}
    <label><span>Feature</span>
      <input type="search" name="feature_name" value=${typed.feature_name} placeholder="all" onInput=${set("feature_name")} /></label>
    <label><span>Service</span>
      <input type="search" name="service" value=${typed.service} placeholder="all" title="the service of the current step" onInput=${set("service")} /></label>
    <label><span>Error code</span>
      <input type="search" name="error_code" value=${typed.error_code} placeholder="any" onInput=${set("error_code")} /></label>
    <label><span>Status</span><select name="status" value=${typed.status} onChange=${set("status")}><option value="">all</option>
      ${STATUSES.map((status) => html`<option key=${status} value=${status}
        selected=${typed.status === status}>${status.toLowerCase()}</option>`)}</select>
        </label>
    <label><span>Submitted</span><select name="last" value=${typed.last} onChange=${set("last")}><option value="">any time</option>
      ${Object.keys(SPANS).map((span) => html`<option key=${span} value=${span}
        selected=${typed.last === span}>in the last ${span}</option>`)}<option value=${BETWEEN} selected=${typed.last === BETWEEN}>between…</option>
        </select></label>
    ${typed.last === BETWEEN && html`<label><span>From</span>
      <input type="datetime-local" name="from" value=${typed.from} onInput=${set("from")} /></label>
      <label><span>To</span><input type="datetime-local" name="to" value=${typed.to} onInput=${set("to")} /></label>`}
    ${any && html`<a class="clear" href=${to(["jobs"])}>Clear</a>`}
  </form>`;
}

const trimmed = (filters) => Object.fromEntries(Object.entries(filters).map(([name, value]) => [name, value.trim()]));
