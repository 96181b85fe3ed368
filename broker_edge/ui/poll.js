// Answers that are asked for again and again while a page is shown, and lists that come in pages.

import { useEffect, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";

const PAGE_ROWS = 100;
const ANSWER_ROWS_MAX = 1_000;
// A page of the broker may be empty although more follow.
const ROUNDS_A_PAGE = 20;
const RETRY_MS = 3_000;
const STALE_AFTER_MS = 3_000;

/** The latest answer to `read(signal)`, its time, and why the last attempt failed. `key` names the question. */
export function usePoll(key, everyMs, read) {
  const [state, setState] = useState({});
  useEffect(() => {
    if (key === null) return undefined;
    const ends = new AbortController();
    let timer = null;
    const turn = async () => {
      if (document.hidden) {
        timer = setTimeout(turn, everyMs);
        return;
      }
      let nextMs = everyMs;
      try {
        const value = await read(ends.signal);
        if (ends.signal.aborted) return;
        setState({ key, value, atMs: Date.now() });
      } catch (error) {
        if (ends.signal.aborted) return;
        setState((before) => ({ ...(before.key === key && before), key, error }));
        nextMs = Math.max(RETRY_MS, everyMs);
        // The same question would be refused again.
        if (error.status === 404 || error.status === 400) return;
      }
      timer = setTimeout(turn, nextMs);
    };
    turn();
    return () => {
      ends.abort();
      clearTimeout(timer);
    };
  }, [key]);
  if (state.key !== key) return {};
  return { ...state, isStale: Boolean(state.error) && Date.now() - (state.atMs ?? 0) > STALE_AFTER_MS };
}

/** The rows of a list as far as the reader wants them. They are read again all the time, because they change. */
export function usePages(path, query, field, everyMs) {
  const question = JSON.stringify([path, query]);
  const [wanted, setWanted] = useState({ question, pages: 1 });
  const pages = wanted.question === question ? wanted.pages : 1;
  const { value, ...rest } = usePoll(`${question} ${pages}`, everyMs, (signal) => gather(path, query, field, pages, signal));
  // While a further page is on its way, the rows before stay.
  const [shown, setShown] = useState({});
  useEffect(() => value && setShown({ question, value }), [value]);
  const known = value ?? (shown.question === question ? shown.value : undefined);
  return {
    ...rest,
    rows: known?.rows,
    isComplete: known?.isComplete ?? false,
    more: () => setWanted({ question, pages: pages + 1 }),
  };
}

async function gather(path, query, field, pages, signal) {
  const rows = [];
  let after = null;
  for (let round = 0; round < pages * ROUNDS_A_PAGE; round += 1) {
    const limit = Math.min(ANSWER_ROWS_MAX, pages * PAGE_ROWS - rows.length);
    const answer = await ask(path, { query: { ...query, after, limit }, signal });
    rows.push(...answer[field]);
    after = answer.next;
    if (after === null || rows.length >= pages * PAGE_ROWS) break;
  }
  return { rows, isComplete: after === null };
}
