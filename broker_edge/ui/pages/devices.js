// Every device of the fleet by id, version or label, the versions that run, and one device with its actions.

import { html } from "../vendor/htm-preact.js";
import { ask } from "../api.js";
import { State } from "../bars.js";
import { Command, rootOption } from "../command.js";
import { count, counted } from "../format.js";
import { More, Search } from "../list.js";
import { Name } from "../name.js";
import { Facts, Panel, PanelLink } from "../panel.js";
import { usePages, usePoll } from "../poll.js";
import { change, link } from "../router.js";
import { Time, Trouble, Waiting } from "../state.js";
import { byText, Table } from "../table.js";

const EVERY_MS = 10_000;
const TABLES = ["devices", "device_state", "action_journal"];
const ONE_TABLES = [...TABLES, "action_targets"];
const LABELS_SHOWN = 4;
const UNTOLD = "untold";

export default function Devices({ query }) {
  const contains = query.contains ?? "";
  const version = query.version ?? "";
  const untold = query.untold === "true" ? "true" : null;
  const devices = usePages("api/v1/devices", { contains, version, untold }, "devices", EVERY_MS, TABLES);
  const versions = devices.first?.versions ?? [];
  const names = [...new Set([version, ...versions.map((one) => one.version)])].filter(Boolean).sort(byText);
  return html`
    <${Search} label="Part of the device id or of a label" name="contains" value=${contains}>
      <label><span>Version</span>
        <select onChange=${(event) => change({ ...chosen(event.target.value), row: null })}>
          <option value="" selected=${version === "" && !untold}>all</option>
          <option value=${UNTOLD} selected=${untold !== null}>not told</option>
          ${names.map((name) => html`<option key=${name} value=${`=${name}`} selected=${name === version}>${name.slice(0, 60)}</option>`)}
        </select>
      </label>
    <//>
    <${Trouble} ...${devices} />
    ${query.device !== undefined && html`<${Detail} key=${query.device} id=${query.device} />`}
    <div class=${devices.isStale ? "stale" : null}>
      ${devices.rows && html`
        <${Table} caption="Devices in the order of their ids" columns=${COLUMNS} rows=${devices.rows} keyOf=${(row) => row.device_id}
          current=${query.row} sort=${devices.isComplete ? query.sort ?? "id" : null} onSort=${devices.isComplete ? (sort) => change({ sort }) : null}
          empty=${contains || version || untold ? "No device matches." : "There are no devices yet."} />
        <${More} what="device" ...${devices} />
      `}
    </div>
    ${!devices.rows && !devices.error && html`<${Waiting} what="the devices" />`}
    ${versions.length > 0 && html`<${Versions} rows=${versions} />`}
    <${Command} parts=${commandParts(query.device, contains)} />
  `;
}

/** A version may be any text, so that of an option has a mark in front. */
function chosen(option) {
  return option === UNTOLD ? { version: null, untold: "true" } : { version: option.slice(1), untold: null };
}

function commandParts(device, contains) {
  if (device !== undefined) return ["headwater devices show", ...rootOption(), "--", { text: device }];
  return ["headwater devices list", ...rootOption(), contains ? "| grep -F --" : null, contains ? { text: contains } : null];
}

const COLUMNS = [
  { key: "id", title: "device", isHeader: true, value: (row) => row.device_id,
    cell: (row) => html`
      <${PanelLink} kind="device" name=${row.device_id} />
      ${row.retired_us !== null && html` <span class="note">retired</span>`}
    ` },
  { key: "version", title: "version", value: (row) => row.version, cell: (row) => html`<${Name} text=${row.version} length=${60} />` },
  { key: "product", title: "product", value: (row) => row.product, cell: (row) => html`<${Name} text=${row.product} length=${60} />` },
  { key: "seen", title: "last seen", value: (row) => row.last_seen_us, cell: (row) => html`<${Seen} us=${row.last_seen_us} />` },
  { key: "status", title: "last action", value: (row) => row.last_action_id, cell: (row) => html`<${LastAction} row=${row} />` },
  { key: "labels", title: "labels", cell: (row) => html`<${Labels} labels=${row.labels} />` },
  { key: "groups", title: "groups", cell: (row) => html`<${Name} text=${(row.groups ?? []).join(", ") || null} length=${80} />` },
  { key: "hardware", title: "hardware", value: (row) => row.hardware, cell: (row) => html`<${Name} text=${row.hardware} length=${60} />` },
];

