// The page of the API at /docs: reads /openapi.json and sends requests to this gateway.
import { html, render, useEffect, useState } from "./html.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
const MAX_SHOWN = 200_000; // characters that a browser can lay out at once

/** Authenticate with the key alone if there is one, otherwise with the session cookie of the dashboard. */
const fetchWith = (key, path, options = {}) =>
  fetch(path, {
    ...options,
    credentials: key ? "omit" : "same-origin",
    headers: { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) },
  });

const resolved = (document, schema) => {
  const name = schema?.$ref?.split("/").pop();
  return name ? document.components.schemas[name] : schema;
};

function exampleOf(document, operation) {
  const schema = resolved(document, operation.requestBody?.content?.["application/json"]?.schema);
  if (!schema) return "";
  return JSON.stringify(schema.examples?.[0] ?? schema.example ?? {}, null, 2);
}

const isStream = (operation) => "text/event-stream" in (operation.responses?.["200"]?.content ?? {});

/** The path with parameters and query filled in from `values`, an object by parameter name. */
function urlOf(path, parameters, values) {
  const query = new URLSearchParams();
  for (const { name, in: place } of parameters) {
    if (place === "path") path = path.replace(`{${name}}`, encodeURIComponent(values[name] ?? ""));
    else if (place === "query" && values[name]) query.append(name, values[name]);
  }
  return query.size ? `${path}?${query}` : path;
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function curlOf({ method, url, headers, body }, key) {
  const all = { ...(key ? { Authorization: "Bearer $FAIRLEAD_API_KEY" } : {}), ...headers };
  // Double quotes around the key's header: the shell fills in the variable.
  const shown = Object.entries(all).map(([name, value]) =>
    name === "Authorization" ? `-H "${name}: ${value}"` : `-H ${quoted(`${name}: ${value}`)}`);
  const parts = [`curl -X ${method} ${quoted(location.origin + url)}`, ...shown, ...(body ? [`-d ${quoted(body)}`] : [])];
  return parts.join(" \\\n  ");
}

function shownText(text) {
  let shown = text;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Not JSON: shown as it is.
  }
  return shown.length > MAX_SHOWN ? `${shown.slice(0, MAX_SHOWN)}\n… ${shown.length - MAX_SHOWN} more characters` : shown;
}

function Field({ parameter, value, onInput }) {
  const { name, required, description, in: place } = parameter;
  return html`<label class="field"><span><code>${name}</code> <small>${place}${required ? ", required" : ""}</small></span>
    <input value=${value} required=${required} onInput=${(event) => onInput(event.currentTarget.value)} />
    ${description && html`<small>${description}</small>`}</label>`;
}

function Route({ document, method, path, operation, apiKey }) {
  const parameters = (operation.parameters ?? []).filter((each) => each.in !== "cookie");
  const [values, setValues] = useState({});
  const [body, setBody] = useState(() => exampleOf(document, operation));
  const [response, setResponse] = useState(null);
  const hasBody = Boolean(operation.requestBody?.content?.["application/json"]);
  const given = parameters.filter((each) => each.in === "header" && values[each.name]);
  const request = {
    method: method.toUpperCase(),
    url: urlOf(path, parameters, values),
    headers: {
      ...(hasBody && body ? { "Content-Type": "application/json" } : {}),
      ...Object.fromEntries(given.map((each) => [each.name, values[each.name]])),
    },
    body: hasBody && body ? body : undefined,
  };

  async function send(event) {
    event.preventDefault();
    setResponse({ status: "Sending…" });
    try {
      const { url, ...options } = request;
      const received = await fetchWith(apiKey, url, options);
      setResponse({ status: `${received.status} ${received.statusText}`, ok: received.ok, text: shownText(await received.text()) });
    } catch (error) {
      setResponse({ status: `No response: ${error.message}`, ok: false });
    }
  }

  return html`<form onSubmit=${send}>
    ${operation.description && html`<p>${operation.description}</p>`}
    ${parameters.map((each) => html`<${Field} parameter=${each} value=${values[each.name] ?? ""}
      onInput=${(value) => setValues({ ...values, [each.name]: value })} />`)}
    ${hasBody && html`<label class="field"><span>Body</span>
      <textarea spellcheck=${false} value=${body} onInput=${(event) => setBody(event.currentTarget.value)}></textarea></label>`}
    ${isStream(operation) ? html`<p>A stream of events: follow it with the command below.</p>`
      : html`<button class="primary">Send</button>`}
    <div role="status">${response && html`<p class=${response.ok === false ? "failed" : ""}>${response.status}</p>`}</div>
    ${response?.text && html`<pre tabindex="0" aria-label="Response">${response.text}</pre>`}
    <pre tabindex="0" aria-label="Command">${curlOf(request, apiKey)}</pre>
  </form>`;
}

/** The form is built when it is first opened: there are dozens of routes. */
function Folded(props) {
  const [opened, setOpened] = useState(false);
  return html`<details class="route" onToggle=${(event) => event.currentTarget.open && setOpened(true)}>
    <summary><span class="method">${props.method.toUpperCase()}</span> <code>${props.path}</code> ${" "}
      <span class="muted">${props.operation.summary}</span></summary>
    ${opened && html`<${Route} ...${props} />`}
  </details>`;
}

function Section({ document, tag, apiKey }) {
  const routes = Object.entries(document.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]?.tags?.includes(tag.name)).map((method) => ({ path, method, operation: item[method] })));
  return html`<section aria-labelledby=${`tag-${tag.name}`}>
    <h2 id=${`tag-${tag.name}`}>${tag.name}</h2>
    <p>${tag.description}</p>
    ${routes.map((route) => html`<${Folded} key=${route.method + route.path} document=${document} apiKey=${apiKey} ...${route} />`)}
  </section>`;
}

function Page() {
  const [apiKey, setApiKey] = useState("");
  const [document, setDocument] = useState(null);
  const [problem, setProblem] = useState("");

  async function load(event) {
    event?.preventDefault();
    try {
      const response = await fetchWith(apiKey, "/openapi.json");
      if (response.ok) setDocument(await response.json());
      setProblem(response.ok ? "" : response.status === 401 ? "Enter a key to see the routes." : `The gateway responded with ${response.status}.`);
    } catch {
      setProblem("The gateway does not respond.");
    }
  }
  useEffect(() => { load(); }, []);

  return html`<div class="api">
    <header><h1>Fairlead API</h1> <span class="muted">${document?.info.version}</span>
      <a href="/">Dashboard</a> <a href="/openapi.json">OpenAPI document</a></header>
    <main>
      <p>Requests are real: they go to this gateway, and jobs run.</p>
      <form onSubmit=${load}>
        <div class="field"><label for="key">Key</label>
          <input id="key" type="password" autocomplete="off" aria-describedby="key-use" value=${apiKey}
            onInput=${(event) => setApiKey(event.currentTarget.value.trim())} />
          <small id="key-use">Kept in this page until you leave it. Without a key, the dashboard's session is used.</small></div>
        <div role="status">${problem && html`<p class="failed">${problem}</p>`}</div>
        ${!document && html`<button class="primary">Show the routes</button>`}
      </form>
      ${document?.tags.map((tag) => html`<${Section} key=${tag.name} document=${document} tag=${tag} apiKey=${apiKey} />`)}
    </main>
  </div>`;
}

render(html`<${Page} />`, document.getElementById("app"));
