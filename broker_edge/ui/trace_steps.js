// Where one record is in the log of a broker, as steps; and the form that asks for a record.

import { html, useMemo } from "./vendor/htm-preact.js";
import { count, counted } from "./format.js";
import { Name } from "./name.js";
import { RecordDetail } from "./record.js";
import { change, link } from "./router.js";
import { hasPage } from "./session.js";
import { Time } from "./state.js";
import { useTyped } from "./store.js";
import { Table } from "./table.js";

export const EXAMPLE = "telemetry-0:4711";
const PLACE = /^[^:]+:\d+$/;

/** Which record the address names. */
export function wanted(query) {
  const at = placeOf(query.at ?? "");
  return { at, isPlace: PLACE.test(at) };
}

/** Whether the server says that what was `wanted` is no record, and what is wrong with it, null if nothing. */
export function problemOf({ at, isPlace }, error) {
  const isRefused = error?.status === 400 || error?.status === 404;
  const problem = at !== "" && !isPlace ? `Name a partition and an offset, such as ${EXAMPLE}.` : isRefused ? error.message : null;
  return { isRefused, problem };
}

/** As it was typed or copied, perhaps with the commas of a long number. */
function placeOf(text) {
  return text.trim().replace(/:[\d,]+$/, (offset) => offset.replaceAll(",", ""));
}

/** `children` stand before the field. */
export function Form({ at, problem, onShow, children }) {
  const [typed, setTyped] = useTyped(at);
  const onSubmit = (event) => {
    event.preventDefault();
    change({ at: placeOf(typed), row: null }, { isStep: true });
    onShow();
  };
  return html`
    <form role="search" class="bar" onSubmit=${onSubmit}>
      ${children}
      <label class="wide"><span>Partition and offset (${EXAMPLE})</span>
        <input type="search" data-search required value=${typed} onInput=${(event) => setTyped(event.target.value)}
          autocapitalize="off" autocomplete="off" spellcheck=${false} aria-describedby=${problem && "trace-problem"} />
      </label>
      <button type="submit" class="strong">Show</button>
      ${problem && html`<p class="problem whole" role="alert" id="trace-problem"><span aria-hidden="true">⚠\u00a0</span><bdi>${problem}</bdi></p>`}
    </form>
  `;
}

/** What a broker says of a record. `children` are further steps. */
export function Steps({ trace, isStale, query, children }) {
  const { name, offset, record, sessions, groups } = trace;
  const isGone = GONE.includes(trace.state);
  return html`
    <ol class=${`steps ${isStale ? "stale" : ""}`} aria-label=${`Steps of ${name}:${offset}`}>
      <li><h2>Appended</h2>${record ? html`<${Appended} record=${record} batch=${trace.batch} />` : html`<p>${unknownText(trace)}</p>`}</li>
      <li><${Stored} trace=${trace} /></li>
      ${record && html`<li><${Sessions} rows=${sessions} isMore=${trace.sessions_left_out} isGone=${isGone} current=${query.row} /></li>`}
      <li><${Groups} rows=${groups} isGone=${isGone} current=${query.row} /></li>
      ${record && html`<li><${Content} record=${record} position=${`${name}:${offset}`} /></li>`}
      ${children}
    </ol>
  `;
}

/** A link where the server has the page. */
function To({ page, query, children }) {
  return hasPage(page) ? html`<a data-open href=${link(page, query)}>${children}</a>` : children;
}

function Appended({ record, batch }) {
  return html`
    <dl class="facts">
      <div><dt>Time</dt><dd><${Time} ms=${record.time_us / 1_000} /></dd></div>
      <div><dt>Client id</dt><dd><${Name} text=${record.client_id} length=${400} /></dd></div>
      <div><dt>Topic</dt><dd><${To} page="tail" query=${{ filter: record.topic }}><${Name} text=${record.topic} length=${400} /><//></dd></div>
      ${batch && html`
        <div><dt>Batch</dt><dd>offsets ${count(batch.first)} to ${count(batch.next - 1)}, ${counted(batch.next - batch.first, "record")}</dd></div>
        <div><dt>Epoch</dt><dd>${count(batch.epoch)}</dd></div>
      `}
    </dl>
  `;
}

function unknownText({ state, batch }) {
  if (state === "not_yet") return "Not yet.";
  const where = batch ? ` It was in the batch of offsets ${count(batch.first)} to ${count(batch.next - 1)}, of epoch ${count(batch.epoch)}.` : "";
  return `When, and by whom, is gone with the record.${where}`;
}

const STATES = {
  here: { symbol: "✓", title: "On disk and acknowledged", look: "good" },
  not_yet: { symbol: "…", title: "Not yet in the log", look: null },
  removed: { symbol: "↧", title: "Removed by retention", look: null },
  lost: { symbol: "✖", title: "Lost by damage", look: "bad" },
  purged: { symbol: "∅", title: "Purged on request", look: null },
};

/** States of which the page says all that the broker gives as a reason. */
const TOLD = ["here", "not_yet", "removed"];

