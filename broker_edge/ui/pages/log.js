// The files of the log: partitions with what retention removes next and when, their segments, and files with bytes that are
// not served.

import { html } from "../vendor/htm-preact.js";
import { ask } from "../api.js";
import { adminOption, Command } from "../command.js";
import { bytes, bytesPerSecond, count, counted, duration } from "../format.js";
import { HeldBy } from "../held.js";
import { More } from "../list.js";
import { Name } from "../name.js";
import { usePages, usePoll } from "../poll.js";
import { change, link } from "../router.js";
import { hasPage } from "../session.js";
import { Time, Trouble, Waiting } from "../state.js";
import { Table } from "../table.js";

const EVERY_MS = 5_000;
const PATH = "api/v1/segments";
// Longer than any time until a removal.
const NEVER_S = 1e12;

const RULES = {
  age: "by age",
  bytes: "by size",
  hard_bytes: "by hard size limit",
  disk: "for the disk budget",
  advance: "once no longer needed",
  leader: "when the leader removes it",
};
const INDEXES = {
  saved: "✓\u00a0saved",
  unsaved: "… being saved",
  growing: "in memory, growing",
  provisional: "⚠\u00a0in memory: some bytes cannot be read",
};

export default function Log({ query }) {
  const partition = query.partition ?? "";
  const overview = usePoll("partitions", EVERY_MS, (signal) => ask(PATH, { query: { limit: 1 }, signal }));
  const partitions = overview.value?.partitions;
  return html`
    <${Trouble} ...${overview} />
    ${partitions && html`
      <div class=${`parts ${overview.isStale ? "stale" : ""}`}>
        <section aria-labelledby="partitions-title">
          <h2 id="partitions-title">Partitions</h2>
          <p class="note">Retention removes whole segments, the oldest first. Times assume that a partition goes on to grow as in the last minutes; in the first minute after a start that is not known.</p>
          <${Table} caption="Partitions, and what retention removes next" columns=${PARTITION_COLUMNS} rows=${partitions} keyOf=${(row) => row.name}
            current=${query.row} sort=${query.partitions} onSort=${(sort) => change({ partitions: sort })} empty="No partitions." />
        </section>
        <${Segments} partitions=${partitions} partition=${partition} query=${query} />
        <${Kept} partitions=${partitions} query=${query} />
      </div>
    `}
    ${!partitions && !overview.error && html`<${Waiting} what="the files of the log" />`}
    <${Command} parts=${["headwater log segments", ...(partition ? ["--partition", { text: partition }] : []), adminOption()]} />
  `;
}

