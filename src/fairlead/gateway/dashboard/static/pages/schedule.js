// One schedule: its next times, and what became of the last occurrences.
import { useApp } from "../context.js";
import { plural, text } from "../format.js";
import { html } from "../html.js";
import { useView } from "../live.js";
import { Copy, Fact, JobLink, Moment, Status, Tag, UserLink } from "../parts/bits.js";
import { Json } from "../parts/json.js";
import { Missing } from "../parts/missing.js";
import { Actions, Next, whenOf } from "./schedules.js";

const LOOKS = { submitted: "ok", skipped: "idle", missed: "warning", refused: "failed" };

export function Page({ subject: id }) {
  const { live } = useApp();
  const { state, error } = useView(live, { view: "schedule", schedule_id: id });
  if (!state || error) return html`<h1>Schedule</h1><${Missing} what="schedule" list="schedules" error=${error} />`;
  const { schedule } = state;
  return html`<div class="page-head"><h1><span class="clip">${text(schedule.name) || schedule.id}</span></h1>
      <div class="acts"><${Actions} schedule=${schedule} /></div>
      <p class="subtitle"><span class="mono">${schedule.id}</span> <${Copy} text=${schedule.id} what="the schedule's id" /></p></div>
    <dl class="facts" aria-label="Facts">
      <${Fact} name="Feature">${text(schedule.feature_name)}<//>
      <${Fact} name="User"><${UserLink} id=${text(schedule.user_id)} /><//>
      <${Fact} name="When">${whenOf(schedule)}<//>
      <${Fact} name="Next"><${Next} schedule=${schedule} /><//>
      <${Fact} name="Missed runs">${schedule.missed}<//>
      <${Fact} name="Overlap">${schedule.overlap}<//>
      ${schedule.waiting_at && html`<${Fact} name="Waiting run"><${Moment} at=${schedule.waiting_at} /><//>`}
    </dl>
    <section class="card stack"><h2>Next times</h2>
      ${schedule.next_times.length ? html`<ol data-testid="next-times">${schedule.next_times.map((at) => html`<li key=${at}><${Moment} at=${at} /></li>`)}</ol>`
        : html`<p class="muted">${schedule.paused_at ? "It is paused." : "It is never due again."}</p>`}
      <${Json} title="Input" value=${schedule.input_data} /></section>
    <${Runs} runs=${Object.entries(state.runs || {})} />`;
}

const Runs = ({ runs }) => html`<section class="card flush"><div class="section-head"><h2>History</h2></div>
  ${runs.length === 0 ? html`<p class="muted">Nothing was due yet.</p>` : html`<div class="table-box"><table class="rows" data-testid="runs">
    <caption class="hidden">What became of the last occurrences, newest first</caption>
    <thead><tr><th scope="col">Due</th><th scope="col">Outcome</th><th scope="col">Job</th><th scope="col">Status</th></tr></thead>
    <tbody>${runs.sort(([one], [other]) => Number(other) - Number(one)).map(([seq, run]) => html`<tr key=${seq}>
      <td data-label="Due">${run.due_at ? html`<${Moment} at=${run.due_at} />` : html`<${Moment} at=${run.at} /> (run now)`}</td>
      <td data-label="Outcome"><${Tag} look=${LOOKS[run.outcome]}>${run.outcome === "missed" ? `${plural(run.count, "run")} missed` : run.outcome}<//>
        ${run.detail && html` <span class="wrap">${text(run.detail)}</span>`}</td>
      <td data-label="Job">${run.job_id ? html`<${JobLink} id=${run.job_id} />` : ""}</td>
      <td data-label="Status">${run.status ? html`<${Status} status=${run.status} />` : ""}</td></tr>`)}</tbody></table></div>`}</section>`;
