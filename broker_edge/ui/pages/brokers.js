// The brokers of the fleet: what they do together, what is wrong at each, and a way to the console of each.

import { html } from "../vendor/htm-preact.js";
import { Alerts, AlertsNumber } from "../alerts.js";
import { ask } from "../api.js";
import { Card, Charts } from "../cards.js";
import { Command } from "../command.js";
import * as format from "../format.js";
import { samples } from "../live.js";
import { Losses, lossOrder } from "../losses.js";
import { LOG_ID_SHOWN, Name } from "../name.js";
import { usePoll } from "../poll.js";
import { change, link } from "../router.js";
import { Trouble, Waiting } from "../state.js";
import { useStore } from "../store.js";
import { Table } from "../table.js";

const EVERY_MS = 2_000;
const SECOND_US = 1_000_000;

const CHARTS = [
  { title: "Messages a second", format: format.rate, steps: "whole", lines: [["in", "publishes_in"], ["out", "publishes_out"]] },
  { title: "Bytes a second", format: format.bytesPerSecond, steps: "whole", lines: [["in", "bytes_in"], ["out", "bytes_out"]] },
  { title: "Connections and sessions", format: format.count, steps: "whole", lines: [["connections", "connections"], ["sessions", "sessions"]] },
  { title: "Disk", format: format.bytes, steps: "binary", lines: [["used", "disk_used_bytes"]] },
];
const STATES = {
  away: { symbol: "✖", title: "does not answer", look: "bad" },
  refused: { symbol: "⚠", title: "refuses this console", look: "warned" },
  stale: { symbol: "⚠", title: "silent", look: "warned" },
  standby: { symbol: "○", title: "standby", look: null },
  opening: { symbol: "…", title: "opening", look: null },
  live: { symbol: "●", title: "live", look: "good" },
};

/** States in which nobody knows what is wrong at the broker. */
const UNKNOWN = ["away", "refused", "stale"];

export default function Brokers({ query }) {
  const now = useStore(samples);
  const answer = usePoll("brokers", EVERY_MS, (signal) => ask("api/v1/brokers", { signal }));
  const brokers = answer.value?.brokers;
  const more = ({ page, title }, broker) => {
    const address = addressOf(brokers?.find(({ name }) => name === broker)?.admin);
    return address && html`<${OwnConsole} address=${`${address}${link(page)}`}>${title}<//>`;
  };
  return html`
    <${Cards} now=${now} brokers=${brokers} />
    <${Alerts} alerts=${now.alerts} more=${more} />
    <section aria-labelledby="brokers-title" class=${answer.isStale ? "stale" : null}>
      <h2 id="brokers-title">Each broker</h2>
      <${Trouble} ...${answer} />
      ${brokers && html`
        <${Table} caption="Brokers of the fleet" columns=${COLUMNS} rows=${brokers} keyOf=${(row) => row.name} current=${query.row}
          sort=${query.sort ?? "state"} onSort=${(sort) => change({ sort })} empty="The settings name no broker." />
      `}
      ${!brokers && !answer.error && html`<${Waiting} what="the brokers" />`}
    </section>
    <${Charts} charts=${CHARTS} now=${now} />
    <${Command} parts=${commandParts(brokers ?? [])} />
  `;
}

function commandParts(brokers) {
  const known = brokers.filter(({ admin }) => addressOf(admin));
  return ["headwater top", ...known.flatMap(({ admin }) => ["--admin", { text: admin }])];
}

function Cards({ now, brokers }) {
  const last = (name) => now.series[name]?.at(-1) ?? null;
  const sum = (name) => brokers?.reduce((total, row) => total + (row[name] ?? 0), 0);
  const [live, all] = [last("brokers_live"), last("brokers")];
  return html`
    <dl class="cards">
      <${Card} name="Brokers that answer" value=${`${format.count(live)} of ${format.count(all)}`} look=${live < all ? "bad" : ""} />
      <${Card} name="MQTT messages in" value=${format.rate(last("publishes_in"))} unit="/s" note=${`refused ${format.rate(last("refused"))} /s`} />
      <${Card} name="MQTT messages out" value=${format.rate(last("publishes_out"))} unit="/s" note=${`dropped ${format.rate(last("dropped"))} /s`} />
      <${Card} name="Connections" value=${format.count(last("connections"))} note=${`sessions ${format.count(last("sessions"))}`} />
      <${Card} name="Disk" value=${format.bytes(last("disk_used_bytes"))} />
      <${Card} name="Ranges lost" value=${format.count(sum("lost_ranges"))} note=${`damaged ${format.bytes(sum("damaged_bytes"))}`} />
    </dl>
  `;
}

