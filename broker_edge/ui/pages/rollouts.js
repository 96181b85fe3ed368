// Every action of the fleet: its phase and how far it is. One of them in detail is shown in place of the list.

import { html } from "../vendor/htm-preact.js";
import { Finished, Legend, sums } from "../bars.js";
import { Command, rootOption } from "../command.js";
import { count } from "../format.js";
import { More, Search } from "../list.js";
import { Name } from "../name.js";
import { Phase, PHASES, whatOf } from "../phase.js";
import { usePages } from "../poll.js";
import { Rollout } from "../rollout.js";
import { change, link } from "../router.js";
import { Time, Trouble, Waiting } from "../state.js";
import { Table } from "../table.js";

const EVERY_MS = 10_000;
const TABLES = ["actions", "action_state", "action_targets", "action_journal"];

export default function Rollouts({ query }) {
  return query.id === undefined ? html`<${List} query=${query} />` : html`<${Rollout} key=${query.id} id=${query.id} query=${query} />`;
}

function List({ query }) {
  const contains = query.contains ?? "";
  const phase = query.phase ?? "";
  const rollouts = usePages("api/v1/rollouts", { contains, phase }, "rollouts", EVERY_MS, TABLES);
  return html`
    <${Search} label="Part of the action's id or name" name="contains" value=${contains}>
      <label><span>Phase</span>
        <select onChange=${(event) => change({ phase: event.target.value, row: null })}>
          <option value="" selected=${phase === ""}>all</option>
          ${Object.entries(PHASES).map(([name, { title }]) => html`<option key=${name} value=${name} selected=${name === phase}>${title}</option>`)}
        </select>
      </label>
    <//>
    <${Trouble} ...${rollouts} />
    <div class=${rollouts.isStale ? "stale" : null}>
      ${rollouts.rows && html`
        <${Table} caption="Rollouts, the newest first" columns=${COLUMNS} rows=${rollouts.rows} keyOf=${(row) => row.action_id} current=${query.row}
          empty=${contains || phase ? "No rollout matches." : "There are no rollouts yet."} />
        <${Legend} />
        <${More} what="rollout" ...${rollouts} />
      `}
    </div>
    ${!rollouts.rows && !rollouts.error && html`<${Waiting} what="the rollouts" />`}
    <${Command} parts=${["headwater actions list", ...rootOption(), contains ? "| grep -F --" : null, contains ? { text: contains } : null]} />
  `;
}

const COLUMNS = [
  { key: "id", title: "action", isHeader: true,
    cell: (row) => html`<a data-open href=${link("rollouts", { id: row.action_id })}><${Name} text=${row.action_id} length=${80} /></a>` },
  { key: "phase", title: "phase", cell: (row) => html`<${Phase} rollout=${row} />` },
  { key: "finished", title: "devices", cell: (row) => html`<${Finished} ...${row} />` },
  { key: "errors", title: "errors", isNumber: true, cell: (row) => html`<${Errors} counts=${row.counts} />` },
  { key: "wave", title: "wave", isNumber: true, cell: (row) => (row.waves ? `${count(row.wave + 1)} of ${count(row.waves)}` : "–") },
  { key: "what", title: "what", cell: (row) => html`<${Name} text=${whatOf(row)} length=${60} />` },
  { key: "created", title: "created", cell: (row) => html`<${Time} ms=${row.created_us && row.created_us / 1_000} />` },
  { key: "by", title: "by", cell: (row) => html`<${Name} text=${row.created_by} length=${40} />` },
  { key: "message", title: "message", cell: (row) => html`<${Name} text=${row.stopped ?? row.message} length=${80} />` },
];

function Errors({ counts }) {
  const { errors } = sums(counts);
  return errors > 0 ? html`<span class="bad">✖\u00a0${count(errors)}</span>` : "0";
}
