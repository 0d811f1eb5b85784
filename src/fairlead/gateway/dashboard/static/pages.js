// Which page an address shows, and who may see it. A page's module is fetched when it is first shown.
import { sees } from "./context.js";

// In the order of the navigation. `shortcut` is the letter after g that goes there.
const SECTIONS = [
  { name: "overview", needs: "line", title: "Overview", shortcut: "o" },
  { name: "jobs", needs: "own", title: "Jobs", shortcut: "j" },
  { name: "users", needs: "line", title: "Users", shortcut: "u" },
  { name: "batches", needs: "own", title: "Batches", shortcut: "b" },
  { name: "dead", needs: "all", title: "Dead letters", shortcut: "d" },
  { name: "workers", needs: "all", title: "Workers", shortcut: "w" },
  { name: "audit", needs: "all", title: "Audit", shortcut: "a" },
];

// Pages about one thing, which is named by the rest of the address.
const DETAILS = {
  services: { name: "service", section: "overview", needs: "line", title: "Service" },
  jobs: { name: "job", section: "jobs", needs: "own", title: "Job" },
  batches: { name: "batch", section: "batches", needs: "own", title: "Batch" },
};

const NOWHERE = { name: "notfound", section: null, title: "Not found", key: "notfound" };

export const sectionsFor = (session) => SECTIONS.filter((section) => sees(session, section.needs));

/** {name, section, title, key, subject}: `name` is that of its module, `key` tells one page from another. */
export function pageOf(route, session) {
  const [first, subject] = route.parts;
  if (subject !== undefined) {
    const detail = Object.hasOwn(DETAILS, first) ? DETAILS[first] : null;
    return detail && sees(session, detail.needs) ? { ...detail, key: `${first}/${subject}`, subject } : NOWHERE;
  }
  const sections = sectionsFor(session);
  const section = first === undefined ? sections[0] : sections.find((each) => each.name === first);
  return section ? { ...section, section: section.name, key: section.name } : NOWHERE;
}

/** The component of a page. */
export const load = async (name) => (await import(`./pages/${name}.js`)).Page;
