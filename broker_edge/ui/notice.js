// The live region of every page. It says what a reader must know now: that the server does not answer, else the last thing
// that was done ("Copied").

import { html } from "./vendor/htm-preact.js";
import { serverName } from "./api.js";
import { liveState, samples } from "./live.js";
import { cut, time } from "./format.js";
import { firstPage, view } from "./router.js";
import { createStore, useStore } from "./store.js";

const SAID_FOR_MS = 4_000;
const ALERTS_EVERY_MS = 10_000;
const ALERT_MAX = 300;
// A word of its own, and the unit after it.
const NUMBER = /(?<=^|[\s(])\d[\d.,:]*(?=$|[\s),;:])( (minutes?|hours?|days?)\b)?/g;
const said = createStore(null);
let timer = null;

/** `look`: "hidden" is for those alone who hear the page. */
export function say(text, look = "passing") {
  said.set({ text, look });
  clearTimeout(timer);
  timer = setTimeout(() => said.set(null), SAID_FOR_MS);
}

export function Notice() {
  const state = useStore(liveState);
  const server = useStore(serverName);
  const trouble = troubleOf(state, server);
  const last = useStore(said);
  return html`
    <div role="status" class="notice">
      ${trouble && html`<p class=${`lasting ${state.phase}`}><span aria-hidden="true">⚠\u00a0</span>${trouble}</p>`}
      ${last && html`<p class=${last.look}><bdi>${last.text}</bdi></p>`}
    </div>
  `;
}

/** Each alert once, when it comes; not faster than somebody can listen. */
let announced = null;
let announcedMs = 0;
samples.watch(({ alerts }) => {
  if (!alerts || Date.now() - announcedMs < ALERTS_EVERY_MS) return;
  const fresh = alerts.filter((alert) => !announced?.has(keyOf(alert)));
  // No news for those who see them: the first page lists them, and the navigation has had their number from the start.
  const isSeen = announced === null || view.get().page === firstPage.get();
  announced = new Set(alerts.map(keyOf));
  if (fresh.length === 0) return;
  announcedMs = Date.now();
  say(`Alert: ${cut(fresh.map(({ broker, summary }) => (broker ? `${broker}: ${summary}` : summary)).join("; "), ALERT_MAX)}`, isSeen ? "hidden" : "passing alert");
});

/** What an alert is about: the same while only numbers in it change. A digit within a name is no number. */
export function keyOf({ broker = "", name, summary }) {
  return JSON.stringify([broker, name, summary.replace(NUMBER, "")]);
}

function troubleOf({ phase, sinceMs, message }, server) {
  if (phase === "quiet") return `The ${server} has not answered since ${time(sinceMs)}; trying again.`;
  if (phase === "polling") return `${message} Numbers come every 5 s until a stream is free.`;
  if (phase === "refused") return message;
  return null;
}
