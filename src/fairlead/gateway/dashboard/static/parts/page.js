// A page, once its module is there.
import { html, useEffect, useState } from "../html.js";
import { load } from "../pages.js";
import { Loading } from "./bits.js";

const loaded = new Map();

export function PageOf({ page, route }) {
  const [tries, setTries] = useState(0);
  const [trouble, setTrouble] = useState(false);
  const [, draw] = useState(0);
  const Page = loaded.get(page.name);
  useEffect(() => {
    if (Page) return;
    setTrouble(false);
    load(page.name, tries).then((found) => {
      loaded.set(page.name, found);
      draw((before) => before + 1);
    }, () => setTrouble(true));
  }, [page.name, tries]);
  if (Page) return html`<${Page} route=${route} subject=${page.subject} />`;
  return html`<h1>${page.title}</h1>${trouble
    ? html`<p role="alert">This page could not be fetched from the gateway. <button onClick=${() => setTries(tries + 1)}>Try again</button></p>`
    : html`<${Loading} />`}`;
}
