// Small components: status, age, links, copy button.
import { useNow } from "../clock.js";
import { useApp } from "../context.js";
import { age, epoch, moment, relative, shortId, wholeMoment } from "../format.js";
import { html } from "../html.js";
import { go, to } from "../router.js";

const LOOK = {
  SCHEDULED: "idle", PENDING: "waiting", RUNNING: "running", RETRYING: "retrying",
  COMPLETED: "ok", FAILED: "failed", CANCELLED: "idle", REMOVED: "idle",
};

/** The status of a job, with the same colour everywhere. */
export const Status = ({ status }) => html`<span class=${`badge ${LOOK[status] || "idle"}`}
  data-testid="status">${String(status).toLowerCase()}</span>`;

export const lookOf = (status) => LOOK[status] || "idle";

export const Priority = ({ priority, original }) => html`<span class=${`priority ${priority}`}>${priority}${original && original !== priority
  && html`<span class="muted"> was ${original}</span>`}</span>`;

/** A ticking age. */
export function Age({ since, prefix = "", active = true }) {
  const now = useNow(active);
  const at = epoch(since);
  return html`<time title=${wholeMoment(at)}>${at === null ? "–" : `${prefix}${age(now - at)}`}</time>`;
}

/** A ticking countdown. */
export function Left({ until, over = "over" }) {
  const now = useNow();
  const left = epoch(until) - now;
  return html`<time title=${wholeMoment(until)}>${left > 0 ? age(left) : over}</time>`;
}

/** A local time and how long ago it was; `brief` leaves out the time. */
export function Moment({ at, brief = false }) {
  const now = useNow();
  const then = epoch(at);
  if (then === null) return "–";
  const ago = relative(now - then);
  return html`<time class="nowrap" datetime=${new Date(then * 1000).toISOString()} title=${wholeMoment(then)}>${brief ? ago
    : html`${moment(then)} <small class="muted">${ago}</small>`}</time>`;
}

/** Props of a table row that leads to a page. Links, buttons and selected text in it work as usual. */
export const rowLink = (href) => ({
  class: "leads",
  onClick: (event) => {
    if (event.target.closest("a, button, input, label, summary") || window.getSelection().toString()) return;
    go(href);
  },
});

export const JobLink = ({ id, children }) => html`<a class="mono nowrap" href=${to(["jobs", id])}
  title=${`job ${id}`}>${children || shortId(id)}</a>`;

export function UserLink({ id }) {
  return html`<a class="clip user" href=${to(["jobs"], { user_id: id })} title=${`jobs of ${id}`}>${id}</a>`;
}

export function Copy({ text, what }) {
  const { notify } = useApp();
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      notify(`Copied ${what}.`);
    } catch {
      notify("The browser does not allow copying; select the text instead.");
    }
  };
  return html`<button type="button" class="quiet small" aria-label=${`Copy ${what}`} onClick=${copy}>Copy</button>`;
}

/** A command or request to copy. */
export const Command = ({ text, what }) => html`<div class="command"><pre tabindex="0"><code>${text}</code></pre>
  <${Copy} text=${text} what=${what} /></div>`;

export const Tag = ({ look = "idle", title, children }) => html`<span class=${`badge ${look}`} title=${title}>${children}</span>`;

/** A value with its name. */
export const Fact = ({ name, children, look = "", hint }) => html`<div class=${`fact ${look}`}>
  <dt>${name}</dt><dd>${children}${hint && html`<small class="muted">${hint}</small>`}</dd></div>`;

/** The toggle below a shortened list. */
export const ShowAll = ({ count, first, whole, onChange }) => count > first && html`<button class="quiet small" aria-expanded=${whole}
  onClick=${() => onChange(!whole)}>${whole ? "Show fewer" : `Show all ${count}`}</button>`;

/** For screen readers: announced when it changes. Not for values that change every second. */
export const Announced = ({ children }) => html`<p class="hidden" aria-live="polite">${children}</p>`;

export const Loading = ({ error }) => error
  ? html`<p class="card trouble" role="alert">${error.message}</p>`
  : html`<p class="muted loading" role="status">Loading…</p>`;
