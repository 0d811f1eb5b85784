// The search box: jobs and batches by id, services, users, batches and errors by name.
import { get } from "../api.js";
import { number, shortId, text } from "../format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../html.js";
import { go, to } from "../router.js";
import { Status } from "./bits.js";

const PAUSE = 150; // milliseconds after the last key

const HREF = {
  job: ({ id }) => to(["jobs", id]),
  batch: ({ id }) => to(["batches", id]),
  service: ({ id }) => to(["services", id]),
  user: ({ id }) => to(["jobs"], { user_id: id }),
  error: ({ id }) => to(["jobs"], { error_code: id, status: "FAILED" }),
};

/** {results, failure} for what was typed; `results` is null before the first answer. */
function useResults(query) {
  const [found, setFound] = useState({ results: null, failure: null });
  useEffect(() => {
    const q = query.trim();
    if (!q) {
      setFound({ results: null, failure: null });
      return undefined;
    }
    let current = true;
    const timer = setTimeout(() => get("/api/v1/search", { q }).then(
      ({ results }) => current && setFound({ results: results.filter(({ kind }) => Object.hasOwn(HREF, kind)), failure: null }),
      (problem) => current && setFound({ results: null, failure: problem.message }),
    ), PAUSE);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [query]);
  return found;
}

export function Search({ onClose }) {
  const dialog = useRef(null);
  const [query, setQuery] = useState("");
  const [at, setAt] = useState(0);
  const { results, failure } = useResults(query);
  useLayoutEffect(() => {
    dialog.current.showModal();
    const left = () => dialog.current?.close();
    window.addEventListener("hashchange", left);
    return () => window.removeEventListener("hashchange", left);
  }, []);
  // Before the results are painted: a key that is pressed as soon as they are visible counts.
  useLayoutEffect(() => setAt(0), [results]);
  const choose = (result) => {
    dialog.current.close();
    go(HREF[result.kind](result));
  };
  const pressed = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && results?.length) {
      event.preventDefault();
      setAt((at + step + results.length) % results.length);
    } else if (event.key === "Enter" && results?.[at]) {
      event.preventDefault();
      choose(results[at]);
    }
  };
  return html`<dialog ref=${dialog} class="search" aria-label="Search" onClose=${onClose}>
    <input type="text" role="combobox" aria-label="Search" placeholder="Job id, user, service, batch or error" value=${query} maxlength="255"
      autocomplete="off" spellcheck="false" aria-expanded=${Boolean(results?.length)} aria-controls="search-results" autofocus
      aria-activedescendant=${results?.length ? `result-${at}` : null} onInput=${(event) => setQuery(event.target.value)} onKeyDown=${pressed} />
    <ul id="search-results" role="listbox" aria-label="Results">${(results || []).map((result, index) => html`<li key=${`${result.kind} ${result.id}`}
      id=${`result-${index}`} role="option" aria-selected=${index === at} onClick=${() => choose(result)} onPointerMove=${() => setAt(index)}>
      <${Result} result=${result} /></li>`)}</ul>
    <p class="muted" role="status">${failure || (results === null ? "A whole id, the beginning of a user, or a part of any other name."
      : results.length === 0 ? "Nothing found." : "")}</p>
  </dialog>`;
}

const Result = ({ result }) => html`<span class="muted kind">${result.kind}</span> <span class=${`clip name${result.kind === "job" ? " mono" : ""}`}>${
    result.kind === "batch" ? text(result.text) || shortId(result.id) : text(result.id)}</span>
  ${result.status && html`<${Status} status=${result.status} />`}
  ${(result.kind === "job" || result.kind === "error") && html`<span class="muted clip">${text(result.text)}</span>`}
  ${Number.isFinite(result.count) && html`<b>${number(result.count)}</b>`}`;
