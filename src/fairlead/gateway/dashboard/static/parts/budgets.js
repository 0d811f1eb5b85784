// Budgets and what is left of them, of all or of one user. Nothing is shown if there are none.
import { resetBudget, setBudget } from "../actions.js";
import { get } from "../api.js";
import { mayOperate, useApp } from "../context.js";
import { number, percent } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { Act } from "./act.js";
import { Left, Tag, UserLink } from "./bits.js";
import { Table } from "./table.js";

const EVERY_MS = 5_000;
const MOST = 100;

const whose = (row) => (row.user_id ? html`<${UserLink} id=${row.user_id} />`
  : row.each_user ? `each of ${row.plan ?? row.group ?? "all users"}` : row.plan ?? row.group ?? "everyone");

const used = (row) => html`${number(row.used)}<small class="muted"> of ${number(row.amount)} ${row.measure} per ${row.per}</small>`;

const COLUMNS = [
  { name: "budget", title: "Budget", value: (row) => row.budget, show: (row) => row.budget },
  { name: "whose", title: "Whose", value: (row) => row.user_id ?? "", show: whose },
  { name: "used", title: "Used", number: true, value: (row) => row.used / row.amount, show: used },
  { name: "reserved", title: "Under way", number: true, value: (row) => row.reserved / row.amount, show: (row) => number(row.reserved) },
  { name: "left", title: "Left", number: true, value: (row) => row.remaining / row.amount,
    show: (row) => (row.spent ? html`<${Tag} look="failed">spent<//>` : percent(row.remaining / row.amount)) },
  { name: "until", title: "Next window in", value: (row) => row.window_end, show: (row) => html`<${Left} until=${row.window_end} />` },
  { name: "end", title: "Then", value: (row) => row.at_end, show: (row) => row.at_end },
  { name: "held", title: "Held jobs", number: true, value: (row) => row.held, show: (row) => number(row.held) },
];

const acts = (row) => html`<span class="nowrap"><${Act} look="quiet small" label=${`Set the budget ${row.budget}`} question=${() => setBudget(row)}>Set<//>
  <${Act} when=${row.amount !== row.declared_amount} look="quiet small" label=${`Reset the budget ${row.budget}`} question=${() => resetBudget(row)}>Reset<//></span>`;

export function Budgets({ user = "" }) {
  const { session } = useApp();
  const rows = useBudgets(user);
  if (!rows.length) return null;
  const columns = mayOperate(session) ? [...COLUMNS, { name: "acts", title: "", show: acts }] : COLUMNS;
  return html`<h2>Budgets</h2><section class="card flush" data-testid="budgets">
    <${Table} caption="Budgets" columns=${columns} rows=${rows} keyOf=${(row) => `${row.budget}/${row.user_id}`}
      sort=${{ by: "left", down: false }} most=${MOST} /></section>`;
}

function useBudgets(user) {
  const [rows, setRows] = useState([]);
  useEffect(() => {
    let gone = false;
    const read = async () => {
      try {
        const { data } = await get("/api/v1/budgets", { user_id: user });
        if (!gone) setRows(data);
      } catch {
        // The next read shows it; the page has its own message while the gateway does not answer.
      }
    };
    read();
    const timer = setInterval(read, EVERY_MS);
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [user]);
  return rows;
}
