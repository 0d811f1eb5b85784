// The actions on dead letters, as those in actions.js. They preview what they would do.
import { call } from "./api.js";
import { plural, shortId, text } from "./format.js";
import { html } from "./html.js";

/** Select the jobs that the dry run counted, without those that failed since: `until` replaces "all". */
const counted = (which, preview) => (preview?.until ? { ...which, all: undefined, until: preview.until } : which);

/** `which` is the selection of the API: {job_ids}, filters, or {all: true}; `words` describes it. */
export const retryDead = (which, words) => ({
  title: `Retry ${words}?`,
  preview: ({ from_start }) => call("POST", "/admin/queue-dead/requeue", { ...which, from_start, dry_run: true }),
  text: (preview, { from_start }) => html`<p>
    <b data-testid="dry-run">${plural(preview.requeued, "job")}</b> would be queued again with fresh attempts, ${""}
    ${from_start ? "from the first step" : preview.requeued === 1 ? "at the step that failed" : "each at the step that failed"}.
    ${preview.skipped > 0 && html` ${plural(preview.skipped, "request is", "requests are")} left alone, because the clients are gone.`}</p>
    <${Sample} sample=${preview.sample} />`,
  allowed: (preview) => preview.requeued > 0,
  fields: [{ name: "from_start", label: "Run all steps again, instead of continuing at the failed one", type: "checkbox", value: false }],
  confirm: which.job_ids?.length === 1 ? "Retry it" : "Retry them",
  run: ({ from_start }, preview) => call("POST", "/admin/queue-dead/requeue", { ...counted(which, preview), from_start, dry_run: false }),
  done: (changed) => `${plural(changed.requeued, "job is", "jobs are")} queued again.`,
});

export const purgeDead = (which, words) => ({
  title: `Purge ${words}?`,
  preview: () => call("POST", "/admin/queue-dead/purge", { ...which, dry_run: true }),
  text: (preview) => html`<p>
    <b data-testid="dry-run">${plural(preview.purged, "job")}</b> would be deleted with input, results and errors. This cannot be undone.</p>
    <${Sample} sample=${preview.sample} />`,
  allowed: (preview) => preview.purged > 0,
  confirm: which.job_ids?.length === 1 ? "Purge it" : "Purge them",
  danger: true,
  run: (_, preview) => call("POST", "/admin/queue-dead/purge", { ...counted(which, preview), dry_run: false }),
  done: (changed) => `Purged ${plural(changed.purged, "job")}.`,
});

const Sample = ({ sample }) => sample?.length > 0 && html`<p class="muted">${sample.length > 1 ? "For example:" : "This job:"}</p>
  <ul class="sample">${sample.map((job) => html`<li key=${job.job_id}>
  <code>${shortId(job.job_id)}</code> ${text(job.feature_name)} of ${text(job.user_id)}: ${text(job.error?.code)}</li>`)}</ul>`;
