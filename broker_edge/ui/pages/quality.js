// What is wrong with the data: rules that rows broke, records that could not be used, and offsets that are lost.

import { html } from "../vendor/htm-preact.js";
import { ask } from "../api.js";
import { Command, curlParts } from "../command.js";
import { count, percent } from "../format.js";
import { LOG_ID_SHOWN, Name } from "../name.js";
import { usePoll } from "../poll.js";
import { change } from "../router.js";
import { consoleInfo } from "../session.js";
import { Time, Trouble, Waiting } from "../state.js";
import { useStore } from "../store.js";
import { Table } from "../table.js";

const EVERY_MS = 10_000;
const PATH = "api/v1/quality";
const TABLES = ["dq_results", "quarantine", "ingest_gaps"];
const MOST_FAILED = "-failed";
const LARGEST = "-number";

export default function Quality({ query }) {
  const info = useStore(consoleInfo);
  const answer = usePoll("quality", EVERY_MS, (signal) => ask(PATH, { signal }), TABLES);
  const { value } = answer;
  return html`
    <${Trouble} ...${answer} />
    ${value && html`
      <div class=${`parts ${answer.isStale ? "stale" : ""}`}>
        <${Part} name="rules" title="Rules" note="The last 24 hours. Rules of the source “batch” check every row, those of “suite” a sample."
          table="dq_results" writer="the jobs silver and quality" rows=${value.rules}>
          <${Table} caption="Results of the quality rules" columns=${RULE_COLUMNS} rows=${value.rules} keyOf=${ruleKey} current=${query.row}
            sort=${query.rules ?? MOST_FAILED} onSort=${(rules) => change({ rules })} empty="No rule was checked in the last 24 hours." />
        <//>
        <${Part} name="quarantine" title="Quarantine" note="Records that could not be used, by reason."
          table="quarantine" writer="the jobs that fill the other tables" rows=${value.quarantine}>
          <${Table} caption="Records in the quarantine by reason" columns=${QUARANTINE_COLUMNS} rows=${value.quarantine}
            keyOf=${(row) => `reason ${row.pipeline} ${row.reason}`} current=${query.row} sort=${query.quarantine ?? LARGEST}
            onSort=${(quarantine) => change({ quarantine })} empty="No record is in the quarantine." />
        <//>
        <${Part} name="gaps" title="Lost offsets" note="What the brokers reported, the newest 100."
          table="ingest_gaps" writer="the job gaps" rows=${value.gaps}>
          <${Table} caption="Lost offsets that brokers reported" columns=${GAP_COLUMNS} rows=${value.gaps} keyOf=${gapKey} current=${query.row}
            sort=${query.gaps} onSort=${(gaps) => change({ gaps })} empty="No broker has reported lost offsets." />
        <//>
      </div>
    `}
    ${!value && !answer.error && html`<${Waiting} what="the quality of the data" />`}
    <${Command} parts=${curlParts(PATH, {}, info.user)} />
  `;
}

function Part({ name, title, note, table, writer, rows, children }) {
  return html`
    <section aria-labelledby=${`${name}-title`}>
      <h2 id=${`${name}-title`}>${title}</h2>
      ${rows === null
        ? html`<p class="waiting">The table <code>${table}</code> does not exist yet. It is written by ${writer}.</p>`
        : html`<p class="note">${note}</p>${children}`}
    </section>
  `;
}

function ruleKey({ source, message, rule, column }) {
  return JSON.stringify([source, message, rule, column]);
}

function gapKey({ log_id: logId, partition, start, consumer_group: group, reported_us: at }) {
  return JSON.stringify([logId, partition, start, group, at]);
}

