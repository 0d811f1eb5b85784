// The share of slot time of each user, compared with the fair share.
import { number, percent } from "../format.js";
import { html } from "../html.js";
import { Tag, UserLink } from "./bits.js";
import { Table } from "./table.js";

const COLUMNS = [
  { name: "user", title: "User", value: ([id]) => id, show: ([id, user]) => html`<${UserLink} id=${id} />${user.parked && html` <${Tag}
    look="warning" title="at the limit per user: skipped until one of its calls ends">at its limit<//>`}` },
  { name: "share", title: "Share of slot time", value: ([, user]) => user.share, show: ([, user]) => html`<${Share} user=${user} />` },
  { name: "group", title: "Group", value: ([, user]) => user.group ?? "", show: ([, user]) => user.group ?? "–" },
  { name: "waiting", title: "Waiting", number: true, value: ([, user]) => user.waiting, show: ([, user]) => number(user.waiting) },
  { name: "running", title: "Running", number: true, value: ([, user]) => user.running, show: ([, user]) => number(user.running) },
  { name: "weight", title: "Weight", number: true, value: ([, user]) => user.weight, show: ([, user]) => number(user.weight) },
  { name: "virtual", title: "Virtual time", number: true, value: ([, user]) => user.virtual_time, show: ([, user]) => number(user.virtual_time) },
];

export const Shares = ({ users }) => html`<section class="card"><h2>Shares</h2>
  ${Object.keys(users).length === 0 ? html`<p class="muted">No user has waiting or running jobs here.</p>` : html`
  <p class="muted hint">The bar is a user's share of the slot time of the last hour, out of 100 %; the mark is the fair share by weight.</p>
  <${Table} caption="Users of this service and their share of its slot time" columns=${COLUMNS.filter((each) => each.name !== "group" || Object.values(users).some((user) => user.group))}
    rows=${Object.entries(users)} keyOf=${([id]) => id} sort=${{ by: "share", down: true }} most=${100} />`}
</section>`;

function Share({ user }) {
  const words = `${percent(user.share)} of the slot time, the fair share is ${percent(user.fair_share)}`;
  return html`<span class="share"><span class="track" role="img" aria-label=${words} title=${words}>
    <span class="bar running" style=${{ width: `${100 * (user.share || 0)}%` }}></span>
    ${Number.isFinite(user.fair_share) && html`<span class="mark" style=${{ left: `calc(${100 * user.fair_share}% - 2px)` }}>
      </span>`}
  </span><span class="n">${percent(user.share)}</span></span>`;
}
