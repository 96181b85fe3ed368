// What is gone from the log and why: gaps of every partition, damaged bytes, and segments that were removed.

import { html, useState } from "../vendor/htm-preact.js";
import { ask } from "../api.js";
import { copy } from "../clipboard.js";
import { Command, serverOption } from "../command.js";
import { bytes, count, counted } from "../format.js";
import { More } from "../list.js";
import { Name } from "../name.js";
import { ANSWER_ROWS_MAX, usePoll } from "../poll.js";
import { change, link } from "../router.js";
import { hasPage } from "../session.js";
import { Trouble, Waiting } from "../state.js";
import { Table } from "../table.js";

const EVERY_MS = 10_000;
// Each partition may have a thousand gaps.
const GAPS_SHOWN = 100;
const MORE_GAPS = 400;
const WORST_FIRST = "reason";

// In the order of how bad they are.
const REASONS = {
  damage: { text: "✖\u00a0lost by damage", look: "bad" },
  purge: { text: "∅\u00a0purged on request", look: null },
  retention: { text: "↧\u00a0removed by retention", look: null },
};
const CAUSES = {
  age: "removed by age",
  bytes: "by size",
  hard_bytes: "by hard size limit",
  disk: "for the disk budget",
  advance: "no longer needed",
};

export default function Damage({ query }) {
  const status = usePoll("status", EVERY_MS, (signal) => ask("api/v1/status", { signal }));
  const groups = usePoll(hasPage("groups") ? "groups" : null, EVERY_MS, (signal) => ask("api/v1/groups", { query: { limit: ANSWER_ROWS_MAX }, signal }));
  const partitions = status.value?.partitions.map(withLosses);
  return html`
    <${Trouble} ...${status} />
    ${partitions && html`
      <div class=${`parts ${status.isStale ? "stale" : ""}`}>
        <${Verdict} partitions=${partitions} />
        ${groups.value && html`<${Unread} answer=${groups.value} />`}
        <${Gaps} partitions=${partitions} query=${query} />
        <section aria-labelledby="losses-title">
          <h2 id="losses-title">By partition</h2>
          <p class="note">Removed segments are counted since the broker started.</p>
          <${Table} caption="Damage and removed segments by partition" columns=${PARTITION_COLUMNS} rows=${partitions}
            keyOf=${(row) => row.name} current=${query.row} sort=${query.partitions}
            onSort=${(sort) => change({ partitions: sort })} empty="No partitions." />
        </section>
      </div>
    `}
    ${!partitions && !status.error && html`<${Waiting} what="the partitions" />`}
    <${WhatToRun} />
    <${Command} parts=${["headwater offsets list", ...serverOption()]} />
  `;
}

/** The partition with what damage has taken of it, among the gaps that are listed. */
function withLosses(partition) {
  const damaged = partition.gaps.filter(({ reason }) => reason === "damage");
  const lost = damaged.reduce((sum, { start, end }) => sum + end - start, 0);
  return { ...partition, ranges: damaged.length, lost, left_out: partition.gaps_left_out ?? 0 };
}

function Verdict({ partitions }) {
  const sum = (name) => partitions.reduce((total, row) => total + row[name], 0);
  const [lost, ranges, leftOut, damaged] = ["lost", "ranges", "left_out", "damaged_bytes"].map(sum);
  const stopped = partitions.filter(({ state }) => state === "stopped");
  const isDamaged = lost > 0 || damaged > 0;
  return html`
    ${isDamaged && html`
      <p class="problem"><span aria-hidden="true">✖\u00a0</span>
        Damage: ${counted(lost, "offset")} lost in ${counted(ranges, "range")}, ${bytes(damaged)} damaged.
      </p>
    `}
    ${leftOut > 0 && html`
      <p class="problem"><span aria-hidden="true">⚠\u00a0</span>
        Not listed here: ${counted(leftOut, "older gap")}. The broker lists the newest 1,000 of each partition, and the commands below list all.
      </p>
    `}
    ${!isDamaged && leftOut === 0 && html`
      <div>
        <p class="fine"><span aria-hidden="true">✓\u00a0</span>No damage: no record that should be there is missing, and no byte is known to be damaged.</p>
        <p class="note">Damage in an old segment is known only once somebody has read it. The commands below read all of them.</p>
      </div>
    `}
    ${stopped.map(({ name, reason }) => html`
      <p key=${name} class="problem"><span aria-hidden="true">✖\u00a0</span>${name} has stopped${reason && html`: <${Name} text=${reason} length=${400} />`}</p>
    `)}
  `;
}

