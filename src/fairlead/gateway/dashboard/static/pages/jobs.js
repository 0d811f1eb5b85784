// All jobs, newest first: filtered by the address, live, and smooth however many.
import { serverNow } from "../clock.js";
import { useApp } from "../context.js";
import { number } from "../format.js";
import { html, useEffect, useMemo, useState } from "../html.js";
import { useView } from "../live.js";
import { Loading, Status } from "../parts/bits.js";
import { Empty, NoJobs } from "../parts/empty.js";
import { JobRows } from "../parts/jobrows.js";
import { More } from "../parts/more.js";
import { useOlder, useTogether } from "../parts/older.js";
import { go, to } from "../router.js";

const STATUSES = ["PENDING", "RUNNING", "RETRYING", "SCHEDULED", "COMPLETED", "FAILED", "CANCELLED"];
const LIVE = 200; // the newest, which change by themselves
const BETWEEN = "between";
const SPANS = { "15 minutes": 900, hour: 3600, day: 86_400, week: 604_800 };

export function Page({ route }) {
  const { live, session } = useApp();
  const filters = Object.fromEntries(["user_id", "feature_name", "status", "last", "from", "to"].map((name) => [name, route.query.get(name) || ""]));
  const { since, until } = useMemo(() => spanOf(filters), [filters.last, filters.from, filters.to]);
  const asked = { user_id: filters.user_id, feature_name: filters.feature_name, status: filters.status, since, until };
  const given = Object.fromEntries(Object.entries(asked).filter(([, value]) => value !== "" && value !== null));
  const { state, error } = useView(live, { view: "jobs", limit: LIVE, ...given });
  const older = useOlder("/api/v1/jobs", given, state?.next_cursor);
  const jobs = useTogether(state?.jobs, older, (job) => job.job_id, orderOf);
  const filtered = Object.keys(given).length > 0;
  return html`<div class="page-head"><h1>Jobs</h1><${Counts} counts=${state?.counts} filters=${filters} /></div>
    <${Filters} filters=${filters} own=${session.role === "user"} />
    ${!state || error ? html`<${Loading} error=${error} />` : jobs.length === 0
      ? filtered ? html`<${Empty} title="No job matches"><p>Nothing fits these filters now. <a href=${to(["jobs"])}>Show all jobs</a></p>
        <//>` : html`<${NoJobs} />`
      : html`<${JobRows} jobs=${jobs} own=${session.role === "user"} onEnd=${older.more} />
        <${More} shown=${jobs.length} older=${older} what="jobs" />`}`;
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

// Ids grow with time: they order jobs of the same moment.
const orderOf = (job) => `${job.created_at} ${job.job_id}`;

function Counts({ counts, filters }) {
  if (!counts) return null;
  const { status: _, ...rest } = filters;
  return html`<ul class="counts" aria-label="Jobs by status">${STATUSES.filter((status) => counts[status] > 0).map((status) => html`<li key=${status}>
    <a href=${to(["jobs"], { ...rest, status: filters.status === status ? "" : status })} aria-current=${filters.status === status ? "true" : null}
      title=${filters.status === status ? "show all" : "show only these"}><${Status} status=${status} /> <b>${number(counts[status])}</b>
        </a></li>`)}</ul>`;
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
    ${!own && html`<label><span>User</span>
      <input type="search" name="user_id" value=${typed.user_id} placeholder="all" onInput=${set("user_id")} /></label>`}
    <label><span>Feature</span>
      <input type="search" name="feature_name" value=${typed.feature_name} placeholder="all" onInput=${set("feature_name")} /></label>
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
