// Who was refused something recently, with a way to the question why.

import { html, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";
import { counted } from "./format.js";
import { More } from "./list.js";
import { Name } from "./name.js";
import { usePoll } from "./poll.js";
import { AskWhy, questionOf, RefusedTopic, whole, Why } from "./question.js";
import { link } from "./router.js";
import { hasPage } from "./session.js";
import { Time, Trouble, Waiting } from "./state.js";
import { Table } from "./table.js";

const EVERY_MS = 5_000;
const ROWS_SHOWN = 50;
const MORE_ROWS = 200;
const KINDS_SHOWN = 4;

export function Refusals({ current }) {
  const [limit, setLimit] = useState(ROWS_SHOWN);
  const refusals = usePoll("refusals", EVERY_MS, (signal) => ask("api/v1/refusals", { signal }));
  const rows = refusals.value?.users;
  return html`
    <section aria-labelledby="refusals-title" class=${refusals.isStale ? "stale" : null}>
      <h2 id="refusals-title">Recent refusals</h2>
      <${Trouble} ...${refusals} />
      ${rows && html`
        <p class="note">Since the broker started, by user. Client id and address are those of the last refusal, and a topic is the last one that was refused in this way.</p>
        <${Table} caption="Refusals by user, the latest first" columns=${COLUMNS} rows=${rows} limit=${limit} keyOf=${keyOf}
          current=${current} empty="Nothing has been refused." />
        ${rows.length > 0 && html`
          <${More} what="user" rows=${rows.slice(0, limit)} isComplete=${rows.length <= limit} more=${() => setLimit(limit + MORE_ROWS)} />
        `}
        ${refusals.value.forgotten > 0 && html`<p class="note">${counted(refusals.value.forgotten, "refusal")} more, of users whose rows had to make room.</p>`}
      `}
      ${!rows && !refusals.error && html`<${Waiting} what="the refusals" />`}
    </section>
  `;
}

const COLUMNS = [
  { key: "user", title: "user", isHeader: true,
    cell: (row) => (row.user === null ? html`<span class="unknown">without credentials, or with wrong ones</span>` : html`<${Name} text=${row.user} length=${80} />`) },
  { key: "refused", title: "refused", cell: (row) => html`<${Kinds} row=${row} />` },
  { key: "last", title: "last", cell: (row) => html`<${Time} ms=${row.last_us / 1_000} />` },
  { key: "client", title: "client id", cell: (row) => html`<${Client} id=${row.client_id} />` },
  { key: "address", title: "address", cell: (row) => html`<${Name} text=${row.address} />` },
];

/** User names may be anything, so the row of those without one has a key that no name has. */
function keyOf({ user }) {
  return user === null ? "without" : `user ${user}`;
}

function Kinds({ row }) {
  const latest = [...row.refused].sort((left, right) => right.last_us - left.last_us);
  const more = latest.length - KINDS_SHOWN;
  return html`
    ${latest.slice(0, KINDS_SHOWN).map((kind) => html`<${Kind} key=${`${kind.door} ${kind.act} ${kind.reason}`} user=${row.user} kind=${kind} />`)}
    ${more > 0 && html`<div class="note">and ${counted(more, "more kind")}</div>`}
  `;
}

function Kind({ user, kind }) {
  const { door, act, reason, count: times, topic, is_topic_cut: isTopicCut, client_id: clientId, is_client_id_cut: isIdCut } = kind;
  const question = questionOf({ act, reason, user, clientId: isIdCut ? null : clientId, topic, isCut: isTopicCut || isIdCut });
  const about = html`about this ${act} of ${user === null ? "clients without credentials" : html`<${Name} text=${user} length=${80} />`}`;
  return html`
    <div>
      ${act} over ${door}, ${counted(times, "time")}: <${Why} reason=${reason} />
      ${question && html` · <${AskWhy} question=${question} about=${about} onClick=${toForm} />`}
      <${RefusedTopic} topic=${topic} isCut=${isTopicCut} />
    </div>
  `;
}

/** The answer is below the form, and a question that is not complete is completed there. */
function toForm() {
  document.querySelector("[data-search]").focus();
}

function Client({ id }) {
  const name = html`<${Name} text=${id} length=${40} />`;
  return id && whole(id) !== null && hasPage("clients") ? html`<a href=${link("clients", { client: id })}>${name}</a>` : name;
}
