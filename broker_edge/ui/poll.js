// Answers that are asked for again and again while a page is shown, and lists that come in pages.

import { useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";
import { tableVersions } from "./live.js";

const PAGE_ROWS = 100;
/** The most rows in one answer. */
export const ANSWER_ROWS_MAX = 1_000;
// A page of a list may be empty although more follow.
const ROUNDS_A_PAGE = 20;
const LAST_CHARACTER = "\u{10ffff}";
const RETRY_MS = 3_000;
const STALE_AFTER_MS = 3_000;
// Tables may change all the time. This is the pause between two questions then.
const AT_ONCE_MS = 500;

/**
 * The latest answer to `read(signal)`, its time, and why the last attempt failed. `key` names the question, which is also
 * asked at once after `again()`, and when one of the named tables has changed.
 */
export function usePoll(key, everyMs, read, tables = []) {
  const [state, setState] = useState({});
  const now = useRef(() => undefined);
  useEffect(() => {
    if (key === null) return undefined;
    const ends = new AbortController();
    let timer = null;
    let isAsking = false;
    let isOutdated = false;
    const wait = (milliseconds) => {
      clearTimeout(timer);
      timer = setTimeout(turn, milliseconds);
    };
    const turn = async () => {
      if (document.hidden) {
        wait(everyMs);
        return;
      }
      let nextMs = everyMs;
      isAsking = true;
      isOutdated = false;
      try {
        const value = await read(ends.signal);
        if (ends.signal.aborted) return;
        setState({ key, value, atMs: Date.now() });
      } catch (error) {
        if (ends.signal.aborted) return;
        setState((before) => ({ ...(before.key === key && before), key, error }));
        nextMs = Math.max(RETRY_MS, everyMs);
        // The same question would be refused again, until a table has changed.
        if (error.status === 404 || error.status === 400) nextMs = null;
      } finally {
        isAsking = false;
      }
      if (isOutdated) wait(AT_ONCE_MS);
      else if (nextMs !== null) wait(nextMs);
    };
    now.current = () => {
      isOutdated = true;
      if (!isAsking) wait(0);
    };
    const unwatch = watchTables(tables, () => now.current());
    turn();
    return () => {
      ends.abort();
      clearTimeout(timer);
      unwatch();
    };
  }, [key]);
  const again = () => now.current();
  if (state.key !== key) return { again };
  return { ...state, again, isStale: Boolean(state.error) && Date.now() - (state.atMs ?? 0) > STALE_AFTER_MS };
}

/** Calls `onChange` when another version of one of the tables is there. The first versions that are heard of are no change. */
function watchTables(tables, onChange) {
  const versions = (all) => (all ? JSON.stringify(tables.map((name) => all[name] ?? null)) : null);
  let known = versions(tableVersions.get());
  return tableVersions.watch((all) => {
    const before = known;
    known = versions(all);
    if (before !== null && known !== before) onChange();
  });
}

/**
 * The rows of a list as far as the reader wants them. They are read again all the time, because they change. `first` is the
 * whole first answer. `without`: {name, prefix} of rows to pass over, in a list in the order of this name.
 */
export function usePages(path, query, field, everyMs, tables, without = null) {
  const question = JSON.stringify([path, query, without]);
  const [wanted, setWanted] = useState({ question, pages: 1 });
  const pages = wanted.question === question ? wanted.pages : 1;
  const { value, ...rest } = usePoll(`${question} ${pages}`, everyMs, (signal) => gather(path, query, field, pages, without, signal), tables);
  // While a further page is on its way, the rows before stay.
  const [shown, setShown] = useState({});
  useEffect(() => value && setShown({ question, value }), [value]);
  const known = value ?? (shown.question === question ? shown.value : undefined);
  return {
    ...rest,
    rows: known?.rows,
    first: known?.first,
    isComplete: known?.isComplete ?? false,
    more: () => setWanted({ question, pages: pages + 1 }),
  };
}

async function gather(path, query, field, pages, without, signal) {
  const isLeftOut = (text) => without !== null && text.startsWith(without.prefix);
  const rows = [];
  let after = null;
  let first = null;
  for (let round = 0; round < pages * ROUNDS_A_PAGE; round += 1) {
    const limit = Math.min(ANSWER_ROWS_MAX, pages * PAGE_ROWS - rows.length);
    const answer = await ask(path, { query: { ...query, after, limit }, signal });
    first ??= answer;
    rows.push(...answer[field].filter((row) => !isLeftOut(row[without?.name])));
    after = answer.next;
    // There may be thousands of them: on behind the last one.
    if (after !== null && isLeftOut(after)) after = without.prefix + LAST_CHARACTER;
    if (after === null || rows.length >= pages * PAGE_ROWS) break;
  }
  return { rows, first, isComplete: after === null };
}
