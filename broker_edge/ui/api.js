// Requests to the server, a broker or the console of a fleet. It answers in JSON, or with a stream of events. Paths are relative, so that the page works behind
// the path prefix of a proxy.

import { createStore } from "./store.js";

const ANSWER_WITHIN_MS = 10_000;
// One event is at most 50 records of 64 KiB in base64; more than this is no stream of ours.
const EVENT_CHARACTERS_MAX = 16 * 1024 * 1024;

/** What a sentence calls the server: "server" until it has said whether it is a broker or a console. */
export const serverName = createStore("server");

/** True from a 401 on until somebody has signed in. */
export const isSignedOut = createStore(false);

// How often somebody has. The answer to an older request says nothing about this session.
let signIns = 0;

/** Why a request failed. `status` is 0 when there was no answer. */
export class AskError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Asks for JSON. `query` may have null values, which are left out. */
export async function ask(path, { method = "GET", query, body, signal } = {}) {
  const late = AbortSignal.timeout(ANSWER_WITHIN_MS);
  const ends = signal ? AbortSignal.any([signal, late]) : late;
  const response = await send(path, { method, query, body, signal: ends });
  try {
    return await response.json();
  } catch {
    signal?.throwIfAborted();
    throw new AskError(0, "unreachable", `The answer of the ${serverName.get()} ended early.`);
  }
}

/**
 * Reads a stream of events until it ends, and waits for `onEvent` before the next one. EventSource would not tell the status
 * and the message of a refusal.
 */
export async function openStream(path, { query, signal, onEvent }) {
  const response = await send(path, { query, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value.replaceAll("\r", "");
    const blocks = text.split("\n\n");
    text = blocks.pop();
    if (text.length > EVENT_CHARACTERS_MAX) throw new AskError(0, "too_large", "An event of the stream is too large.");
    for (const block of blocks) await readEvent(block, onEvent);
  }
}

export async function signIn(proof) {
  await ask("api/v1/session", { method: "POST", body: proof });
  signIns += 1;
}

export function signOut() {
  return ask("api/v1/session", { method: "DELETE" });
}

async function readEvent(block, onEvent) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    if (line.startsWith("data:")) data.push(line.slice(5));
  }
  if (data.length) await onEvent(name, JSON.parse(data.join("\n")));
}

async function send(path, { method = "GET", query = {}, body, signal }) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const address = given.length ? `${path}?${new URLSearchParams(given)}` : path;
  const signInsBefore = signIns;
  const headers = { "X-Headwater": "1", ...(body && { "Content-Type": "application/json" }) };
  let response;
  try {
    response = await fetch(address, { method, headers, signal, body: body && JSON.stringify(body), cache: "no-store" });
  } catch (error) {
    if (signal?.aborted && signal.reason?.name !== "TimeoutError") throw error;
    throw new AskError(0, "unreachable", `The ${serverName.get()} does not answer.`);
  }
  if (response.ok) return response;
  if (response.status === 401 && method !== "POST" && signIns === signInsBefore) isSignedOut.set(true);
  throw await refusal(response);
}

async function refusal(response) {
  const said = await response.json().catch(() => ({}));
  const message = said.message ?? `The ${serverName.get()} answers with status ${response.status}.`;
  return new AskError(response.status, said.error ?? "unknown", message);
}
