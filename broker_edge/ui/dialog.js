// Dialogs: the help, and the question before an act that cannot be taken back.

import { html, useEffect, useRef } from "./vendor/htm-preact.js";
import { KEYS } from "./keys.js";
import { keysAre, setKeys } from "./preferences.js";
import { useStore } from "./store.js";

function Dialog({ title, onClose, children }) {
  const box = useRef(null);
  useEffect(() => {
    const opener = document.activeElement;
    box.current.showModal();
    return () => opener?.isConnected && opener.focus();
  }, []);
  return html`
    <dialog ref=${box} aria-labelledby="dialog-title" onClose=${onClose}>
      <h2 id="dialog-title">${title}</h2>
      ${children}
    </dialog>
  `;
}

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
