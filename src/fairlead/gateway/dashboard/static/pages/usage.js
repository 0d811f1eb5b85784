// Who used what: a chart by day, and the sums by user, group, service or model.
import { get } from "../api.js";
import { useApp } from "../context.js";
import { duration, number } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { Loading, UserLink } from "../parts/bits.js";
import { Budgets } from "../parts/budgets.js";
import { Chart, counts, seconds } from "../parts/chart.js";
import { Empty } from "../parts/empty.js";
import { Table } from "../parts/table.js";
import { go, to } from "../router.js";

const DAY = 86_400;
const PERIODS = { 1: "24 hours", 7: "7 days", 30: "30 days", 90: "90 days" };
const GROUPS = { user: "User", service: "Service", model: "Model", feature: "Feature", plan: "Plan", group: "Group", outcome: "Outcome" };
const MEASURES = {
  calls: ["Calls", counts, (row) => row.calls],
  seconds: ["Slot time", seconds, (row) => row.seconds],
  tokens: ["Tokens", counts, (row) => row.tokens_in + row.tokens_out],
  units: ["Units", counts, (row) => row.units],
  price: ["Price", counts, (row) => row.price],
};
const MOST = 1000;

const money = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 4 });

const figure = (name, title, show = number) => ({ name, title, number: true, value: (row) => row[name], show: (row) => show(row[name]) });

const FIGURES = [
  figure("calls", "Calls"),
  figure("seconds", "Slot time", duration),
  figure("tokens_in", "Tokens in"),
  figure("tokens_out", "Tokens out"),
  figure("units", "Units"),
  figure("price", "Price", (value) => money.format(value)),
];

export function Page({ route }) {
  const { session } = useApp();
  const days = Number(route.query.get("days")) in PERIODS ? Number(route.query.get("days")) : 30;
  const by = route.query.get("by") in GROUPS ? route.query.get("by") : session.role === "user" ? "service" : "user";
  const measure = route.query.get("of") in MEASURES ? route.query.get("of") : "calls";
  const { found, error } = useUsage(days, by);
  const choose = (change) => go(to(["usage"], { days, by, of: measure, ...change }), { replace: true });
  return html`<div class="page-head"><h1>Usage</h1>
      <${Choice} label="Period" value=${days} options=${PERIODS} onChange=${(value) => choose({ days: value })} />
      <${Choice} label="By" value=${by} options=${GROUPS} onChange=${(value) => choose({ by: value })} />
      <${Choice} label="Chart" value=${measure} options=${names(MEASURES)} onChange=${(value) => choose({ of: value })} /></div>
    <${Budgets} />
    ${!found ? html`<${Loading} error=${error} />` : found.sums.length === 0
      ? html`<${Empty} title="No calls in this time"><p>Every call that ends is counted here, with its time, its tokens and its price.</p><//>`
      : html`<section class="card"><${Over} found=${found} measure=${measure} days=${days} /></section>
      <section class="card flush" data-testid="usage"><${Table} caption=${`Usage by ${by}`} columns=${columnsOf(by)} rows=${found.sums}
        keyOf=${(row) => row[by]} sort=${{ by: "calls", down: true }} most=${MOST} /></section>
      <p><a class="button" href=${`/api/v1/usage?${new URLSearchParams({ ...asked(days), group_by: by, format: "csv" })}`}
        download="usage.csv">CSV by day</a></p>`}`;
}

const names = (table) => Object.fromEntries(Object.entries(table).map(([name, [title]]) => [name, title]));

const Choice = ({ label, value, options, onChange }) => html`<label class="choice"><span class="muted">${label}</span>
  <select value=${value} onChange=${(event) => onChange(event.currentTarget.value)}>${Object.entries(options).map(([each, title]) => html`<option
    key=${each} value=${each} selected=${String(value) === each}>${title}</option>`)}</select></label>`;

const columnsOf = (by) => [{
  name: by, title: GROUPS[by], value: (row) => row[by],
  show: (row) => (by === "user" ? html`<${UserLink} id=${row[by]} />` : row[by] || "–"),
}, ...FIGURES];

/** The period as parameters: its beginning on a whole hour or day, so that every bar is whole. */
function asked(days) {
  const interval = days === 1 ? "hour" : "day";
  const every = days === 1 ? 3600 : DAY;
  const from = Math.floor(Date.now() / 1000 / every) * every - days * DAY + every;
  return { interval, from: new Date(from * 1000).toISOString() };
}

/** The rows of the chart and the sums of the table; both are read again every minute. */
function useUsage(days, by) {
  const [state, setState] = useState({ found: null, error: null });
  useEffect(() => {
    let gone = false;
    const read = async () => {
      const query = asked(days);
      try {
        const [chart, sums] = await Promise.all([
          get("/api/v1/usage", query),
          get("/api/v1/usage", { ...query, interval: "total", group_by: by, limit: MOST }),
        ]);
        if (!gone) setState({ found: { chart, sums: sums.data }, error: null });
      } catch (error) {
        if (!gone) setState((before) => ({ ...before, error }));
      }
    };
    read();
    const timer = setInterval(read, 60_000);
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [days, by]);
  return state;
}

function Over({ found, measure, days }) {
  const [title, unit, value] = MEASURES[measure];
  const every = days === 1 ? 3600 : DAY;
  const start = Date.parse(found.chart.from) / 1000;
  const values = Array.from({ length: Math.round((Date.parse(found.chart.to) / 1000 - start) / every) }, () => 0);
  for (const row of found.chart.data) values[Math.round((Date.parse(row.start) / 1000 - start) / every)] += value(row);
  const sum = values.reduce((all, each) => all + each, 0);
  return html`<${Chart} title=${`${title} by ${days === 1 ? "hour" : "day"}`} kind="bars" unit=${unit} start=${start} every=${every}
    series=${[{ name: title, look: "ok", values }]} summary=${`${unit.show(sum)} in ${PERIODS[days]}`} />`;
}
