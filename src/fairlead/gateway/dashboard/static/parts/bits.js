// The smallest parts: a state, an age, a link to a job, something to copy.
import { useNow } from "../clock.js";
import { useApp } from "../context.js";
import { age, epoch, moment, shortId, wholeMoment } from "../format.js";
import { html } from "../html.js";
import { to } from "../router.js";

const LOOK = {
  SCHEDULED: "idle", PENDING: "waiting", RUNNING: "running", RETRYING: "retrying",
  COMPLETED: "ok", FAILED: "failed", CANCELLED: "idle", REMOVED: "idle",
};

/** A job's status: its word, and a colour that means the same everywhere. */
export const Status = ({ status }) => html`<span class=${`badge ${LOOK[status] || "idle"}`}
  data-testid="status">${String(status).toLowerCase()}</span>`;

export const lookOf = (status) => LOOK[status] || "idle";

export const Priority = ({ priority, original }) => html`<span class=${`priority ${priority}`}>${priority}${original && original !== priority
  && html`<span class="muted"> was ${original}</span>`}</span>`;

/** How long since a moment, ticking. */
export function Age({ since, prefix = "", active = true }) {
  const now = useNow(active);
  const at = epoch(since);
  return html`<time title=${wholeMoment(at)}>${at === null ? "–" : `${prefix}${age(now - at)}`}</time>`;
}

/** How long until a moment, ticking down to nothing. */
export function Left({ until, over = "over" }) {
  const now = useNow();
  const left = epoch(until) - now;
  return html`<time title=${wholeMoment(until)}>${left > 0 ? age(left) : over}</time>`;
}

export const Moment = ({ at }) => html`<time title=${wholeMoment(at)}>${moment(at)}</time>`;

export const JobLink = ({ id, children }) => html`<a class="mono nowrap" href=${to(["jobs", id])}
  title=${`job ${id}`}>${children || shortId(id)}</a>`;

export function UserLink({ id }) {
  return html`<a class="clip user" href=${to(["jobs"], { user_id: id })} title=${`jobs of ${id}`}>${id}</a>`;
}

export function Copy({ text, what }) {
  const { say } = useApp();
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      say(`Copied ${what}.`);
    } catch {
      say("The browser did not allow copying; select the text instead.");
    }
  };
  return html`<button type="button" class="quiet small" aria-label=${`Copy ${what}`} onClick=${copy}>Copy</button>`;
}

/** A command or a request that can be copied and run. */
export const Command = ({ text, what }) => html`<div class="command"><pre tabindex="0"><code>${text}</code></pre>
  <${Copy} text=${text} what=${what} /></div>`;

export const Tag = ({ look = "idle", title, children }) => html`<span class=${`badge ${look}`} title=${title}>${children}</span>`;

/** A fact with its name: the name small, the fact large. */
export const Fact = ({ name, children, look = "", hint }) => html`<div class=${`fact ${look}`}>
  <dt>${name}</dt><dd>${children}${hint && html`<small class="muted">${hint}</small>`}</dd></div>`;

/** Below a list of which only the first are shown. */
export const ShowAll = ({ count, first, whole, onChange }) => count > first && html`<button class="quiet small" aria-expanded=${whole}
  onClick=${() => onChange(!whole)}>${whole ? "Show fewer" : `Show all ${count}`}</button>`;

/** For screen readers: said when it changes. What changes every second is better not said at all. */
export const Said = ({ children }) => html`<p class="hidden" aria-live="polite">${children}</p>`;

export const Loading = ({ error }) => error
  ? html`<p class="card trouble" role="alert">${error.message}</p>`
  : html`<p class="muted loading" role="status">Loading…</p>`;
