// All actions, each with its confirmation dialog. They use the routes of the API.
import { call, path } from "./api.js";
import { capital, number, plural, shortId, text } from "./format.js";
import { html } from "./html.js";

const who = (job) => html`<b>${text(job.feature_name)}</b> of <b>${text(job.user_id)}</b> (<code>${job.job_id}</code>)`;

// ---------------------------------------------------------------- jobs

export const cancelJob = (job) => ({
  title: "Cancel this job?",
  text: html`<p>${who(job)} ends as cancelled. ${job.status === "RUNNING" ? "The running call is stopped." : "It leaves the queue."} Results of finished steps stay.</p>`,
  confirm: "Cancel the job",
  danger: true,
  run: () => call("POST", path`/api/v1/jobs/${job.job_id}/cancel`),
  done: `Cancelled job ${shortId(job.job_id)}.`,
});

/** Steps by number and name: "step 2, judge", "steps 2 to 4, judge to sum_up". */
export function stepsOf(job, indexes) {
  const name = (index) => text(job.steps?.[index]);
  const [first, last] = [indexes[0], indexes.at(-1)];
  return first === last ? html`step ${first + 1}, <b>${name(first)}</b>`
    : html`steps ${first + 1} to ${last + 1}, <b>${name(first)}</b> to <b>${name(last)}</b>`;
}

const allSteps = (job) => (job.steps || []).map((_, index) => index);

const FROM = { name: "from", label: "Begin at", type: "select", value: "step", options: [
  ["step", "the step that failed"], ["start", "the first step: run all steps again"]] };

const PERMANENT = html`<p class="caution">The last error is permanent: with the same input it will probably happen again. Fix the cause first.</p>`;

export const isPermanent = (job) => job.retryable === false && job.error?.reason !== "ATTEMPTS_USED_UP";

/** `steps` are the indexes of the steps that a retry at the failed step runs. */
export const retryJob = (job, steps) => ({
  title: "Retry this job?",
  text: (_, { from }) => html`<p>${who(job)} is queued again and runs ${stepsOf(job, from === "start" ? allSteps(job) : steps)}, with fresh attempts.
      ${steps.length === 1 && steps[0] + 1 < job.total_steps && from !== "start" ? " Later steps keep their results." : ""}</p>
    ${isPermanent(job) && PERMANENT}`,
  fields: job.current_step_index > 0 ? [{ name: "from", label: "Begin at", type: "select", value: "step", options: [
    ["step", `step ${steps[0] + 1}, ${text(job.steps?.[steps[0]])}: the one that failed`],
    ["start", `step 1, ${text(job.steps?.[0])}: run all steps again`]] }] : [],
  confirm: "Retry the job",
  run: ({ from = "step" }) => call("POST", path`/api/v1/jobs/${job.job_id}/retry`, { from }),
  done: `Job ${shortId(job.job_id)} is queued again.`,
});

/** Run one step of a finished job again; `steps` are the indexes of the steps that this runs. */
export const retryStep = (job, index, steps) => ({
  title: `Run step ${index + 1} again?`,
  text: html`<p>Of ${who(job)}, ${stepsOf(job, steps)} ${steps.length > 1 ? "run" : "runs"} again, with fresh attempts.
    ${steps.length === 1 ? " No other step runs, and the job returns to the status that it has now." : " The job continues to its end."}
    ${job.context && Object.keys(job.context).some((key) => key.startsWith(`step_${index}_`)) ? " The current result moves to the job's history." : ""}</p>`,
  confirm: "Run the step again",
  run: () => call("POST", path`/api/v1/jobs/${job.job_id}/steps/${index}/retry`),
  done: `Step ${index + 1} of job ${shortId(job.job_id)} is queued again.`,
});

const AT_ONCE = 4; // concurrent requests of an action on many jobs

/** Apply `act` to each job. Fails only if all were refused. */
async function each(jobs, act) {
  const left = [...jobs];
  const outcome = { done: 0, refused: 0, message: "" };
  await Promise.all(Array.from({ length: AT_ONCE }, async () => {
    while (left.length > 0) {
      try {
        await act(left.pop());
        outcome.done += 1;
      } catch (problem) {
        outcome.refused += 1;
        outcome.message = problem.message;
      }
    }
  }));
  if (outcome.done === 0) throw new Error(outcome.message);
  return outcome;
}

