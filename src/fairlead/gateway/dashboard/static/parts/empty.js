// What is shown where nothing is yet: what would be here, and how it gets here.
import { html } from "../html.js";
import { Command } from "./bits.js";

export const Empty = ({ title, children }) => html`<section class="empty card" data-testid="empty"><h2>${title}</h2>${children}</section>`;

/** The request that submits a first job, to this very address. */
export function submitCommand({ feature = "full_pipeline", needsKey = false } = {}) {
  const key = needsKey ? " \\\n  -H \"Authorization: Bearer $FAIRLEAD_API_KEY\"" : "";
  const body = JSON.stringify({ user_id: "ada", feature_name: feature, input_data: { prompt: "a lighthouse at dawn" } });
  return `curl -s ${window.location.origin}/api/v1/jobs \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${body}'`;
}

export const NoJobs = ({ feature, needsKey }) => html`<${Empty} title="No jobs yet">
  <p>Submit one, and watch it take its turn:</p>
  <${Command} text=${submitCommand({ feature, needsKey })} what="the request" />
<//>`;
