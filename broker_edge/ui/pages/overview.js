// What the broker does now, the last 15 minutes, what is wrong, the partitions, and the nodes of a cluster.

import { html } from "../vendor/htm-preact.js";
import { Alerts } from "../alerts.js";
import { ask } from "../api.js";
import { Card, Charts } from "../cards.js";
import { adminOption, Command } from "../command.js";
import * as format from "../format.js";
import { HeldBy } from "../held.js";
import { samples } from "../live.js";
import { Losses, lossOrder, lostRanges } from "../losses.js";
import { Name } from "../name.js";
import { usePoll } from "../poll.js";
import { change, link } from "../router.js";
import { consoleInfo, hasPage } from "../session.js";
import { Time, Trouble, Waiting } from "../state.js";
import { useStore } from "../store.js";
import { Table } from "../table.js";
import { Word } from "../words.js";

const STATUS_EVERY_MS = 10_000;
const CLUSTER_EVERY_MS = 5_000;
// A trend of less than this says nothing about days.
const TREND_SAMPLES_MIN = 120;
// A longer time from a quarter of an hour would be another one with each look.
const TREND_REACH_S = 30 * 86_400;

const CHARTS = [
  { title: "Messages a second", format: format.rate, steps: "whole", lines: [["in", "publishes_in"], ["out", "publishes_out"]] },
  { title: "Bytes a second", format: format.bytesPerSecond, steps: "whole", lines: [["in", "bytes_in"], ["out", "bytes_out"]] },
  { title: "Slowest 1 % (p99)", format: format.latency, least: 0.0001, lines: [["ack", "ack_p99_s"], ["sync", "sync_p99_s"]] },
  { title: "Connections and sessions", format: format.count, steps: "whole", lines: [["connections", "connections"], ["sessions", "sessions"]] },
  { title: "Loop busy", format: format.percent, least: 0.01, lines: [["busy", "loop_busy"]] },
  { title: "Disk", format: format.bytes, steps: "binary", lines: [["used", "disk_used_bytes"]] },
];

export default function Overview({ query }) {
  const now = useStore(samples);
  const status = usePoll("status", STATUS_EVERY_MS, (signal) => ask("api/v1/status", { signal }));
  // A broker that says that it is no node of a cluster need not be asked for it.
  const { cluster: isNode = true } = useStore(consoleInfo);
  const cluster = usePoll(isNode ? "cluster" : null, CLUSTER_EVERY_MS, (signal) => ask("api/v1/cluster", { signal }));
  return html`
    <${Cards} now=${now} disk=${status.value?.disk} />
    <${Alerts} alerts=${now.alerts} />
    <${Charts} charts=${CHARTS} now=${now} />
    <${Cluster} cluster=${cluster} query=${query} />
    <section aria-labelledby="partitions-title" class=${status.isStale ? "stale" : null}>
      <h2 id="partitions-title">Partitions</h2>
      <${Trouble} ...${status} />
      ${status.value && html`<${Partitions} status=${status.value} now=${now} query=${query} />`}
      ${!status.value && !status.error && html`<${Waiting} what="the partitions" />`}
    </section>
    <${Command} parts=${["headwater top", adminOption()]} />
  `;
}

function Cards({ now, disk }) {
  const last = (name) => now.series[name]?.at(-1) ?? null;
  return html`
    <dl class="cards">
      <${Card} name="MQTT messages in" value=${format.rate(last("publishes_in"))} unit="/s" note=${`refused ${format.rate(last("refused"))} /s`} />
      <${Card} name="MQTT messages out" value=${format.rate(last("publishes_out"))} unit="/s" note=${`dropped ${format.rate(last("dropped"))} /s`} />
      <${Card} name="Bytes in" value=${format.bytesPerSecond(last("bytes_in"))} />
      <${Card} name="Bytes out" value=${format.bytesPerSecond(last("bytes_out"))} note=${`Flight ${format.rate(last("flight_records"))} records/s`} />
      <${Card} name="Ack p99" word="ack" value=${format.latency(last("ack_p99_s"))} note="of the last second" />
      <${Card} name="Sync p99" word="sync" value=${format.latency(last("sync_p99_s"))} note="of the last second" />
      <${Card} name="Connections" value=${format.count(last("connections"))} />
      <${Card} name="Sessions" value=${format.count(last("sessions"))} note=${`subscriptions ${format.count(last("subscriptions"))}`} />
      <${Card} name="Loop busy" word="loop" value=${format.percent(last("loop_busy"))} note="100 % is one loop" />
      <${Card} name="Disk" value=${format.bytes(last("disk_used_bytes"))} note=${diskNote(now, disk)} />
    </dl>
  `;
}

/** The budget, and when it will be used up if the log grows as in the last minutes. */
function diskNote(now, disk) {
  if (!disk?.budget_bytes) return disk ? `${disk.level}, no budget` : null;
  const budget = `${disk.level}, of ${format.bytes(disk.budget_bytes)}`;
  const used = now.series.disk_used_bytes;
  const growth = used && growthPerSecond(now.times, used);
  if (growth === null || growth === undefined) return budget;
  if (growth <= 0) return `${budget}, not growing`;
  const fullInS = Math.max(0, disk.budget_bytes - used.at(-1)) / growth;
  return `${budget}, ${fullInS > TREND_REACH_S ? "not full for a month" : `full in ${format.duration(fullInS)}`}`;
}

