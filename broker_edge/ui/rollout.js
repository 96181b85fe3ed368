// One action in detail: how far it is, why devices failed, how long they took, and who asked for what.

import { html, useCallback, useEffect, useRef } from "./vendor/htm-preact.js";
import { ask } from "./api.js";
import { Bar, finishedText, Legend, State, sums, WAVE_COLUMNS, words } from "./bars.js";
import { Command, rootOption } from "./command.js";
import { count, duration, latency, percent } from "./format.js";
import { useKey } from "./keys.js";
import { Name } from "./name.js";
import { Facts } from "./panel.js";
import { Phase, whatOf } from "./phase.js";
import { usePoll } from "./poll.js";
import { Acts, Asked, Pending } from "./requests.js";
import { go, link } from "./router.js";
import { Time, Trouble, Waiting } from "./state.js";
import { Table } from "./table.js";
import { showTargets, Targets } from "./targets.js";

const EVERY_MS = 10_000;
const TABLES = ["actions", "action_state", "action_targets", "action_journal", "action_events", "action_requests"];
const STEPS = { delivered: "until it was delivered", started: "until the device began", finished: "until it finished" };
const SECOND_US = 1_000_000;

export function Rollout({ id, query }) {
  const title = useRef(null);
  const answer = usePoll(`rollout ${id}`, EVERY_MS, (signal) => ask("api/v1/rollout", { query: { id }, signal }), TABLES);
  const { value } = answer;
  const close = useCallback(() => go("rollouts", { row: id }), [id]);
  useKey("Escape", close);
  useEffect(() => title.current.focus(), []);
  return html`
    <section class=${`rollout ${answer.isStale ? "stale" : ""}`} aria-labelledby="rollout-title">
      <div class="panel-top">
        <h2 id="rollout-title" tabindex="-1" ref=${title}>Rollout <${Name} text=${id} length=${400} /></h2>
        ${value && html`<${Acts} rollout=${value.rollout} asked=${value.asked} onAsked=${answer.again} />`}
        <button type="button" onClick=${close} title="Esc">All rollouts</button>
      </div>
      <${Trouble} ...${answer} />
      ${value ? html`<${Detail} answer=${value} query=${query} onAsked=${answer.again} />` : !answer.error && html`<${Waiting} what="the rollout" />`}
    </section>
    <${Command} parts=${["headwater actions show", ...rootOption(), "--", { text: id }]} />
  `;
}

function Detail({ answer, query, onAsked }) {
  const { rollout, waves, failures, times, audit, asked, order } = answer;
  return html`
    <${Summary} rollout=${rollout} asked=${asked} />
    <${Asked} rows=${asked} />
    <${Part} name="waves" title="Waves">
      <${Table} caption="Targets of each wave by state" columns=${WAVE_COLUMNS} rows=${waves.map((wave) => withSums(wave, rollout))}
        keyOf=${(row) => `wave ${row.wave}`} empty="No device has a wave yet." />
      <${Legend} />
    <//>
    <${Part} name="failures" title="Why devices failed">
      <${Table} caption="Devices that ended without success, by reason" columns=${failureColumns(rollout.action_id)} rows=${failures}
        keyOf=${(row) => `failure ${row.state} ${row.reason ?? ""}`} current=${query.row} empty="No device has ended without success." />
    <//>
    <${Part} name="times" title="How long devices took">
      <${Table} caption="Time since the command was in the log" columns=${TIME_COLUMNS} rows=${times} keyOf=${(row) => `time ${row.step}`}
        empty="Nothing has been delivered yet." />
    <//>
    <${Targets} rollout=${rollout} query=${query} onAsked=${onAsked} />
    <${Part} name="audit" title="Who asked for what">
      <${Table} caption="Audit trail of the action" columns=${AUDIT_COLUMNS} rows=${newestFirst(audit)} keyOf=${(row) => row.key}
        empty="Nothing has been asked." />
    <//>
    <details class="order">
      <summary>The order, as it stands in the table <code>actions</code></summary>
      <pre tabindex="0" aria-label="The order as JSON"><bdi>${JSON.stringify(order, null, 2)}</bdi></pre>
    </details>
  `;
}

function Part({ name, title, children }) {
  return html`<section aria-labelledby=${`${name}-title`}><h2 id=${`${name}-title`}>${title}</h2>${children}</section>`;
}

