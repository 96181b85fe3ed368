// Groups that still have records to read, in one cell: the furthest behind, and how many more.

import { html } from "./vendor/htm-preact.js";
import { Name } from "./name.js";
import { link } from "./router.js";
import { hasPage } from "./session.js";

const SHOWN = 2;

/** `groups`: their names, the furthest behind first. */
export function HeldBy({ groups }) {
  if (groups.length === 0) return "–";
  const more = groups.length - SHOWN;
  return html`<span class="names">${groups.slice(0, SHOWN).map((group, place) => html`${place > 0 && ", "}<${Group} key=${group} name=${group} />`)}${more > 0 && ` and ${more} more`}</span>`;
}

function Group({ name }) {
  const text = html`<${Name} text=${name} length=${40} />`;
  return hasPage("groups") ? html`<a href=${link("groups", { contains: name })}>${text}</a>` : text;
}
