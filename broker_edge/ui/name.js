// Names that strangers choose: topics, client ids, users, groups. They are text, of any length and direction.

import { html } from "./vendor/htm-preact.js";
import { cut } from "./format.js";

const SHOWN_MAX = 160;
const TITLE_MAX = 4_000;

/** Characters of a log id that tell two logs apart. The title has the whole. */
export const LOG_ID_SHOWN = 8;

export function Name({ text, length = SHOWN_MAX }) {
  if (text === null || text === undefined) return html`<span class="unknown">–</span>`;
  if (text === "") return html`<span class="unknown">empty</span>`;
  const short = cut(String(text), length);
  return html`<bdi class="name" title=${cut(String(text), TITLE_MAX)}>${short}</bdi>`;
}
