// The steps and attempts of a job over time: waiting, running, backing off.
import { retryStep } from "../actions.js";
import { useNow } from "../clock.js";
import { useApp } from "../context.js";
import { duration, epoch, text } from "../format.js";
import { html } from "../html.js";
import { Act } from "./act.js";
import { Tag } from "./bits.js";
import { shortWorker } from "./slots.js";

const MAY_RETRY = ["COMPLETED", "FAILED"];
const OUTCOME = {
  running: "running", ok: "ok", waiting: "waiting", scheduled: "waiting", backing_off: "backoff", cancelled: "cancelled", failed: "failed",
};

export function Waterfall({ job, timeline, runs }) {
  const { session } = useApp();
  const acts = session.may_act && MAY_RETRY.includes(job.status) && !job.turn;
  const moving = !job.finished_at;
  const now = useNow(moving);
  const rows = timeline.map((each) => segmentsOf(each, now));
  const begin = Math.min(epoch(job.queued_at) ?? epoch(job.created_at) ?? now, ...rows.map((row) => row.from));
  const end = Math.max(begin + 0.001, moving ? now : 0, ...rows.map((row) => row.until));
  const at = (moment) => `${(100 * (moment - begin)) / (end - begin)}%`;
  const ahead = (job.steps || []).map((service, index) => ({ service, index })).filter(({ index }) => !timeline.some((each) => each.step === index));
  return html`<section class="card"><div class="section-head"><h2>Steps</h2>
      <ul class="legend" aria-hidden="true"><li><span class="key waited"></span>waited</li><li><span class="key running"></span>running</li>
        <li><span class="key ok"></span>ran</li><li><span class="key failed"></span>failed</li><li><span class="key backoff">
        </span>backed off</li></ul></div>
    <div class="table-box"><table class="waterfall" data-testid="waterfall"><caption class="hidden">Steps and attempts over time</caption>
      <thead><tr><th scope="col">Step</th><th scope="col" class="track-head"><span class="scale"><span>0</span>
        <span>${duration((end - begin) / 2)}</span><span>${duration(end - begin)}</span></span></th>
        <th scope="col" class="n">Waited</th><th scope="col" class="n">Ran</th>${acts && html`<th scope="col">
          <span class="hidden">Actions</span></th>`}</tr></thead>
      <tbody>
        ${timeline.map((each, index) => html`<${Attempt} key=${`${each.step} ${each.round} ${each.attempt} ${index}`} job=${job}
          attempt=${each} row=${rows[index]} at=${at} last=${isLast(timeline, index)} acts=${acts} steps=${againOf(runs, each.step)} />`)}
        ${ahead.map(({ service, index }) => html`<tr key=${`ahead ${index}`} class="ahead"><th scope="row">
          <span class="step-no">${index + 1}</span> ${text(service)}</th><td class="muted">not reached yet</td><td class="n">–</td>
          <td class="n">–</td>${acts && html`<td></td>`}</tr>`)}
      </tbody></table></div></section>`;
}

/** The steps that a re-run of this step runs; null for the step that failed, which the Retry button runs again. */
const againOf = (runs, step) => (runs?.retry?.[0] === step ? null : runs?.again?.[step]);

const isLast = (timeline, index) => !timeline.slice(index + 1).some((each) => each.step === timeline[index].step);

function segmentsOf(attempt, now) {
  const from = epoch(attempt.waited_from) ?? epoch(attempt.started) ?? now;
  const started = epoch(attempt.started);
  const ended = epoch(attempt.ended) ?? (started === null ? null : now);
  const backoff = attempt.backoff_until === undefined ? null : Math.min(epoch(attempt.backoff_until), now);
  const backsOff = attempt.outcome === "backing_off";
  const backedOff = backoff !== null && (ended !== null || backsOff) ? { from: ended ?? from, until: backoff } : null;
  return {
    from,
    until: Math.max(from, ended ?? now, backedOff?.until ?? from),
    waited: { from, until: backsOff ? from : started ?? ended ?? now },
    ran: started === null ? null : { from: started, until: ended },
    backedOff,
  };
}

function Attempt({ job, attempt, row, at, last, acts, steps }) {
  const failed = !Object.hasOwn(OUTCOME, attempt.outcome) ? "failed" : OUTCOME[attempt.outcome];
  const waited = row.waited.until - row.waited.from;
  const ran = row.ran && row.ran.until - row.ran.from;
  const words = [`waited ${duration(waited)}`, row.ran && `${attempt.outcome === "running" ? "has been running for" : "ran"} ${duration(ran)}`,
    row.backedOff && row.backedOff.until > row.backedOff.from && `backed off ${duration(row.backedOff.until - row.backedOff.from)}`, text(attempt.error?.code)].filter(Boolean).join(", ");
  const again = attempt.attempt > 1 || attempt.round > 1;
  return html`<tr>
    <th scope="row"><span class="step-no">${attempt.step + 1}</span> ${text(attempt.service)}
      ${again && html` <span class="muted nowrap">${attempt.round > 1 ? `round ${attempt.round}, ` : ""}attempt ${attempt.attempt}</span>`}
      <small class="muted">${[attempt.region, attempt.worker && shortWorker(attempt.worker)].filter(Boolean).join(" · ")}</small></th>
    <td class="track-cell"><span class="track" role="img" aria-label=${words} title=${words}>
        <${Segment} span=${row.waited} at=${at} look="waited" /><${Segment} span=${row.ran} at=${at} look=${failed} />
          <${Segment} span=${row.backedOff} at=${at} look="backoff" /></span>
      ${attempt.error && html`<p class="attempt-error" title=${text(attempt.error.message)}><code>${text(attempt.error.code)}</code> ${text(attempt.error.message)}</p>`}
      ${attempt.outcome === "running" && html`<${Tag} look="running">running<//>`}</td>
    <td class="n" data-label="Waited">${duration(waited)}</td>
    <td class="n" data-label="Ran">${ran === null ? "–" : duration(ran)}</td>
    ${acts && html`<td class="again">
      <${Act} when=${last && steps} look="quiet small" label=${`Run again: step ${attempt.step + 1}`}
        question=${() => retryStep(job, attempt.step, steps)}>Run again<//>
      </td>`}
  </tr>`;
}

const Segment = ({ span, at, look }) => span && span.until > span.from
  && html`<span class=${`segment ${look}`} style=${{ left: at(span.from), right: `calc(100% - ${at(span.until)})` }}></span>`;
