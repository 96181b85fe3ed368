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

export function Help({ onClose }) {
  const keys = useStore(keysAre);
  return html`
    <${Dialog} title="Keys" onClose=${onClose}>
      <dl class="keys">
        ${KEYS.map(([key, meaning]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${meaning}</dd></div>`)}
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

export function Confirm({ title, children, act, onAct, onClose }) {
  return html`
    <${Dialog} title=${title} onClose=${onClose}>
      ${children}
      <p class="actions">
        <button type="button" onClick=${onClose}>Cancel</button>
        <button type="button" class="danger" onClick=${onAct}>${act}</button>
      </p>
    <//>
  `;
}
