// Dialogs: the help, and the question before an act that cannot be taken back.

import { html, useLayoutEffect, useRef } from "./vendor/htm-preact.js";
import { KEYS } from "./keys.js";
import { keysAre, setKeys } from "./preferences.js";
import { useStore } from "./store.js";

function Dialog({ title, onClose, children }) {
  const box = useRef(null);
  const isGone = useRef(false);
  useLayoutEffect(() => {
    const dialog = box.current;
    const opener = document.activeElement;
    const around = parentsOf(opener);
    dialog.showModal();
    return () => {
      isGone.current = true;
      // What is behind an open dialog takes no focus.
      dialog.close();
      // The opener may go together with the dialog.
      queueMicrotask(() => focusAgain(opener, around));
    };
  }, []);
  return html`
    <dialog ref=${box} aria-labelledby="dialog-title" onClose=${() => !isGone.current && onClose()}>
      <h2 id="dialog-title">${title}</h2>
      ${children}
    </dialog>
  `;
}

function parentsOf(element) {
  const parents = [];
  for (let parent = element?.parentElement; parent; parent = parent.parentElement) parents.push(parent);
  return parents;
}

/** The opener, else the heading nearest to where it was. */
function focusAgain(opener, around) {
  if (opener === document.body || document.querySelector("dialog[open]")) return;
  opener?.focus();
  if (opener && document.activeElement === opener) return;
  const near = around.filter((parent) => parent.isConnected).map((parent) => parent.querySelector(HEADING));
  near.find(Boolean)?.focus();
}

const HEADING = "h2[tabindex='-1'], h1[tabindex='-1']";
const TAIL_KEYS = ["p", "Pause the tail, or go on"];

/** `pages`: those that can be opened, with their keys. */
export function Help({ pages, onClose }) {
  const keys = useStore(keysAre);
  const hasTail = pages.some(({ name }) => name === "tail");
  const all = [...pages.map((page) => [page.keys, page.title]), ...KEYS, ...(hasTail ? [TAIL_KEYS] : [])];
  return html`
    <${Dialog} title="Keys" onClose=${onClose}>
      <dl class="keys">
        ${all.map(([key, meaning]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${meaning}</dd></div>`)}
      </dl>
      <p>
        <label class="check">
          <input type="checkbox" checked=${keys === "on"} onChange=${(event) => setKeys(event.target.checked ? "on" : "off")} />
          Keys are on
        </label>
      </p>
      <p class="actions"><button type="button" class="strong" onClick=${onClose}>Close</button></p>
    <//>
  `;
}

/** `leave` is the word for doing nothing. */
export function Confirm({ title, children, act, leave = "Cancel", isHarmless, onAct, onClose }) {
  const onSubmit = (event) => {
    event.preventDefault();
    onAct();
  };
  return html`
    <${Dialog} title=${title} onClose=${onClose}>
      <form onSubmit=${onSubmit}>
        ${children}
        <p class="actions">
          <button type="button" onClick=${onClose}>${leave}</button>
          <button type="submit" class=${isHarmless ? "strong" : "danger"}>${act}</button>
        </p>
      </form>
    <//>
  `;
}
