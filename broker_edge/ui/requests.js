// Requests to the engine about an action: the question before one, the row that is written, and those without an answer yet.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";
import { commandOf, rootOption } from "./command.js";
import { Confirm } from "./dialog.js";
import { count, cut } from "./format.js";
import { Name } from "./name.js";
import { say } from "./notice.js";
import { consoleInfo } from "./session.js";
import { Time } from "./state.js";
import { useStore } from "./store.js";
import { Table } from "./table.js";

const REASON_MAX = 400;
const COMMAND_MAX = 600;

const KINDS = {
  approve: { title: "Approve", question: "Approve the next wave?", what: "Its devices get the command. Who created the action may not approve it.", isHarmless: true },
  pause: { title: "Pause", question: "Pause this rollout?", what: "Nothing more is sent until somebody resumes it. Devices that have the command go on.", isHarmless: true },
  resume: { title: "Resume", question: "Resume this rollout?", what: "It goes on where it was paused.", isHarmless: true },
  retry: { title: "Retry", question: "Try again at devices with errors?", what: "Every device that ended in error gets another attempt.", isHarmless: true },
  force: { title: "Force", question: "Force this update?", what: "Soft updates become forced ones: devices no longer wait for consent or a window." },
  remove: { title: "Remove devices", question: "Remove the held devices?", what: "Devices that are gone from the table of devices leave the rollout." },
  cancel: { title: "Cancel rollout", question: "Cancel this rollout?", what: "Devices that have the command are asked to stop, and no device gets it any more. It cannot be resumed." },
};
const OF_DEVICE = {
  cancel: { title: "Cancel", question: "Cancel for this device?", what: "It is asked to stop if it has the command, and does not get it otherwise." },
};

/** Buttons for the requests that are of use now. One that waits for its answer cannot be made again. */
export function Acts({ rollout, asked, onAsked }) {
  const info = useStore(consoleInfo);
  const [kind, setKind] = useState(null);
  if (!info.operator) return null;
  const kinds = Object.keys(KINDS).filter((name) => rollout.can.includes(name));
  // Not `disabled`: that would take the focus from who has just used it.
  const isAsked = (name) => asked.some((row) => row.kind === name && row.device_id === null);
  return html`
    ${kinds.map((name) => html`
      <button key=${name} type="button" class=${KINDS[name].isHarmless ? null : "danger"} aria-disabled=${isAsked(name) ? "true" : null}
        onClick=${() => !isAsked(name) && setKind(name)}>${KINDS[name].title}…</button>
    `)}
    ${kind && html`<${Question} kind=${kind} rollout=${rollout} device=${null} onAsked=${onAsked} onClose=${() => setKind(null)} />`}
  `;
}

/** `device`: the id of one target, or null for all. */
export function Question({ kind, rollout, device, onAsked, onClose }) {
  const { title, question, what, isHarmless } = (device === null ? KINDS : OF_DEVICE)[kind];
  const [reason, setReason] = useState("");
  // The wave that waits now, so that an answer which comes late does not let a later one begin.
  const wave = kind === "approve" && rollout.phase === "WAITING_APPROVAL" ? rollout.wave + 2 : null;
  const act = async () => {
    const query = { id: rollout.action_id };
    const body = { kind, device_id: device, wave, reason: reason.trim() };
    onClose();
    try {
      await ask("api/v1/rollout/requests", { method: "POST", query, body });
      say(`${title} requested; see “Not yet answered”.`);
    } catch (error) {
      say(error.message);
    }
    onAsked();
  };
  return html`
    <${Confirm} title=${question} act=${title} leave="Back" isHarmless=${isHarmless} onAct=${act} onClose=${onClose}>
      <p><code><${Name} text=${rollout.action_id} length=${400} /></code>${device !== null && html`, device <code><${Name} text=${device} length=${400} /></code>`}</p>
      <p>${what}${wave !== null && ` It is wave ${count(wave)} of ${count(rollout.waves)}.`}</p>
      <label class="reason"><span>Reason, for the audit (optional)</span>
        <input value=${reason} onInput=${(event) => setReason(event.target.value)} maxlength=${REASON_MAX} autocomplete="off" />
      </label>
      <p class="note">As a command: <code><bdi>${cut(commandOf(commandParts(kind, rollout, { device, wave, reason })), COMMAND_MAX)}</bdi></code></p>
    <//>
  `;
}

function commandParts(kind, { action_id: id }, { device, wave, reason }) {
  const options = [["--device", device], ["--wave", wave === null ? null : String(wave)], ["--reason", reason.trim() || null]];
  const given = options.filter(([, value]) => value !== null).flatMap(([name, value]) => [name, { text: value }]);
  return [`headwater actions ${kind}`, ...rootOption(), ...given, "--", { text: id }];
}

/** Beside the phase, which stays what it was until the engine answers. */
export function Pending({ rows }) {
  return rows.map((row) => html`
    <span key=${row.request_id} class="note">
      ${" · "}<${Name} text=${row.kind} length=${60} /> requested <${Time} ms=${row.at_us && row.at_us / 1_000} />${row.device_id !== null && html` for <${Name} text=${row.device_id} length=${80} />`}, not yet answered
    </span>
  `);
}

/** Nothing while there are none. Says when one is answered. */
export function Asked({ rows }) {
  const before = useRef([]);
  useEffect(() => {
    const open = new Set(rows.map((row) => row.request_id));
    const answered = before.current.filter((row) => !open.has(row.request_id));
    before.current = rows;
    if (answered.length > 0) say(`The engine has answered: ${answered.map(({ kind }) => kind).join(", ")}.`);
  }, [rows]);
  if (rows.length === 0) return null;
  return html`
    <section aria-labelledby="asked-title">
      <h2 id="asked-title">Not yet answered</h2>
      <p class="note">Requests that no engine has answered yet. Without an answer after a minute, check whether the job <code>actions</code> runs.</p>
      <${Table} caption="Requests without an answer" columns=${ASKED_COLUMNS} rows=${rows} keyOf=${(row) => `request ${row.request_id}`} empty="None." />
    </section>
  `;
}

const ASKED_COLUMNS = [
  { key: "kind", title: "request", isHeader: true, cell: (row) => html`<${Name} text=${row.kind} length=${60} />` },
  { key: "by", title: "by", cell: (row) => html`<${Name} text=${row.by} length=${80} />` },
  { key: "at", title: "time", cell: (row) => html`<${Time} ms=${row.at_us && row.at_us / 1_000} />` },
  { key: "device", title: "device", cell: (row) => (row.device_id === null ? "all" : html`<${Name} text=${row.device_id} length=${80} />`) },
  { key: "reason", title: "reason", cell: (row) => html`<${Name} text=${row.reason || null} length=${200} />` },
];
