// Requests to the same routes that curl uses, with the session's cookie.

/** What the server refused, in its own words. */
export class Problem extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the server answered ${status}`);
    this.status = status;
    this.code = problem.code || null;
  }
}

export async function call(method, path, body) {
  const answer = await fetch(path, {
    method,
    credentials: "same-origin",
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  }).catch(() => {
    throw new Problem(0, { detail: "The gateway does not answer. Nothing is known of what it did." });
  });
  const isJson = (answer.headers.get("Content-Type") || "").includes("json");
  const content = isJson ? await answer.json() : null;
  if (!answer.ok) throw new Problem(answer.status, content || {});
  return content;
}

export const get = (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return call("GET", given.length ? `${path}?${new URLSearchParams(given)}` : path);
};

/** A path with its parts escaped: path`/api/v1/jobs/${id}/cancel`. */
export const path = (texts, ...values) =>
  texts.reduce((whole, part, index) => whole + encodeURIComponent(values[index - 1]) + part);