/** The slope of the least-squares line, null when too little is known. */
function growthPerSecond(times, values) {
  const points = times.map((atMs, index) => [atMs / 1_000, values[index]]).filter(([, value]) => value !== null);
  if (points.length < TREND_SAMPLES_MIN) return null;
  const mean = (part) => points.reduce((sum, point) => sum + point[part], 0) / points.length;
  const [middle, average] = [mean(0), mean(1)];
  let above = 0;
  let below = 0;
  for (const [at, value] of points) {
    above += (at - middle) * (value - average);
    below += (at - middle) ** 2;
  }
  return below === 0 ? null : above / below;
}

function Partitions({ status, now, query }) {
  const rows = status.partitions.map((row) => {
    const [start, end] = now.offsets[row.partition] ?? [row.log_start, row.high_watermark];
    return { ...row, start, end, ranges: lostRanges(row), rate: now.rates[row.partition] ?? null };
  });
  const columns = [
    { key: "name", title: "partition", isHeader: true, value: (row) => row.name,
      cell: (row) => html`<a data-open href=${link("tail", { from: "earliest", partition: row.name })}>${row.name}</a>` },
    { key: "class", title: "class", value: (row) => row.class, cell: (row) => row.class },
    { key: "state", title: "state", value: (row) => row.state, cell: (row) => html`<${PartitionState} row=${row} />` },
    { key: "start", title: "log start", word: "logStart", isNumber: true, value: (row) => row.start, cell: (row) => format.count(row.start) },
    { key: "end", title: "high watermark", word: "highWatermark", isNumber: true, value: (row) => row.end, cell: (row) => format.count(row.end) },
    { key: "rate", title: "records/s", isNumber: true, value: (row) => row.rate, cell: (row) => format.rate(row.rate) },
    { key: "bytes", title: "size", isNumber: true, value: (row) => row.bytes, cell: (row) => format.bytes(row.bytes) },
    { key: "oldest", title: "oldest record", value: (row) => row.oldest_us, cell: (row) => html`<${Time} ms=${row.oldest_us && row.oldest_us / 1_000} />` },
    { key: "damage", title: "damage", value: (row) => lossOrder(row.ranges, row.damaged_bytes),
      cell: (row) => html`<${Losses} ranges=${row.ranges} damagedBytes=${row.damaged_bytes} href=${hasPage("damage") ? link("damage") : null} />` },
    { key: "held", title: "held by", word: "heldBy", cell: (row) => html`<${HeldBy} groups=${row.held_by.map(({ group }) => group)} />` },
  ];
  return html`
    <${Table} caption="Partitions of the log" columns=${columns} rows=${rows} keyOf=${(row) => row.name} current=${query.row}
      sort=${query.sort} onSort=${(sort) => change({ sort })} empty="No partitions." />
  `;
}

function PartitionState({ row }) {
  const isGood = row.state === "running" || row.state === "following";
  return html`<span class=${isGood ? "good" : "bad"}>${isGood ? "" : "✖\u00a0"}${row.state}${row.reason ? `: ${row.reason}` : ""}</span>`;
}

/** Not there on a broker without a cluster, which answers with 404. */
function Cluster({ cluster, query }) {
  if (cluster.error?.status === 404) return null;
  if (!cluster.value) return cluster.error?.status === 503 ? html`<${Trouble} ...${cluster} />` : null;
  const { nodes, leader, node: own, role, in_sync: inSync, lag, epoch, trust } = cluster.value;
  const rows = Object.entries(nodes).map(([name, node]) => ({
    ...node,
    name,
    role: name === leader ? "leader" : name === own ? role : "follower",
    isInSync: inSync.includes(name),
    lag: lag?.[name] ?? null,
    isOwn: name === own,
  }));
  const columns = [
    { key: "node", title: "node", isHeader: true, value: (row) => row.name,
      cell: (row) => html`<${Name} text=${row.name} />${row.isOwn && html` <span class="note">(this page)</span>`}` },
    { key: "role", title: "role", value: (row) => row.role, cell: (row) => row.role },
    { key: "sync", title: "in sync", word: "inSync", cell: (row) => html`<span class=${row.isInSync ? "good" : "bad"}>${row.isInSync ? "yes" : "✖\u00a0no"}</span>` },
    { key: "linked", title: "linked", cell: (row) => (row.isOwn ? "–" : html`<span class=${row.linked ? "good" : "bad"}>${row.linked ? "yes" : "✖\u00a0no"}</span>`) },
    { key: "lag", title: "lag (records)", word: "lag", isNumber: true, value: (row) => row.lag, cell: (row) => format.count(row.lag) },
    { key: "version", title: "version", cell: (row) => html`<${Name} text=${row.version} />` },
    { key: "mqtt", title: "MQTT", cell: (row) => html`<${Name} text=${row.mqtt} />` },
    { key: "admin", title: "admin", cell: (row) => html`<${Name} text=${row.admin} />` },
  ];
  return html`
    <section aria-labelledby="cluster-title" class=${cluster.isStale ? "stale" : null}>
      <h2 id="cluster-title">Cluster <${Name} text=${cluster.value.cluster} /></h2>
      <${Trouble} ...${cluster} />
      <p class="note"><${Word} of="epoch">Epoch<//> ${format.count(epoch)}, <${Word} of="trust">trust<//> ${trust}, etcd ${cluster.value.etcd?.reachable ? "reachable" : "not reachable"}.${lag ? "" : " The leader knows the lag."}</p>
      <${Table} caption="Nodes of the cluster" columns=${columns} rows=${rows} keyOf=${(row) => row.name} current=${query.row}
        sort=${query.nodes} onSort=${(nodes) => change({ nodes })} empty="No nodes." />
    </section>
  `;
}
