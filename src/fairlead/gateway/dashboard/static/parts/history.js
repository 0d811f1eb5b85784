// The last hour as two charts: how much was done, and how long it waited.
import { duration, number, plural } from "../format.js";
import { html } from "../html.js";
import { Chart, counts, seconds } from "./chart.js";

const sum = (values) => (values || []).reduce((whole, value) => whole + (value || 0), 0);
const last = (values) => (values || []).filter(Number.isFinite).at(-1);

export function History({ history }) {
  if (!history) return null;
  const time = { start: history.start, every: history.every };
  const [finished, failed] = [sum(history.finished), sum(history.failed)];
  return html`<div class="charts">
    <${Chart} title="Calls per minute" kind="bars" unit=${counts} ...${time}
      series=${[{ name: "finished", look: "ok", values: history.finished || [] }, { name: "failed", look: "failed", values: history.failed || [] }]}
      summary=${`in the last hour ${plural(finished, "call")} finished and ${number(failed)} failed`} />
    <${Chart} title="Wait before a call" kind="lines" unit=${seconds} ...${time}
      series=${[{ name: "p95", look: "p95", values: history.wait_p95 || [] }, { name: "p50", look: "p50", values: history.wait_p50 || [] }]}
      summary=${`half of the calls waited less than ${duration(last(history.wait_p50))}, 95 % less than ${duration(last(history.wait_p95))}, when last measured`} />
  </div>`;
}
