// A table of thousands of jobs that renders visible rows only.
import { duration, epoch, number, shortId, text, wait, wholeMoment } from "../format.js";
import { html, memo, useEffect, useState } from "../html.js";
import { to as href } from "../router.js";
import { Age, JobLink, Moment, Priority, Status, UserLink, rowLink } from "./bits.js";
import { useVisible } from "./virtual.js";

const NARROW = window.matchMedia("(max-width: 720px)");
const ROW = 41; // pixels, as in css/pages.css
const NARROW_ROW = 85;

function useNarrow() {
  const [narrow, setNarrow] = useState(NARROW.matches);
  useEffect(() => {
    const changed = () => setNarrow(NARROW.matches);
    NARROW.addEventListener("change", changed);
    return () => NARROW.removeEventListener("change", changed);
  }, []);
  return narrow;
}

/** `selected` is a Set of ids, or null if jobs cannot be selected; `onSelect(ids, on)` changes it. */
export function JobRows({ jobs, own, onEnd, selected, onSelect }) {
  const height = useNarrow() ? NARROW_ROW : ROW;
  const { ref, from, to } = useVisible(jobs.length, height);
  const columns = (own ? 8 : 9) + (selected ? 1 : 0);
  const all = selected && jobs.every((job) => selected.has(job.job_id));
  const atEnd = to >= jobs.length;
  useEffect(() => {
    // Load the next page when the reader has scrolled to the end, but not if the whole list fits on the screen.
    if (atEnd && from > 0) onEnd();
  }, [atEnd, jobs.length]);
  return html`<div class="table-box"><table class="rows jobs" aria-rowcount=${jobs.length + 1} data-testid="jobs">
    <caption class="hidden">Jobs, newest first</caption>
    <thead><tr>${selected && html`<th scope="col" class="c-pick"><input type="checkbox" checked=${all} aria-label="Select all shown jobs"
      onChange=${() => onSelect(jobs.map((job) => job.job_id), !all)} /></th>`}<th scope="col" class="c-id">Job</th>${!own && html`<th scope="col">User</th>`}<th scope="col">Feature</th><th scope="col">Status</th>
      <th scope="col">Priority</th>
      <th scope="col" class="n">Step</th><th scope="col" class="n">Position</th><th scope="col" class="n">Submitted</th>
        <th scope="col" class="n" title="from submission to the end, or until now">Time taken</th></tr></thead>
    <tbody ref=${ref}>
      ${from > 0 && html`<tr class="spacer" aria-hidden="true" key="above"><td colspan=${columns} style=${{ height: `${from * height}px` }}>
        </td></tr>`}
      ${jobs.slice(from, to).map((job, index) => html`<${Row} key=${job.job_id} job=${job} own=${own} number=${from + index + 2}
        picked=${selected ? selected.has(job.job_id) : null} onSelect=${onSelect} />`)}
      ${to < jobs.length && html`<tr class="spacer" aria-hidden="true" key="below">
        <td colspan=${columns} style=${{ height: `${(jobs.length - to) * height}px` }}></td></tr>`}
    </tbody></table></div>`;
}

const Row = memo(({ job, own, number: row, picked, onSelect }) => html`<tr aria-rowindex=${row} data-job-id=${job.job_id} ...${rowLink(href(["jobs", job.job_id]))}>
  ${picked !== null && html`<td class="c-pick"><label><input type="checkbox" checked=${picked} aria-label=${`Select job ${shortId(job.job_id)}`}
    onChange=${() => onSelect([job.job_id], !picked)} /></label></td>`}
  <td class="c-id"><${JobLink} id=${job.job_id} /></td>
  ${!own && html`<td class="c-user"><${UserLink} id=${text(job.user_id)} /></td>`}
  <td class="c-feature"><span class="clip" title=${text(job.feature_name)}>${text(job.feature_name)}</span></td>
  <td class="c-status">
    <${Status} status=${job.status} />${job.status === "FAILED" && job.error && html` <code class="clip code"
      title=${text(job.error.message)}>${text(job.error.code)}</code>`}</td>
  <td class="c-priority"><${Priority} priority=${job.priority} /></td>
  <td class="n c-step">${number(Math.min(job.current_step_index + 1, job.total_steps))}/${number(job.total_steps)}</td>
  <td class="n c-position" title=${job.estimated_wait ? `about ${wait(job.estimated_wait)}` : ""}>${job.position ? number(job.position) : ""}</td>
  <td class="n c-submitted"><${Moment} at=${job.created_at} brief=${true} /></td>
  <td class="n c-age">${job.finished_at ? html`<span
    title=${`ended ${wholeMoment(job.finished_at)}`}>${duration(epoch(job.finished_at) - epoch(job.created_at))}</span>` : html`<${Age}
    since=${job.created_at} />`}</td>
</tr>`);
