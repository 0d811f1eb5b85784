// Which page an address shows, and who may see it.
import { sees } from "./context.js";
import { Audit } from "./pages/audit.js";
import { Batch } from "./pages/batch.js";
import { Batches } from "./pages/batches.js";
import { Dead } from "./pages/dead.js";
import { Job } from "./pages/job.js";
import { Jobs } from "./pages/jobs.js";
import { NotFound } from "./pages/notfound.js";
import { Overview } from "./pages/overview.js";
import { Service } from "./pages/service.js";
import { Users } from "./pages/users.js";
import { Workers } from "./pages/workers.js";

// In the order of the navigation. `key` is the letter after g that goes there.
export const SECTIONS = [
  { name: "overview", needs: "line", title: "Overview", key: "o", component: Overview },
  { name: "jobs", needs: "own", title: "Jobs", key: "j", component: Jobs },
  { name: "users", needs: "line", title: "Users", key: "u", component: Users },
  { name: "batches", needs: "own", title: "Batches", key: "b", component: Batches },
  { name: "dead", needs: "all", title: "Dead letters", key: "d", component: Dead },
  { name: "workers", needs: "all", title: "Workers", key: "w", component: Workers },
  { name: "audit", needs: "all", title: "Audit", key: "a", component: Audit },
];

// Pages about one thing, which is named by the rest of the address.
const DETAILS = {
  services: { section: "overview", needs: "line", title: "Service", component: Service, prop: "service" },
  jobs: { section: "jobs", needs: "own", title: "Job", component: Job, prop: "jobId" },
  batches: { section: "batches", needs: "own", title: "Batch", component: Batch, prop: "batchId" },
};

export const sectionsFor = (session) => SECTIONS.filter((section) => sees(session, section.needs));

export function pageOf(route, session) {
  const [first, subject] = route.parts;
  const sections = sectionsFor(session);
  const detail = subject !== undefined && Object.hasOwn(DETAILS, first) ? DETAILS[first] : null;
  if (detail && sees(session, detail.needs)) {
    return { ...detail, key: `${first}/${subject}`, props: { [detail.prop]: subject } };
  }
  const section = first === undefined ? sections[0] : sections.find((each) => each.name === first);
  if (!section || subject !== undefined) return { title: "Not found", component: NotFound, key: "nothing", props: {} };
  return { ...section, section: section.name, key: section.name, props: {} };
}