const COLUMNS = [
  { key: "name", title: "broker", isHeader: true, value: (row) => row.name, cell: (row) => html`<${BrokerName} row=${row} />` },
  { key: "state", title: "state", value: rank, cell: (row) => html`<${State} row=${row} />` },
  { key: "seen", title: "last answer", isNumber: true, value: (row) => ageOf(row), cell: (row) => ageText(row) },
  ...[["in", "in /s", "publishes_in", format.rate], ["out", "out /s", "publishes_out", format.rate],
    ["connections", "connections", "connections", format.count], ["disk", "disk", "disk_used_bytes", format.bytes]].map(
    ([key, title, field, write]) => ({ key, title, isNumber: true, value: (row) => row.sample?.[field] ?? null, cell: (row) => write(row.sample?.[field]) })),
  { key: "alerts", title: "alerts", isNumber: true, value: (row) => alertsOf(row)?.length ?? null, cell: (row) => alertsCell(alertsOf(row)) },
  { key: "damage", title: "damage", value: (row) => lossOrder(row.lost_ranges, row.damaged_bytes),
    cell: (row) => html`<${Losses} ranges=${row.lost_ranges} damagedBytes=${row.damaged_bytes} />` },
  { key: "cluster", title: "cluster", value: (row) => row.cluster?.node ?? null, cell: (row) => html`<${Cluster} cluster=${row.cluster} />` },
  { key: "version", title: "version", value: (row) => row.version, cell: (row) => html`<${Name} text=${row.version} length=${40} />` },
  { key: "log", title: "log", cell: (row) => html`<code><${Name} text=${row.log_id} length=${LOG_ID_SHOWN} /></code>` },
];

/** The name leads to the broker's own console, if its address is one that a browser may open. */
function BrokerName({ row: { name, admin } }) {
  const [text, address] = [html`<${Name} text=${name} length=${80} />`, addressOf(admin)];
  return address ? html`<${OwnConsole} address=${address}>${text}<//>` : text;
}

function OwnConsole({ address, children }) {
  return html`
    <a data-open href=${address} target="_blank" rel="noreferrer noopener" title=${address}>
      ${children}<span aria-hidden="true"> ↗</span><span class="hidden"> (its own console, in a new tab)</span>
    </a>
  `;
}

function addressOf(admin) {
  try {
    const { protocol, username, password, href } = new URL(admin);
    return ["http:", "https:"].includes(protocol) && !username && !password ? href : null;
  } catch {
    return null;
  }
}

function rank({ state }) {
  const place = Object.keys(STATES).indexOf(state);
  return place < 0 ? -1 : place;
}

function State({ row: { state, trouble } }) {
  const { symbol, title, look } = Object.hasOwn(STATES, state) ? STATES[state] : { symbol: "?", title: String(state), look: null };
  return html`
    <span class=${look}><span aria-hidden="true">${symbol}\u00a0</span>${title}</span>
    ${trouble && html`<div class="note trouble"><${Name} text=${trouble} length=${80} /></div>`}
  `;
}

/** By the clock of the console, whose samples say what time it is there. */
function ageOf({ seen_us: seenUs }) {
  if (!seenUs) return null;
  const nowMs = samples.get().times.at(-1) ?? Date.now();
  return Math.max(0, nowMs * 1_000 - seenUs) / SECOND_US;
}

function ageText(row) {
  const age = ageOf(row);
  return age === null ? "never" : `${format.duration(age)} ago`;
}

function alertsOf({ state, alerts }) {
  return UNKNOWN.includes(state) ? null : (alerts ?? []);
}

function alertsCell(alerts) {
  return alerts?.length ? html`<${AlertsNumber} alerts=${alerts} />` : format.count(alerts?.length);
}

/** Which nodes are in sync, only the leader knows. */
function Cluster({ cluster }) {
  if (!cluster) return "–";
  const { node, role, in_sync: inSync, replicas } = cluster;
  const isShort = Array.isArray(inSync) && Array.isArray(replicas) && inSync.length < replicas.length;
  return html`
    <${Name} text=${node} length=${40} /> ${role}
    ${Array.isArray(inSync) && role === "leader" && html`, <span class=${isShort ? "warned" : null}>${isShort && "⚠\u00a0"}${format.counted(inSync.length, "node")} in sync</span>`}
  `;
}
