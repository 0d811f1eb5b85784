// Loads the module of a page and renders it.
import { useApp } from "../context.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { useShown } from "../live.js";
import { load } from "../pages.js";
import { Loading } from "./bits.js";

const loaded = new Map();

export function PageOf({ page, route }) {
  const [failure, setFailure] = useState(false);
  const [, draw] = useState(0);
  const Page = loaded.get(page.name);
  useEffect(() => {
    if (Page) return;
    load(page.name).then((component) => {
      loaded.set(page.name, component);
      draw((before) => before + 1);
    }, () => setFailure(true));
  }, [page.name]);
  useReloadOnReconnect(failure);
  if (Page) return html`<${Page} route=${route} subject=${page.subject} />`;
  return html`<h1>${page.title}</h1>${failure
    ? html`<p role="alert">This page could not be loaded from the gateway. <button onClick=${() => window.location.reload()}>Try again</button>
      </p>`
    : html`<${Loading} />`}`;
}

/** Browsers cache a failed module import, so reload once the gateway is back. The page's state is in its address. */
function useReloadOnReconnect(failure) {
  const { connection } = useShown(useApp().live);
  const wasAway = useRef(false);
  useEffect(() => {
    if (connection !== "live") wasAway.current = true;
    else if (failure && wasAway.current) window.location.reload();
  }, [connection, failure]);
}
