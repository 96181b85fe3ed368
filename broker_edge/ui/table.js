// A table that scrolls in its own container. Rows can be reached with j and k, and the selected one is in the address.

import { html } from "./vendor/htm-preact.js";
import { change } from "./router.js";
import { Word } from "./words.js";

// A longer name would make an address that cannot be sent to anybody.
const ROW_NAME_MAX = 500;

/** The order of texts: "dev-2" before "dev-10". */
export const byText = new Intl.Collator("en", { numeric: true }).compare;

/**
 * `columns`: {key, title, word, cell(row), value(row) to sort by, isNumber, isHeader}. `word`: the one of WORDS that the title
 * needs. `sort` is a key, with "-" in front for the largest first; without `onSort` there are no buttons to sort. `current` is
 * the selected row; null in a detail, which leaves the selection to the list. At most `limit` rows are shown, the first in
 * that order.
 */
export function Table({ caption, columns, rows, keyOf, sort, onSort, current, empty, limit = Infinity }) {
  const sorted = (sort ? inOrder(rows, columns, sort) : rows).slice(0, limit);
  return html`
    <${Scroll} label=${caption}>
      <table>
        <caption class="hidden">${caption}</caption>
        <thead><tr>${columns.map((column) => html`<${Head} key=${column.key} column=${column} sort=${sort} onSort=${onSort} />`)}</tr></thead>
        <tbody>
          ${sorted.map((row) => html`<${Row} key=${keyOf(row)} name=${keyOf(row)} columns=${columns} row=${row} current=${current} />`)}
          ${sorted.length === 0 && html`<tr><td class="empty" colspan=${columns.length}>${empty}</td></tr>`}
        </tbody>
      </table>
    <//>
  `;
}

export function Scroll({ label, children }) {
  return html`<div class="scroll" role="region" aria-label=${label} tabindex="0">${children}</div>`;
}

/** What every row needs to be found by keys and to stay selected. */
export function rowProperties(name, current) {
  return {
    "data-row": name,
    tabindex: "-1",
    "aria-current": name === current ? "true" : null,
    onFocusCapture: () => current !== null && name !== current && name.length <= ROW_NAME_MAX && change({ row: name }),
  };
}

function Row({ name, columns, row, current }) {
  return html`
    <tr ...${rowProperties(name, current)}>
      ${columns.map(({ key, cell, isHeader, isNumber }) =>
        isHeader
          ? html`<th key=${key} scope="row">${cell(row)}</th>`
          : html`<td key=${key} class=${isNumber ? "number" : null}>${cell(row)}</td>`)}
    </tr>
  `;
}

function Head({ column, sort, onSort }) {
  const side = column.isNumber ? "number" : null;
  const title = column.word ? html`<${Word} of=${column.word}>${column.title}<//>` : column.title;
  if (!onSort || !column.value) return html`<th scope="col" class=${side}>${title}</th>`;
  const isUp = sort === column.key;
  const isDown = sort === `-${column.key}`;
  const order = isUp ? "ascending" : isDown ? "descending" : null;
  return html`
    <th scope="col" class=${side} aria-sort=${order}>
      <button type="button" class="sort" onClick=${() => onSort(nextSort(column, isUp, isDown))}>
        ${title}<span aria-hidden="true">${isUp ? " ▲" : isDown ? " ▼" : ""}</span>
      </button>
    </th>
  `;
}

/** Numbers start with the largest, texts with the first. */
function nextSort({ key, isNumber }, isUp, isDown) {
  if (isNumber) return isDown ? key : `-${key}`;
  return isUp ? `-${key}` : key;
}

/** Rows without a value come last in both orders. */
function inOrder(rows, columns, sort) {
  const isDown = sort.startsWith("-");
  const column = columns.find(({ key }) => key === sort.replace(/^-/, ""));
  if (!column?.value) return rows;
  const isNone = (value) => value === null || value === undefined;
  return [...rows].sort((left, right) => {
    const [a, b] = [column.value(left), column.value(right)];
    if (isNone(a) || isNone(b)) return isNone(a) - isNone(b);
    const order = typeof a === "string" ? byText(a, b) : a - b;
    return isDown ? -order : order;
  });
}