const refusals = ({ refused, message }) => (refused ? ` ${plural(refused, "was", "were")} refused: ${message}.` : "");

export const retryJobs = (jobs) => ({
  title: `Retry ${plural(jobs.length, "failed job")}?`,
  text: (_, { from }) => html`<p>${plural(jobs.length, "job is", "jobs are")} queued again with fresh attempts, ${from === "start" ? "from the first step" : "each at the step that failed"}.</p>
    ${jobs.some(isPermanent) && html`<p class="caution">${plural(jobs.filter(isPermanent).length, "job")} failed with a permanent error and will probably fail again.</p>`}`,
  fields: [FROM],
  confirm: `Retry ${plural(jobs.length, "job")}`,
  run: ({ from }) => each(jobs, (job) => call("POST", path`/api/v1/jobs/${job.job_id}/retry`, { from })),
  done: (outcome) => `${plural(outcome.done, "job is", "jobs are")} queued again.${refusals(outcome)}`,
});

export const cancelJobs = (jobs) => ({
  title: `Cancel ${plural(jobs.length, "job")}?`,
  text: html`<p>${plural(jobs.length, "job ends", "jobs end")} as cancelled; running calls are stopped. Results of finished steps stay.</p>`,
  confirm: `Cancel ${plural(jobs.length, "job")}`,
  danger: true,
  run: () => each(jobs, (job) => call("POST", path`/api/v1/jobs/${job.job_id}/cancel`)),
  done: (outcome) => `Cancelled ${plural(outcome.done, "job")}.${refusals(outcome)}`,
});

export const changePriority = (job) => ({
  title: "Change this job's priority?",
  text: html`<p>${who(job)} moves to the band you choose. It is <b>${job.priority}</b> now; a running call continues.</p>`,
  fields: [{ name: "priority", label: "Priority", type: "select", options: ["high", "medium", "low"], value: job.priority }],
  confirm: "Change the priority",
  run: ({ priority }) => call("POST", path`/admin/jobs/${job.job_id}/priority`, { priority }),
  done: (changed) => `Job ${shortId(job.job_id)} is ${changed.priority} now.`,
});

export const deleteJob = (job) => ({
  title: "Delete this job?",
  text: html`<p>${who(job)} is deleted with its input, results and errors. This cannot be undone.</p>`,
  confirm: "Delete the job",
  danger: true,
  run: () => call("DELETE", path`/api/v1/jobs/${job.job_id}`),
  done: `Deleted job ${shortId(job.job_id)}.`,
});

// ---------------------------------------------------------------- services

export const pauseService = (name, waiting) => ({
  title: `Pause ${name}?`,
  text: html`<p>No calls of <b>${name}</b> are started, on any machine, until it is unpaused. ${plural(waiting, "job waits", "jobs wait")} in
    the queue; running calls continue, and new jobs are accepted.</p>`,
  confirm: `Pause ${name}`,
  danger: true,
  run: () => call("POST", path`/admin/services/${name}/pause`),
  done: `${name} is paused.`,
});

export const unpauseService = (name, waiting) => ({
  title: `Unpause ${name}?`,
  text: html`<p><b>${name}</b> starts calls again, up to its limit.${Number.isFinite(waiting) ? ` ${plural(waiting, "job waits", "jobs wait")} in the queue.` : ""}</p>`,
  confirm: `Unpause ${name}`,
  run: () => call("POST", path`/admin/services/${name}/resume`),
  done: `${name} is running again.`,
});

export const changeLimit = (name, limit) => ({
  title: `Change the limit of ${name}?`,
  text: html`<p>The maximum of concurrent calls of <b>${name}</b> over all machines. It overrides the configuration until the
    override is removed. It is <b>${number(limit)}</b> now. A lower limit does not stop running calls.</p>`,
  fields: [{ name: "limit", label: "Concurrent calls", type: "number", min: 1, step: 1, value: limit, hint: "To stop the service, pause it instead." }],
  confirm: "Change the limit",
  run: (values) => call("PUT", path`/admin/services/${name}/limit`, { limit: Number(values.limit) }),
  done: (changed) => `The limit of ${name} is ${changed.limit} now.`,
});

