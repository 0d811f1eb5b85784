// The files that a job names: images, audio, video and text are shown, all others can be downloaded.
import { number, text } from "../format.js";
import { html, useEffect, useState } from "../html.js";

const MOST = 50;
const SHOWN_TEXT = 16384;
const ID = /^file-[0-9a-f]{32}$/;

/** The references in these values, each file once. */
export function filesIn(...values) {
  const found = new Map();
  const waiting = [...values];
  while (waiting.length && found.size < MOST) {
    const value = waiting.shift();
    if (!value || typeof value !== "object") continue;
    const id = value.$file ?? value.$stored;
    if (typeof id === "string" && ID.test(id) && !found.has(id)) {
      found.set(id, "$stored" in value ? { ...value, name: "value.json", content_type: "application/json" } : value);
    }
    waiting.push(...Object.values(value));
  }
  return [...found.entries()].map(([id, about]) => ({ ...about, id }));
}

export function Files({ files }) {
  if (!files.length) return null;
  return html`<section class="card"><h2>Files</h2>
    <ul class="files" aria-label="Files">${files.map((file) => html`<li key=${file.id}><${File} file=${file} /></li>`)}</ul></section>`;
}

function File({ file }) {
  const url = `/files/${file.id}`;
  const name = text(file.name) || file.id;
  return html`<p><a class="clip" href=${url} download=${name}>${name}</a>
      <span class="muted"> ${text(file.content_type)}${Number.isFinite(file.size) ? `, ${number(file.size)} bytes` : ""}</span></p>
    <${Preview} url=${url} name=${name} type=${text(file.content_type) || ""} />`;
}

function Preview({ url, name, type }) {
  if (/^image\/(?!svg)/.test(type)) return html`<a href=${url}><img class="preview" src=${url} alt=${name} loading="lazy" /></a>`;
  if (type.startsWith("audio/")) return html`<audio controls preload="none" src=${url} aria-label=${name}></audio>`;
  if (type.startsWith("video/")) return html`<video class="preview" controls preload="none" src=${url} aria-label=${name}></video>`;
  if (type.startsWith("text/") || type.startsWith("application/json")) return html`<${Text} url=${url} name=${name} />`;
  return null;
}

/** The beginning of a text file, read when it is opened. */
function Text({ url, name }) {
  const [open, setOpen] = useState(false);
  const [shown, setShown] = useState(null);
  useEffect(() => {
    if (!open || shown !== null) return undefined;
    let current = true;
    fetch(url, { headers: { Range: `bytes=0-${SHOWN_TEXT - 1}` } })
      .then((response) => (response.ok ? response.text() : Promise.reject(new Error(`status ${response.status}`))))
      .then((found) => current && setShown(found.length >= SHOWN_TEXT ? `${found}…` : found))
      .catch((error) => current && setShown(`cannot be read: ${error.message}`));
    return () => { current = false; };
  }, [open, url]);
  return html`<details onToggle=${(event) => setOpen(event.target.open)}><summary>Beginning of ${name}</summary>
    <pre class="scroll" tabindex="0">${shown ?? "…"}</pre></details>`;
}