const RULE_COLUMNS = [
  { key: "rule", title: "rule", isHeader: true, value: (row) => row.rule, cell: (row) => html`<${Name} text=${row.rule} length=${80} />` },
  { key: "success", title: "result", value: (row) => String(row.success), cell: (row) => html`<${Result} row=${row} />` },
  { key: "failed", title: "failed rows", isNumber: true, value: (row) => row.failed, cell: (row) => (row.failed > 0 ? html`<span class="bad">✖\u00a0${count(row.failed)}</span>` : count(row.failed)) },
  { key: "share", title: "share", isNumber: true, value: shareOf, cell: (row) => percent(shareOf(row)) },
  { key: "checked", title: "checked rows", isNumber: true, value: (row) => row.checked, cell: (row) => count(row.checked) },
  { key: "message", title: "message schema", value: (row) => row.message, cell: (row) => html`<${Name} text=${row.message} length=${60} />` },
  { key: "column", title: "column", value: (row) => row.column, cell: (row) => html`<${Name} text=${row.column} length=${60} />` },
  { key: "check", title: "check", value: (row) => row.check, cell: (row) => html`<${Name} text=${row.check} length=${60} />` },
  { key: "source", title: "source", value: (row) => row.source, cell: (row) => html`<${Name} text=${row.source} length=${40} />` },
  { key: "at", title: "newest result", value: (row) => row.at_us, cell: (row) => html`<${Time} ms=${row.at_us && row.at_us / 1_000} />` },
];

function shareOf({ failed, checked }) {
  return failed === null || !checked ? null : failed / checked;
}

function Result({ row: { success, on_fail: onFail } }) {
  if (success) return html`<span class="good"><span aria-hidden="true">✓\u00a0</span>passed</span>`;
  const isWarning = onFail === "warn";
  return html`<span class=${isWarning ? "warned" : "bad"}><span aria-hidden="true">${isWarning ? "⚠" : "✖"}\u00a0</span>failed${onFail === "quarantine" && ", rows in quarantine"}</span>`;
}

const QUARANTINE_COLUMNS = [
  { key: "reason", title: "reason", isHeader: true, value: (row) => row.reason, cell: (row) => html`<${Name} text=${row.reason} length=${300} />` },
  { key: "number", title: "records", isNumber: true, value: (row) => row.number, cell: (row) => count(row.number) },
  { key: "pipeline", title: "job", value: (row) => row.pipeline, cell: (row) => html`<${Name} text=${row.pipeline} length=${60} />` },
  { key: "newest", title: "newest", value: (row) => row.newest_us, cell: (row) => html`<${Time} ms=${row.newest_us && row.newest_us / 1_000} />` },
];

const GAP_COLUMNS = [
  { key: "place", title: "partition", isHeader: true, value: (row) => row.partition, cell: (row) => row.partition_name ?? count(row.partition) },
  { key: "reason", title: "reason", value: (row) => row.reason, cell: (row) => html`<span class=${row.reason === "damage" ? "bad" : null}>${row.reason === "damage" && "✖\u00a0"}<${Name} text=${row.reason} length=${80} /></span>` },
  { key: "first", title: "first offset", isNumber: true, value: (row) => row.start, cell: (row) => count(row.start) },
  { key: "last", title: "last offset", isNumber: true, value: (row) => row.end, cell: (row) => (row.end === null ? "not known" : count(row.end - 1)) },
  { key: "offsets", title: "offsets", isNumber: true, value: (row) => lengthOf(row), cell: (row) => count(lengthOf(row)) },
  { key: "group", title: "consumer group", value: (row) => row.consumer_group, cell: (row) => html`<${Name} text=${row.consumer_group} length=${60} />` },
  { key: "log", title: "log", value: (row) => row.log_id, cell: (row) => html`<code><${Name} text=${row.log_id} length=${LOG_ID_SHOWN} /></code>` },
  { key: "reported", title: "reported", value: (row) => row.reported_us, cell: (row) => html`<${Time} ms=${row.reported_us && row.reported_us / 1_000} />` },
];

function lengthOf({ start, end }) {
  return end === null ? null : end - start;
}
