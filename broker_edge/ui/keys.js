// Keys. A page says what a key does while it is shown. Keys are off while somebody types, in a dialog, and for those who have
// switched them off.

import { useLayoutEffect } from "./vendor/htm-preact.js";
import { keysAre } from "./preferences.js";

const SECOND_KEY_WITHIN_MS = 1_500;

/** Those of every page. */
export const KEYS = [
  ["/", "Search field"],
  ["j, k", "Next row, row before"],
  ["Enter", "Open the row"],
  ["y", "Copy the command"],
  ["Esc", "Leave a field, a detail or a dialog"],
  ["?", "This help"],
];

const actions = new Map();
let before = { key: null, atMs: 0 };

/** Runs `action` when the key, or two keys as in "g t", are pressed while the component is shown. */
export function useKey(keys, action) {
  // At once with what is shown: a reader may press the key as soon as they see it.
  useLayoutEffect(() => {
    actions.set(keys, action);
    return () => actions.get(keys) === action && actions.delete(keys);
  }, [keys, action]);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    leave();
    return;
  }
  if (keysAre.get() === "off" || isTyping(event.target)) return;
  if (event.key === "Enter") {
    openRow(event);
    return;
  }
  const isSecond = before.key === "g" && Date.now() - before.atMs < SECOND_KEY_WITHIN_MS;
  const keys = isSecond ? `g ${event.key}` : event.key;
  before = { key: isSecond ? null : event.key, atMs: Date.now() };
  const action = actions.get(keys) ?? rowKeys[keys];
  if (!action) return;
  event.preventDefault();
  action();
}

function isTyping(target) {
  if (target.matches?.("textarea, select, [contenteditable]")) return true;
  return target.matches?.("input:not([type=checkbox]):not([type=radio]):not([type=button])") ?? false;
}

/** Esc leaves the field first, and only then what the page has opened. */
function leave() {
  if (isTyping(document.activeElement)) {
    document.activeElement.blur();
    return;
  }
  actions.get("Escape")?.();
}

const rowKeys = {
  j: () => moveRow(1),
  k: () => moveRow(-1),
  "/": () => document.querySelector("[data-search]")?.focus(),
};

function moveRow(step) {
  const rows = [...document.querySelectorAll("main tr[data-row]")];
  if (rows.length === 0) return;
  const focused = rows.findIndex((row) => row.contains(document.activeElement));
  const marked = focused >= 0 ? focused : rows.findIndex((row) => row.getAttribute("aria-current") === "true");
  const next = focused < 0 && marked >= 0 ? marked : marked + step;
  const row = rows[Math.min(Math.max(next, 0), rows.length - 1)];
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}

function openRow(event) {
  if (!event.target.matches?.("tr[data-row]")) return;
  const opener = event.target.querySelector("[data-open]");
  if (!opener) return;
  event.preventDefault();
  opener.click();
}

document.addEventListener("keydown", onKey);
