// A chart of the last 15 minutes, and the same as a table. The library that draws is loaded after the first numbers are on the
// screen.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { SAMPLES_MAX } from "./live.js";
import { scheme } from "./preferences.js";
import { clockTime, time } from "./format.js";
import { useStore } from "./store.js";
import { Scroll } from "./table.js";

// The sizes of an axis are for this size of text.
const TEXT_PX = 14;
const MINUTE_MS = 60_000;
const MINUTES_S = [60, 120, 300, 900, 1_800, 3_600];
// Steps between two ticks. A step below one would write the same whole number twice.
const POWERS_OF_TWO = Array.from({ length: 53 }, (_, power) => 2 ** power);
const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const STEPS = { binary: POWERS_OF_TWO, whole: WHOLE };
const vendor = new URL("./vendor/", import.meta.url);
let library = null;

/** The places of dots: the newest value, and values that have none beside them, which a line would not show. */
function dots(plot, series) {
  const values = plot.data[series];
  const newest = values.findLastIndex((value) => value != null);
  const isAlone = (place) => values[place] != null && values[place - 1] == null && values[place + 1] == null;
  return [...values.keys()].filter((place) => place === newest || isAlone(place));
}

/**
 * `lines`: [{label, values}], `format` writes a value, and `steps` between ticks are "whole" numbers or "binary": powers of two.
 * The axis ends at `least` at the lowest, since `format` has no digits for the ticks of a shorter one.
 */
export function Chart({ title, times, lines, format, steps, least = 1 }) {
  const [isTable, setIsTable] = useState(false);
  const [at, setAt] = useState(null);
  const index = at ?? times.length - 1;
  return html`
    <figure class="chart">
      <figcaption>
        <h3>${title}</h3>
        <button type="button" class="quiet" aria-pressed=${isTable} onClick=${() => setIsTable(!isTable)}>
          ${isTable ? "Show as a chart" : "Show as a table"}<span class="hidden">: ${title}</span>
        </button>
        <span class="legend">
          ${lines.map(({ label, values }, line) => html`
            <span key=${label}><span class=${`ink ink-${line}`} aria-hidden="true"></span>${label} <b>${format(values[index])}</b></span>
          `)}
          ${at !== null && html`<span>at ${time(times[index])}</span>`}
        </span>
      </figcaption>
      ${isTable
        ? html`<${Minutes} title=${title} times=${times} lines=${lines} format=${format} />`
        : html`<${Drawing} title=${title} times=${times} lines=${lines} format=${format} steps=${steps} least=${least} onPoint=${setAt} />`}
    </figure>
  `;
}

function Drawing({ title, times, lines, format, steps, least, onPoint }) {
  const box = useRef(null);
  const plot = useRef(null);
  const colours = useStore(scheme);
  const hasValues = times.length > 0;

  useEffect(() => {
    if (!hasValues) return undefined;
    let isGone = false;
    const size = new ResizeObserver(([{ contentRect }]) => plot.current?.setSize(contentRect));
    const prefers = matchMedia("(prefers-color-scheme: dark)");
    const draw = async () => {
      const Plot = await load();
      if (isGone) return;
      plot.current?.destroy();
      plot.current = new Plot(options(box.current, { lines, format, steps, least, onPoint }), valuesOf(times, lines), box.current);
    };
    draw().catch(() => undefined);
    size.observe(box.current);
    prefers.addEventListener("change", draw);
    return () => {
      isGone = true;
      size.disconnect();
      prefers.removeEventListener("change", draw);
      plot.current?.destroy();
      plot.current = null;
      onPoint(null);
    };
  }, [hasValues, colours]);

  useEffect(() => {
    if (!plot.current) return;
    plot.current.setData(valuesOf(times, lines));
  }, [times, times.at(-1)]);

  return html`<div class="drawing" role="img" aria-label=${summary(title, lines, format)} ref=${box}></div>`;
}

