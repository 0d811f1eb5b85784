// The estimated time of the server, and a tick for components that show ages.
import { useEffect, useState } from "./html.js";

let ahead = 0; // seconds by which the server's clock is ahead of ours

export function setServerTime(epoch) {
  if (Number.isFinite(epoch)) ahead = epoch - Date.now() / 1000;
}

export const serverNow = () => Date.now() / 1000 + ahead;

// One timer for all ages of the page, stopped while the page is hidden.
const listeners = new Set();
let timer = null;

function tick() {
  for (const listener of listeners) listener(serverNow());
}

function run() {
  const needed = listeners.size > 0 && !document.hidden;
  if (needed && timer === null) timer = setInterval(tick, 1000);
  if (!needed && timer !== null) {
    clearInterval(timer);
    timer = null;
  }
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) tick();
  run();
});

/** The time of the server, updated every second. */
export function useNow(active = true) {
  const [now, setNow] = useState(serverNow);
  useEffect(() => {
    if (!active) return undefined;
    setNow(serverNow());
    listeners.add(setNow);
    run();
    return () => {
      listeners.delete(setNow);
      run();
    };
  }, [active]);
  return now;
}
