// All jobs, newest first: filtered by the address, live, and smooth however many.
import { get } from "../api.js";
import { serverNow } from "../clock.js";
import { useApp } from "../context.js";
import { number } from "../format.js";
import { html, useEffect, useMemo, useState } from "../html.js";
import { useView } from "../live.js";
import { Loading, Status } from "../parts/bits.js";
import { Empty, NoJobs } from "../parts/empty.js";
import { JobRows } from "../parts/jobrows.js";
import { go, to } from "../router.js";

const STATUSES = ["PENDING", "RUNNING", "RETRYING", "SCHEDULED", "COMPLETED", "FAILED", "CANCELLED"];
const LIVE = 200; // the newest, which change by themselves
const PAGE = 200;
const BETWEEN = "between";
const SPANS = { "15 minutes": 900, hour: 3600, day: 86_400, week: 604_800 };

export function Page({ route }) {
  const { live, session } = useApp();
  const filters = Object.fromEntries(["user_id", "feature_name", "status", "last", "from", "to"].map((name) => [name, route.query.get(name) || ""]));
  const { since, until } = useMemo(() => spanOf(filters), [filters.last, filters.from, filters.to]);
  const asked = { user_id: filters.user_id, feature_name: filters.feature_name, status: filters.status, since, until };
  const given = Object.fromEntries(Object.entries(asked).filter(([, value]) => value !== "" && value !== null));
  const { state, error } = useView(live, { view: "jobs", limit: LIVE, ...given });
  const older = useOlder(given, state);
  const jobs = useMemo(() => ordered(state?.jobs, older.jobs), [state?.jobs, older.jobs]);
  const filtered = Object.keys(given).length > 0;
  return html`<div class="page-head"><h1>Jobs</h1><${Counts} counts=${state?.counts} filters=${filters} /></div>
    <${Filters} filters=${filters} own=${session.role === "user"} />
    ${!state || error ? html`<${Loading} error=${error} />` : jobs.length === 0
      ? filtered ? html`<${Empty} title="No job matches"><p>Nothing fits these filters now. <a href=${to(["jobs"])}>Show all jobs</a></p><//>` : html`<${NoJobs} needsKey=${session.signed_in} />`
      : html`<${JobRows} jobs=${jobs} own=${session.role === "user"} onEnd=${older.more} />
        <p class="muted foot" role="status">${number(jobs.length)} shown${older.jobs.length > 0 ? `; those beyond the newest ${LIVE} as they were when read` : ""}.
          ${" "}${older.left ? html`<button class="quiet" disabled=${older.busy} onClick=${older.more}>${older.busy ? "Reading…" : "Older jobs"}</button>` : ""}
          ${older.trouble && html`<span class="trouble" role="alert">${older.trouble}</span>`}</p>`}`;
}

/** When the jobs were submitted. Worked out once for a choice, or the view would be another one at every drawing. */
function spanOf({ last, from, to: end }) {
  if (last === BETWEEN) return { since: written(from), until: written(end) };
  return { since: Object.hasOwn(SPANS, last) ? new Date((serverNow() - SPANS[last]) * 1000).toISOString() : null, until: null };
}

/** What a field for a local date and time holds, as the API takes it; null if it holds none yet. */
function written(local) {
  const at = new Date(local);
  return Number.isNaN(at.getTime()) ? null : at.toISOString();
}

function ordered(now, older) {
  const rows = Object.values(now || {});
  const known = new Set(rows.map((job) => job.job_id));
  // Ids grow with time: they order jobs of the same moment.
  const byAge = (one, other) => (one.created_at === other.created_at ? (one.job_id < other.job_id ? 1 : -1) : one.created_at < other.created_at ? 1 : -1);
  return [...rows.sort(byAge), ...older.filter((job) => !known.has(job.job_id))];
}

/** Pages beyond the live ones, read when somebody scrolls there. */
function useOlder(given, state) {
  const key = JSON.stringify(given);
  const start = { key, jobs: [], cursor: undefined, busy: false, trouble: null };
  const [older, setOlder] = useState(start);
  useEffect(() => setOlder(start), [key]);
  const cursor = older.cursor === undefined ? state?.next_cursor : older.cursor;
  const more = async () => {
    if (!cursor || older.busy || older.key !== key) return;
    setOlder({ ...older, busy: true, trouble: null });
    try {
      const page = await get("/api/v1/jobs", { ...given, limit: PAGE, cursor });
      setOlder((before) => (before.key === key ? { ...before, jobs: [...before.jobs, ...page.data], cursor: page.next_cursor, busy: false } : before));
    } catch (problem) {
      setOlder((before) => ({ ...before, busy: false, trouble: problem.message }));
    }
  };
  return { ...older, left: Boolean(cursor), more };
}

function Counts({ counts, filters }) {
  if (!counts) return null;
  const { status: _, ...rest } = filters;
  return html`<ul class="counts" aria-label="Jobs by status">${STATUSES.filter((status) => counts[status] > 0).map((status) => html`<li key=${status}>
    <a href=${to(["jobs"], { ...rest, status: filters.status === status ? "" : status })} aria-current=${filters.status === status ? "true" : null}
      title=${filters.status === status ? "show all" : "show only these"}><${Status} status=${status} /> <b>${number(counts[status])}</b></a></li>`)}</ul>`;
}

/** What is typed becomes the address after a moment, so that a filtered list can be sent to somebody. */
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
    ${!own && html`<label><span>User</span><input type="search" name="user_id" value=${typed.user_id} placeholder="all" onInput=${set("user_id")} /></label>`}
    <label><span>Feature</span><input type="search" name="feature_name" value=${typed.feature_name} placeholder="all" onInput=${set("feature_name")} /></label>
    <label><span>Status</span><select name="status" value=${typed.status} onChange=${set("status")}><option value="">all</option>
      ${STATUSES.map((status) => html`<option key=${status} value=${status} selected=${typed.status === status}>${status.toLowerCase()}</option>`)}</select></label>
    <label><span>Submitted</span><select name="last" value=${typed.last} onChange=${set("last")}><option value="">any time</option>
      ${Object.keys(SPANS).map((span) => html`<option key=${span} value=${span} selected=${typed.last === span}>in the last ${span}</option>`)}<option value=${BETWEEN} selected=${typed.last === BETWEEN}>between…</option></select></label>
    ${typed.last === BETWEEN && html`<label><span>From</span><input type="datetime-local" name="from" value=${typed.from} onInput=${set("from")} /></label>
      <label><span>To</span><input type="datetime-local" name="to" value=${typed.to} onInput=${set("to")} /></label>`}
    ${any && html`<a class="clear" href=${to(["jobs"])}>Clear</a>`}
  </form>`;
}

const trimmed = (filters) => Object.fromEntries(Object.entries(filters).map(([name, value]) => [name, value.trim()]));
