// Numbers of now in cards, and the last 15 minutes in charts.

import { html } from "./vendor/htm-preact.js";
import { Chart } from "./chart.js";
import { Word } from "./words.js";

/** `word`: the one of WORDS that the name needs. `look`: a class of the value. */
export function Card({ name, word, value, unit, note, look = "" }) {
  return html`
    <div class="card">
      <dt>${word ? html`<${Word} of=${word}>${name}<//>` : name}</dt>
      <dd><span class=${`figure ${look}`}>${value}</span>${unit && html` <span class="unit">${unit}</span>`}</dd>
      ${note && html`<dd class="note">${note}</dd>`}
    </div>
  `;
}

/** `charts`: {title, format, steps, least, lines: [[label, name]]}, with the names of the series in the samples `now`. */
export function Charts({ charts, now }) {
  return html`
    <section aria-labelledby="charts-title">
      <h2 id="charts-title">Last 15 minutes</h2>
      <div class="charts">
        ${charts.map(({ title, lines, format, steps, least }) => html`
          <${Chart} key=${title} title=${title} format=${format} steps=${steps} least=${least} times=${now.times} lines=${linesOf(now, lines)} />
        `)}
      </div>
    </section>
  `;
}

function linesOf({ series, times }, lines) {
  return lines.map(([label, name]) => ({ label, values: series[name] ?? times.map(() => null) }));
}
