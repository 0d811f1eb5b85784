// Charts of the last minutes or hours: calls per minute, and waits.
import { duration, number, plural } from "../format.js";
import { html, useState } from "../html.js";
import { Chart, counts, seconds } from "./chart.js";

const sum = (values) => (values || []).reduce((whole, value) => whole + (value || 0), 0);
const last = (values) => (values || []).filter(Number.isFinite).at(-1);

const RANGES = { 15: "15 minutes", 30: "30 minutes", 60: "hour", 120: "2 hours" };

/** The charts with a choice of their range, in minutes. */
export function HistoryCard({ history, wide = false }) {
  const [range, setRange] = useState(60);
  return html`<section class="card"><div class="section-head"><h2>Calls, last ${RANGES[range]}</h2>
      <select aria-label="Range of the charts" value=${String(range)} onChange=${(event) => setRange(Number(event.target.value))}>${Object.entries(RANGES).map(([minutes, words]) => html`<option
        key=${minutes} value=${minutes} selected=${Number(minutes) === range}>last ${words}</option>`)}</select></div>
    <div class=${wide ? "wide-charts" : ""}><${History} history=${history} range=${range} /></div></section>`;
}

function History({ history, range }) {
  if (!history) return null;
  const length = (history.finished || []).length;
  const shown = Math.min(range, length);
  const part = (values) => (values || []).slice(-shown);
  const time = { start: history.start + (length - shown) * history.every, every: history.every };
  const [done, failures] = [part(history.finished), part(history.failed)];
  return html`<div class="charts">
    <${Chart} title="Calls per minute" kind="bars" unit=${counts} ...${time}
      series=${[{ name: "finished", look: "ok", values: done }, { name: "failed", look: "failed", values: failures }]}
      summary=${`in the last ${RANGES[range]} ${plural(sum(done), "call")} finished and ${number(sum(failures))} failed`} />
    <${Chart} title="Wait before a call" kind="lines" unit=${seconds} ...${time}
      series=${[{ name: "p95", look: "p95", values: part(history.wait_p95) }, { name: "p50", look: "p50", values: part(history.wait_p50) }]}
      summary=${`the last measured p50 is ${duration(last(history.wait_p50))}, the p95 ${duration(last(history.wait_p95))}`} />
  </div>`;
}