const PARTITION_COLUMNS = [
  { key: "name", title: "partition", isHeader: true, value: (row) => row.name,
    cell: (row) => html`
      <button type="button" class="link" data-open onClick=${() => change({ partition: row.name, row: row.name }, { isStep: true })}>
        ${row.name}<span class="hidden">: show its segments only</span>
      </button>
    ` },
  { key: "segments", title: "segments", isNumber: true, value: (row) => row.segments, cell: (row) => count(row.segments) },
  { key: "bytes", title: "size", isNumber: true, value: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
  { key: "growth", title: "growth", isNumber: true, value: (row) => row.bytes_per_s, cell: (row) => bytesPerSecond(row.bytes_per_s) },
  { key: "goes", title: "removed next", value: goesOrder, cell: (row) => html`<${GoesNext} row=${row} />` },
  { key: "held", title: "held by", word: "heldNext", cell: (row) => html`<${HeldBy} groups=${row.goes_next?.held_by ?? []} />` },
  { key: "kept", title: "retention", cell: limitsText },
  { key: "end", title: "high watermark", word: "highWatermark", isNumber: true, value: (row) => row.high_watermark, cell: (row) => count(row.high_watermark) },
];

function limitsText({ class: name, retention: limits }) {
  if (name === "internal") return "while it is needed";
  if (!limits) return "–";
  const { age_s: ageS, bytes: size, hard_bytes: hardSize, hold_for_groups: holds } = limits;
  const parts = [ageS !== null && duration(ageS), size !== null && bytes(size)].filter(Boolean);
  const usual = parts.length ? parts.join(" or ") : "for good";
  const hard = hardSize === null ? "" : `, at most ${bytes(hardSize)}`;
  return `${usual}${holds && parts.length ? ", longer for groups" : ""}${hard}`;
}

function GoesNext({ row }) {
  const next = row.goes_next;
  if (!next) return html`<span class="unknown">nothing yet</span>`;
  if (next.rule === null) return html`<span class="unknown">nothing${next.held_by.length ? " while groups hold it" : ": it is kept for good"}</span>`;
  return html`${offsets(next)} ${Object.hasOwn(RULES, next.rule) ? RULES[next.rule] : next.rule}${whenText(row, next)}`;
}

function whenText({ bytes_per_s: growth }, { rule, in_s: inS }) {
  if (inS === 0) return ", now";
  if (inS !== null) return ` in ${duration(inS)}`;
  if (rule !== "bytes" && rule !== "hard_bytes") return "";
  return growth === null ? ", when is not known yet" : ", but it does not grow";
}

/** What goes soonest comes first. */
function goesOrder({ goes_next: next }) {
  return next === null || next.rule === null ? null : next.in_s ?? NEVER_S;
}

function offsets({ base, next }) {
  return next > base ? `offsets ${count(base)} to ${count(next - 1)}` : `offset ${count(base)} on`;
}

function Segments({ partitions, partition, query }) {
  const segments = usePages(PATH, { partition: partition || null }, "segments", EVERY_MS);
  const going = new Set(partitions.filter(({ goes_next: next }) => next?.rule).map(({ name, goes_next: next }) => `${name}:${next.base}`));
  const rows = (segments.rows ?? []).map((row) => ({ ...row, key: `${row.name}:${row.base}`, goesNext: going.has(`${row.name}:${row.base}`) }));
  return html`
    <section aria-labelledby="segments-title" class=${segments.isStale ? "stale" : null}>
      <h2 id="segments-title">Segments</h2>
      <form class="bar" aria-label="Segments" onSubmit=${(event) => event.preventDefault()}>
        <label><span>Partition</span>
          <select onChange=${(event) => change({ partition: event.target.value, row: null })}>
            ${["", ...partitions.map(({ name }) => name)].map((name) => html`
              <option key=${name} value=${name} selected=${name === partition}>${name || "all"}</option>
            `)}
          </select>
        </label>
      </form>
      <${Trouble} ...${segments} />
      ${segments.rows && html`
        <${Table} caption="Segments in the order of their offsets" columns=${SEGMENT_COLUMNS} rows=${rows} keyOf=${(row) => row.key}
          current=${query.row} sort=${segments.isComplete ? query.sort : null}
          onSort=${segments.isComplete ? (sort) => change({ sort }) : null} empty="No segments." />
        <${More} what="segment" ...${segments} />
      `}
      ${!segments.rows && !segments.error && html`<${Waiting} what="the segments" />`}
    </section>
  `;
}

const SEGMENT_COLUMNS = [
  { key: "partition", title: "partition", isHeader: true, value: (row) => row.name, cell: (row) => html`<${Records} row=${row} />` },
  { key: "base", title: "first offset", isNumber: true, value: (row) => row.base, cell: (row) => count(row.base) },
  { key: "records", title: "offsets", isNumber: true, value: (row) => row.next - row.base, cell: (row) => count(row.next - row.base) },
  { key: "bytes", title: "size", isNumber: true, value: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
  { key: "first", title: "first record", value: (row) => row.first_us, cell: (row) => html`<${Time} ms=${row.first_us && row.first_us / 1_000} />` },
  { key: "last", title: "newest record", value: (row) => row.last_us, cell: (row) => html`<${Time} ms=${row.last_us && row.last_us / 1_000} />` },
  { key: "state", title: "state", value: (row) => row.state,
    cell: (row) => (row.state === "active" ? html`<span class="good">●\u00a0active</span>` : html`○\u00a0sealed${row.goesNext && html` <span class="note">removed next</span>`}`) },
  { key: "index", title: "index", word: "index", value: (row) => row.index,
    cell: (row) => html`<span class=${row.index === "provisional" ? "bad" : null}>${Object.hasOwn(INDEXES, row.index) ? INDEXES[row.index] : row.index}</span>` },
];

function Records({ row: { name, base, next } }) {
  if (next === base) return name;
  return html`<a data-open href=${link("tail", { from: "offset", at: base, partition: name })}>${name}<span class="hidden">: records from ${count(base)} on</span></a>`;
}

function Kept({ partitions, query }) {
  const rows = partitions.flatMap(({ name, kept_files: files }) => files.map((file) => ({ partition: name, ...file, key: `${name}/${file.name}` })));
  const leftOut = partitions.reduce((sum, row) => sum + row.kept_files_left_out, 0);
  return html`
    <section aria-labelledby="kept-title">
      <h2 id="kept-title">Kept aside</h2>
      <p class="note">Bytes that are not served: torn by a crash before they were acknowledged, or damaged. They use disk space and nothing needs them: look at them, then delete the files.</p>
      <${Table} caption="Files with bytes that are not served" columns=${KEPT_COLUMNS} rows=${rows} keyOf=${(row) => row.key}
        current=${query.row} sort=${query.kept ?? "-bytes"} onSort=${(sort) => change({ kept: sort })} empty="Nothing is kept aside." />
      ${leftOut > 0 && html`<p class="note">⚠\u00a0${counted(leftOut, "smaller file")} more: the largest 100 of each partition are listed.</p>`}
      ${rows.length > 0 && hasPage("damage") && html`<p><a href=${link("damage")}>What is lost, and what to run</a></p>`}
    </section>
  `;
}

const KEPT_COLUMNS = [
  { key: "file", title: "file", isHeader: true, value: (row) => row.key, cell: (row) => html`<${Name} text=${row.key} />` },
  { key: "kind", title: "what", value: (row) => kindOf(row.name), cell: (row) => html`<span class=${kindOf(row.name) === "damaged" ? "bad" : null}>${kindText(row.name)}</span>` },
  { key: "bytes", title: "size", isNumber: true, value: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
];

function kindOf(name) {
  return name.slice(name.lastIndexOf(".") + 1);
}

function kindText(name) {
  return { torn: "torn by a crash", damaged: "✖\u00a0damaged", misplaced: "of another place" }[kindOf(name)] ?? kindOf(name);
}
