// One row of a list in detail, above that list.

import { html, useCallback, useEffect, useRef } from "./vendor/htm-preact.js";
import { useKey } from "./keys.js";
import { Name } from "./name.js";
import { change } from "./router.js";

/** `kind` is the word for what is shown, and where the view has its `name`; `acts` are buttons. Esc closes it. */
export function Panel({ kind, name, isStale, acts, children }) {
  const title = useRef(null);
  const close = useCallback(() => closePanel(kind), [kind]);
  useKey("Escape", close);
  useEffect(() => {
    title.current.focus();
    return () => document.querySelector("main tr[aria-current=true]")?.focus();
  }, []);
  return html`
    <section class=${`panel ${isStale ? "stale" : ""}`} aria-labelledby="panel-title">
      <div class="panel-top">
        <h2 id="panel-title" tabindex="-1" ref=${title}>${kind[0].toUpperCase() + kind.slice(1)} <${Name} text=${name} length=${400} /></h2>
        ${acts}
        <button type="button" onClick=${close} title="Esc">Close</button>
      </div>
      ${children}
    </section>
  `;
}

export function closePanel(kind) {
  change({ [kind]: null }, { isStep: true });
}

/** What opens the panel of a row, in its first cell. */
export function PanelLink({ kind, name, row = name }) {
  return html`
    <button type="button" class="link" data-open onClick=${() => change({ [kind]: name, row }, { isStep: true })}>
      <${Name} text=${name} length=${80} />
    </button>
  `;
}

/** `facts`: pairs of a title and what is known. */
export function Facts({ facts }) {
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
