// Users with their waiting and running jobs and weights.
import { mayOperate, useApp } from "../context.js";
import { duration, number } from "../format.js";
import { html, useState } from "../html.js";
import { useView } from "../live.js";
import { Age, Loading, UserLink } from "../parts/bits.js";
import { NoJobs } from "../parts/empty.js";
import { Filter } from "../parts/filter.js";
import { RateActs, rateOf, rateWords } from "../parts/rates.js";
import { Table } from "../parts/table.js";
import { to } from "../router.js";

const MOST = 500; // the limit of the server
const OPTIONAL = ["group", "plan"]; // shown only if a user has one

const oldestOf = ([, user]) => (user.oldest_since ? html`<${Age} since=${user.oldest_since} />` : "–");

const COLUMNS = [
  { name: "user", title: "User", value: ([id]) => id, show: ([id]) => html`<${UserLink} id=${id} />` },
  { name: "waiting", title: "Waiting", number: true, value: ([, user]) => user.waiting, show: ([, user]) => number(user.waiting) },
  { name: "running", title: "Running", number: true, value: ([, user]) => user.running, show: ([, user]) => number(user.running) },
  { name: "finished", title: "Calls, last hour", number: true, value: ([, user]) => user.finished_hour, show: ([, user]) => number(user.finished_hour) },
  { name: "used", title: "Slot time, last hour", number: true, value: ([, user]) => user.used_hour, show: ([, user]) => duration(user.used_hour ?? NaN) },
  { name: "weight", title: "Weight", number: true, value: ([, user]) => user.weight, show: ([, user]) => number(user.weight) },
  { name: "group", title: "Group", value: ([, user]) => user.group ?? "", show: ([, user]) => user.group ?? "–" },
  { name: "plan", title: "Plan", value: ([, user]) => user.plan ?? "", show: ([, user]) => user.plan ?? "–" },
  { name: "oldest", title: "Oldest wait", number: true, value: ([, user]) => -(user.oldest_since ?? Infinity), show: oldestOf },
];

export function Page() {
  const { live } = useApp();
  const { state, error } = useView(live, { view: "users" });
  const [query, setQuery] = useState("");
  if (!state) return html`<h1>Users</h1><${Loading} error=${error} />`;
  const all = Object.entries(state.users || {});
  const part = query.toLowerCase();
  const shown = all.filter(([id, user]) => [id, user.group, user.plan].some((text) => text?.toLowerCase().includes(part)));
  const columns = COLUMNS.filter(({ name }) => !OPTIONAL.includes(name) || all.some(([, user]) => user[name]));
  return html`<div class="page-head"><h1>Users</h1>
      ${all.length > 0 && html`<${Filter} label="Filter users" value=${query} onChange=${setQuery} />`}</div>
    <p class="muted lead">Every service shares its slots fairly between users, by slot time and weight, however many jobs they have waiting.</p>
    ${all.length === 0 ? html`<${NoJobs} />` : html`<section class="card flush">
      <${Table} caption="Users with their waiting and running jobs" columns=${columns} rows=${shown} keyOf=${([id]) => id} hrefOf=${([id]) => to(["jobs"], { user_id: id })}
        sort=${{ by: "waiting", down: true }} most=${MOST} />
        </section>`}
    ${all.length >= MOST && html`<p class="muted">Only the ${MOST} users with the most waiting jobs are shown.</p>`}
    <${MemberRates} rates=${state.rates || {}} />`;
}

/** What each user of a plan, and all members of a group together, may call in each service. */
function MemberRates({ rates }) {
  const { session } = useApp();
  const rows = [["plan", rates.plans], ["group", rates.groups]].flatMap(([of, named]) => Object.entries(named || {}).map(([name, state]) => ({ of, name, state })));
  if (rows.length === 0) return null;
  return html`<section class="card" data-testid="member-rates"><h2>Rates of plans and groups</h2>
    <p class="muted">In each service: of each user of a plan, and of all members of a group together.</p>
    <div class="table-box"><table class="rows"><caption class="hidden">Rates of plans and groups</caption>
    <thead><tr><th scope="col">Of</th><th scope="col">Name</th><th scope="col">Rate</th>${mayOperate(session) && html`<th scope="col"><span class="hidden">Actions</span></th>`}</tr></thead>
    <tbody>${rows.map(({ of, name, state }) => html`<tr key=${`${of} ${name}`}><td data-label="Of">${of}</td><th scope="row" data-label="Name">${name}</th>
      <td data-label="Rate">${state.rate ? rateWords(state.rate, state.unit) : "–"}</td>
      ${mayOperate(session) && html`<td><${RateActs} of=${rateOf[of](name)} state=${state} /></td>`}</tr>`)}</tbody></table></div></section>`;
}