/** What retention removed before a group had read it is no damage, but a loss for that group. */
function Unread({ answer }) {
  const losers = answer.groups.filter(({ partitions }) => partitions.some(({ lost_records: lost }) => lost > 0)).length;
  if (losers === 0) return null;
  const more = answer.next === null ? "" : ", and perhaps others,";
  return html`
    <p class="problem"><span aria-hidden="true">⚠\u00a0</span>
      ${counted(losers, "group")}${more} had not read some of the records that retention removed. <a href=${link("groups", { sort: "-lost" })}>Which groups</a>
    </p>
  `;
}

function Gaps({ partitions, query }) {
  const [limit, setLimit] = useState(GAPS_SHOWN);
  const rows = partitions.flatMap(({ name, gaps }) => gaps.map((gap) => ({ ...gap, name })));
  return html`
    <section aria-labelledby="gaps-title">
      <h2 id="gaps-title">Gaps</h2>
      <${Table} caption="Gaps of all partitions" columns=${GAP_COLUMNS} rows=${rows} limit=${limit}
        keyOf=${(row) => `${row.name}:${row.start} ${row.reason}`} current=${query.row}
        sort=${query.sort ?? WORST_FIRST} onSort=${(sort) => change({ sort })} empty="There are no gaps." />
      ${rows.length > 0 && html`
        <${More} what="gap" rows=${rows.slice(0, limit)} isComplete=${rows.length <= limit} more=${() => setLimit(limit + MORE_GAPS)} />
      `}
    </section>
  `;
}

const GAP_COLUMNS = [
  { key: "partition", title: "partition", isHeader: true, value: (row) => row.name, cell: (row) => row.name },
  { key: WORST_FIRST, title: "reason", value: rank, cell: (row) => html`<${Reason} reason=${row.reason} />` },
  { key: "first", title: "first offset", isNumber: true, value: (row) => row.start, cell: (row) => count(row.start) },
  { key: "last", title: "last offset", isNumber: true, value: (row) => row.end, cell: (row) => count(row.end - 1) },
  { key: "offsets", title: "offsets", isNumber: true, value: (row) => row.end - row.start, cell: (row) => count(row.end - row.start) },
  { key: "after", title: "records",
    cell: (row) => html`
      <a data-open href=${link("tail", { from: "offset", at: row.end, partition: row.name })}>
        After the gap<span class="hidden"> of ${row.name} from ${count(row.end)} on</span>
      </a>
    ` },
  { key: "detail", title: "detail", cell: (row) => html`<${Name} text=${row.detail} length=${400} />` },
];

const PARTITION_COLUMNS = [
  { key: "name", title: "partition", isHeader: true, value: (row) => row.name, cell: (row) => row.name },
  { key: "lost", title: "lost offsets", isNumber: true, value: (row) => row.lost, cell: (row) => html`<${Bad} value=${row.lost} write=${count} />` },
  { key: "damaged", title: "damaged", isNumber: true, value: (row) => row.damaged_bytes, cell: (row) => html`<${Bad} value=${row.damaged_bytes} write=${bytes} />` },
  ...Object.entries(CAUSES).map(([cause, title]) => ({
    key: cause, title, isNumber: true, value: (row) => row.removed_segments[cause], cell: (row) => count(row.removed_segments[cause]),
  })),
];

function rank({ reason }) {
  const place = Object.keys(REASONS).indexOf(reason);
  return place < 0 ? -1 : place;
}

function Reason({ reason }) {
  const known = Object.hasOwn(REASONS, reason) ? REASONS[reason] : { text: reason, look: null };
  return html`<span class=${known.look}>${known.text}</span>`;
}

function Bad({ value, write }) {
  return value > 0 ? html`<span class="bad">✖\u00a0${write(value)}</span>` : write(value);
}

const RUNS = [
  { command: "headwater log verify --online DATA_DIR", what: "Reads every byte of all but the newest segments while the broker runs, and changes nothing." },
  { command: "headwater log verify DATA_DIR", what: "With the broker stopped: reads all of them, and lists each gap with file and byte." },
  { command: "headwater log repair --dry-run DATA_DIR",
    what: html`With the broker stopped: says what a repair would rebuild and set aside. Without <code>--dry-run</code> it does so, and deletes nothing.` },
];

function WhatToRun() {
  return html`
    <section aria-labelledby="run-title">
      <h2 id="run-title">What to run</h2>
      <p class="note">On the broker's machine. <code>DATA_DIR</code> is its setting <code>data_dir</code>.</p>
      <dl class="runs">
        ${RUNS.map(({ command, what }) => html`
          <div key=${command}>
            <dt class="command"><code>${command}</code><button type="button" class="quiet" onClick=${() => copy(command, "Command")}>Copy<span class="hidden"> ${command}</span></button></dt>
            <dd>${what}</dd>
          </div>
        `)}
      </dl>
    </section>
  `;
}
