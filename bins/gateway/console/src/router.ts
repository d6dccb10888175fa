// Where the console is: the part of the address after `#`, such as `#/agents/018f?tab=threads`.
import { useEffect, useState } from "preact/hooks";

interface Route {
  path: string[];
  query: URLSearchParams;
}

/// A part of the address as it was meant; one that is written wrongly as it is.
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function route(): Route {
  const [path = "", query] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

export const href = (...path: string[]): string => "#/" + path.map(encodeURIComponent).join("/");

export const go = (address: string): void => void (location.hash = address);

export function useRoute(): Route {
  const [at, setAt] = useState(route);
  useEffect(() => {
    const moved = () => setAt(route());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return at;
}

/// A part of the address's query, kept there so that a view can be linked to.
export function useQuery(name: string): [string, (value: string) => void] {
  const at = useRoute();
  const set = (value: string) => {
    const now = route();
    value ? now.query.set(name, value) : now.query.delete(name);
    const query = now.query.toString();
    history.replaceState(null, "", href(...now.path) + (query && "?" + query));
    dispatchEvent(new HashChangeEvent("hashchange"));
  };
  return [at.query.get(name) ?? "", set];
}
