// What is shown where nothing is yet: what would be here, and how it gets here.
import { get } from "../api.js";
import { sees, useApp } from "../context.js";
import { html, useEffect, useState } from "../html.js";
import { Command } from "./bits.js";

export const Empty = ({ title, children }) => html`<section class="empty card" data-testid="empty"><h2>${title}</h2>${children}</section>`;

const PLACEHOLDER = "FEATURE"; // for those who may not see which services there are

/** A request to this very address that can be sent as it stands: it names a service that there is. */
export function FirstRequest({ path, body }) {
  const { session } = useApp();
  const [feature, setFeature] = useState(sees(session, "line") ? null : PLACEHOLDER);
  useEffect(() => {
    if (feature === null) get("/queue/status").then((status) => setFeature(status.services[0]?.service || PLACEHOLDER), () => setFeature(PLACEHOLDER));
  }, []);
  if (feature === null) return null;
  const key = session.signed_in ? " \\\n  -H \"Authorization: Bearer $FAIRLEAD_API_KEY\"" : "";
  // A name may have an apostrophe in it, which would end the shell's quotes.
  const whole = JSON.stringify({ user_id: session.user_id || "ada", feature_name: feature, ...body }).replaceAll("'", "'\\''");
  const text = `curl -s ${window.location.origin}${path} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${whole}'`;
  return html`<${Command} text=${text} what="the request" />`;
}

export const NoJobs = () => html`<${Empty} title="No jobs yet">
  <p>Submit one, and watch it take its turn:</p>
  <${FirstRequest} path="/api/v1/jobs" body=${{ input_data: { prompt: "a lighthouse at dawn" } }} />
<//>`;
