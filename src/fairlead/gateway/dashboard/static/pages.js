// The pages, their addresses, and who may see them. The module of a page is fetched when it is first shown.
import { sees } from "./context.js";

// In the order of the navigation. `shortcut` is the letter to press after g.
const SECTIONS = [
  { name: "overview", needs: "queue", title: "Overview", shortcut: "o" },
  { name: "jobs", needs: "own", title: "Jobs", shortcut: "j" },
  { name: "users", needs: "queue", title: "Users", shortcut: "u" },
  { name: "batches", needs: "own", title: "Batches", shortcut: "b" },
  { name: "usage", needs: "own", title: "Usage", shortcut: "s" },
  { name: "dead", needs: "all", title: "Dead letters", shortcut: "d" },
  { name: "workers", needs: "all", title: "Workers", shortcut: "w" },
  { name: "schedules", needs: "own", title: "Schedules", shortcut: "c" },
  { name: "webhooks", needs: "own", title: "Webhooks", shortcut: "h" },
  { name: "audit", needs: "all", title: "Audit", shortcut: "a" },
];

// Detail pages; the rest of the address is the id.
const DETAILS = {
  services: { name: "service", section: "overview", needs: "queue", title: "Service" },
  jobs: { name: "job", section: "jobs", needs: "own", title: "Job" },
  schedules: { name: "schedule", section: "schedules", needs: "own", title: "Schedule" },
  batches: { name: "batch", section: "batches", needs: "own", title: "Batch" },
};

const NOT_FOUND = { name: "notfound", section: null, title: "Not found", key: "notfound" };

export const sectionsFor = (session) => SECTIONS.filter((section) => sees(session, section.needs));

/** {name, section, title, key, subject}: `name` is the name of the page's module, `key` identifies the page. */
export function pageOf(route, session) {
  const [first, subject] = route.parts;
  if (subject !== undefined) {
    const detail = Object.hasOwn(DETAILS, first) ? DETAILS[first] : null;
    return detail && sees(session, detail.needs) ? { ...detail, key: `${first}/${subject}`, subject } : NOT_FOUND;
  }
  const sections = sectionsFor(session);
  const section = first === undefined ? sections[0] : sections.find((each) => each.name === first);
  return section ? { ...section, section: section.name, key: section.name } : NOT_FOUND;
}

/** Load the component of a page. */
export const load = async (name) => (await import(`./pages/${name}.js`)).Page;
