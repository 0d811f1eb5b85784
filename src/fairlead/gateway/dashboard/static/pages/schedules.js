// Recurring jobs.
import { useApp, mayOperate } from "../context.js";
import { duration, text } from "../format.js";
import { html, useState } from "../html.js";
import { useView } from "../live.js";
import { Act } from "../parts/act.js";
import { Loading, Moment, Tag, UserLink, rowLink } from "../parts/bits.js";
import { Empty } from "../parts/empty.js";
import { Filter } from "../parts/filter.js";
import { to } from "../router.js";
import { pauseSchedule, resumeSchedule, runSchedule } from "../schedule_actions.js";

/** When a schedule is due, in words. */
export const whenOf = (schedule) => (schedule.every ? `every ${duration(schedule.every)}` : `${text(schedule.cron)} ${text(schedule.timezone)}`);

export function Actions({ schedule }) {
  const { session } = useApp();
  if (!mayOperate(session) && schedule.source !== "api") return null;
  const title = text(schedule.name) || schedule.id;
  return html`<${Act} look="small" label=${`Run now: ${title}`} question=${() => runSchedule(schedule)}>Run now<//>
    ${schedule.paused_at
      ? html`<${Act} look="small primary" label=${`Resume ${title}`} question=${() => resumeSchedule(schedule)}>Resume<//>`
      : html`<${Act} look="small danger" label=${`Pause ${title}`} question=${() => pauseSchedule(schedule)}>Pause<//>`}`;
}

export function Next({ schedule }) {
  if (schedule.paused_at) return html`<${Tag} look="warning">paused<//>`;
  return schedule.next_at ? html`<${Moment} at=${schedule.next_at} />` : "never";
}

export function Page() {
  const { live } = useApp();
  const { state, error } = useView(live, { view: "schedules" });
  const [query, setQuery] = useState("");
  if (!state) return html`<h1>Schedules</h1><${Loading} error=${error} />`;
  const all = Object.values(state.schedules || {});
  const shown = all.filter((row) => `${row.id} ${text(row.name)} ${text(row.feature_name)} ${text(row.user_id)}`.toLowerCase().includes(query.toLowerCase()));
  return html`<div class="page-head"><h1>Schedules</h1>
      ${all.length > 0 && html`<${Filter} label="Filter the schedules" hint="Filter by id, name, feature, user" value=${query} onChange=${setQuery} />`}</div>
    ${all.length === 0 ? html`<${Empty} title="No schedules yet">
      <p>Declare recurring jobs as <code>[schedules.NAME]</code> in the configuration or with <code>@app.cron</code>, or make them with
        <code>fairlead schedules create</code>.</p><//>` : html`<${Table} rows=${shown} />`}`;
}

const Table = ({ rows }) => html`<section class="card flush"><div class="table-box"><table class="rows" data-testid="schedules">
    <caption class="hidden">Schedules of recurring jobs</caption>
    <thead><tr><th scope="col">Schedule</th><th scope="col">Feature</th><th scope="col">User</th><th scope="col">When</th><th scope="col">Next</th>
      <th scope="col"><span class="hidden">Actions</span></th></tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.id} ...${rowLink(to(["schedules", row.id]))}>
      <td data-label="Schedule"><a class="wrap" href=${to(["schedules", row.id])}>${text(row.name) || row.id}</a></td>
      <td data-label="Feature">${text(row.feature_name)}</td><td data-label="User"><${UserLink} id=${text(row.user_id)} /></td>
      <td data-label="When"><span class="wrap">${whenOf(row)}</span></td><td data-label="Next"><${Next} schedule=${row} /></td>
      <td class="acts"><${Actions} schedule=${row} /></td></tr>`)}</tbody></table></div></section>`;
