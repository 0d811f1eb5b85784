// JSON merge patch (RFC 7386): null removes, objects merge, all else replaces.
// Parts that the patch does not touch stay the same objects, so that what shows them need not be drawn again.

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

export function merge(target, patch) {
  if (!isObject(patch)) return patch;
  // A copy without a prototype's names: a user may be called "constructor" or "__proto__".
  const merged = Object.assign(Object.create(null), isObject(target) ? target : {});
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete merged[key];
    else merged[key] = merge(merged[key], value);
  }
  return merged;
}