function Seen({ us }) {
  return us ? html`<${Time} ms=${us / 1_000} />` : html`<span class="unknown">never</span>`;
}

function LastAction({ row: { last_action_id: id, last_status: status } }) {
  if (id === null) return "–";
  return html`<a href=${link("rollouts", { id })}><${Name} text=${id} length=${60} /></a>${status && html` <${State} state=${status} />`}`;
}

function Labels({ labels, isWhole }) {
  const all = Object.entries(labels ?? {});
  if (all.length === 0) return "–";
  const shown = isWhole ? all : all.slice(0, LABELS_SHOWN);
  const more = all.length - shown.length;
  return html`<${Name} text=${shown.map(([name, value]) => `${name}=${value}`).join(", ")} length=${isWhole ? 4_000 : 120} />${more > 0 && html` <span class="note">and ${count(more)} more</span>`}`;
}

function Versions({ rows }) {
  return html`
    <section aria-labelledby="versions-title">
      <h2 id="versions-title">Versions</h2>
      <${Table} caption="Devices by product and version, the most frequent first" columns=${VERSION_COLUMNS} rows=${rows}
        keyOf=${(row) => `version ${row.product ?? ""} ${row.version ?? ""}`} empty="No device has told its version." />
    </section>
  `;
}

const VERSION_COLUMNS = [
  { key: "version", title: "version", isHeader: true,
    cell: (row) => (row.version
      ? html`<a data-open href=${link("devices", { version: row.version })}><${Name} text=${row.version} length=${60} /></a>`
      : html`<a data-open href=${link("devices", { untold: "true" })}>${row.version === null ? "not told" : "empty"}</a>`) },
  { key: "product", title: "product", cell: (row) => html`<${Name} text=${row.product} length=${60} />` },
  { key: "number", title: "devices", isNumber: true, cell: (row) => count(row.number) },
];

function Detail({ id }) {
  const answer = usePoll(`device ${id}`, EVERY_MS, (signal) => ask("api/v1/device", { query: { id }, signal }), ONE_TABLES);
  const { value } = answer;
  return html`
    <${Panel} kind="device" name=${id} isStale=${answer.isStale}>
      <${Trouble} ...${answer} />
      ${value ? html`<${Device} ...${value} />` : !answer.error && html`<${Waiting} what="the device" />`}
    <//>
  `;
}

function Device({ device, targets }) {
  const facts = [
    ["Version", html`<${Name} text=${device.version} />`],
    ["Product", html`<${Name} text=${device.product} />`],
    ["Hardware", html`<${Name} text=${device.hardware} />`],
    ["Last seen", html`<${Seen} us=${device.last_seen_us} />`],
    ["Last action", html`<${LastAction} row=${device} />`],
    ["Log", html`<code><${Name} text=${device.log_id} /></code>`],
    ["Groups", html`<${Name} text=${(device.groups ?? []).join(", ") || null} length=${400} />`],
    ["Labels", html`<${Labels} labels=${device.labels} isWhole />`],
    ...(device.retired_us === null ? [] : [["Retired", html`<${Time} ms=${device.retired_us / 1_000} />`]]),
  ];
  return html`
    <${Facts} facts=${facts} />
    <h3>${targets.length === 0 ? "No actions" : `${counted(targets.length, "action")}, the newest first`}</h3>
    ${targets.length > 0 && html`
      <${Table} caption="Actions of the device" columns=${TARGET_COLUMNS} rows=${targets} keyOf=${(row) => `target ${row.action_id}`} current=${null} empty="None." />
    `}
  `;
}

const TARGET_COLUMNS = [
  { key: "action", title: "action", isHeader: true,
    cell: (row) => html`<a data-open href=${link("rollouts", { id: row.action_id })}><${Name} text=${row.action_id} length=${80} /></a>` },
  { key: "state", title: "state", cell: (row) => html`<${State} state=${row.state} />` },
  { key: "message", title: "message", cell: (row) => html`<${Name} text=${row.message} length=${200} />` },
  { key: "updated", title: "changed", cell: (row) => html`<${Time} ms=${row.updated_us && row.updated_us / 1_000} />` },
];