export const liftLimit = (name, configured) => ({
  title: `Remove the limit override of ${name}?`,
  text: html`<p>The configured limit of <b>${name}</b> applies again${Number.isFinite(configured) ? html`: <b>${number(configured)}</b>` : ""}.</p>`,
  confirm: "Remove the override",
  run: () => call("DELETE", path`/admin/services/${name}/limit`),
  done: (changed) => `The limit of ${name} is ${changed.limit} again.`,
});

// The numbers of the fields that are filled in.
const given = (values) => Object.fromEntries(Object.entries(values).filter(([, text]) => text !== "" && text != null).map(([name, text]) => [name, Number(text)]));

export const changeRate = ({ name, route, adds = {}, says }, { rate, unit }) => ({
  title: `Change the rate of ${name}?`,
  text: html`<p>${says} in any window of time, over all machines. Jobs wait for it in the queue. It overrides the configuration until the override is removed.</p>`,
  fields: [
    { name: "requests", label: "Calls", type: "number", min: 1, step: 1, value: rate?.requests ?? "", required: false },
    { name: "units", label: capital(unit), type: "number", min: 0, step: "any", value: rate?.units ?? "", required: false, hint: "Empty: not limited." },
    { name: "per", label: "Window in seconds", type: "number", min: 1, max: 86400, step: "any", value: rate?.per ?? 60 },
  ],
  confirm: "Change the rate",
  run: (values) => call("PUT", route, { ...given({ requests: values.requests, units: values.units, per: values.per }), ...adds }),
  done: `The rate of ${name} is changed.`,
});

export const liftRate = ({ name, route, adds }) => ({
  title: `Remove the rate override of ${name}?`,
  text: html`<p>What the configuration says about the rate of <b>${name}</b> applies again.</p>`,
  confirm: "Remove the override",
  run: () => call("DELETE", adds ? `${route}?${new URLSearchParams(adds)}` : route),
  done: `The configured rate of ${name} applies again.`,
});

// One user's amount can be set only if each user has one.
const ofUser = (row) => (row.each_user && row.user_id ? row.user_id : null);
const budgetOf = (row) => html`<b>${row.budget}</b>${ofUser(row) && html` of <b>${row.user_id}</b>`}`;

export const setBudget = (row) => ({
  title: `Set the budget ${row.budget}?`,
  text: html`<p>What ${budgetOf(row)} allows per ${row.per}, in ${row.measure}, until it is reset. It is <b>${number(row.amount)}</b> now.
    Jobs that wait for it go on as soon as there is room.</p>`,
  fields: [{ name: "amount", label: `Amount (${row.measure})`, type: "number", min: 0, step: "any", value: row.amount }],
  confirm: "Set the budget",
  run: (values) => call("PUT", path`/admin/budgets/${row.budget}`, { amount: Number(values.amount), user_id: ofUser(row) }),
  done: (changed) => `The budget ${row.budget} is ${number(changed.amount)} ${row.measure} now.`,
});

export const resetBudget = (row) => ({
  title: `Reset the budget ${row.budget}?`,
  text: html`<p>The configured amount of ${budgetOf(row)} applies again: <b>${number(row.declared_amount)}</b> ${row.measure}.</p>`,
  confirm: "Reset the budget",
  run: () => call("DELETE", path`/admin/budgets/${row.budget}` + (ofUser(row) ? `?${new URLSearchParams({ user_id: row.user_id })}` : "")),
  done: (changed) => `The budget ${row.budget} is ${number(changed.amount)} ${row.measure} again.`,
});

export const rebuildService = (name) => ({
  title: `Rebuild the queue of ${name}?`,
  text: html`<p>The queue of <b>${name}</b> is rebuilt from the database. Nothing is lost and running calls continue; no calls
    are started for a moment. This is only needed if the queue and the database differ.</p>`,
  confirm: "Rebuild the queue",
  run: () => call("POST", path`/admin/services/${name}/rebuild`),
  done: (accepted) => accepted?.problem || `The queue of ${name} is being rebuilt.`,
});

