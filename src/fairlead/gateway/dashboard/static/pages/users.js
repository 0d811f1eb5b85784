// Who is waiting, who is served, and with what weight.
import { useApp } from "../context.js";
import { duration, number } from "../format.js";
import { html, useState } from "../html.js";
import { useView } from "../live.js";
import { Age, Loading, UserLink } from "../parts/bits.js";
import { NoJobs } from "../parts/empty.js";
import { Filter } from "../parts/filter.js";
import { Table } from "../parts/table.js";

const MOST = 500; // as many as the server tells

const oldestOf = ([, user]) => (user.oldest_since ? html`<${Age} since=${user.oldest_since} />` : "–");

const COLUMNS = [
  { name: "user", title: "User", value: ([id]) => id, show: ([id]) => html`<${UserLink} id=${id} />` },
  { name: "waiting", title: "Waiting", number: true, value: ([, user]) => user.waiting, show: ([, user]) => number(user.waiting) },
  { name: "running", title: "Running", number: true, value: ([, user]) => user.running, show: ([, user]) => number(user.running) },
  { name: "finished", title: "Calls, last hour", number: true, value: ([, user]) => user.finished_hour, show: ([, user]) => number(user.finished_hour) },
  { name: "used", title: "Slot time, last hour", number: true, value: ([, user]) => user.used_hour, show: ([, user]) => duration(user.used_hour ?? NaN) },
  { name: "weight", title: "Weight", number: true, value: ([, user]) => user.weight, show: ([, user]) => number(user.weight) },
  { name: "oldest", title: "Oldest wait", number: true, value: ([, user]) => -(user.oldest_since ?? Infinity), show: oldestOf },
];

export function Page() {
  const { live } = useApp();
  const { state, error } = useView(live, { view: "users" });
  const [wanted, setWanted] = useState("");
  if (!state) return html`<h1>Users</h1><${Loading} error=${error} />`;
  const all = Object.entries(state.users || {});
  const shown = all.filter(([id]) => id.toLowerCase().includes(wanted.toLowerCase()));
  return html`<div class="page-head"><h1>Users</h1>
      ${all.length > 0 && html`<${Filter} label="Filter users" value=${wanted} onChange=${setWanted} />`}</div>
    <p class="muted lead">Each user has a fair turn at every service, by slot time and weight, however much they have waiting.</p>
    ${all.length === 0 ? html`<${NoJobs} />` : html`<section class="card flush">
      <${Table} caption="Users with what they have waiting and running" columns=${COLUMNS} rows=${shown} keyOf=${([id]) => id}
        sort=${{ by: "waiting", down: true }} most=${MOST} />
        </section>`}
    ${all.length >= MOST && html`<p class="muted">Shown are the ${MOST} users with the most waiting.</p>`}`;
}
