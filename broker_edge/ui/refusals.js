// Who was refused something of late, with a way to the question why.

import { html, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";
import { count, counted } from "./format.js";
import { More } from "./list.js";
import { Name } from "./name.js";
import { usePoll } from "./poll.js";
import { link } from "./router.js";
import { hasPage } from "./session.js";
import { Time, Trouble, Waiting } from "./state.js";
import { Table } from "./table.js";

const EVERY_MS = 5_000;
const ROWS_SHOWN = 50;
const MORE_ROWS = 200;
const KINDS_SHOWN = 4;
// The broker keeps no more characters of a client id, so one of this length may be another.
const CLIENT_ID_MAX = 64;
// What was refused, as the form asks for it.
const ACCESS_OF = { publish: "publish", will: "publish", subscribe: "subscribe" };

export function Refusals({ current }) {
  const [limit, setLimit] = useState(ROWS_SHOWN);
  const refusals = usePoll("refusals", EVERY_MS, (signal) => ask("api/v1/refusals", { signal }));
  const rows = refusals.value?.users;
  return html`
    <section aria-labelledby="refusals-title" class=${refusals.isStale ? "stale" : null}>
      <h2 id="refusals-title">Refusals of late</h2>
      <${Trouble} ...${refusals} />
      ${rows && html`
        <p class="note">Since the broker has started, by verified user. Address and client id are those of the last refusal; topics are not kept.</p>
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
    cell: (row) => (row.user === null ? html`<span class="unknown">without a verified user</span>` : html`<${Name} text=${row.user} length=${80} />`) },
  { key: "refused", title: "refused", cell: (row) => html`<${Kinds} kinds=${row.refused} />` },
  { key: "ask", title: "why",
    cell: (row) => html`
      <a data-open href=${questionAbout(row)} onClick=${() => document.querySelector("[data-search]").focus()}>
        Ask<span class="hidden"> about ${row.user === null ? "clients without credentials" : html`<${Name} text=${row.user} length=${80} />`}</span>
      </a>
    ` },
  { key: "last", title: "last", cell: (row) => html`<${Time} ms=${row.last_us / 1_000} />` },
  { key: "client", title: "client id", cell: (row) => html`<${Client} id=${row.client_id} />` },
  { key: "address", title: "address", cell: (row) => html`<${Name} text=${row.address} />` },
];

/** User names may be anything, so the row of those without one has a key that no name has. */
function keyOf({ user }) {
  return user === null ? "without" : `user ${user}`;
}

function Kinds({ kinds }) {
  const most = largestFirst(kinds);
  const more = most.length - KINDS_SHOWN;
  return html`
    ${most.slice(0, KINDS_SHOWN).map(({ door, act, reason, count: times }) => html`
      <div key=${`${door} ${act} ${reason}`}>${act} over ${door}: <code>${reason}</code>, ${counted(times, "time")}</div>
    `)}
    ${more > 0 && html`<div class="note">and ${count(more)} more kinds</div>`}
  `;
}

function isWhole(clientId) {
  return clientId !== null && clientId !== "" && Array.from(clientId).length < CLIENT_ID_MAX;
}

function Client({ id }) {
  const name = html`<${Name} text=${id} length=${40} />`;
  return isWhole(id) && hasPage("clients") ? html`<a href=${link("clients", { client: id })}>${name}</a>` : name;
}

/** Fills the form with what is known. The topic is not. */
function questionAbout({ user, client_id: clientId, refused }) {
  const kind = largestFirst(refused).find(({ act, reason }) => reason === "acl" && Object.hasOwn(ACCESS_OF, act));
  return link("access", { user, client_id: isWhole(clientId) ? clientId : null, access: kind ? ACCESS_OF[kind.act] : null });
}

function largestFirst(kinds) {
  return [...kinds].sort((left, right) => right.count - left.count);
}
