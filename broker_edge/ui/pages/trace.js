// Where one record is: when it was appended, whether it is still there, and which sessions and groups have passed it; in the
// console of a fleet also what the tables have of it.

import { html, useState } from "../vendor/htm-preact.js";
import { ask } from "../api.js";
import { adminOption, Command } from "../command.js";
import { usePoll } from "../poll.js";
import { consoleInfo } from "../session.js";
import { Trouble, Waiting } from "../state.js";
import { FleetTrace } from "../trace_fleet.js";
import { Form, problemOf, Steps, wanted } from "../trace_steps.js";

const EVERY_MS = 5_000;
const PATH = "api/v1/trace";

export default function Trace({ query }) {
  return consoleInfo.get().scope === "fleet" ? html`<${FleetTrace} query=${query} />` : html`<${BrokerTrace} query=${query} />`;
}

function BrokerTrace({ query }) {
  const [turn, setTurn] = useState(0);
  const { at, isPlace } = wanted(query);
  const trace = usePoll(isPlace ? `${at} ${turn}` : null, EVERY_MS, (signal) => ask(PATH, { query: { at }, signal }));
  const { isRefused, problem } = problemOf({ at, isPlace }, trace.error);
  return html`
    <${Form} at=${at} problem=${problem} onShow=${() => setTurn(turn + 1)} />
    ${!isRefused && html`<${Trouble} ...${trace} />`}
    ${trace.value && !problem && html`<${Steps} key=${at} trace=${trace.value} isStale=${trace.isStale} query=${query} />`}
    ${at === "" && html`<p class="waiting">Which record? The tail has a link at each row.</p>`}
    ${isPlace && !trace.value && !trace.error && html`<${Waiting} what="the record" />`}
    ${isPlace && html`<${Command} parts=${["headwater trace", adminOption(), "--", { text: at }]} />`}
  `;
}
