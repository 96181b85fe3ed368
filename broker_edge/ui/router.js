// The view is the part of the address behind "#": the page, its search, filter and selected row. It can be sent to somebody
// and survives a reload and signing in.

import { createStore } from "./store.js";

/** The page of an address that names none: the first that the server has, or "" until that is known. */
export const firstPage = createStore("");

export const view = createStore(read(location.hash));

/** The address of a page, for links. Empty values are left out. */
export function link(page, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `#${page}?${new URLSearchParams(given)}` : `#${page}`;
}

export function go(page, query) {
  location.hash = link(page, query);
}

/** Changes a part of the view of this page. The back button leads to the view before only where `isStep` is true. */
export function change(changes, { isStep = false } = {}) {
  const { page, query } = view.get();
  const address = link(page, { ...query, ...changes });
  if (address === location.hash) return;
  try {
    history[isStep ? "pushState" : "replaceState"](null, "", address);
  } catch {
    // Browsers refuse too many changes in a short time, as with a key held down. The view changes all the same.
  }
  view.set(read(address));
}

function read(address) {
  const [page, query = ""] = address.slice(1).split(/\?(.*)/s);
  return { page: page || firstPage.get(), query: Object.fromEntries(new URLSearchParams(query)) };
}

firstPage.watch(() => view.set(read(location.hash)));
addEventListener("hashchange", () => view.set(read(location.hash)));
addEventListener("popstate", () => view.set(read(location.hash)));
