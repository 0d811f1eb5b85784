// Which page an address shows, and who may see it.
import { seesAll } from "./context.js";
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
  { name: "overview", title: "Overview", key: "o", component: Overview, all: true },
  { name: "jobs", title: "Jobs", key: "j", component: Jobs },
  { name: "users", title: "Users", key: "u", component: Users, all: true },
  { name: "batches", title: "Batches", key: "b", component: Batches },
  { name: "dead", title: "Dead letters", key: "d", component: Dead, all: true },
  { name: "workers", title: "Workers", key: "w", component: Workers, all: true },
  { name: "audit", title: "Audit", key: "a", component: Audit, all: true },
];

// Pages about one thing, which is named by the rest of the address.
const DETAILS = {
  services: { section: "overview", title: "Service", component: Service, prop: "service", all: true },
  jobs: { section: "jobs", title: "Job", component: Job, prop: "jobId" },
  batches: { section: "batches", title: "Batch", component: Batch, prop: "batchId" },
};

export const sectionsFor = (session) => SECTIONS.filter((section) => !section.all || seesAll(session));

export function pageOf(route, session) {
  const [first, subject] = route.parts;
  const sections = sectionsFor(session);
  const detail = subject !== undefined && Object.hasOwn(DETAILS, first) ? DETAILS[first] : null;
  if (detail && (!detail.all || seesAll(session))) {
    return { ...detail, key: `${first}/${subject}`, props: { [detail.prop]: subject } };
  }
  const section = first === undefined ? sections[0] : sections.find((each) => each.name === first);
  if (!section || subject !== undefined) return { title: "Not found", component: NotFound, key: "nothing", props: {} };
  return { ...section, section: section.name, key: section.name, props: {} };
}
