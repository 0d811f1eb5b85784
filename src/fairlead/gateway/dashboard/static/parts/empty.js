// Empty states: what would be here, and how to get it.
import { get } from "../api.js";
import { sees, useApp } from "../context.js";
import { html, useEffect, useState } from "../html.js";
import { Command } from "./bits.js";

export const Empty = ({ title, children }) => html`<section class="empty card" data-testid="empty"><h2>${title}</h2>${children}</section>`;

const PLACEHOLDER = "FEATURE"; // for keys that may not see the services

/** A working request to this gateway, with the name of an existing service. */
export function FirstRequest({ path, body }) {
  const { session } = useApp();
  const [feature, setFeature] = useState(sees(session, "queue") ? null : PLACEHOLDER);
  useEffect(() => {
    if (feature === null) get("/queue/status").then((status) => setFeature(status.services[0]?.service || PLACEHOLDER), () => setFeature(PLACEHOLDER));
  }, []);
  if (feature === null) return null;
  const key = session.signed_in ? " \\\n  -H \"Authorization: Bearer $FAIRLEAD_API_KEY\"" : "";
  // An apostrophe in a name would end the shell's quotes.
  const whole = JSON.stringify({ user_id: session.user_id || "ada", feature_name: feature, ...body }).replaceAll("'", "'\\''");
  const text = `curl -s ${window.location.origin}${path} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${whole}'`;
  return html`<${Command} text=${text} what="the request" />`;
}

export const NoJobs = () => html`<${Empty} title="No jobs yet">
  <p>Submit one, and watch it run:</p>
  <${FirstRequest} path="/api/v1/jobs" body=${{ input_data: { prompt: "a lighthouse at dawn" } }} />
<//>`;

const IN_PYTHON = `@app.service(limit=2)
async def paint(call):
    return {"path": await draw(call.params["prompt"])}`;

const IN_TOML = `[services.paint]
url = "http://127.0.0.1:9000/paint"
limit = 2`;

export const NoServices = () => html`<${Empty} title="No services yet">
  <p>A service is what jobs call, with a limit of concurrent calls. Declare one in Python, and restart:</p>
  <${Command} text=${IN_PYTHON} what="the Python code" />
  <p>or an HTTP endpoint in <code>fairlead.toml</code>:</p>
  <${Command} text=${IN_TOML} what="the configuration" />
<//>`;
