// What this browser keeps for the reader: the colours, and whether keys are on. A browser may refuse to keep anything.

import { createStore } from "./store.js";

export const scheme = createStore(kept("scheme", ["auto", "light", "dark"]));
export const keysAre = createStore(kept("keys", ["on", "off"]));

export function setScheme(value) {
  keep("scheme", value);
  scheme.set(value);
  showScheme();
}

export function setKeys(value) {
  keep("keys", value);
  keysAre.set(value);
}

export function showScheme() {
  document.documentElement.dataset.scheme = scheme.get();
}

function kept(name, allowed) {
  try {
    const value = localStorage.getItem(`headwater-${name}`);
    return allowed.includes(value) ? value : allowed[0];
  } catch {
    return allowed[0];
  }
}

function keep(name, value) {
  try {
    localStorage.setItem(`headwater-${name}`, value);
  } catch {
    // The choice then lasts until the page is closed.
  }
}
