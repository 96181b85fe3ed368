// Connected and absent clients, and one of them in detail. Operators may disconnect it and end its session.

import { html, useState } from "../vendor/htm-preact.js";
import { ask } from "../api.js";
import { adminOption, Command } from "../command.js";
import { Confirm } from "../dialog.js";
import { Events } from "../events.js";
import * as format from "../format.js";
import { More, Search } from "../list.js";
import { Name } from "../name.js";
import { say } from "../notice.js";
import { closePanel, Facts, Panel, PanelLink } from "../panel.js";
import { usePages, usePoll } from "../poll.js";
import { change } from "../router.js";
import { consoleInfo } from "../session.js";
import { Time, Trouble, Waiting } from "../state.js";
import { useStore } from "../store.js";
import { Table } from "../table.js";

const LIST_EVERY_MS = 5_000;
const ONE_EVERY_MS = 2_000;
const STATES = { "": "all", true: "connected", false: "away" };

export default function Clients({ query }) {
  const filter = query.filter ?? "";
  const connected = query.connected ?? "";
  const clients = usePages("api/v1/clients", { filter, connected }, "clients", LIST_EVERY_MS);
  return html`
    <${Search} label="Part of the client id" name="filter" value=${filter}>
      <label><span>State</span>
        <select onChange=${(event) => change({ connected: event.target.value, row: null })}>
          ${Object.entries(STATES).map(([name, title]) => html`<option key=${name} value=${name} selected=${name === connected}>${title}</option>`)}
        </select>
      </label>
    <//>
    <${Trouble} ...${clients} />
    ${query.client !== undefined && html`<${Detail} key=${query.client} id=${query.client} />`}
    <div class=${clients.isStale ? "stale" : null}>
      ${clients.rows && html`
        <${Table} caption="Clients in the order of their ids" columns=${COLUMNS} rows=${clients.rows} keyOf=${(row) => row.client_id}
          current=${query.row} sort=${clients.isComplete ? query.sort : null}
          onSort=${clients.isComplete ? (sort) => change({ sort }) : null} empty="No client matches." />
        <${More} what="client" ...${clients} />
      `}
    </div>
    ${!clients.rows && !clients.error && html`<${Waiting} what="the clients" />`}
    ${query.client === undefined && filter === "" && html`<${Events} title="Recent events" current=${query.row} />`}
    <${Command} parts=${commandParts(query.client, filter, connected)} />
  `;
}

function commandParts(client, filter, connected) {
  if (client !== undefined) return ["headwater clients show", adminOption(), "--", { text: client }];
  const state = { true: "--connected", false: "--away" }[connected] ?? null;
  return ["headwater clients list", state, adminOption(), filter ? "--" : null, filter ? { text: filter } : null];
}

/** The version, and over what if not over plain TCP. */
function protocolText({ version, transport }) {
  return `${version ?? "–"}${transport && transport !== "mqtt" ? ` ${transport}` : ""}`;
}

const COLUMNS = [
  { key: "id", title: "client id", isHeader: true, value: (row) => row.client_id,
    cell: (row) => html`<${PanelLink} kind="client" name=${row.client_id} />` },
  { key: "state", title: "state", value: (row) => String(row.connected), cell: (row) => html`<${State} connected=${row.connected} />` },
  { key: "user", title: "user", value: (row) => row.user, cell: (row) => html`<${Name} text=${row.user} length=${40} />` },
  { key: "address", title: "address", cell: (row) => html`<span class="nowrap"><${Name} text=${row.address} /></span>` },
  { key: "version", title: "MQTT", value: (row) => row.version, cell: protocolText },
  { key: "since", title: "since", value: (row) => row.since_us, cell: (row) => html`<${Time} ms=${row.since_us && row.since_us / 1_000} />` },
  { key: "subscriptions", title: "subscriptions", isNumber: true, value: (row) => row.subscriptions, cell: (row) => format.count(row.subscriptions) },
  { key: "in", title: "in /s", isNumber: true, value: (row) => row.per_second?.received_messages, cell: (row) => format.rate(row.per_second?.received_messages) },
  { key: "out", title: "out /s", isNumber: true, value: (row) => row.per_second?.sent_messages, cell: (row) => format.rate(row.per_second?.sent_messages) },
  { key: "inflight", title: "in flight", isNumber: true, value: (row) => row.inflight_out, cell: (row) => format.count(row.inflight_out) },
  { key: "lag", title: "lag (records)", isNumber: true, value: (row) => row.lag_records, cell: (row) => format.count(row.lag_records) },
];

function State({ connected }) {
  return html`<span class=${connected ? "good" : "unknown"}>${connected ? "●\u00a0connected" : "○\u00a0away"}</span>`;
}

