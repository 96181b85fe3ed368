// The live numbers of the server: one stream for a tab, and the last 15 minutes. It connects again by itself, and says when
// the numbers are old. Without a free stream it asks for the history instead.

import { AskError, ask, isSignedOut, openStream } from "./api.js";
import { createStore } from "./store.js";

export const SAMPLES_MAX = 900;
const STALE_AFTER_MS = 3_000;
const POLL_EVERY_MS = 5_000;
const POLLS_BEFORE_STREAM = 6;
const HUNG_AFTER_MS = 10_000;
const CLOSE_HIDDEN_AFTER_MS = 60_000;
const PAUSES_MS = [1_000, 2_000, 3_000];
const REFUSED_PAUSE_MS = 30_000;
const OFFSETS_KEPT = 6;
// The history may have the sample of an event already.
const SAME_SAMPLE_MS = 500;

/** `phase`: opening, live, quiet (no answer since `sinceMs`), polling or refused (both with the server's `message`). */
export const liveState = createStore({ phase: "opening" });

/** `times` in ms and `series` by name have the same length. `alerts` is null while it is not known. */
export const samples = createStore({ times: [], series: {}, offsets: [], rates: [], alerts: null });

/** The version of each table by its name, null for one that does not exist. Null at a broker, which has no tables. */
export const tableVersions = createStore(null);

/** How many streams have begun. */
export const streamsBegun = createStore(0);

let ends = null;
let lastEventMs = 0;
let expectedSinceMs = Date.now();
let recentOffsets = [];
let isPolling = false;

export function startLive() {
  if (ends) return;
  ends = new AbortController();
  expectedSinceMs = Date.now();
  run(ends.signal);
}

export function stopLive() {
  ends?.abort();
  ends = null;
}

async function run(signal) {
  let failures = 0;
  while (!signal.aborted) {
    const openedMs = Date.now();
    let pauseMs = null;
    try {
      await follow(signal);
    } catch (error) {
      if (signal.aborted) return;
      pauseMs = await afterFailure(error, signal);
    }
    failures = lastEventMs >= openedMs ? 0 : failures + 1;
    await pause(pauseMs ?? PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)], signal);
  }
}

/** Does what can be done without the stream, and returns the pause before the next attempt if it is not the usual one. */
async function afterFailure(error, signal) {
  if (!(error instanceof AskError)) return null;
  if (error.status === 403) {
    liveState.set({ phase: "refused", message: error.message });
    return REFUSED_PAUSE_MS;
  }
  if (error.status === 503) {
    await poll(error.message, signal);
    return 0;
  }
  if (error.status !== 401) becomeQuiet();
  return null;
}

async function follow(signal) {
  const own = new AbortController();
  const either = AbortSignal.any([signal, own.signal]);
  const early = [];
  let heardMs = Date.now();
  let isEarly = true;
  let hasBegun = false;
  const history = ask("api/v1/live/history", { signal: either }).then((answer) => {
    isEarly = false;
    loadHistory(answer);
    early.splice(0).forEach(append);
  });
  const hung = setInterval(() => Date.now() - heardMs > HUNG_AFTER_MS && own.abort(), 1_000);
  const onEvent = (name, stats) => {
    if (name === "tables") tableVersions.set(stats.tables);
    if (name !== "stats") return;
    if (!hasBegun) streamsBegun.set(streamsBegun.get() + 1);
    hasBegun = true;
    heardMs = heard();
    if (isEarly) early.push(stats);
    append(stats);
  };
  try {
    await Promise.all([history, openStream("api/v1/live", { signal: either, onEvent })]);
  } catch (error) {
    if (signal.aborted || !own.signal.aborted) throw error;
    throw new AskError(0, "unreachable", "The stream has stopped.");
  } finally {
    clearInterval(hung);
    own.abort();
  }
}

async function poll(message, signal) {
  isPolling = true;
  try {
    for (let turn = 0; turn < POLLS_BEFORE_STREAM; turn += 1) {
      loadHistory(await ask("api/v1/live/history", { signal }));
      samples.set({ ...samples.get(), offsets: [], rates: [], alerts: null });
      lastEventMs = Date.now();
      liveState.set({ phase: "polling", message });
      await pause(POLL_EVERY_MS, signal);
    }
  } catch (error) {
    if (!signal.aborted && error.status !== 401) becomeQuiet();
  } finally {
    isPolling = false;
  }
}

function loadHistory({ every_s: everyS, end_ms: endMs, series }) {
  const length = Math.max(0, ...Object.values(series).map((values) => values.length));
  const times = Array.from({ length }, (_, index) => endMs - (length - 1 - index) * everyS * 1_000);
  samples.set({ ...samples.get(), times, series });
}

function append({ at_ms: atMs, sample, offsets, alerts }) {
  const { times, series } = samples.get();
  const isNew = times.length === 0 || atMs > times.at(-1) + SAME_SAMPLE_MS;
  if (isNew && Object.keys(sample).length > 0) {
    for (const name of Object.keys(sample)) series[name] ??= times.map(() => null);
    for (const [name, values] of Object.entries(series)) values.push(sample[name] ?? null);
    times.push(atMs);
    if (times.length > SAMPLES_MAX) [times, ...Object.values(series)].forEach((values) => values.shift());
  }
  recentOffsets = [...recentOffsets, { atMs, offsets }].slice(-OFFSETS_KEPT);
  samples.set({ times, series, offsets, rates: recordRates(), alerts });
}

/** Records a second of each partition, over the last seconds. */
function recordRates() {
  const first = recentOffsets[0];
  const last = recentOffsets.at(-1);
  const seconds = (last.atMs - first.atMs) / 1_000;
  if (seconds <= 0 || seconds > 2 * OFFSETS_KEPT) return [];
  return last.offsets.map(([, end], partition) => Math.max(0, end - (first.offsets[partition]?.[1] ?? end)) / seconds);
}

function heard() {
  lastEventMs = Date.now();
  if (liveState.get().phase !== "live") liveState.set({ phase: "live" });
  return lastEventMs;
}

function becomeQuiet() {
  if (liveState.get().phase === "quiet") return;
  liveState.set({ phase: "quiet", sinceMs: lastEventMs || expectedSinceMs });
}

function watchAge() {
  const { phase } = liveState.get();
  if (!ends || document.hidden || phase === "quiet" || phase === "refused") return;
  const allowedMs = isPolling ? POLL_EVERY_MS + STALE_AFTER_MS : STALE_AFTER_MS;
  if (Date.now() - Math.max(lastEventMs, expectedSinceMs) > allowedMs) becomeQuiet();
}

let hiddenTimer = null;

/** A tab in the background leaves its stream to others. */
function onVisibility() {
  clearTimeout(hiddenTimer);
  if (document.hidden) {
    hiddenTimer = setTimeout(stopLive, CLOSE_HIDDEN_AFTER_MS);
    return;
  }
  expectedSinceMs = Date.now();
  if (!isSignedOut.get()) startLive();
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    signal.addEventListener("abort", end);
  });
}

setInterval(watchAge, 250);
document.addEventListener("visibilitychange", onVisibility);
isSignedOut.watch((signedOut) => {
  if (!signedOut) return startLive();
  stopLive();
  // Who signs in again is told of an outage only if there is one.
  liveState.set({ phase: "opening" });
});
