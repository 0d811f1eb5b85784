// Dead letters: failed jobs grouped by error.
import { purgeDead, retryDead } from "../dead_actions.js";
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
  const [query, setQuery] = useState("");
  if (!state) return html`<h1>Dead letters</h1><${Loading} error=${error} />`;
  const groups = Object.entries(state.groups || {}).sort(([, one], [, other]) => other.count - one.count);
  const shown = groups.filter(([, group]) => `${group.code} ${group.message} ${group.services}`.toLowerCase().includes(query.toLowerCase()));
  const total = state.total ?? groups.reduce((sum, [, group]) => sum + group.count, 0);
  return html`<div class="page-head">
    <h1>Dead letters</h1> <span class="badge ${total ? "failed" : "idle"}" data-testid="dead-total">${number(total)}</span>
      ${groups.length > 0 && html`<${Filter} label="Filter dead letters" hint="Filter by code, message, service" value=${query}
        onChange=${setQuery} />`}
      ${mayOperate(session) && total > 0 && html`<div class="acts">
        <${Act} question=${() => retryDead({ all: true }, "all dead letters")}>Retry all<//>
        <${Act} look="danger" question=${() => purgeDead({ all: true }, "all dead letters")}>Purge all<//></div>`}
    </div>
    <p class="muted lead">Failed jobs, kept until you retry or purge them. Fix the cause, then retry: each job continues at the step that failed.</p>
    ${groups.length === 0 ? html`<${Empty} title="No dead letters">
      <p>Jobs that fail permanently are kept here with the errors of all attempts.</p><//>`
      : html`<ul class="groups">${shown.map(([key, group]) => html`<${Group} key=${key} group=${group} acts=${mayOperate(session)} />`)}</ul>`}`;
}

function Group({ group, acts }) {
  const which = { error_code: group.code, error_like: group.message };
  const words = `${plural(group.count, "job")} that failed with ${group.code}`;
  return html`<li class="card group" data-testid="dead-group" data-group=${group.code}>
    <div class="group-head"><h2><span class="count failed">${number(group.count)}</span> <code class="wrap">${text(group.code)}</code></h2>
      ${acts && html`<div class="acts">
        <${Act} look="small" label=${`Retry ${words}`} question=${() => retryDead(which, words)}>Retry<//>
        <${Act} look="danger small" label=${`Purge ${words}`} question=${() => purgeDead(which, words)}>Purge<//></div>`}</div>
    <p class="wrap message">${text(group.message)}</p>
    <dl class="inline-facts"><div><dt>Services</dt>
      <dd>${(group.services || []).map((service, index) => html`${index > 0 && ", "}<a key=${service}
        href=${to(["services", service])}>${service}</a>`)}</dd>
      </div>
      <div><dt>First</dt><dd><${Age} since=${group.first} /> ago</dd></div><div><dt>Last</dt><dd><${Age} since=${group.last} /> ago</dd>
        </div></dl>
    <details class="examples"><summary>Examples</summary><ul>${(group.examples || []).map((job) => html`<li key=${job}>
      <${JobLink} id=${job}>${job}<//>
      ${acts && html`<span class="acts">
        <${Act} look="quiet small" label=${`Retry job ${job}`} question=${() => retryDead({ job_ids: [job] }, `job ${job}`)}>Retry<//>
      <${Act} look="quiet small" label=${`Purge job ${job}`} question=${() => purgeDead({ job_ids: [job] }, `job ${job}`)}>Purge<//>
        </span>`}</li>`)}</ul></details>
  </li>`;
}
