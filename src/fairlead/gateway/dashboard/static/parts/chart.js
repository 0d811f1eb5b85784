// Small charts over time in SVG, stacked bars or lines, each with a summary in words and its numbers as a table.
import { duration, number } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";

const HEIGHT = 132;
const EDGE = { top: 8, right: 4, bottom: 20, left: 44 };

const hour = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
const at = (epoch, every) => (every < 86_400 ? hour : day).format(new Date(epoch * 1000));

// Round maxima of an axis, whose halves are round too.
const DECIMAL = Array.from({ length: 13 }, (_, power) => [2, 4, 10].map((each) => each * 10 ** power)).flat();
const TIMES = [0.1, 0.2, 0.4, 1, 2, 4, 10, 20, 40, 60, 120, 240, 600, 1200, 2400, 3600, 7200, 14_400, 28_800, 86_400, 172_800, 604_800];

export const counts = { show: number, axis: number, tops: DECIMAL };
export const seconds = { show: duration, axis: shortDuration, tops: TIMES };

function shortDuration(value) {
  if (value < 60) return `${Number(value.toFixed(2))} s`;
  return value < 3600 ? `${number(value / 60)} min` : `${number(value / 3600)} h`;
}

/** `series`: [{name, look, values}], oldest first; `kind`: bars or lines; `unit`: counts or seconds. */
export function Chart({ title, series, start, every, kind, unit, summary }) {
  const box = useRef(null);
  const width = useWidth(box);
  const [over, setOver] = useState(null);
  const length = Math.max(0, ...series.map((each) => each.values.length));
  const most = highest(series, length, kind);
  const top = unit.tops.find((each) => each >= (most || 1)) || most;
  const inner = { width: Math.max(10, width - EDGE.left - EDGE.right), height: HEIGHT - EDGE.top - EDGE.bottom };
  const x = (index) => EDGE.left + (inner.width * index) / Math.max(1, kind === "bars" ? length : length - 1);
  const middle = (index) => x(index + (kind === "bars" ? 0.5 : 0));
  const y = (value) => EDGE.top + inner.height * (1 - value / top);
  const move = (event) => {
    const inside = event.clientX - box.current.getBoundingClientRect().left - EDGE.left;
    const index = Math.floor((inside / inner.width) * length);
    setOver(index >= 0 && index < length ? index : null);
  };
  const empty = most === 0;
  return html`<figure class="chart">
    <figcaption>
      <h3>${title}</h3>
      <ul class="legend">${series.map((each) => html`<li key=${each.name}><span class=${`key ${each.look}`}></span>${each.name}
        <b>${over === null ? "" : unit.show(each.values[over])}</b></li>`)}
        <li class="chart-at">${over === null ? "" : at(start + over * every, every)}</li></ul>
    </figcaption>
    <div ref=${box} class="chart-box" onPointerMove=${move} onPointerLeave=${() => setOver(null)}>
      <svg width=${width} height=${HEIGHT} role="img" aria-label=${`${title}: ${summary}`}>
        ${[0, top / 2, top].map((value) => html`<g key=${value}>
          <line class="grid" x1=${EDGE.left} x2=${EDGE.left + inner.width} y1=${y(value)} y2=${y(value)} />
          <text x=${EDGE.left - 6} y=${y(value) + 4} text-anchor="end">${unit.axis(value)}</text></g>`)}
        ${kind === "bars" ? bars(series, length, x, y, inner) : series.map((each) => html`<${Curve} key=${each.name} series=${each} x=${x}
          y=${y} />`)}
        ${over !== null && html`<line class="cursor" x1=${middle(over)} x2=${middle(over)} y1=${EDGE.top} y2=${EDGE.top + inner.height} />`}
        ${empty && html`<text class="nothing" x=${EDGE.left + inner.width / 2} y=${EDGE.top + inner.height / 2 - 8}
          text-anchor="middle">no data yet</text>`}
        <text x=${EDGE.left} y=${HEIGHT - 4}>${at(start, every)}</text>
        <text x=${EDGE.left + inner.width} y=${HEIGHT - 4} text-anchor="end">now</text>
      </svg>
    </div>
    <${AsTable} title=${title} series=${series} start=${start} every=${every} unit=${unit} length=${length} />
  </figure>`;
}

function AsTable({ title, series, start, every, unit, length }) {
  const [open, setOpen] = useState(false);
  return html`<details class="as-table" onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>Numbers</summary>
    ${open && html`<div class="scroll" tabindex="0" role="region" aria-label=${`${title}, the numbers`}><table class="numbers">
      <caption class="hidden">${title}, newest first</caption>
      <thead><tr><th scope="col">From</th>${series.map((each) => html`<th key=${each.name} scope="col" class="n">${each.name}</th>`)}</tr>
        </thead>
      <tbody>${Array.from({ length }, (_, index) => length - 1 - index).map((index) => html`<tr key=${index}>
        <th scope="row">${at(start + index * every, every)}</th>
        ${series.map((each) => html`<td key=${each.name} class="n">${unit.show(each.values[index])}</td>`)}</tr>`)}</tbody></table></div>`}
  </details>`;
}

function bars(series, length, x, y, inner) {
  const width = Math.max(1, inner.width / length - 1);
  return Array.from({ length }, (_, index) => {
    let below = 0;
    return series.map((each) => {
      const value = each.values[index] || 0;
      if (value === 0) return null;
      const foot = y(below);
      below += value;
      return html`<rect key=${`${each.name} ${index}`} class=${`fill ${each.look}`} x=${x(index)} width=${width} y=${y(below)}
        height=${Math.max(1, foot - y(below))} />`;
    });
  });
}

/** A line with a dot at the last value. */
function Curve({ series, x, y }) {
  const last = series.values.findLastIndex(Number.isFinite);
  return html`<path class=${`stroke ${series.look}`} d=${pathOf(series.values, x, y)} />
    ${last >= 0 && html`<circle class=${`fill ${series.look}`} r="3" cx=${x(last)} cy=${y(series.values[last])} />`}`;
}

/** A path with gaps for missing values; a single point is a dot. */
function pathOf(values, x, y) {
  let path = "";
  let drawing = false;
  values.forEach((value, index) => {
    if (!Number.isFinite(value)) {
      drawing = false;
      return;
    }
    path += drawing ? `L${x(index).toFixed(1)} ${y(value).toFixed(1)}` : `M${x(index).toFixed(1)} ${y(value).toFixed(1)}h0.01`;
    drawing = true;
  });
  return path;
}

function highest(series, length, kind) {
  let most = 0;
  for (let index = 0; index < length; index += 1) {
    const values = series.map((each) => each.values[index] || 0);
    most = Math.max(most, kind === "bars" ? values.reduce((sum, value) => sum + value, 0) : Math.max(...values));
  }
  return most;
}

/** The available width in pixels: scaled text would be unreadable. */
function useWidth(box) {
  const [width, setWidth] = useState(320);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return width;
}
