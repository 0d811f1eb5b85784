// Failures of the last hour by error code, most frequent first.
import { number } from "../format.js";
import { html } from "../html.js";
import { to } from "../router.js";

export function Failures({ failures }) {
  const rows = Object.entries(failures || {}).filter(([, count]) => count > 0).sort(([, one], [, other]) => other - one);
  if (rows.length === 0) return html`<p class="muted">No failures in the last hour.</p>`;
  const most = rows[0][1];
  return html`<table class="bars"><caption class="hidden">Failures in the last hour by error code</caption>
    <thead class="hidden"><tr><th scope="col">Code</th><th scope="col">Calls</th></tr></thead>
    <tbody>${rows.map(([code, count]) => html`<tr key=${code}>
      <th scope="row"><a href=${to(["jobs"], { error_code: code, status: "FAILED" })} class="mono clip">${code}</a>
        <span class="bar failed" aria-hidden="true" style=${{ width: `${(100 * count) / most}%` }}></span></th>
      <td class="n">${number(count)}</td></tr>`)}</tbody></table>`;
}
