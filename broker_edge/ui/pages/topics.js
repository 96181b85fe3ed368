// Every topic in the log, found by any part of its name. Those of the broker itself are behind a switch.

import { html } from "../vendor/htm-preact.js";
import { Command, serverOption } from "../command.js";
import { count } from "../format.js";
import { More, Search } from "../list.js";
import { Name } from "../name.js";
import { usePages } from "../poll.js";
import { change, link } from "../router.js";
import { Trouble, Waiting } from "../state.js";
import { Table } from "../table.js";

const EVERY_MS = 5_000;
// No client may publish to a topic that begins like this.
const INTERNAL = { name: "topic", prefix: "$" };

const COLUMNS = [
  { key: "topic", title: "topic", isHeader: true,
    cell: (row) => html`<a data-open href=${link("tail", { filter: row.topic })}><${Name} text=${row.topic} /></a>` },
  { key: "class", title: "class", cell: (row) => row.class },
  { key: "partition", title: "partition", cell: (row) => row.name },
  { key: "first", title: "first offset", isNumber: true, cell: (row) => count(row.first) },
  { key: "next", title: "next offset", isNumber: true, cell: (row) => count(row.next) },
  { key: "latest", title: "records",
    cell: (row) => html`
      <a href=${latest(row)}>Latest<span class="hidden"> record of <${Name} text=${row.topic} /></span></a>
      <a href=${earliest(row)}>From the first<span class="hidden"> of <${Name} text=${row.topic} /></span></a>
    ` },
];

export default function Topics({ query }) {
  const contains = query.contains ?? "";
  const isAsked = contains.startsWith(INTERNAL.prefix);
  const isAll = isAsked || query.internal === "true";
  const topics = usePages("api/v1/topics", { contains }, "topics", EVERY_MS, [], isAll ? null : INTERNAL);
  const onSwitch = (event) => change({ internal: event.target.checked ? "true" : null, row: null });
  return html`
    <${Search} label="Part of the topic" name="contains" value=${contains}>
      <label class="check">
        <input type="checkbox" checked=${isAll} disabled=${isAsked} onChange=${onSwitch} />
        Internal topics ($…)
      </label>
    <//>
    <${Trouble} ...${topics} />
    <div class=${topics.isStale ? "stale" : null}>
      ${topics.rows && html`
        <${Table} caption="Topics in the order of their names" columns=${COLUMNS} rows=${topics.rows}
          keyOf=${(row) => `${row.topic} ${row.partition}`} current=${query.row}
          empty=${contains ? "No topic has this in its name." : "No client has published yet."} />
        <${More} what="topic" ...${topics} />
      `}
    </div>
    ${!topics.rows && !topics.error && html`<${Waiting} what="the topics" />`}
    <${Command} parts=${["headwater topics list", ...serverOption(), contains ? "| grep -F --" : null, contains ? { text: contains } : null]} />
  `;
}

function latest(row) {
  return link("tail", { filter: row.topic, from: "offset", at: row.next - 1, partition: row.name });
}

function earliest(row) {
  return link("tail", { filter: row.topic, from: "offset", at: row.first, partition: row.name });
}
