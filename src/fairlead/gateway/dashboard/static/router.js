// The address of a page: `#/jobs/ID?status=FAILED`. A hash needs no route on the server.
import { useLayoutEffect, useState } from "./html.js";

export function here() {
  const [path, query = ""] = window.location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a lone %
  }
}

/** The address of a page with escaped parts and filters. */
export function to(parts, query = {}) {
  const params = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = new URLSearchParams(params).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

export function go(address, { replace = false } = {}) {
  if (!replace) {
    window.location.hash = address;
    return;
  }
  history.replaceState(null, "", address);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [route, setRoute] = useState(here);
  // A layout effect runs before the browser handles another event: no change of the address is missed.
  useLayoutEffect(() => {
    const moved = () => setRoute(here());
    window.addEventListener("hashchange", moved);
    return () => window.removeEventListener("hashchange", moved);
  }, []);
  return route;
}
