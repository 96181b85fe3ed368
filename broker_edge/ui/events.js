// What happened recently to clients, or to one of them: connects, ends, refusals, and what operators did.

import { html, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";
import { count } from "./format.js";
import { More } from "./list.js";
import { Name } from "./name.js";
import { usePoll } from "./poll.js";
import { AskWhy, questionOf, RefusedTopic, whole, Why } from "./question.js";
import { link } from "./router.js";
import { Time, Trouble, Waiting } from "./state.js";
import { Table } from "./table.js";

const EVERY_MS = 2_000;
const ASKED = 200;
const ROWS_SHOWN = 20;

const WHATS = {
  connected: { text: "●\u00a0connected", look: "good" },
  disconnected: { text: "○\u00a0disconnected", look: null },
  taken_over: { text: "⇄\u00a0taken over", look: null },
  refused: { text: "✖\u00a0refused", look: "bad" },
  session_ended: { text: "∅\u00a0session ended", look: null },
  kicked: { text: "⏏\u00a0disconnected by an operator", look: null },
};

/** Of all clients without `clientId`. */
export function Events({ title, clientId = null, current }) {
  const [limit, setLimit] = useState(ROWS_SHOWN);
  const query = { client_id: clientId, limit: ASKED };
  const events = usePoll(`events ${clientId ?? ""}`, EVERY_MS, (signal) => ask("api/v1/events", { query, signal }));
  const { value } = events;
  const columns = clientId === null ? [WHO, ...COLUMNS] : COLUMNS;
  return html`
    <section aria-labelledby="events-title" class=${events.isStale ? "stale" : null}>
      <h2 id="events-title">${title}</h2>
      <${Trouble} ...${events} />
      ${value && html`
        <p class="note">
          Kept in the broker's memory, complete since <${Time} ms=${value.since_us / 1_000} />. Equal events that follow each other are one row, with the topic of the last.
        </p>
        <${Table} caption=${`${title}, the newest first`} columns=${columns} rows=${value.events} limit=${limit} keyOf=${keyOf}
          current=${current} empty="Nothing is known." />
        ${value.events.length > 0 && html`
          <${More} what="event" rows=${value.events.slice(0, limit)} isComplete=${value.events.length <= limit} more=${() => setLimit(ASKED)} />
        `}
        ${value.next !== null && limit === ASKED && html`<p class="note">Older ones are not shown here: the command <code>headwater clients history</code> prints them.</p>`}
      `}
      ${!value && !events.error && html`<${Waiting} what="the events" />`}
    </section>
  `;
}

const WHO = {
  key: "client", title: "client id", isHeader: true,
  cell: (row) => (row.is_cut
    ? html`<${Name} text=${`${row.client_id}…`} length=${80} />`
    : html`<a data-open href=${link("clients", { client: row.client_id })}><${Name} text=${row.client_id} length=${80} /></a>`),
};

const COLUMNS = [
  { key: "what", title: "what", cell: (row) => html`<${What} row=${row} />` },
  { key: "reason", title: "reason", cell: (row) => html`<${Reason} row=${row} />` },
  { key: "times", title: "times", isNumber: true, cell: (row) => count(row.count) },
  { key: "last", title: "last", cell: (row) => html`<${Time} ms=${row.last_us / 1_000} />` },
  { key: "first", title: "first", cell: (row) => (row.count > 1 ? html`<${Time} ms=${row.first_us / 1_000} />` : "–") },
  { key: "user", title: "user", cell: (row) => html`<${Name} text=${row.user} length=${40} />` },
  { key: "address", title: "address", cell: (row) => html`<span class="nowrap"><${Name} text=${row.address} /></span>` },
  { key: "version", title: "MQTT", cell: (row) => row.version ?? "–" },
];

function keyOf({ what, act, reason, client_id: id, user, first_us: first }) {
  return `event ${first} ${what} ${act ?? ""} ${reason} ${user ?? ""} ${id}`;
}

function What({ row }) {
  const { text, look } = Object.hasOwn(WHATS, row.what) ? WHATS[row.what] : { text: row.what, look: null };
  return html`<span class=${look}>${text}</span>${row.act && ` (${row.act})`}`;
}

function Reason({ row }) {
  const { act, reason, topic, is_topic_cut: isTopicCut, user, client_id: id, is_cut: isIdCut } = row;
  const known = { user: user && whole(user), clientId: isIdCut ? null : id, topic };
  const question = questionOf({ act, reason, ...known, isCut: isTopicCut || isIdCut || known.user !== user });
  return html`
    ${row.what === "refused" ? html`<${Why} reason=${reason} />` : reason}
    ${question && html` · <${AskWhy} question=${question} about=${`this ${act} is refused`} />`}
    <${RefusedTopic} topic=${topic} isCut=${isTopicCut} />
  `;
}
