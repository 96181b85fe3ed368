// The records of a filter: as they come, or of one partition from an offset or time on.

import { html, useCallback, useEffect, useState } from "../vendor/htm-preact.js";
import { ask, openStream } from "../api.js";
import { Command, serverOption } from "../command.js";
import { count, counted } from "../format.js";
import { useKey } from "../keys.js";
import { COLUMNS, received, RecordRow } from "../record.js";
import { change, link } from "../router.js";
import { consoleInfo, hasPage } from "../session.js";
import { Trouble, Waiting } from "../state.js";
import { useStore, useTyped } from "../store.js";
import { Scroll } from "../table.js";

const ROWS_MAX = 500;
const READ_ROWS = 100;
const RETRY_MS = 3_000;
// With a filter that few records match, the broker may answer with none and go on from `next`.
const EMPTY_READS_MAX = 20;
const SECONDS = { s: 1, m: 60, h: 3_600, d: 86_400 };
const PLACES = {
  offset: "Say which offset to read from: a number.",
  time: "Say which time to read from: -1h, -15m, -2d, or a date and time such as 2027-01-15T22:00.",
};
const STARTS = { live: "as they come", earliest: "from the earliest", latest: "the latest", offset: "from an offset", time: "from a time" };

export default function Tail({ query }) {
  const { partitions } = useStore(consoleInfo);
  const filter = query.filter || "#";
  const start = Object.hasOwn(STARTS, query.from ?? "live") ? query.from ?? "live" : "live";
  const partition = partitions.find(({ name }) => name === query.partition) ?? partitions[0];
  const place = placeOf(start, query.at ?? "");
  return html`
    <${Form} filter=${filter} start=${start} partition=${partition} partitions=${partitions} at=${query.at ?? ""} />
    ${start === "live" && html`<${Live} key=${filter} filter=${filter} current=${query.row} />`}
    ${start !== "live" && place && html`
      <${Read} key=${JSON.stringify([filter, partition.partition, start, query.at])} filter=${filter} partition=${partition} place=${place} current=${query.row} />
    `}
    ${start !== "live" && !place && html`<p class=${query.at ? "problem" : "waiting"}>${PLACES[start]}</p>`}
    <${Command} parts=${["headwater tail", ...fromParts(start, partition, query.at), ...serverOption(), "--", { text: filter }]} />
  `;
}

/** Where to begin, as the broker is asked for it; null while the reader has not said it. */
function placeOf(start, at) {
  if (start === "offset") return /^\d+$/.test(at) ? { from: at } : null;
  if (start !== "time") return { from: start };
  const atMs = timeOf(at);
  return Number.isNaN(atMs) ? null : { time_us: Math.round(atMs * 1_000) };
}

/** Milliseconds of "-1h" before now, or of a date and time, here where it names no zone. */
function timeOf(at) {
  const ago = /^-(\d+)\s*([smhd])$/.exec(at);
  return ago ? Date.now() - ago[1] * SECONDS[ago[2]] * 1_000 : Date.parse(at);
}

function fromParts(start, partition, at) {
  if (start === "live") return [];
  if (start !== "offset" && start !== "time") return ["--from", start];
  return at ? ["--from", { text: start === "offset" ? `${partition.name}:${at}` : at }] : [];
}

function Form({ filter, start, partition, partitions, at }) {
  const [typed, setTyped] = useTyped(filter);
  const [place, setPlace] = useTyped(at);
  const show = (changes) => change({ filter: typed || "#", at: place, row: null, ...changes }, { isStep: true });
  const onSubmit = (event) => {
    event.preventDefault();
    show({});
  };
  return html`
    <form role="search" class="bar" onSubmit=${onSubmit}>
      <label class="wide"><span>Filter</span>
        <input type="search" data-search value=${typed} onInput=${(event) => setTyped(event.target.value)}
          autocapitalize="off" autocomplete="off" spellcheck=${false} />
      </label>
      <label><span>Records</span>
        <select onChange=${(event) => show({ from: event.target.value === "live" ? null : event.target.value, at: null })}>
          ${Object.entries(STARTS).map(([name, title]) => html`<option key=${name} value=${name} selected=${name === start}>${title}</option>`)}
        </select>
      </label>
      ${start !== "live" && html`
        <label><span>Partition</span>
          <select onChange=${(event) => show({ partition: event.target.value })}>
            ${partitions.map(({ name }) => html`<option key=${name} value=${name} selected=${name === partition.name}>${name}</option>`)}
          </select>
        </label>
      `}
      ${(start === "offset" || start === "time") && html`
        <label><span>${start === "offset" ? "Offset" : "Time (-1h, 2027-01-15T22:00)"}</span>
          <input type="text" inputmode=${start === "offset" ? "numeric" : "text"} value=${place}
            onInput=${(event) => setPlace(event.target.value.trim())} autocomplete="off" spellcheck=${false} required />
        </label>
      `}
      <button type="submit" class="strong">Show</button>
    </form>
  `;
}

