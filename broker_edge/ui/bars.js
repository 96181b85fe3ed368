// How far an action is: its targets by state, as a bar, in words, and as columns of a table. The colours of a bar stand for
// what the words beside it say.

import { html } from "./vendor/htm-preact.js";
import { count, percent } from "./format.js";

/** In the order of a bar. `states` are those of `action_targets`. */
export const PARTS = [
  { key: "succeeded", title: "succeeded", symbol: "✓", states: ["SUCCEEDED"] },
  { key: "errors", title: "errors", symbol: "✖", states: ["FAILED", "REJECTED", "TIMED_OUT"] },
  { key: "withdrawn", title: "withdrawn", symbol: "∅", states: ["CANCELLED", "SKIPPED", "REMOVED"] },
  { key: "working", title: "at work", symbol: "▶", states: ["QUEUED", "DELIVERED", "ACCEPTED", "IN_PROGRESS", "CANCELLING"] },
  { key: "pending", title: "waiting", symbol: "…", states: ["PENDING"] },
];
export const STATES = PARTS.flatMap(({ states }) => states);
/** From what somebody must look at to what is done. */
export const WORST_FIRST = ["errors", "working", "pending", "withdrawn", "succeeded"].flatMap((part) => PARTS.find(({ key }) => key === part).states);
const FINISHED = ["succeeded", "errors", "withdrawn"];
// A single failure among thousands must be seen.
const WIDTH_MIN = 0.6;

export function partOf(state) {
  return PARTS.find(({ states }) => states.includes(state)) ?? null;
}

/** The number of targets in each part, of `counts` by state. */
export function sums(counts) {
  return Object.fromEntries(PARTS.map(({ key, states }) => [key, states.reduce((sum, state) => sum + (counts?.[state] ?? 0), 0)]));
}

/** "IN_PROGRESS" as people write it. */
export function words(state) {
  return String(state).toLowerCase().replaceAll("_", " ");
}

export function Bar({ counts }) {
  const numbers = sums(counts);
  const total = Object.values(numbers).reduce((sum, number) => sum + number, 0);
  const shown = PARTS.filter(({ key }) => numbers[key] > 0);
  const said = shown.map(({ key, title }) => `${count(numbers[key])} ${title}`).join(", ");
  const widths = shown.map(({ key }) => Math.max(WIDTH_MIN, (100 * numbers[key]) / total));
  const scale = 100 / widths.reduce((sum, width) => sum + width, 0);
  let end = 0;
  return html`
    <svg class="stack" viewBox="0 0 100 1" preserveAspectRatio="none" role="img" aria-label=${said || "no targets"}>
      <title>${said || "no targets"}</title>
      ${shown.map(({ key }, index) => {
        const start = end;
        end += widths[index] * scale;
        return html`<rect key=${key} class=${`part-${key}`} x=${start} y="0" width=${end - start} height="1" />`;
      })}
    </svg>
  `;
}

/** "8 of 20 finished", and how many of them without success. */
export function finishedText({ counts, targets, open }) {
  const { errors, withdrawn } = sums(counts);
  return `${shareText({ targets, open })}${errors + withdrawn > 0 ? `, ${count(errors + withdrawn)} without success` : ""}`;
}

function shareText({ targets, open }) {
  return `${count(targets - open)} of ${count(targets)} finished`;
}

/** The share with its bar, for a list that has the errors in a column of their own. */
export function Finished({ counts, targets, open }) {
  if (!targets) return "–";
  const { withdrawn } = sums(counts);
  return html`<div class="finished"><${Bar} counts=${counts} /><span>${shareText({ targets, open })}${withdrawn > 0 && `, ${count(withdrawn)} withdrawn`}</span></div>`;
}

/** What the colours of the bars mean. */
export function Legend() {
  return html`
    <p class="note parts-legend" aria-hidden="true">
      ${PARTS.map(({ key, title }) => html`<span key=${key}><span class=${`swatch part-${key}`}></span>${title}</span>`)}
    </p>
  `;
}

export function State({ state }) {
  const part = partOf(state);
  const look = { succeeded: "good", errors: "bad" }[part?.key] ?? null;
  return html`<span class=${look}><span aria-hidden="true">${part?.symbol ?? "?"}\u00a0</span>${words(state)}</span>`;
}

/** One row for each wave: the bar, and the numbers behind it. */
export const WAVE_COLUMNS = [
  { key: "wave", title: "wave", isHeader: true,
    cell: (row) => html`${count(row.wave + 1)}${row.isOpen && html` <span class="note">open now</span>`}` },
  { key: "bar", title: "devices", cell: (row) => html`<${Bar} counts=${row.counts} />` },
  { key: "finished", title: "finished", isNumber: true, cell: (row) => shareFinished(row) },
  ...PARTS.map(({ key, title }) => ({ key, title, isNumber: true, cell: (row) => html`<${Amount} part=${key} value=${row.sums[key]} />` })),
];

function Amount({ part, value }) {
  return part === "errors" && value > 0 ? html`<span class="bad">✖\u00a0${count(value)}</span>` : count(value);
}

function shareFinished({ sums: numbers }) {
  const total = Object.values(numbers).reduce((sum, number) => sum + number, 0);
  const finished = FINISHED.reduce((sum, key) => sum + numbers[key], 0);
  return total === 0 ? "–" : `${count(finished)} of ${count(total)}, ${percent(finished / total)}`;
}
