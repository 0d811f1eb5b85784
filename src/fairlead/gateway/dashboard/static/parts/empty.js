// What is shown where nothing is yet: what would be here, and how it gets here.
import { get } from "../api.js";
import { sees, useApp } from "../context.js";
import { html, useEffect, useState } from "../html.js";
import { Command } from "./bits.js";

export const Empty = ({ title, children }) => html`<section class="empty card" data-testid="empty"><h2>${title}</h2>${children}</section>`;

/** A request to this very address. */
export function curl(path, body, needsKey) {
  const key = needsKey ? " \\\n  -H \"Authorization: Bearer $FAIRLEAD_API_KEY\"" : "";
  return `curl -s ${window.location.origin}${path} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${JSON.stringify(body)}'`;
}

/** The name of a service that there is, so that the request can be sent as it stands. */
export function useFeature() {
  const { session } = useApp();
  const [feature, setFeature] = useState("FEATURE");
  useEffect(() => {
    if (sees(session, "line")) get("/queue/status").then((status) => status.services.length > 0 && setFeature(status.services[0].service), () => {});
  }, []);
  return feature;
}

export function NoJobs() {
  const { session } = useApp();
  const body = { user_id: session.user_id || "ada", feature_name: useFeature(), input_data: { prompt: "a lighthouse at dawn" } };
  return html`<${Empty} title="No jobs yet">
    <p>Submit one, and watch it take its turn:</p>
    <${Command} text=${curl("/api/v1/jobs", body, session.signed_in)} what="the request" />
  <//>`;
}
