// A page, once its module is there.
import { useApp } from "../context.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { useShown } from "../live.js";
import { load } from "../pages.js";
import { Loading } from "./bits.js";

const loaded = new Map();

export function PageOf({ page, route }) {
  const [trouble, setTrouble] = useState(false);
  const [, draw] = useState(0);
  const Page = loaded.get(page.name);
  useEffect(() => {
    if (Page) return;
    load(page.name).then((found) => {
      loaded.set(page.name, found);
      draw((before) => before + 1);
    }, () => setTrouble(true));
  }, [page.name]);
  useFreshStart(trouble);
  if (Page) return html`<${Page} route=${route} subject=${page.subject} />`;
  return html`<h1>${page.title}</h1>${trouble
    ? html`<p role="alert">This page could not be fetched from the gateway. <button onClick=${() => window.location.reload()}>Try again</button>
      </p>`
    : html`<${Loading} />`}`;
}

/** A browser remembers that a module could not be fetched: once the gateway is back, begin anew. The address has it all. */
function useFreshStart(trouble) {
  const { connection } = useShown(useApp().live);
  const wasAway = useRef(false);
  useEffect(() => {
    if (connection !== "live") wasAway.current = true;
    else if (trouble && wasAway.current) window.location.reload();
  }, [connection, trouble]);
}
