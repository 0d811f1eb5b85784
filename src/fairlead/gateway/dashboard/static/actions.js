// Everything an operator can do here, as the question that is asked first. The routes are those of the API.
import { call, path } from "./api.js";
import { number, plural, shortId, text } from "./format.js";
import { html } from "./html.js";

const who = (job) => html`<b>${text(job.feature_name)}</b> of <b>${text(job.user_id)}</b> (<code>${job.job_id}</code>)`;

// ---------------------------------------------------------------- jobs

export const cancelJob = (job) => ({
  title: "Cancel this job?",
  text: html`<p>${who(job)} ends as cancelled. ${job.status === "RUNNING" ? "The call under way is stopped." : "It leaves the line."} Results of finished steps stay.</p>`,
  confirm: "Cancel the job",
  danger: true,
  run: () => call("POST", path`/api/v1/jobs/${job.job_id}/cancel`),
  done: `Cancelled job ${shortId(job.job_id)}.`,
});

export const resumeJob = (job) => ({
  title: "Resume this job?",
  text: html`<p>${who(job)} goes back in line at step ${job.current_step_index + 1}, <b>${text(job.steps?.[job.current_step_index])}</b>, with fresh attempts.</p>`,
  confirm: "Resume the job",
  run: () => call("POST", path`/api/v1/jobs/${job.job_id}/resume`),
  done: `Job ${shortId(job.job_id)} is in line again.`,
});

export const retryStep = (job, index) => ({
  title: `Run step ${index + 1} again?`,
  text: html`<p>Of ${who(job)}, only <b>${text(job.steps?.[index])}</b> is called again, with fresh attempts. Later
    steps are not, and the present result goes to the job's history.</p>`,
  confirm: "Run the step again",
  run: () => call("POST", path`/api/v1/jobs/${job.job_id}/steps/${index}/retry`),
  done: `Step ${index + 1} of job ${shortId(job.job_id)} is in line again.`,
});

export const changePriority = (job) => ({
  title: "Change this job's priority?",
  text: html`<p>${who(job)} waits in the band you choose from now on. It is <b>${job.priority}</b> now; a call under way goes on.</p>`,
  fields: [{ name: "priority", label: "Priority", type: "select", options: ["high", "medium", "low"], value: job.priority }],
  confirm: "Change the priority",
  run: ({ priority }) => call("POST", path`/admin/jobs/${job.job_id}/priority`, { priority }),
  done: (answer) => `Job ${shortId(job.job_id)} is ${answer.priority} now.`,
});

export const deleteJob = (job) => ({
  title: "Remove this job for good?",
  text: html`<p>${who(job)} is removed with its input, results and errors. Nothing brings it back.</p>`,
  confirm: "Remove the job",
  danger: true,
  run: () => call("DELETE", path`/api/v1/jobs/${job.job_id}`),
  done: `Removed job ${shortId(job.job_id)}.`,
});

// ---------------------------------------------------------------- services

export const pauseService = (name, waiting) => ({
  title: `Pause ${name}?`,
  text: html`<p>Nothing of <b>${name}</b> is started any more, on any machine. ${plural(waiting, "job")} in line wait until it is
    unpaused; calls under way go on, and new jobs are accepted.</p>`,
  confirm: `Pause ${name}`,
  danger: true,
  run: () => call("POST", path`/admin/services/${name}/pause`),
  done: `${name} is paused.`,
});

export const unpauseService = (name, waiting) => ({
  title: `Unpause ${name}?`,
  text: html`<p><b>${name}</b> starts calls again, as many as its limit allows. ${plural(waiting, "job waits", "jobs wait")} in line.</p>`,
  confirm: `Unpause ${name}`,
  run: () => call("POST", path`/admin/services/${name}/resume`),
  done: `${name} goes on.`,
});

export const changeLimit = (name, limit) => ({
  title: `Change the limit of ${name}?`,
  text: html`<p>At most so many calls of <b>${name}</b> are open at once, over all machines, whatever the configuration
    says, until the change is lifted. It is <b>${number(limit)}</b> now. A lower limit stops no call under way.</p>`,
  fields: [{ name: "limit", label: "Calls at once", type: "number", min: 1, step: 1, value: limit, hint: "To stop the service, pause it instead." }],
  confirm: "Change the limit",
  run: (values) => call("PUT", path`/admin/services/${name}/limit`, { limit: Number(values.limit) }),
  done: (answer) => `The limit of ${name} is ${answer.limit} now.`,
});

export const liftLimit = (name, configured) => ({
  title: `Lift the change to the limit of ${name}?`,
  text: html`<p>The limit of <b>${name}</b> is what its configuration says again${Number.isFinite(configured) ? html`: <b>${number(configured)}</b>` : ""}.</p>`,
  confirm: "Lift the change",
  run: () => call("DELETE", path`/admin/services/${name}/limit`),
  done: (answer) => `The limit of ${name} is ${answer.limit} again.`,
});

export const rebuildService = (name) => ({
  title: `Rebuild the line of ${name}?`,
  text: html`<p>The line of <b>${name}</b> is built anew from the database. Nothing is lost and calls under way go on; for a
    moment nothing new is started. Only needed when the line and the database differ.</p>`,
  confirm: "Rebuild the line",
  run: () => call("POST", path`/admin/services/${name}/rebuild`),
  done: (answer) => answer?.problem || `The line of ${name} is being rebuilt.`,
});

