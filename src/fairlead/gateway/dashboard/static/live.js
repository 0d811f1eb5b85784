// The page's one WebSocket. It follows one view at a time: first the whole state, then changes to it.
// When the connection is lost, the last state stays visible (dimmed), and the page reconnects until the gateway is back.
import { Problem, get } from "./api.js";
import { setServerTime } from "./clock.js";
import { useEffect, useState } from "./html.js";
import { merge } from "./merge.js";

const FIRST_PAUSE = 500;
const MAX_PAUSE = 8_000;
const SESSION_ENDED = 4401;

const sameView = (one, other) => {
  const sorted = (view) => JSON.stringify(Object.entries(view || {}).filter(([, value]) => value !== null).sort());
  return sorted(one) === sorted(other);
};

export class Live {
  constructor({ onSignedOut }) {
    this.onSignedOut = onSignedOut;
    this.listeners = new Set();
    this.shown = { connection: "connecting", view: null, state: null, error: null, lostAt: null };
    this.failures = 0;
    this.request = 0; // the number of the last request; messages with another number belong to a view that was left
    this.socket = null;
    this.timer = null;
    this.stopped = false;
    // Reconnect at once when the network is back.
    this.retryNow = () => {
      if (this.timer !== null) this.#connectAfter(0);
    };
    window.addEventListener("online", this.retryNow);
    this.#connect();
  }

  follow(view) {
    if (sameView(view, this.shown.view)) return;
    this.#show({ view, state: null, error: null });
    this.#requestView();
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  stop() {
    this.stopped = true;
    window.removeEventListener("online", this.retryNow);
    clearTimeout(this.timer);
    this.socket?.close();
  }

  #show(change) {
    this.shown = { ...this.shown, ...change };
    for (const listener of this.listeners) listener(this.shown);
  }

  #requestView() {
    this.request += 1;
    if (this.socket?.readyState !== WebSocket.OPEN || !this.shown.view) return;
    this.socket.send(JSON.stringify({ ...this.shown.view, request: this.request }));
  }

  #connect() {
    const scheme = window.location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${window.location.host}/ws/dashboard`);
    this.socket = socket;
    socket.onopen = () => {
      this.failures = 0;
      this.#show({ connection: "live", lostAt: null });
      this.#requestView();
    };
    socket.onmessage = (event) => this.#receive(JSON.parse(event.data));
    socket.onclose = (event) => {
      if (this.stopped || socket !== this.socket) return;
      if (event.code === SESSION_ENDED) {
        this.onSignedOut();
        return;
      }
      this.#show({ connection: "reconnecting", lostAt: this.shown.lostAt ?? Date.now() / 1000 });
      this.#connectAfter(this.#pause());
    };
  }

  #pause() {
    this.failures += 1;
    const pause = Math.min(MAX_PAUSE, FIRST_PAUSE * 2 ** (this.failures - 1));
    return pause * (0.7 + 0.6 * Math.random()); // jitter, so that not all open pages reconnect at once
  }

  #connectAfter(pause) {
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      this.timer = null;
      // A refused WebSocket gives no reason; /session does.
      try {
        await get("/session");
        if (!this.stopped) this.#connect();
      } catch (problem) {
        if (this.stopped) return;
        if (problem instanceof Problem && problem.status === 401) this.onSignedOut();
        else this.#connectAfter(this.#pause());
      }
    }, pause);
  }

  #receive(message) {
    if (message.request !== this.request) return;
    if (message.type === "state") {
      setServerTime(message.state.now);
      this.#show({ state: message.state, error: null });
    } else if (message.type === "patch") {
      this.#show({ state: merge(this.shown.state, message.patch) });
    } else if (message.type === "error") {
      this.#show({ error: { code: message.code, message: message.message } });
    }
  }
}

/** The current data of `live`; renders again when it changes. */
export function useShown(live) {
  const [shown, setShown] = useState(live.shown);
  useEffect(() => {
    setShown(live.shown);
    return live.subscribe(setShown);
  }, [live]);
  return shown;
}

/** Follow a view while the component is mounted. */
export function useView(live, view) {
  const shown = useShown(live);
  useEffect(() => live.follow(view), [live, JSON.stringify(view)]);
  return sameView(shown.view, view) ? shown : { ...shown, state: null, error: null };
}