function Live({ filter, current }) {
  const [rows, setRows] = useState([]);
  const [counts, setCounts] = useState({ shown: 0, skipped: 0 });
  const [isPaused, setIsPaused] = useState(false);
  const [problem, setProblem] = useState(null);

  useEffect(() => {
    if (isPaused) return undefined;
    const ends = new AbortController();
    let newest = [];
    let frame = null;
    // Once a frame: a browser that is slow, or does not show this tab, is not given more than it can draw.
    const draw = () => {
      const come = newest;
      newest = [];
      frame = null;
      setRows((before) => [...come, ...before].slice(0, ROWS_MAX));
    };
    const onEvent = async (name, event) => {
      if (name !== "records") return;
      const come = await Promise.all(event.records.map(received));
      if (ends.signal.aborted) return;
      newest = [...come.reverse(), ...newest].slice(0, ROWS_MAX);
      frame ??= requestAnimationFrame(draw);
      setProblem(null);
      setCounts(({ shown, skipped }) => ({ shown: shown + come.length, skipped: skipped + event.skipped }));
    };
    follow(filter, ends.signal, onEvent, setProblem);
    return () => {
      ends.abort();
      cancelAnimationFrame(frame);
    };
  }, [isPaused]);

  const onPause = useCallback(() => setIsPaused((before) => !before), []);
  useKey("p", onPause);
  return html`
    <p class="bar">
      <button type="button" aria-pressed=${isPaused} onClick=${onPause} title="p">${isPaused ? "Go on" : "Pause"}</button>
      <span class="counts">${countsText(counts)}${isPaused ? " Paused: what comes now is not shown." : ""}</span>
    </p>
    <${Trouble} error=${problem} />
    <${Records} caption="Records as they come, the newest first" rows=${rows} current=${current} onRead=${() => setIsPaused(true)}
      empty=${isPaused ? "Paused before a record came." : "Waiting for the next record that matches."} />
  `;
}

function countsText({ shown, skipped }) {
  if (!skipped) return `${counted(shown, "record")} shown.`;
  return `${counted(shown, "record")} shown; ${counted(skipped, "offset")} skipped, because more came than can be shown.`;
}

async function follow(filter, signal, onEvent, setProblem) {
  while (!signal.aborted) {
    try {
      await openStream("api/v1/tail", { query: { filter }, signal, onEvent });
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      setProblem(error);
      // Another attempt with the same filter or rights would be refused too.
      if (error.status === 400 || error.status === 403) return;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function Read({ filter, partition, place, current }) {
  const [state, setState] = useState({ rows: [], gaps: [], place, isReading: true });

  useEffect(() => {
    if (!state.isReading) return undefined;
    const ends = new AbortController();
    readOn({ partition: partition.partition, filter, place: state.place, signal: ends.signal }).then(
      ({ rows, gaps, next, isEnd }) => setState((before) => ({
        rows: [...before.rows, ...rows].slice(-ROWS_MAX), gaps: [...before.gaps, ...gaps], place: { from: next }, isEnd, isReading: false,
      })),
      (error) => ends.signal.aborted || setState((before) => ({ ...before, error, isReading: false })),
    );
    return () => ends.abort();
  }, [state.isReading]);

  const { rows, gaps, isEnd, isReading, error } = state;
  const onMore = () => setState((before) => ({ ...before, error: null, isReading: true }));
  return html`
    <${Trouble} error=${error} />
    ${gaps.map(({ start, end }) => html`<p key=${start} class="note">⚠\u00a0Offsets ${count(start)} to ${count(end - 1)} are gone.${hasPage("damage") && html` <a href=${link("damage")}>Why</a>`}</p>`)}
    <${Records} caption=${`Records of ${partition.name} in the order of the log`} rows=${rows} current=${current}
      empty=${isReading ? "Reading…" : isEnd ? "No record matches up to the end of the log." : `No record matches up to offset ${count(state.place.from)}.`} />
    <p class="more">
      ${isReading ? html`<${Waiting} what="records" />` : html`
        ${counted(rows.length, "record")}${isEnd ? ", up to the end of the log" : ""}.${" "}
        <button type="button" onClick=${onMore}>${isEnd ? "Look for newer ones" : "Read on"}</button>
      `}
    </p>
  `;
}

async function readOn({ partition, filter, place, signal }) {
  const gaps = [];
  let from = place;
  for (let turn = 0; turn < EMPTY_READS_MAX; turn += 1) {
    const answer = await ask("api/v1/records", { query: { partition, filter, ...from, limit: READ_ROWS }, signal });
    const { records, next, gap } = answer;
    const isEnd = next >= answer.high_watermark;
    if (gap) gaps.push(gap);
    if (records.length > 0 || isEnd) return { rows: await Promise.all(records.map(received)), gaps, next, isEnd };
    from = { from: next };
  }
  return { rows: [], gaps, next: from.from, isEnd: false };
}

function Records({ caption, rows, current, empty, onRead }) {
  const [open, setOpen] = useState(null);
  const [pinned, setPinned] = useState([]);
  const isPinned = (record) => pinned.some(({ position }) => position === record.position);
  const onOpen = (position) => {
    setOpen((before) => (before === position ? null : position));
    onRead?.();
  };
  const onPin = (record) => setPinned((before) =>
    before.some(({ position }) => position === record.position)
      ? before.filter(({ position }) => position !== record.position)
      : [...before, record]);
  const close = useCallback(() => setOpen(null), []);
  useKey("Escape", close);
  const shown = [...pinned, ...rows.filter((record) => !isPinned(record))];
  return html`
    <${Scroll} label=${caption}>
      <table class="records">
        <caption class="hidden">${caption}</caption>
        <thead><tr>${COLUMNS.map((title) => html`<th key=${title} scope="col">${title}</th>`)}</tr></thead>
        <tbody>
          ${shown.map((record) => html`
            <${RecordRow} key=${record.position} record=${record} isOpen=${open === record.position} isPinned=${isPinned(record)}
              current=${current === record.position ? current : null} onOpen=${onOpen} onPin=${onPin} />
          `)}
          ${shown.length === 0 && html`<tr><td class="empty" colspan=${COLUMNS.length}>${empty}</td></tr>`}
        </tbody>
      </table>
    <//>
  `;
}
