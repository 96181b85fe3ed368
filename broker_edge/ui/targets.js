// The devices of one action, by page, found by state, wave and part of the id.

import { html, useState } from "./vendor/htm-preact.js";
import { partOf, State, STATES, words, WORST_FIRST } from "./bars.js";
import { count } from "./format.js";
import { More, Search } from "./list.js";
import { LOG_ID_SHOWN, Name } from "./name.js";
import { usePages } from "./poll.js";
import { Question } from "./requests.js";
import { change, link } from "./router.js";
import { consoleInfo } from "./session.js";
import { Time, Trouble, Waiting } from "./state.js";
import { useStore } from "./store.js";
import { byText, Table } from "./table.js";

const EVERY_MS = 10_000;
const TABLES = ["action_targets", "action_journal"];
const WAVES_LISTED = 200;

export function Targets({ rollout, query, onAsked }) {
  const { operator } = useStore(consoleInfo);
  const [device, setDevice] = useState(null);
  const { action_id: id, waves, can } = rollout;
  const [contains, state, wave, reason] = [query.contains ?? "", query.state ?? "", query.wave ?? "", query.reason ?? ""];
  const targets = usePages("api/v1/rollout/targets", { id, contains, state, wave, reason }, "targets", EVERY_MS, TABLES);
  const numbers = Array.from({ length: Math.min(waves ?? 0, WAVES_LISTED) }, (_, number) => String(number));
  return html`
    <section aria-labelledby="targets-title" class=${targets.isStale ? "stale" : null}>
      <h2 id="targets-title" tabindex="-1">Devices</h2>
      <${Search} label="Part of the device id" name="contains" value=${contains}>
        <label><span>State</span>
          <select onChange=${(event) => change({ state: event.target.value, row: null })}>
            <option value="" selected=${state === ""}>all</option>
            ${STATES.map((name) => html`<option key=${name} value=${name} selected=${name === state}>${words(name)}</option>`)}
          </select>
        </label>
        <label><span>Wave</span>
          <select onChange=${(event) => change({ wave: event.target.value, row: null })}>
            <option value="" selected=${wave === ""}>all</option>
            ${numbers.map((number) => html`<option key=${number} value=${number} selected=${number === wave}>${count(Number(number) + 1)}</option>`)}
          </select>
        </label>
      <//>
      ${reason && html`
        <p class="note">Only those with this reason: <${Name} text=${reason} length=${300} />
          <button type="button" class="quiet" onClick=${() => change({ reason: null })}>Show all</button>
        </p>
      `}
      <${Trouble} ...${targets} />
      ${targets.rows && html`
        <${Table} caption="Devices of the action" columns=${columnsOf(operator && can.includes("cancel") ? setDevice : null)} rows=${byId(targets)}
          sort=${targets.isComplete ? query.sort ?? "state" : null} onSort=${targets.isComplete ? (sort) => change({ sort }) : null}
          keyOf=${(row) => row.device_id} current=${query.row} empty=${contains || state || wave || reason ? "No device matches." : "It has no devices yet."} />
        <${More} what="device" ...${targets} />
      `}
      ${!targets.rows && !targets.error && html`<${Waiting} what="the devices" />`}
      ${device !== null && html`<${Question} kind="cancel" rollout=${rollout} device=${device} onAsked=${onAsked} onClose=${() => setDevice(null)} />`}
    </section>
  `;
}

/** Leads a reader who has followed a link with a filter to the devices. */
export function showTargets() {
  document.getElementById("targets-title").focus();
}

/** Those that a sort finds equal stay in this order. */
function byId({ rows, isComplete }) {
  return isComplete ? rows.toSorted((left, right) => byText(left.device_id, right.device_id)) : rows;
}

/** `onCancel`: null for those who may not cancel, and once it is of no use. */
function columnsOf(onCancel) {
  const cancel = { key: "act", title: "action", cell: (row) => html`<${Cancel} row=${row} onCancel=${onCancel} />` };
  return onCancel ? [...COLUMNS, cancel] : COLUMNS;
}

function Cancel({ row: { device_id: id, state }, onCancel }) {
  const isOpen = ["working", "pending"].includes(partOf(state)?.key) && state !== "CANCELLING";
  if (!isOpen) return "–";
  return html`<button type="button" class="quiet" onClick=${() => onCancel(id)}>Cancel…<span class="hidden"> for <${Name} text=${id} length=${80} /></span></button>`;
}

/** Where the command is in the log of a broker, with a way to what became of it. */
function Place({ row: { partition, offset, log_id: log } }) {
  if (offset === null) return "–";
  return html`<a href=${link("trace", { at: `${partition}:${offset}`, log })}>${count(partition)}:${count(offset)} of <code><${Name} text=${log} length=${LOG_ID_SHOWN} /></code></a>`;
}

const COLUMNS = [
  { key: "device", title: "device", isHeader: true, value: (row) => row.device_id,
    cell: (row) => html`<a data-open href=${link("devices", { device: row.device_id })}><${Name} text=${row.device_id} length=${80} /></a>` },
  { key: "state", title: "state", value: (row) => WORST_FIRST.indexOf(row.state), cell: (row) => html`<${State} state=${row.state} />` },
  { key: "wave", title: "wave", isNumber: true, value: (row) => row.wave, cell: (row) => (row.wave === null ? "–" : count(row.wave + 1)) },
  { key: "attempt", title: "attempt", isNumber: true, value: (row) => row.attempt, cell: (row) => count(row.attempt) },
  { key: "progress", title: "progress", isNumber: true, value: (row) => row.progress, cell: (row) => (row.progress === null ? "–" : `${count(row.progress)} %`) },
  { key: "message", title: "message", value: (row) => row.message, cell: (row) => html`<${Name} text=${row.message} length=${200} />` },
  { key: "updated", title: "changed", value: (row) => row.updated_us, cell: (row) => html`<${Time} ms=${row.updated_us && row.updated_us / 1_000} />` },
  { key: "place", title: "command in the log", cell: (row) => html`<${Place} row=${row} />` },
];
