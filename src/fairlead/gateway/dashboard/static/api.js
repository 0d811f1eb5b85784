// Requests to the API, with the session's cookie.

/** An error response, with the message of the server. */
export class Problem extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the server responded with ${status}`);
    this.status = status;
    this.code = problem.code || null;
  }
}

export async function call(method, path, body) {
  const response = await fetch(path, {
    method,
    credentials: "same-origin",
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  }).catch(() => {
    throw new Problem(0, { detail: "The gateway does not respond. It may or may not have completed the action." });
  });
  const isJson = (response.headers.get("Content-Type") || "").includes("json");
  const content = isJson ? await response.json() : null;
  if (!response.ok) throw new Problem(response.status, content || {});
  return content;
}

export const get = (path, query = {}) => {
  const params = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return call("GET", params.length ? `${path}?${new URLSearchParams(params)}` : path);
};

/** A path with escaped values: path`/api/v1/jobs/${id}/cancel`. */
export const path = (texts, ...values) =>
  texts.reduce((whole, part, index) => whole + encodeURIComponent(values[index - 1]) + part);
