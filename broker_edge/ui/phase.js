// The phase of an action, as a mark and words.

import { html } from "./vendor/htm-preact.js";

export const PHASES = {
  NEW: { symbol: "…", title: "new", look: null },
  RUNNING: { symbol: "▶", title: "running", look: "running" },
  PAUSED: { symbol: "‖", title: "paused", look: "warned" },
  WAITING_APPROVAL: { symbol: "⚠", title: "waits for approval", look: "warned" },
  STOPPING: { symbol: "◐", title: "stopping", look: "warned" },
  ENDED: { symbol: "✓", title: "ended", look: "good" },
  REFUSED: { symbol: "✖", title: "refused", look: "bad" },
};

export function Phase({ rollout: { phase, stopped } }) {
  if (phase === "ENDED" && stopped) return html`<span class="bad"><span aria-hidden="true">✖\u00a0</span>stopped</span>`;
  const { symbol, title, look } = Object.hasOwn(PHASES, phase) ? PHASES[phase] : { symbol: "?", title: String(phase), look: null };
  return html`<span class=${look}><span aria-hidden="true">${symbol}\u00a0</span>${title}</span>`;
}

/** What the action does: "ota firmware 2.1.0" or "command echo". */
export function whatOf({ type, name, artifact }) {
  return [type ?? "command", artifact ?? name].filter(Boolean).join(" ");
}
