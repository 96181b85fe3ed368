// What a page says when it has nothing to show yet, and how old what it shows is.

import { html } from "./vendor/htm-preact.js";
import { isoTime, time } from "./format.js";

/** Why the last request failed. Numbers that are still shown are from `atMs`. */
export function Trouble({ error, atMs }) {
  if (!error) return null;
  const what = error.status === 403 ? `You may not see this: ${error.message}` : error.message;
  return html`
    <p class="problem">
      <span aria-hidden="true">⚠\u00a0</span>${what}
      ${atMs && html` What you see is from <${Time} ms=${atMs} />.`}
    </p>
  `;
}

export function Time({ ms }) {
  if (ms === null || ms === undefined) return "–";
  return html`<time datetime=${isoTime(ms)} title=${isoTime(ms)}>${time(ms)}</time>`;
}

export function Waiting({ what }) {
  return html`<p class="waiting">Asking for ${what}…</p>`;
}