function Detail({ id }) {
  const info = useStore(consoleInfo);
  const [asked, setAsked] = useState(null);
  const client = usePoll(`client ${id}`, ONE_EVERY_MS, (signal) => ask("api/v1/client", { query: { id }, signal }));
  const { value } = client;

  const act = async (session) => {
    setAsked(null);
    try {
      const { session_ended: isEnded } = await ask("api/v1/client", { method: "DELETE", query: { id, session: session || null } });
      say(isEnded ? "The session has ended." : "The client is disconnected.");
      if (session) closePanel("client");
    } catch (error) {
      say(error.message);
    }
  };

  const acts = info.operator && value && html`
    ${value.connected && html`<button type="button" class="danger" onClick=${() => setAsked("kick")}>Disconnect…</button>`}
    <button type="button" class="danger" onClick=${() => setAsked("session")}>End session…</button>
  `;
  return html`
    <${Panel} kind="client" name=${id} isStale=${client.isStale} acts=${acts}>
      ${client.error?.status === 404 ? html`<p class="note">Nobody with this id is connected or has a session now.</p>` : html`<${Trouble} ...${client} />`}
      ${value ? html`<${Client} client=${value} />` : !client.error && html`<${Waiting} what="the client" />`}
      <${Events} title="History" clientId=${id} current=${null} />
      ${asked && html`
        <${Confirm} title=${asked === "kick" ? "Disconnect this client?" : "End the session of this client?"}
          act=${asked === "kick" ? "Disconnect" : "End session"} onAct=${() => act(asked === "session")} onClose=${() => setAsked(null)}>
          <p><code><${Name} text=${id} length=${400} /></code></p>
          <p>${asked === "kick"
            ? "Its connection is closed and its will is published. It may connect again at once."
            : "Its subscriptions and positions are removed, and records that it has not received are not sent to it. A connection is closed."}</p>
        <//>
      `}
    <//>
  `;
}

function Client({ client }) {
  const facts = [
    ["State", html`<${State} connected=${client.connected} /> since <${Time} ms=${client.since_us && client.since_us / 1_000} />`],
    ["User", html`<${Name} text=${client.user} />`],
    ["Address", html`<${Name} text=${client.address} />`],
    ["MQTT", protocolText(client)],
    ["Keep alive", format.duration(client.keep_alive_s)],
    ["Session", sessionText(client.session_expiry_s)],
    ["In flight", `${format.count(client.inflight_out)} of ${format.count(client.window_max)} out, ${format.count(client.inflight_in)} in`],
    ["Waiting for the socket", format.bytes(client.out_bytes)],
    ["Will", client.has_will ? "yes" : "no"],
    ["Received", traffic(client.total?.received_messages, client.total?.received_bytes, client.per_second?.received_messages)],
    ["Sent", traffic(client.total?.sent_messages, client.total?.sent_bytes, client.per_second?.sent_messages)],
    ["Lag", `${format.count(client.lag_records)} records`],
  ];
  return html`
    <${Facts} facts=${facts} />
    <${Table} caption="Filters of the client" columns=${FILTER_COLUMNS} rows=${client.filters} keyOf=${(row) => `filter ${row.filter}`} current=${null} empty="It has no subscriptions." />
    <${Table} caption="Positions of the session" columns=${CURSOR_COLUMNS} rows=${client.cursors} keyOf=${(row) => `cursor ${row.name}`} current=${null} empty="It has no positions." />
  `;
}

function sessionText(expiryS) {
  if (expiryS === null) return "never ends";
  return expiryS === 0 ? "ends with the connection" : `ends ${format.duration(expiryS)} after the connection`;
}

function traffic(messages, size, perSecond) {
  return `${format.count(messages)} messages, ${format.bytes(size)}; now ${format.rate(perSecond)}/s`;
}

const FILTER_COLUMNS = [
  { key: "filter", title: "filter", isHeader: true, cell: (row) => html`<${Name} text=${row.filter} />` },
  { key: "qos", title: "QoS", isNumber: true, cell: (row) => String(row.qos) },
  { key: "identifier", title: "identifier", isNumber: true, cell: (row) => format.count(row.identifier) },
  { key: "options", title: "options",
    cell: (row) => [row.no_local && "no local", row.retain_as_published && "retain as published", row.replaying && "replaying"].filter(Boolean).join(", ") || "–" },
];

const CURSOR_COLUMNS = [
  { key: "partition", title: "partition", isHeader: true, cell: (row) => row.name },
  { key: "next", title: "next offset", isNumber: true, cell: (row) => format.count(row.next) },
  { key: "end", title: "high watermark", isNumber: true, cell: (row) => format.count(row.high_watermark) },
  { key: "lag", title: "lag (records)", isNumber: true, cell: (row) => format.count(row.high_watermark - row.next) },
  { key: "live", title: "live", cell: (row) => (row.live ? "yes" : "no") },
];
