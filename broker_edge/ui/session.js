// Who looks, what they may do, and which pages this server has.

import { ask, isSignedOut, serverName, signOut } from "./api.js";
import { streamsBegun } from "./live.js";
import { pagesOf } from "./pages.js";
import { firstPage } from "./router.js";
import { createStore } from "./store.js";

const RETRY_MS = 2_000;

/** The answer of /api/v1/console, null until it is there. */
export const consoleInfo = createStore(null);

/** Why there is no answer yet. */
export const consoleTrouble = createStore(null);

/** True once the server is another version than the one that these files came from. */
export const isOutdated = createStore(false);

export async function loadConsole() {
  try {
    const info = await ask("api/v1/console");
    const before = consoleInfo.get();
    if (before && before.version !== info.version) isOutdated.set(true);
    serverName.set(info.scope === "fleet" ? "console" : "broker");
    firstPage.set(pagesOf(info)[0]?.name ?? "");
    consoleInfo.set(info);
    consoleTrouble.set(null);
  } catch (error) {
    if (error.status === 401) return;
    consoleTrouble.set(error.message);
    setTimeout(loadConsole, RETRY_MS);
  }
}

export async function leave() {
  // At once, so that no page asks meanwhile and learns that its session has ended.
  consoleInfo.set(null);
  try {
    await signOut();
  } catch {
    // The session may have ended already; the next request shows whether it has.
  }
  loadConsole();
}

/** Whether this server has a page: only then may others link to it. */
export function hasPage(name) {
  return consoleInfo.get()?.pages.includes(name) ?? false;
}

/** The name of a partition by its number. */
export function partitionName(number) {
  const found = consoleInfo.get()?.partitions?.find(({ partition }) => partition === number);
  return found?.name ?? `partition ${number}`;
}

isSignedOut.watch((signedOut) => !signedOut && loadConsole());

// Behind a further stream may be another version, another user, other partitions and other rights.
streamsBegun.watch((number) => number > 1 && loadConsole());
