// A table with sortable columns.
import { html, useState } from "../html.js";
import { rowLink } from "./bits.js";

/** `columns`: [{name, title, number, value(row), show(row), lead}]; `keyOf(row)` identifies a row, `hrefOf(row)` is its link. */
export function Table({ caption, columns, rows, keyOf, hrefOf, sort: first, most = 500 }) {
  const [sort, setSort] = useState(first);
  const column = columns.find((each) => each.name === sort.by);
  const ordered = column ? [...rows].sort((one, other) => compare(column.value(one), column.value(other)) * (sort.down ? -1 : 1)) : rows;
  const shown = ordered.slice(0, most);
  return html`<div class="table-box"><table class="rows">
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map((each) => html`<${Heading} key=${each.name} column=${each} sort=${sort} onSort=${setSort} />`)}</tr></thead>
    <tbody>${shown.map((row) => html`<tr key=${keyOf(row)} ...${hrefOf ? rowLink(hrefOf(row)) : {}}>${columns.map((each) => html`<td key=${each.name} class=${each.number ? "n" : ""}
      data-label=${each.title}>${each.show(row)}</td>`)}</tr>`)}</tbody>
  </table>
  ${ordered.length > most && html`<p class="muted">The first ${most} of ${ordered.length}.</p>`}</div>`;
}

function Heading({ column, sort, onSort }) {
  const active = sort.by === column.name;
  const order = active ? (sort.down ? "descending" : "ascending") : null;
  if (!column.value) return html`<th scope="col" class=${column.number ? "n" : ""}>${column.title}</th>`;
  return html`<th scope="col" class=${column.number ? "n" : ""} aria-sort=${order}>
    <button class="sort" onClick=${() => onSort({ by: column.name, down: active ? !sort.down : Boolean(column.number) })}>
      ${column.title}<span aria-hidden="true">${active ? (sort.down ? "↓" : "↑") : ""}</span></button></th>`;
}

function compare(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined) return -1;
  if (other === null || other === undefined) return 1;
  if (typeof one === "string" && typeof other === "string") return one.localeCompare(other, "en", { numeric: true });
  return one < other ? -1 : 1;
}
