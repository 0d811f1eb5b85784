// One job: state, reasons to wait, steps, data and actions.
import { cancelJob, changePriority, deleteJob, isPermanent, retryJob, stepsOf } from "../actions.js";
import { serverNow } from "../clock.js";
import { mayOperate, useApp } from "../context.js";
import { duration, epoch, number, percent, shortId, text, wait } from "../format.js";
import { html } from "../html.js";
import { useView } from "../live.js";
import { Act } from "../parts/act.js";
import { Age, Copy, Fact, JobLink, Left, Moment, Priority, Announced, Status, UserLink } from "../parts/bits.js";
import { Files, filesIn } from "../parts/files.js";
import { Json } from "../parts/json.js";
import { Missing } from "../parts/missing.js";
import { Output } from "../parts/output.js";
import { Waterfall } from "../parts/waterfall.js";
import { to } from "../router.js";

const ENDED = ["COMPLETED", "FAILED", "CANCELLED"];

export function Page({ subject: jobId }) {
  const { live } = useApp();
  const { state, error } = useView(live, { view: "job", job_id: jobId });
  if (!state || error) return html`<h1>Job</h1><${Missing} what="job" list="jobs" error=${error} />`;
  const job = state.job;
  return html`<${Head} job=${job} about=${state} />
    <${Announced}>${`${job.status.toLowerCase()}, step ${Math.min(job.current_step_index + 1, job.total_steps)} of ${job.total_steps}`}<//>
    <${Trouble} job=${job} about=${state} />
    <${Facts} job=${job} about=${state} />
    <${Why} job=${job} why=${state.why} />
    <${Progress} progress=${job.progress} running=${job.status === "RUNNING"} />
    <${Output} key=${job.job_id} job=${job} />
    <${Waterfall} job=${job} timeline=${state.timeline || []} runs=${state.runs} />
    <${Files} files=${filesIn(job.result, job.context, job.input_data)} />
    <section class="card"><h2>Data</h2>
      <${Json} title="Input" value=${job.input_data} />
      <${Json} title="Result" value=${job.result} />
      <${Json} title="Results of all steps" value=${hasAny(job.context) ? job.context : null} />
      <${Json} title="Failed attempts" value=${job.attempts?.length ? job.attempts : null} />
      <${Json} title="Earlier results" value=${job.history?.length ? job.history : null} />
      <${Json} title="Metadata" value=${job.metadata} />
    </section>`;
}

const hasAny = (object) => object && Object.keys(object).length > 0;

/** Whether the job can be retried: it has failed, is not a turn, and its deadline has not passed. */
const mayRetry = (job, about) => job.status === "FAILED" && !job.turn && about.runs?.retry
  && !(about.deadline_at && epoch(about.deadline_at) <= serverNow());

function Head({ job, about }) {
  const { session } = useApp();
  const ended = ENDED.includes(job.status);
  return html`<div class="page-head">
    <h1><span class="clip">${text(job.feature_name)}</span></h1><${Status} status=${job.status} />
    <div class="acts">
      <${Act} when=${mayRetry(job, about)} look="primary" question=${() => retryJob(job, about.runs.retry)}>Retry<//>
      <${Act} when=${!ended && mayOperate(session)} question=${() => changePriority(job)}>Change priority<//>
      <${Act} when=${!ended} look="danger" question=${() => cancelJob(job)}>Cancel<//>
      <${Act} when=${ended} look="danger" question=${() => deleteJob(job)}>Delete<//>
    </div>
    <p class="subtitle"><span class="mono" data-testid="job-id">${job.job_id}</span> <${Copy} text=${job.job_id} what="the job's id" />
      ${job.trace_id && html` trace <span class="mono">${job.trace_id}</span> <${Copy} text=${job.trace_id} what="the trace's id" />`}</p>
  </div>`;
}