function withSums(wave, rollout) {
  return { ...wave, sums: sums(wave.counts), isOpen: wave.wave === rollout.wave && rollout.ended_us === null };
}

function Summary({ rollout, asked }) {
  const { targets, open, counts, wave, waves, message, stopped, held } = rollout;
  const isKnown = targets !== null;
  const facts = [
    ["What", html`<${Name} text=${whatOf(rollout)} length=${200} />`],
    ["Wave", waves ? `${count(Math.max(0, wave + 1))} of ${count(waves)}` : "–"],
    ["Created", html`<${At} us=${rollout.created_us} /> by <${Name} text=${rollout.created_by} length=${80} />`],
    ["Started", html`<${At} us=${rollout.started_us} />`],
    ["Ended", html`<${At} us=${rollout.ended_us} />${tookText(rollout)}`],
  ];
  return html`
    <p class="verdict"><strong><${Phase} rollout=${rollout} /></strong>${message && html`: <${Name} text=${message} length=${600} />`}<${Pending} rows=${asked} /></p>
    ${stopped && html`<p class="problem"><span aria-hidden="true">✖\u00a0</span>Nothing more is sent: <${Name} text=${stopped} length=${600} /></p>`}
    ${held && html`<p class="problem"><span aria-hidden="true">⚠\u00a0</span>Held: <${Name} text=${held} length=${600} /></p>`}
    ${isKnown && html`<div class="whole-bar"><${Bar} counts=${counts} /><p>${finishedText(rollout)}${targets > 0 && `, ${percent((targets - open) / targets)}`}</p></div>`}
    <${Facts} facts=${facts} />
  `;
}

/** Each with a key that stays when further rows come. */
function newestFirst(audit) {
  const seen = new Map();
  const rows = audit.map((row) => {
    const text = JSON.stringify([row.at_us, row.who, row.what, row.device_id]);
    seen.set(text, (seen.get(text) ?? 0) + 1);
    return { ...row, key: `audit ${text} ${seen.get(text)}` };
  });
  return rows.sort((left, right) => right.at_us - left.at_us);
}

function tookText({ started_us: started, ended_us: ended }) {
  return started && ended ? `, after ${duration((ended - started) / SECOND_US)}` : null;
}

function At({ us }) {
  return html`<${Time} ms=${us && us / 1_000} />`;
}

function failureColumns(id) {
  return [
    { key: "reason", title: "reason", isHeader: true, cell: (row) => html`<${Name} text=${row.reason} length=${300} />` },
    { key: "state", title: "state", cell: (row) => html`<${State} state=${row.state} />` },
    { key: "number", title: "devices", isNumber: true, cell: (row) => count(row.number) },
    { key: "example", title: "for example",
      cell: (row) => html`<a href=${link("devices", { device: row.example })}><${Name} text=${row.example} length=${60} /></a>` },
    { key: "targets", title: "targets",
      cell: (row) => html`<a data-open href=${link("rollouts", { id, state: row.state, reason: row.reason })} onClick=${showTargets}>Show these ${words(row.state)} devices</a>` },
  ];
}

const TIME_COLUMNS = [
  { key: "step", title: "from the command in the log", isHeader: true, cell: (row) => STEPS[row.step] ?? row.step },
  { key: "number", title: "devices", isNumber: true, cell: (row) => count(row.number) },
  { key: "p50", title: "median", isNumber: true, cell: (row) => timeText(row.p50_s) },
  { key: "p95", title: "p95", isNumber: true, cell: (row) => timeText(row.p95_s) },
  { key: "p99", title: "p99", isNumber: true, cell: (row) => timeText(row.p99_s) },
];

function timeText(seconds) {
  return seconds !== null && seconds < 60 ? latency(seconds) : duration(seconds);
}

const AUDIT_COLUMNS = [
  { key: "at", title: "time", isHeader: true, cell: (row) => html`<${At} us=${row.at_us} />` },
  { key: "who", title: "who", cell: (row) => html`<${Name} text=${row.who} length=${80} />` },
  { key: "what", title: "what", cell: (row) => html`<${Name} text=${row.what} length=${60} />` },
  { key: "device", title: "device", cell: (row) => (row.device_id ? html`<${Name} text=${row.device_id} length=${60} />` : "–") },
  { key: "message", title: "message", cell: (row) => html`<${Name} text=${row.message || null} length=${400} />` },
];
