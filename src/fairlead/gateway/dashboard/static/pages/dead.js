// Dead letters: jobs that failed for good, grouped by what went wrong, so that one cause is mended once.
import { purgeDead, requeueDead } from "../actions.js";
import { mayOperate, useApp } from "../context.js";
import { number, plural, text } from "../format.js";
import { html, useState } from "../html.js";
import { useView } from "../live.js";
import { Act } from "../parts/act.js";
import { Age, JobLink, Loading } from "../parts/bits.js";
import { Empty } from "../parts/empty.js";
import { Filter } from "../parts/filter.js";
import { to } from "../router.js";

export function Page() {
  const { live, session } = useApp();
  const { state, error } = useView(live, { view: "dead" });
  const [wanted, setWanted] = useState("");
  if (!state) return html`<h1>Dead letters</h1><${Loading} error=${error} />`;
  const groups = Object.entries(state.groups || {}).sort(([, one], [, other]) => other.count - one.count);
  const shown = groups.filter(([, group]) => `${group.code} ${group.message} ${group.services}`.toLowerCase().includes(wanted.toLowerCase()));
  const total = state.total ?? groups.reduce((sum, [, group]) => sum + group.count, 0);
  return html`<div class="page-head">
    <h1>Dead letters</h1> <span class="badge ${total ? "failed" : "idle"}" data-testid="dead-total">${number(total)}</span>
      ${groups.length > 0 && html`<${Filter} label="Filter dead letters" hint="Filter by code, message, service" value=${wanted}
        onChange=${setWanted} />`}
      ${mayOperate(session) && total > 0 && html`<div class="acts">
        <${Act} question=${() => requeueDead({ all: true }, "all dead letters")}>Requeue all<//>
        <${Act} look="danger" question=${() => purgeDead({ all: true }, "all dead letters")}>Purge all<//></div>`}
    </div>
    <p class="muted lead">Jobs that failed and are kept until somebody decides. Mend the cause, then requeue: each goes on at the step that failed.</p>
    ${groups.length === 0 ? html`<${Empty} title="No dead letters">
      <p>A job that fails for good is kept here with every attempt's error. Nothing has.</p><//>`
      : html`<ul class="groups">${shown.map(([key, group]) => html`<${Group} key=${key} group=${group} acts=${mayOperate(session)} />`)}</ul>`}`;
}

function Group({ group, acts }) {
  const which = { error_code: group.code, error_like: group.message };
  const words = `${plural(group.count, "job")} that failed with ${group.code}`;
  return html`<li class="card group" data-testid="dead-group" data-group=${group.code}>
    <div class="group-head"><h2><span class="count failed">${number(group.count)}</span> <code class="wrap">${text(group.code)}</code></h2>
      ${acts && html`<div class="acts">
        <${Act} look="small" label=${`Requeue ${words}`} question=${() => requeueDead(which, words)}>Requeue<//>
        <${Act} look="danger small" label=${`Purge ${words}`} question=${() => purgeDead(which, words)}>Purge<//></div>`}</div>
    <p class="wrap message">${text(group.message)}</p>
    <dl class="inline-facts"><div><dt>In</dt>
      <dd>${(group.services || []).map((service, index) => html`${index > 0 && ", "}<a key=${service}
        href=${to(["services", service])}>${service}</a>`)}</dd>
      </div>
      <div><dt>First</dt><dd><${Age} since=${group.first} /> ago</dd></div><div><dt>Last</dt><dd><${Age} since=${group.last} /> ago</dd>
        </div></dl>
    <details class="examples"><summary>Examples</summary><ul>${(group.examples || []).map((job) => html`<li key=${job}>
      <${JobLink} id=${job}>${job}<//>
      ${acts && html`<span class="acts">
        <${Act} look="quiet small" label=${`Requeue job ${job}`} question=${() => requeueDead({ job_ids: [job] }, `job ${job}`)}>Requeue<//>
      <${Act} look="quiet small" label=${`Purge job ${job}`} question=${() => purgeDead({ job_ids: [job] }, `job ${job}`)}>Purge<//>
        </span>`}</li>`)}</ul></details>
  </li>`;
}
