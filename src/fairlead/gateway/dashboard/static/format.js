// Formatting of numbers, durations and times.

const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const clockTime = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayTime = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const fullTime = new Intl.DateTimeFormat("en-GB", { dateStyle: "full", timeStyle: "long" });

const NONE = "–";

/** Seconds since 1970 of a time in seconds or ISO 8601; null for none. */
export function epoch(moment) {
  if (moment === null || moment === undefined) return null;
  if (typeof moment === "number") return moment;
  const parsed = Date.parse(moment) / 1000;
  return Number.isNaN(parsed) ? null : parsed;
}

export const number = (value) => (Number.isFinite(value) ? numbers.format(value) : NONE);

export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

export const percent = (fraction) => (Number.isFinite(fraction) ? `${Math.round(fraction * 100)} %` : NONE);

const padded = (value) => String(value).padStart(2, "0");

/** Two units at most: 0.4 s, 12 s, 3 min 20 s, 2 h 05 min, 3 d 4 h. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  if (seconds < 0) return "0 s";
  if (seconds < 9.95) return `${Number(seconds.toFixed(1))} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return whole % 60 && whole < 600 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${Math.floor(whole / 60)} min`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${padded(minutes % 60)} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** A ticking duration, in whole seconds so that it does not flicker. */
export const age = (seconds) => (Number.isFinite(seconds) ? duration(Math.max(0, Math.floor(seconds))) : NONE);

/** A short form for small spaces: 45s, 3m, 2h, 5d. */
export function shortAge(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  const whole = Math.max(0, Math.floor(seconds));
  const [unit, size] = [["d", 86_400], ["h", 3600], ["m", 60]].find(([, each]) => whole >= each) || ["s", 1];
  return `${Math.floor(whole / size)}${unit}`;
}

/** The time of day, with the date if it is more than 12 hours away. */
export function moment(value) {
  const at = epoch(value);
  if (at === null) return NONE;
  const date = new Date(at * 1000);
  return Math.abs(Date.now() - date.getTime()) < 86_400_000 / 2 ? clockTime.format(date) : dayTime.format(date);
}

/** For tooltips: local time, and UTC as in logs. */
export function wholeMoment(value) {
  const at = epoch(value);
  if (at === null) return "";
  const date = new Date(at * 1000);
  return `${fullTime.format(date)}\n${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** Relative to now, in one unit: 12 s ago, 3 min ago, in 2 h. */
export function relative(seconds) {
  const whole = Math.floor(Math.abs(seconds));
  const [unit, size] = [["d", 172_800, 86_400], ["h", 7200, 3600], ["min", 120, 60]].filter(([, least]) => whole >= least).map(([name, , each]) => [name, each])[0] || ["s", 1];
  const words = `${Math.floor(whole / size)} ${unit}`;
  return seconds >= 0 ? `${words} ago` : `in ${words}`;
}

/** The end of an id: ids created together start alike. */
export const shortId = (id) => (String(id).length > 13 ? `…${String(id).slice(-8)}` : String(id));

export const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);

/** Any value of a user as text. */
export function text(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}

const UNITS = [["s", 1, 120], ["min", 60, 7200], ["h", 3600, 172_800], ["d", 86_400, Infinity]];

/** A range of durations in one unit: 81–95 s, 3–5 min. */
export function wait({ low, high }) {
  const [unit, size] = UNITS.find(([, , most]) => high < most);
  const [from, until] = [low, high].map((seconds) => number(unit === "s" ? Math.round(seconds) : Number((seconds / size).toPrecision(2))));
  return from === until ? `${from} ${unit}` : `${from}–${until} ${unit}`;
}
