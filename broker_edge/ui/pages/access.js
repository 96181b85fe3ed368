// May this user do this on this topic, and which line of the ACL file decides; and who was refused something recently.

import { html, useState } from "../vendor/htm-preact.js";
import { ask } from "../api.js";
import { adminOption, Command, curlParts } from "../command.js";
import { cut } from "../format.js";
import { Name } from "../name.js";
import { usePoll } from "../poll.js";
import { Refusals } from "../refusals.js";
import { change } from "../router.js";
import { consoleInfo } from "../session.js";
import { Trouble, Waiting } from "../state.js";
import { useStore, useTyped } from "../store.js";

// The answer follows the ACL file when the broker has read it anew.
const EVERY_MS = 5_000;
const PATH = "api/v1/access";
const FIELDS = { subscribe: "Filter", replay: "Topic or filter" };
const WHATS = { publish: "publish to", receive: "receive from", subscribe: "subscribe to", replay: "replay" };

export default function Access({ query }) {
  const info = useStore(consoleInfo);
  const [turn, setTurn] = useState(0);
  const question = questionOf(query);
  const isAsked = question.topic !== "";
  const key = isAsked ? JSON.stringify([question, turn]) : null;
  const answer = usePoll(key, EVERY_MS, (signal) => ask(PATH, { query: question, signal }));
  const isRefused = answer.error?.status === 400;
  return html`
    <${Form} question=${question} problem=${isRefused ? answer.error.message : null} onAsk=${() => setTurn(turn + 1)} />
    ${!isRefused && html`<${Trouble} ...${answer} />`}
    <div role="status" class=${answer.isStale ? "stale" : null}>
      ${answer.value && !isRefused && html`<${Answer} question=${question} answer=${answer.value} />`}
    </div>
    ${!isAsked && html`<p class="waiting">Ask whether a client may use a topic, and which line of the ACL file decides. Nothing is published or changed.</p>`}
    ${isAsked && !answer.value && !answer.error && html`<${Waiting} what="the answer of the broker" />`}
    <${Refusals} current=${query.row} />
    <${Command} parts=${isAsked ? commandParts(question) : curlParts("api/v1/refusals", {}, info.user)} />
  `;
}

function commandParts({ user, client_id: clientId, access, topic }) {
  const optional = Object.entries({ "--for-user": user, "--client-id": clientId }).filter(([, value]) => value !== "");
  const asked = optional.flatMap(([option, value]) => [option, { text: value }]);
  return ["headwater access --access", access, "--topic", { text: topic }, ...asked, adminOption()];
}

function questionOf({ user = "", client_id: clientId = "", access = "publish", topic = "" }) {
  return { user, client_id: clientId, access: Object.hasOwn(WHATS, access) ? access : "publish", topic };
}

function Form({ question, problem, onAsk }) {
  const [typed, setTyped] = useTyped(question, JSON.stringify(question));
  const onSubmit = (event) => {
    event.preventDefault();
    change({ ...typed, row: null }, { isStep: true });
    onAsk();
  };
  const field = (name) => ({
    value: typed[name], onInput: (event) => setTyped({ ...typed, [name]: event.target.value }),
    autocapitalize: "off", autocomplete: "off", spellcheck: false, "aria-describedby": problem && "access-problem",
  });
  return html`
    <form class="bar" aria-label="Question" onSubmit=${onSubmit}>
      <label><span>User</span><input type="text" placeholder="empty: without credentials" ...${field("user")} /></label>
      <label><span>Client id</span><input type="text" placeholder="empty: none" ...${field("client_id")} /></label>
      <label><span>Action</span>
        <select onChange=${(event) => setTyped({ ...typed, access: event.target.value })}>
          ${Object.keys(WHATS).map((name) => html`<option key=${name} value=${name} selected=${name === typed.access}>${name}</option>`)}
        </select>
      </label>
      <label class="wide"><span>${FIELDS[typed.access] ?? "Topic"}</span>
        <input type="text" data-search required ...${field("topic")} />
      </label>
      <button type="submit" class="strong">Ask</button>
      ${problem && html`<p class="problem whole" role="alert" id="access-problem"><span aria-hidden="true">⚠\u00a0</span><bdi>${problem}</bdi></p>`}
    </form>
  `;
}

function Answer({ question, answer }) {
  const { allowed: isAllowed, reason, line, notes, file } = answer;
  return html`
    <section class=${`panel answer ${isAllowed ? "yes" : "no"}`} aria-labelledby="answer-title">
      <h2 id="answer-title"><span aria-hidden="true">${isAllowed ? "✓" : "✖"}\u00a0</span>${isAllowed ? "Allowed" : "Not allowed"}</h2>
      <p><${Who} ...${question} /> ${isAllowed ? "may" : "may not"} ${WHATS[question.access]} <code><${Name} text=${question.topic} length=${1_000} /></code>.</p>
      ${line
        ? html`<p>Line ${line.number} of the ACL file <${Path} file=${file} /> ${isAllowed ? "allows it" : "denies it, whatever other lines allow"}: <code><${Name} text=${line.rule} length=${1_000} /></code></p>`
        : html`<p><${Sentence} text=${reason} />${file !== null && html` The file is <${Path} file=${file} />.`}</p>`}
      ${notes.length > 0 && html`<ul>${notes.map((note) => html`<li key=${note}><${Sentence} text=${note} /></li>`)}</ul>`}
    </section>
  `;
}

function Path({ file }) {
  return html`<code><${Name} text=${file} length=${400} /></code>`;
}

/** A reason of the broker, which begins like a part of a sentence. What it quotes between backticks is code. */
function Sentence({ text }) {
  const parts = `${text.charAt(0).toUpperCase()}${text.slice(1)}.`.split("`");
  return parts.map((part, at) => (at % 2 === 0 ? html`<bdi>${cut(part, 1_000)}</bdi>` : html`<code><${Name} text=${part} length=${1_000} /></code>`));
}

function Who({ user, client_id: clientId }) {
  return html`
    ${user === "" ? "A client without credentials" : html`User <${Name} text=${user} length=${400} />`}
    ${clientId !== "" && html` with the client id <${Name} text=${clientId} length=${400} />`}
  `;
}