/** States in which nobody can read the record any more. */
const GONE = ["removed", "lost", "purged"];

function Stored({ trace }) {
  const { name, offset, state, reason } = trace;
  const { symbol, title, look } = Object.hasOwn(STATES, state) ? STATES[state] : { symbol: "?", title: state, look: null };
  const end = state === "removed" ? trace.log_start : state === "not_yet" ? trace.high_watermark : offset;
  return html`
    <h2 class=${look}><span aria-hidden="true">${symbol}\u00a0</span>${title}</h2>
    <p>${storedText(trace)}</p>
    ${reason && !TOLD.includes(state) && html`<p><${Name} text=${reason} length=${1_000} /></p>`}
    <p>
      ${state !== "not_yet" && hasPage("tail") && html`<a href=${link("tail", { from: "offset", at: end, partition: name })}>Records of ${name} from ${count(end)} on</a>`}
      ${state !== "not_yet" && state !== "here" && hasPage("damage") && html` · <a href=${link("damage")}>All gaps</a>`}
    </p>
  `;
}

function storedText({ state, record, log_start: start, high_watermark: end }) {
  if (state === "here") {
    const below = `It is below the high watermark ${count(end)}, so it is synced.`;
    return record?.qos === 0 ? `${below} QoS 0 has no acknowledgement.` : below;
  }
  if (state === "not_yet") return `The log ends before it: the high watermark is ${count(end)}.`;
  if (state === "removed") return `The log now starts at ${count(start)}.`;
  return `It was on disk, and is gone. The log goes on to the high watermark ${count(end)}.`;
}

function Sessions({ rows, isMore, isGone, current }) {
  return html`
    <h2>Sessions with a filter that matches</h2>
    <p class="note">The position of a session is the offset that it goes on from. Whether the record was delivered is not recorded.</p>
    <${Table} caption="Sessions with a filter that matches the record" columns=${sessionColumns(isGone)} rows=${rows}
      keyOf=${(row) => `session ${row.client_id} ${row.filter}`} current=${current} empty="No session has a filter that matches." />
    ${isMore && html`<p class="note">⚠\u00a0There are more sessions than were looked at: the first 200, and those of the publisher and of the routing key.</p>`}
  `;
}

function sessionColumns(isGone) {
  return [
    { key: "client", title: "client id", isHeader: true,
      cell: (row) => html`<${To} page="clients" query=${{ client: row.client_id }}><${Name} text=${row.client_id} length=${80} /><//>` },
    { key: "passed", title: "position", cell: (row) => html`<${Passed} hasPassed=${row.has_passed} lost=${isGone && "can no longer get it"} />` },
    { key: "next", title: "next offset", isNumber: true, cell: (row) => count(row.next) },
    { key: "state", title: "state", cell: (row) => html`<span class=${row.connected ? "good" : "unknown"}>${row.connected ? "●\u00a0connected" : "○\u00a0away"}</span>` },
    { key: "filter", title: "filter", cell: (row) => html`<${Name} text=${row.filter} length=${80} />` },
  ];
}

function Groups({ rows, isGone, current }) {
  return html`
    <h2>Consumer groups</h2>
    <${Table} caption="Consumer groups of the partition" columns=${groupColumns(isGone)} rows=${rows} keyOf=${(row) => `group ${row.group}`}
      current=${current} empty="No consumer group reads this partition." />
  `;
}

function groupColumns(isGone) {
  return [
    { key: "group", title: "group", isHeader: true,
      cell: (row) => html`<${To} page="groups" query=${{ contains: row.group }}><${Name} text=${row.group} length=${80} /><//>${row.is_idle && html` <span class="note">idle</span>`}` },
    { key: "passed", title: "position", cell: (row) => html`<${Passed} hasPassed=${row.has_passed} isUnmatched=${row.without_match} lost=${isGone && "lost it, never read"} />` },
    { key: "next", title: "next offset", isNumber: true, cell: (row) => count(row.next) },
  ];
}

/**
 * `isUnmatched`: it has looked at the record and is not to get it. `lost`: what it means not to have passed a record that is
 * gone, false while it is not.
 */
function Passed({ hasPassed, isUnmatched = false, lost }) {
  if (hasPassed === null) return "–";
  if (isUnmatched) return html`<span class="good">✓\u00a0has passed it (its filter does not match)</span>`;
  if (hasPassed) return html`<span class="good">✓\u00a0has passed the record</span>`;
  return lost ? html`<span class="bad">✖\u00a0${lost}</span>` : "… has not read it yet";
}

/** A record never changes, so it is decoded once and not with every answer. */
function Content({ record, position }) {
  const isHidden = Boolean(record.is_hidden);
  const kept = useMemo(() => record, [position, isHidden]);
  return html`
    <h2>The record</h2>
    ${isHidden
      ? html`<p>${hasPage("tail") ? "Its payload is for users who may replay its topic." : "Its payload is shown by its broker, to users who may replay its topic."}</p>`
      : html`<div class="record"><${RecordDetail} record=${kept} /></div>`}
  `;
}