function Facts({ job, about }) {
  const ended = ENDED.includes(job.status);
  const { batch } = about;
  return html`<dl class="facts" aria-label="Facts">
    <${Fact} name="User"><${UserLink} id=${text(job.user_id)} /><//>
    ${batch && html`<${Fact} name="Batch"><a class="clip" href=${to(["batches", batch.batch_id])}
      title=${`batch ${batch.batch_id}`}>${text(batch.name) || shortId(batch.batch_id)}</a><//>
      <${Fact} name="Item"><span class="clip" title=${`item ${batch.item} of the batch, counted from 0`}>${text(batch.custom_id) || number(batch.item)}</span><//>`}
    <${Fact} name="Priority"><${Priority} priority=${job.priority} original=${job.original_priority} /><//>
    <${Fact} name="Step">${number(Math.min(job.current_step_index + 1, job.total_steps))}<small class="muted"> of ${number(job.total_steps)}</small>
      <//>
    ${job.position && html`<${Fact} name="Position" look="waiting"><span data-testid="position">${number(job.position)}</span><//>`}
    ${job.estimated_wait && html`<${Fact} name="Estimated wait" look="waiting">${wait(job.estimated_wait)}<//>`}
    ${job.status === "SCHEDULED" && job.scheduled_at && html`<${Fact} name="Due in"><${Left} until=${job.scheduled_at} over="now" /><//>`}
    ${job.kept_until && html`<${Fact} name="Set aside for" hint="its caller is absent"><span
      data-testid="set-aside"><${Left} until=${job.kept_until} /></span><//>`}
    <${Fact} name="Submitted"><${Moment} at=${job.created_at} /><//>
    ${ended ? html`<${Fact} name="Took">${took(job)}<//>` : html`<${Fact} name="Age"><${Age} since=${job.created_at} /><//>`}
    ${about.deadline_at && !ended && html`<${Fact} name="Deadline in"><${Left} until=${about.deadline_at} over="passed" /><//>`}
    ${job.region && html`<${Fact} name="Region">${job.region}<//>`}
  </dl>`;
}

function took(job) {
  const [from, until] = [epoch(job.queued_at) ?? epoch(job.created_at), epoch(job.finished_at)];
  return from === null || until === null ? "–" : html`<span title="from queueing to the end">${duration(until - from)}</span>`;
}

function Why({ job, why }) {
  if (!why?.summary || ENDED.includes(job.status) || job.status === "RUNNING") return null;
  const holders = (why.reasons || []).flatMap((reason) => reason.details?.holders || []);
  return html`<section class="card why-card" data-testid="why"><h2>Why it waits</h2><p class="large">${why.summary}</p>
    ${holders.length > 0 && html`<ul aria-label="Who has the slots">${holders.map((holder) => html`<li key=${holder.lease || holder.job_id}>
      ${holder.kind === "lease" ? "used by" : "held for"} <b>${text(holder.user_id)}</b>, job <${JobLink} id=${holder.job_id} />, <${Age} since=${holder.since} prefix="for " />
        </li>`)}</ul>`}</section>`;
}

function Progress({ progress, running }) {
  if (!progress || !running) return null;
  const { fraction, message, service: _service, step: _step, step_index: _index, ...details } = progress;
  const more = hasAny(details) ? Object.entries(details).map(([name, value]) => `${name} ${text(value)}`).join(", ") : "";
  return html`<section class="card" aria-label="Progress"><div class="progress-head">
    <b>${Number.isFinite(fraction) ? percent(fraction) : ""}</b> <span class="muted wrap">${[text(message), more].filter(Boolean).join(" · ")}</span>
    </div>
    ${Number.isFinite(fraction) && html`<progress max="1" value=${fraction} aria-label="Progress of the step"></progress>`}</section>`;
}

function Trouble({ job, about }) {
  if (!job.error) return null;
  const { code, message } = typeof job.error === "object" ? job.error : { code: null, message: job.error };
  const last = job.attempts?.at(-1);
  const traceback = last?.error?.code === code ? last?.traceback : null;
  const failed = job.status === "FAILED";
  const at = Math.min(job.current_step_index, job.total_steps - 1);
  return html`<section class="card trouble-card" data-testid="error">
    <h2>${failed ? html`Failed at ${stepsOf(job, [at])}` : "Last error"}</h2>
    <p class="large"><code>${text(code)}</code> <span class="wrap">${text(message)}</span></p>
    ${traceback && html`<div class="command"><pre tabindex="0" class="traceback" aria-label="Traceback" data-testid="traceback">${text(traceback)}</pre>
      <${Copy} text=${text(traceback)} what="the traceback" /></div>`}
    ${failed && html`<p class="muted">${outlook(job, about)}</p>`}</section>`;
}

function outlook(job, about) {
  if (job.turn) return "A turn is not retried: its caller takes a new one.";
  if (!mayRetry(job, about)) return "The job's deadline has passed, so it cannot be retried. Submit it again.";
  if (isPermanent(job)) return "The error is permanent: with the same input it will probably happen again. Fix the cause, then retry.";
  return job.error.attempts ? `All ${job.error.attempts} attempts failed. A retry begins with fresh ones.` : "A retry begins with fresh attempts.";
}
