// Pages beyond the live one, loaded on demand. They are not updated.
import { get } from "../api.js";
import { useEffect, useMemo, useRef, useState } from "../html.js";

const PAGE = 200;

/** {rows, left, busy, failure, more()} of the list at `path` with `filters`, from `cursor` on. */
export function useOlder(path, filters, cursor) {
  const key = JSON.stringify([path, filters]);
  const start = { key, rows: [], cursor: undefined, busy: false, failure: null };
  const [older, setOlder] = useState(start);
  useEffect(() => setOlder(start), [key]);
  const next = older.cursor === undefined ? cursor : older.cursor;
  const more = async () => {
    if (!next || older.busy || older.key !== key) return;
    setOlder({ ...older, busy: true, failure: null });
    try {
      const page = await get(path, { ...filters, limit: PAGE, cursor: next });
      // Ignore the page if the filters have changed meanwhile.
      setOlder((before) => (before.key === key ? { ...before, rows: [...before.rows, ...page.data], cursor: page.next_cursor, busy: false } : before));
    } catch (problem) {
      setOlder((before) => ({ ...before, busy: false, failure: problem.message }));
    }
  };
  return { ...older, left: Boolean(next), more };
}

/** The rows of the map `live`, newest first, then older ones. `orderOf` is greater for newer rows.
 *
 * New rows push the oldest live rows out of the live page. No loaded page contains those rows, so they are kept here.
 */
export function useTogether(live, older, idOf, orderOf) {
  const memory = useRef({ key: older.key, live: [], kept: new Map() });
  return useMemo(() => {
    const newestFirst = (rows) => rows.sort((one, other) => (orderOf(one) < orderOf(other) ? 1 : -1));
    const now = newestFirst(Object.values(live || {}));
    const known = new Set(now.map(idOf));
    const before = memory.current;
    const kept = new Map();
    if (before.key === older.key && older.rows.length > 0) {
      for (const row of [...before.kept.values(), ...before.live]) {
        if (now.length > 0 && orderOf(row) < orderOf(now.at(-1))) kept.set(idOf(row), row);
      }
    }
    memory.current = { key: older.key, live: now, kept };
    const rest = new Map([...kept, ...older.rows.map((row) => [idOf(row), row])]);
    return [...now, ...newestFirst([...rest.values()].filter((row) => !known.has(idOf(row))))];
  }, [live, older.rows, older.key]);
}
