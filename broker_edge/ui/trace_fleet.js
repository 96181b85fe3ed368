// Where one record is, in the console of a fleet: what its broker says, and what the tables have of it.

import { html, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";
import { Command, curlParts } from "./command.js";
import { count } from "./format.js";
import { Name } from "./name.js";
import { usePoll } from "./poll.js";
import { change, link } from "./router.js";
import { consoleInfo } from "./session.js";
import { Time, Trouble, Waiting } from "./state.js";
import { Table } from "./table.js";
import { Form, problemOf, Steps, wanted } from "./trace_steps.js";

const EVERY_MS = 10_000;
const PATH = "api/v1/trace";

export function FleetTrace({ query }) {
  const [turn, setTurn] = useState(0);
  const log = query.log ?? "";
  const { at, isPlace } = wanted(query);
  const brokers = usePoll("brokers", EVERY_MS, (signal) => ask("api/v1/brokers", { signal }));
  const answer = usePoll(isPlace ? JSON.stringify([at, log, turn]) : null, EVERY_MS, (signal) => ask(PATH, { query: { at, log_id: log }, signal }));
  const { isRefused, problem } = problemOf({ at, isPlace }, answer.error);
  const found = problem ? null : answer.value;
  return html`
    <${Form} at=${at} problem=${problem} onShow=${() => setTurn(turn + 1)}>
      <${Logs} brokers=${brokers.value?.brokers ?? []} log=${log || (found?.log_id ?? "")} />
    <//>
    ${!isRefused && html`<${Trouble} ...${answer} />`}
    ${found && html`<div key=${`${at} ${log}`}><${Found} found=${found} isStale=${answer.isStale} query=${query} /></div>`}
    ${at === "" && html`<p class="waiting">Which record, of which broker? The tail of a broker names the place of each.</p>`}
    ${isPlace && !answer.value && !answer.error && html`<${Waiting} what="the record" />`}
    ${isPlace && html`<${Command} parts=${curlParts(PATH, { at, log_id: log }, consoleInfo.get().user)} />`}
  `;
}

/** Each log once, under the names of its brokers: the nodes of a cluster have one together. */
function Logs({ brokers, log }) {
  const names = new Map();
  for (const { name, log_id: id } of brokers) if (id) names.set(id, [...(names.get(id) ?? []), name]);
  if (log && !names.has(log)) names.set(log, [`log ${log}`]);
  return html`
    <label><span>Broker</span>
      <select value=${log} onChange=${(event) => change({ log: event.target.value, row: null }, { isStep: true })}>
        ${log === "" && html`<option value="">${names.size ? "choose" : "none has answered"}</option>`}
        ${[...names].map(([id, of]) => html`<option key=${id} value=${id}>${of.join(", ").slice(0, 80)}</option>`)}
      </select>
    </label>
  `;
}

function Found({ found, isStale, query }) {
  const { broker, tables } = found;
  const rows = html`<${TableSteps} tables=${tables} current=${query.row} />`;
  if (broker.trace) return html`<${Steps} trace=${broker.trace} isStale=${isStale} query=${query}>${rows}<//>`;
  return html`
    <ol class=${`steps ${isStale ? "stale" : ""}`} aria-label=${`Steps of ${found.name}:${found.offset}`}>
      <li>
        <h2 class="bad"><span aria-hidden="true">?\u00a0</span>Its broker does not say where it is</h2>
        <p><${Name} text=${broker.trouble} length=${1_000} /></p>
      </li>
      ${rows}
    </ol>
  `;
}

function TableSteps({ tables, current }) {
  const { bronze, silver, quarantine, lost, commands, reports } = tables;
  return html`
    <li><${Bronze} bronze=${bronze} /></li>
    <li>
      <h2>Silver</h2>
      ${silver.length === 0
        ? html`<p>No silver table has a row of it.</p>`
        : html`<${Table} caption="Rows in silver" columns=${SILVER_COLUMNS} rows=${silver.flatMap(silverRows)} keyOf=${(row) => `silver ${row.table} ${row.epoch}`} current=${current} />`}
    </li>
    ${quarantine?.length > 0 && html`
      <li>
        <h2 class="bad"><span aria-hidden="true">✖\u00a0</span>In the quarantine</h2>
        <${Table} caption="Why it could not be used" columns=${QUARANTINE_COLUMNS} rows=${quarantine} keyOf=${(row) => `quarantine ${row.pipeline} ${row.at_us}`} current=${current} />
      </li>
    `}
    ${lost?.length > 0 && html`
      <li>
        <h2 class="bad"><span aria-hidden="true">✖\u00a0</span>Reported as lost</h2>
        <${Table} caption="Ranges with this offset that readers could not get" columns=${LOST_COLUMNS} rows=${lost} keyOf=${(row) => `lost ${row.start} ${row.at_us}`} current=${current} />
      </li>
    `}
    ${commands?.length > 0 && html`
      <li>
        <h2>A command of an action</h2>
        <${Table} caption="The targets that it was sent to" columns=${ACTION_COLUMNS} rows=${commands} keyOf=${(row) => `command ${row.action_id} ${row.device_id}`} current=${current} />
      </li>
    `}
    ${reports?.length > 0 && html`
      <li>
        <h2>A report about an action</h2>
        <${Table} caption="What it says" columns=${ACTION_COLUMNS} rows=${reports} keyOf=${(row) => `report ${row.source} ${row.action_id}`} current=${current} />
      </li>
    `}
  `;
}

function Bronze({ bronze }) {
  if (!bronze) return html`<h2>Bronze</h2><p>There is no table of bronze where <code>tables.bronze</code> points.</p>`;
  const [row] = bronze.rows;
  if (!row) return html`<h2>Bronze</h2><p>Not in bronze, whose newest version is ${count(bronze.version)}: the job telemetry has not committed it, or reads other topics.</p>`;
  const { commit } = bronze;
  return html`
    <h2 class="good"><span aria-hidden="true">✓\u00a0</span>In bronze</h2>
    <dl class="facts">
      <div><dt>Commit</dt><dd>${commit ? html`version ${count(commit.version)}, <${Name} text=${commit.operation} length=${40} />` : "older than the log of the table"}</dd></div>
      ${commit && html`<div><dt>Committed</dt><dd><${Time} ms=${commit.at_us / 1_000} /></dd></div>`}
      <div><dt>Topic</dt><dd><${Name} text=${row.topic} length=${400} /></dd></div>
      <div><dt>Appended</dt><dd><${Time} ms=${row.appended_us / 1_000} /></dd></div>
      <div><dt>Epoch</dt><dd>${count(row.epoch)}</dd></div>
    </dl>
    ${bronze.rows.length > 1 && html`<p class="note">⚠\u00a0Bronze has ${count(bronze.rows.length)} rows of this place, of different epochs or topics.</p>`}
  `;
}

function silverRows({ table, rows, commit }) {
  return rows.map((row) => ({ ...row, table, commit }));
}

const SILVER_COLUMNS = [
  { key: "table", title: "table", isHeader: true, cell: (row) => html`<${Name} text=${row.table} length=${80} />` },
  { key: "version", title: "version", isNumber: true, cell: (row) => (row.commit ? count(row.commit.version) : "–") },
  { key: "committed", title: "committed", cell: (row) => html`<${Time} ms=${row.commit && row.commit.at_us / 1_000} />` },
  { key: "device", title: "device", cell: (row) => html`<${Name} text=${row.device_id} length=${80} />` },
  { key: "event", title: "time of the event", cell: (row) => html`<${Time} ms=${row.event_us && row.event_us / 1_000} />` },
];

const AT = { key: "at", title: "time", cell: (row) => html`<${Time} ms=${row.at_us && row.at_us / 1_000} />` };

const QUARANTINE_COLUMNS = [
  { key: "pipeline", title: "job", isHeader: true, cell: (row) => html`<${Name} text=${row.pipeline} length=${80} />` },
  { key: "reason", title: "reason", cell: (row) => html`<${Name} text=${row.reason} length=${400} />` },
  AT,
];

const LOST_COLUMNS = [
  { key: "range", title: "offsets", isHeader: true, cell: (row) => `${count(row.start)} to ${row.end === null ? "?" : count(row.end - 1)}` },
  { key: "reason", title: "reason", cell: (row) => html`<${Name} text=${row.reason} length=${400} />` },
  { key: "group", title: "group", cell: (row) => html`<${Name} text=${row.consumer_group} length=${80} />` },
  AT,
];

const ACTION_COLUMNS = [
  { key: "action", title: "action", isHeader: true,
    cell: (row) => (row.action_id === null ? "–" : html`<a data-open href=${link("rollouts", { id: row.action_id })}><${Name} text=${row.action_id} length=${80} /></a>`) },
  { key: "device", title: "device", cell: (row) => html`<${Name} text=${row.device_id} length=${80} />` },
  { key: "state", title: "state", cell: (row) => html`<${Name} text=${row.state} length=${40} />` },
  { key: "message", title: "message", cell: (row) => html`<${Name} text=${row.message} length=${200} />` },
  AT,
];
