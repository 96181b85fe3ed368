// What a page shows, as a command for a terminal.

import { html, useCallback } from "./vendor/htm-preact.js";
import { copy } from "./clipboard.js";
import { cut } from "./format.js";
import { useKey } from "./keys.js";
import { consoleInfo } from "./session.js";

const SHOWN_MAX = 400;
// Control characters and those that turn the direction of text: pasted into a terminal they do what their author wants.
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/;

/** `parts` are words as they stand, or {text} to be quoted. Null parts are left out. */
export function Command({ parts }) {
  const command = commandOf(parts);
  const onCopy = useCallback(() => copy(command, "Command"), [command]);
  useKey("y", onCopy);
  return html`
    <p class="command">
      <span class="label">As a command</span>
      <code title=${cut(command, 4_000)}><bdi>${cut(command, SHOWN_MAX)}</bdi></code>
      <button type="button" onClick=${onCopy} title="Copy the command (y)">Copy</button>
    </p>
  `;
}

export function commandOf(parts) {
  return parts.filter((part) => part !== null).map((part) => (part.text === undefined ? part : quote(part.text))).join(" ");
}

/** The options that name this broker to commands that ask its admin address. */
export function adminOption() {
  return `--admin ${quote(new URL(".", document.baseURI).href.replace(/\/$/, ""))}`;
}

/** The option that names this broker to commands that read its log, where it knows how they reach it. */
export function serverOption() {
  const server = consoleInfo.get()?.server;
  return server ? ["--server", { text: server }] : [];
}

/** The option that names the tables of this console to commands that read them. */
export function rootOption() {
  const root = consoleInfo.get()?.tables_root;
  return root ? ["--root", { text: root }] : [];
}

/** The parts of a request to this broker, for what no command of its own asks. curl asks for the password. */
export function curlParts(path, query, user) {
  const given = Object.entries(query).filter(([, value]) => value !== "");
  const fields = given.flatMap(([name, value]) => ["--data-urlencode", { text: `${name}=${value}` }]);
  const login = user ? ["--user", { text: user }] : [];
  return ["curl --get", ...login, ...fields, { text: new URL(path, document.baseURI).href }];
}

/** One word for a POSIX shell, or with control characters for bash and zsh. */
export function quote(text) {
  if (/^[\w@%+:,./-]+$/.test(text) && !text.startsWith("-")) return text;
  if (!UNSAFE.test(text)) return `'${text.replaceAll("'", "'\\''")}'`;
  const escaped = Array.from(text, (letter) => (UNSAFE.test(letter) ? escapeOf(letter) : letter.replace(/[\\']/, "\\$&")));
  return `$'${escaped.join("")}'`;
}

function escapeOf(letter) {
  return `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`;
}
