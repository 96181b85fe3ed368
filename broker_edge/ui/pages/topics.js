// Every topic in the log, found by any part of its name.

import { html } from "../vendor/htm-preact.js";
import { Command } from "../command.js";
import { count } from "../format.js";
import { More, Search } from "../list.js";
import { Name } from "../name.js";
import { usePages } from "../poll.js";
import { link } from "../router.js";
import { Trouble, Waiting } from "../state.js";
import { Table } from "../table.js";

const EVERY_MS = 5_000;

const COLUMNS = [
  { key: "topic", title: "topic", isHeader: true,
    cell: (row) => html`<a data-open href=${link("tail", { filter: row.topic })}><${Name} text=${row.topic} /></a>` },
  { key: "class", title: "class", cell: (row) => row.class },
  { key: "partition", title: "partition", cell: (row) => row.name },
  { key: "first", title: "first", isNumber: true, cell: (row) => count(row.first) },
  { key: "next", title: "next", isNumber: true, cell: (row) => count(row.next) },
  { key: "latest", title: "records",
    cell: (row) => html`
      <a href=${latest(row)}>Latest<span class="hidden"> record of <${Name} text=${row.topic} /></span></a>
      <a href=${earliest(row)}>From the first<span class="hidden"> of <${Name} text=${row.topic} /></span></a>
    ` },
];

export default function Topics({ query }) {
  const contains = query.contains ?? "";
  const topics = usePages("api/v1/topics", { contains }, "topics", EVERY_MS);
  return html`
    <${Search} label="Part of the topic" name="contains" value=${contains} />
    <${Trouble} ...${topics} />
    <div class=${topics.isStale ? "stale" : null}>
      ${topics.rows && html`
        <${Table} caption="Topics in the order of their names" columns=${COLUMNS} rows=${topics.rows}
          keyOf=${(row) => `${row.topic} ${row.partition}`} current=${query.row}
          empty=${contains ? "No topic has this in its name." : "The log has no topics yet."} />
        <${More} what="topic" ...${topics} />
      `}
    </div>
    ${!topics.rows && !topics.error && html`<${Waiting} what="the topics" />`}
    <${Command} parts=${["headwater topics list", contains ? "| grep -F --" : null, contains ? { text: contains } : null]} />
  `;
}

function latest(row) {
  return link("tail", { filter: row.topic, from: "offset", at: row.next - 1, partition: row.name });
}

function earliest(row) {
  return link("tail", { filter: row.topic, from: "offset", at: row.first, partition: row.name });
}
