// JSON merge patch (RFC 7386): null deletes, objects merge, other values replace.
// Objects that the patch does not touch keep their identity, so that their components need not render again.

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

export function merge(target, patch) {
  if (!isObject(patch)) return patch;
  // No prototype: a user may be called "constructor" or "__proto__".
  const merged = Object.assign(Object.create(null), isObject(target) ? target : {});
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete merged[key];
    else merged[key] = merge(merged[key], value);
  }
  return merged;
}
