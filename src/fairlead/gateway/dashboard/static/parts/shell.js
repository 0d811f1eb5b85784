// The shell around every page: navigation, connection state, session.
import { call } from "../api.js";
import { useApp } from "../context.js";
import { moment, shortId } from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { useShown } from "../live.js";
import { sectionsFor } from "../pages.js";
import { to } from "../router.js";
import { theme, toggleTheme } from "../settings.js";
import { Shortcuts } from "./shortcuts.js";

export function Shell({ page, children, onSignedOut }) {
  const { session, live } = useApp();
  const { connection, state, error, lostAt } = useShown(live);
  const main = useRef(null);
  const first = useRef(true);
  const [open, setOpen] = useState(false);
  const [help, setHelp] = useState(false);
  const [searching, setSearching] = useState(false);
  useEffect(() => {
    const subject = page.subject ? ` ${shortId(page.subject)}` : "";
    document.title = page.name === "overview" ? "Fairlead" : `${page.title}${subject} · Fairlead`;
    setOpen(false);
    setHelp(false);
    // Move the focus to the start of the new page, for screen readers and Tab.
    if (!first.current) {
      window.scrollTo(0, 0);
      main.current.focus({ preventScroll: true });
    }
    first.current = false;
  }, [page.key]);

  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to content</a>
    <header class="top">
      <a class="brand" href=${to([])} aria-label="Fairlead home">
        <img src="/static/icon.svg" width="24" height="24" alt="" /><span>Fairlead</span>
      </a>
      <button class="menu-button quiet" aria-expanded=${open} aria-controls="sections" onClick=${() => setOpen(!open)}>
        ${open ? "Close" : "Menu"}
      </button>
      <nav id="sections" class=${open ? "open" : ""} aria-label="Pages">
        ${sectionsFor(session).map((section) => html`<a key=${section.name} href=${to([section.name])}
          aria-current=${page.section === section.name ? "page" : null}>${section.title}</a>`)}
      </nav>
      <button class="search-button" title="Search (/ or Ctrl K)" aria-label="Search" onClick=${() => setSearching(true)}>
        <svg width="14" height="14" viewBox="0 0 16 16" aria-hidden="true"><circle cx="6.5" cy="6.5" r="5" fill="none" stroke="currentColor"
          stroke-width="1.8" /><path d="M10.5 10.5 15 15" stroke="currentColor" stroke-width="1.8" /></svg>
        <span>Search</span> <kbd>/</kbd></button>
      <${Connection} connection=${connection} />
      <div class="tools">
        <${ThemeButton} />
        <button class="quiet icon shortcuts-button" aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)"
          onClick=${() => setHelp(true)}>?</button>
        <${Who} session=${session} onSignedOut=${onSignedOut} />
      </div>
    </header>
    ${lostAt && html`<p class="away"
      data-testid="away">The gateway does not respond. The data is from ${moment(lostAt)}; the page reconnects automatically.</p>`}
    <main id="main" ref=${main} tabindex="-1" class=${connection === "live" ? "" : "stale"} aria-busy=${state === null && error === null}>
      ${children}
    </main>
    ${searching && html`<${SearchBox} onClose=${() => setSearching(false)} />`}
    <${Shortcuts} open=${help} onOpen=${() => setHelp(true)} onClose=${() => setHelp(false)} onSearch=${() => setSearching(true)} />`;
}

/** Loaded when it is first opened, so that the first visit stays small. */
let searchModule = null;

function SearchBox({ onClose }) {
  const [module, setModule] = useState(searchModule);
  useEffect(() => {
    if (!module) import("./search.js").then((found) => setModule(searchModule = found), onClose);
  }, []);
  return module && html`<${module.Search} onClose=${onClose} />`;
}

const CONNECTION = {
  live: ["Live", "changes appear as they happen"],
  connecting: ["Connecting…", "waiting for the gateway"],
  reconnecting: ["Reconnecting…", "the gateway does not respond; the data may be outdated"],
};

function Connection({ connection }) {
  const [word, explanation] = CONNECTION[connection];
  return html`<p class=${`connection ${connection}`} role="status" data-testid="connection" data-state=${connection} title=${explanation}>
    <span class="dot" aria-hidden="true"></span>${word}</p>`;
}

function ThemeButton() {
  const [now, setNow] = useState(theme);
  const other = now === "dark" ? "light" : "dark";
  return html`<button class="quiet icon" aria-label=${`Switch to ${other} colours`} title=${`Switch to ${other} colours (t)`}
    data-testid="theme" onClick=${() => setNow(toggleTheme())}>
    <svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true">
      <circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" stroke-width="1.6" />
      <path d="M8 1.8a6.2 6.2 0 0 1 0 12.4z" fill="currentColor" /></svg>
  </button>`;
}

function Who({ session, onSignedOut }) {
  const { notify } = useApp();
  const leave = async () => {
    try {
      await call("DELETE", "/session");
      onSignedOut();
    } catch (problem) {
      notify(`Not signed out: ${problem.message}`);
    }
  };
  if (!session.signed_in) return html`<span class="who muted"
    title="There are no keys yet: everyone who reaches this address may do everything">no key needed</span>`;
  const role = session.may_act ? session.role : `${session.role}, read-only`;
  return html`<span class="who"><span class="clip" title=${session.name}>${session.name}</span> <span class="muted">${role}</span></span>
    <button class="quiet small" onClick=${leave}>Sign out</button>`;
}
