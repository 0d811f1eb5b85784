// The server's time, as far as this page can tell, and a tick for what shows ages.
import { useEffect, useState } from "./html.js";

let ahead = 0; // seconds that the server's clock is ahead of ours

export function setServerTime(epoch) {
  if (Number.isFinite(epoch)) ahead = epoch - Date.now() / 1000;
}

export const serverNow = () => Date.now() / 1000 + ahead;

// One timer for all ages of the page, and none while nobody looks.
const listeners = new Set();
let timer = null;

function tick() {
  for (const listener of listeners) listener(serverNow());
}

function run() {
  const wanted = listeners.size > 0 && !document.hidden;
  if (wanted && timer === null) timer = setInterval(tick, 1000);
  if (!wanted && timer !== null) {
    clearInterval(timer);
    timer = null;
  }
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) tick();
  run();
});

/** Now, on the server, again every second. */
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