// ---------------------------------------------------------------- workers

export const drainWorker = (name) => ({
  title: "Drain this worker?",
  text: html`<p>
    <code>${name}</code> claims no more jobs. Its calls finish, or are handed back when its drain timeout is over; its process goes on.</p>`,
  confirm: "Drain the worker",
  danger: true,
  run: () => call("POST", path`/admin/workers/${name}/drain`, { on: true }),
  done: `${name} is draining.`,
});

export const undrainWorker = (name) => ({
  title: "Let this worker claim again?",
  text: html`<p><code>${name}</code> takes jobs from the line again.</p>`,
  confirm: "Let it claim",
  run: () => call("POST", path`/admin/workers/${name}/drain`, { on: false }),
  done: `${name} claims again.`,
});

// ---------------------------------------------------------------- batches

export const cancelBatch = (batch, open) => ({
  title: "Cancel this batch?",
  text: html`<p>${plural(open, "item")} of <b>${text(batch.name) || batch.batch_id}</b> that have not ended are
    cancelled; calls under way are stopped. Finished items stay.</p>`,
  confirm: "Cancel the batch",
  danger: true,
  run: () => call("POST", path`/api/v1/batches/${batch.batch_id}/cancel`),
  done: (answer) => `Cancelled ${plural(answer.cancelled, "item")}.`,
});

export const resumeBatch = (batch, failed) => ({
  title: "Resume what failed in this batch?",
  text: html`<p>Of ${plural(failed, "failed item")} of <b>${text(batch.name) || batch.batch_id}</b>, those marked retryable
    go back in line with fresh attempts.</p>`,
  confirm: "Resume the batch",
  run: () => call("POST", path`/api/v1/batches/${batch.batch_id}/resume`),
  done: (answer) => `Resumed ${plural(answer.resumed, "item")}.`,
});

// No path can carry a slash, so such an item goes by its number.
const nameOf = (item) => (item.custom_id && !item.custom_id.includes("/") ? item.custom_id : item.item);

export const retryItem = (batch, item) => ({
  title: `Retry item ${item.custom_id ?? item.item}?`,
  text: html`<p>Job <code>${item.job_id}</code> goes back in line at the step that failed, retryable or not.</p>`,
  confirm: "Retry the item",
  run: () => call("POST", path`/api/v1/batches/${batch.batch_id}/items/${nameOf(item)}/retry`),
  done: `Item ${item.custom_id ?? item.item} is in line again.`,
});

// ---------------------------------------------------------------- dead letters

/** Those that the dry run counted, and none that failed since: `until` and "all" are two ways to say which. */
const counted = (which, found) => (found?.until ? { ...which, all: undefined, until: found.until } : which);

/** `which` names them as the API does: {job_ids}, some filters, or {all: true}; `words` says the same to people. */
export const requeueDead = (which, words) => ({
  title: `Requeue ${words}?`,
  preview: ({ from_start }) => call("POST", "/admin/queue-dead/requeue", { ...which, from_start, dry_run: true }),
  text: (found, { from_start }) => html`<p>
    <b data-testid="dry-run">${plural(found.requeued, "job")}</b> would go back in line with fresh attempts, ${""}
    ${from_start ? "with all steps run again" : found.requeued === 1 ? "at the step that failed" : "each at the step that failed"}.</p>
    <${Sample} sample=${found.sample} />`,
  allowed: (found) => found.requeued > 0,
  fields: [{ name: "from_start", label: "Run all steps again, not only from the failed one", type: "checkbox", value: false }],
  confirm: which.job_ids ? "Requeue it" : "Requeue them",
  run: ({ from_start }, found) => call("POST", "/admin/queue-dead/requeue", { ...counted(which, found), from_start, dry_run: false }),
  done: (answer) => `Requeued ${plural(answer.requeued, "job")}.`,
});

export const purgeDead = (which, words) => ({
  title: `Purge ${words}?`,
  preview: () => call("POST", "/admin/queue-dead/purge", { ...which, dry_run: true }),
  text: (found) => html`<p>
    <b data-testid="dry-run">${plural(found.purged, "job")}</b> would be removed for good, with input, results and errors. Nothing brings ${found.purged === 1 ? "it" : "them"} back.</p>
    <${Sample} sample=${found.sample} />`,
  allowed: (found) => found.purged > 0,
  confirm: which.job_ids ? "Purge it" : "Purge them",
  danger: true,
  run: (_, found) => call("POST", "/admin/queue-dead/purge", { ...counted(which, found), dry_run: false }),
  done: (answer) => `Purged ${plural(answer.purged, "job")}.`,
});

const Sample = ({ sample }) => sample?.length > 0 && html`<p class="muted">${sample.length > 1 ? "For example:" : "Namely:"}</p>
  <ul class="sample">${sample.map((job) => html`<li key=${job.job_id}>
  <code>${shortId(job.job_id)}</code> ${text(job.feature_name)} of ${text(job.user_id)}: ${text(job.error?.code)}</li>`)}</ul>`;