function summary(title, lines, format) {
  const said = lines.map(({ label, values }) => {
    const known = values.filter((value) => value !== null);
    const most = known.length ? Math.max(...known) : null;
    return `${label} now ${format(values.at(-1))}, highest ${format(most)}`;
  });
  return `${title}, the last 15 minutes: ${said.join("; ")}`;
}

/** One row a minute: the highest second of it. */
function Minutes({ title, times, lines, format }) {
  const minutes = new Map();
  times.forEach((atMs, index) => {
    const minute = Math.floor(atMs / MINUTE_MS) * MINUTE_MS;
    minutes.set(minute, [...(minutes.get(minute) ?? []), index]);
  });
  const highest = (values, indexes) => {
    const known = indexes.map((index) => values[index]).filter((value) => value !== null);
    return format(known.length ? Math.max(...known) : null);
  };
  const caption = `${title}: the highest second of each minute`;
  return html`
    <${Scroll} label=${caption}>
      <table>
        <caption class="hidden">${caption}</caption>
        <thead><tr>
          <th scope="col">minute</th>
          ${lines.map(({ label }) => html`<th key=${label} scope="col" class="number">${label}</th>`)}
        </tr></thead>
        <tbody>
          ${[...minutes].reverse().map(([minute, indexes]) => html`
            <tr key=${minute}>
              <th scope="row">${clockTime(minute)}</th>
              ${lines.map(({ label, values }) => html`<td key=${label} class="number">${highest(values, indexes)}</td>`)}
            </tr>
          `)}
        </tbody>
      </table>
    <//>
  `;
}

/** uPlot is a classic script, as its package ships it, so that its bytes can be compared with the package. */
function load() {
  library ??= new Promise((resolve, reject) => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = new URL("uplot.css", vendor);
    const script = document.createElement("script");
    script.src = new URL("uplot.js", vendor);
    script.onload = () => resolve(window.uPlot);
    script.onerror = () => {
      library = null;
      reject(new Error("the chart library could not be loaded"));
    };
    document.head.append(style, script);
  });
  return library;
}

function valuesOf(times, lines) {
  return [times.map((atMs) => atMs / 1_000), ...lines.map(({ values }) => values)];
}

/** The axes of a canvas cannot name variables of a style sheet, so the colours are read from elements that have them. */
function options(box, { lines, format, steps, least, onPoint }) {
  const text = getComputedStyle(box).color;
  const grid = { stroke: getComputedStyle(box).borderTopColor, width: 1 };
  const inks = box.closest("figure").querySelectorAll(".ink");
  const scale = parseFloat(getComputedStyle(document.documentElement).fontSize) / TEXT_PX;
  const axis = { stroke: text, grid, ticks: grid, font: `${11 * scale}px system-ui` };
  return {
    width: box.clientWidth,
    height: box.clientHeight,
    padding: [8, 18, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, sync: { key: "overview" } },
    scales: { x: { time: true, range: (_, __, last) => [last - SAMPLES_MAX, last] }, y: { range: (_, __, most) => [0, Math.max(most, least) * 1.1] } },
    axes: [
      { ...axis, size: 26 * scale, space: 70 * scale, incrs: MINUTES_S, values: (_, ticks) => ticks.map((tick) => clockTime(tick * 1_000)) },
      { ...axis, size: 66 * scale, space: 30 * scale, values: (_, ticks) => ticks.map((tick) => (tick === 0 ? "0" : format(tick))), ...(steps && { incrs: STEPS[steps] }) },
    ],
    series: [
      {},
      ...lines.map(({ label }, line) => {
        const ink = getComputedStyle(inks[line]);
        return { label, stroke: ink.color, width: 1.5, dash: line === 1 ? [5, 3] : [], points: { show: true, size: 4, filter: dots } };
      }),
    ],
    hooks: {
      setCursor: [(plot) => onPoint(plot.cursor.left >= 0 ? plot.cursor.idx : null)],
    },
  };
}