// ---------------------------------------------------------------- workers

export const drainWorker = (name) => ({
  title: "Drain this worker?",
  text: html`<p>
    <code>${name}</code> claims no more jobs. Its calls finish, or return to the queue after the drain timeout; its process keeps running.</p>`,
  confirm: "Drain the worker",
  danger: true,
  run: () => call("POST", path`/admin/workers/${name}/drain`, { on: true }),
  done: `${name} is draining.`,
});

export const undrainWorker = (name) => ({
  title: "Let this worker claim again?",
  text: html`<p><code>${name}</code> claims jobs again.</p>`,
  confirm: "Let it claim",
  run: () => call("POST", path`/admin/workers/${name}/drain`, { on: false }),
  done: `${name} claims again.`,
});

// ---------------------------------------------------------------- webhooks

const endpointPath = (endpoint) => path`/api/v1/webhooks/endpoints/${endpoint.id}`;

export const enableEndpoint = (endpoint) => ({
  title: "Enable this endpoint?",
  text: html`<p><b class="wrap">${text(endpoint.url)}</b> receives events again. What failed meanwhile can be sent again from the list of deliveries.</p>`,
  confirm: "Enable the endpoint",
  run: () => call("PUT", endpointPath(endpoint), { enabled: true }),
  done: "The endpoint is enabled.",
});

export const disableEndpoint = (endpoint) => ({
  title: "Disable this endpoint?",
  text: html`<p><b class="wrap">${text(endpoint.url)}</b> receives no events until it is enabled.</p>`,
  confirm: "Disable the endpoint",
  danger: true,
  run: () => call("PUT", endpointPath(endpoint), { enabled: false }),
  done: "The endpoint is disabled.",
});

export const replayDelivery = (delivery) => ({
  title: "Send this delivery again?",
  text: html`<p><code>${delivery.event}</code> is sent to <b class="wrap">${text(delivery.url || delivery.endpoint_id)}</b> again, with the same
    <code>webhook-id</code>.</p>`,
  confirm: "Send it again",
  run: () => call("POST", "/api/v1/webhooks/deliveries/replay", { ids: [delivery.id] }),
  done: ({ replayed }) => (replayed ? "The delivery is sent again." : "The delivery cannot be sent: it is waiting, or its endpoint is disabled or deleted."),
});

// ---------------------------------------------------------------- batches

export const cancelBatch = (batch, open) => ({
  title: "Cancel this batch?",
  text: html`<p>${plural(open, "item")} of <b>${text(batch.name) || batch.batch_id}</b> that have not ended are
    cancelled; running calls are stopped. Finished items stay.</p>`,
  confirm: "Cancel the batch",
  danger: true,
  run: () => call("POST", path`/api/v1/batches/${batch.batch_id}/cancel`),
  done: (changed) => `Cancelled ${plural(changed.cancelled, "item")}.`,
});

export const retryBatch = (batch, failed) => ({
  title: `Retry ${plural(failed, "failed item")}?`,
  text: (_, { from }) => html`<p>${plural(failed, "item")} of <b>${text(batch.name) || batch.batch_id}</b> ${failed === 1 ? "is" : "are"} queued again with
    fresh attempts, ${from === "start" ? "from the first step" : "at the step that failed"}. Items with a permanent error are retried too; with
    the same input they will probably fail again.</p>`,
  fields: [FROM],
  confirm: `Retry ${plural(failed, "item")}`,
  run: ({ from }) => call("POST", path`/api/v1/batches/${batch.batch_id}/retry`, { from }),
  done: (changed) => `${plural(changed.retried, "item is", "items are")} queued again.`,
});

export const retryItem = (item) => ({
  title: `Retry item ${item.custom_id ?? item.item}?`,
  text: (_, { from }) => html`<p>Job <code>${item.job_id}</code> is queued again with fresh attempts, ${from === "start" ? "from the first step" : "at the step that failed"}.</p>
    ${isPermanent(item) && PERMANENT}`,
  fields: [FROM],
  confirm: "Retry the item",
  run: ({ from }) => call("POST", path`/api/v1/jobs/${item.job_id}/retry`, { from }),
  done: `Item ${item.custom_id ?? item.item} is queued again.`,
});
