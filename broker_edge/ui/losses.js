// What damage has taken of a log, in one cell. What retention removed and what somebody had purged is no loss.

import { html } from "./vendor/htm-preact.js";
import { bytes, counted } from "./format.js";

const WANTED = ["retention", "purge"];

/** The gaps that are losses. Of older ones that the broker does not list nobody knows the reason, so they count. */
export function lostRanges({ gaps, gaps_left_out: leftOut }) {
  return gaps.filter(({ reason }) => !WANTED.includes(reason)).length + (leftOut ?? 0);
}

/** Null where it is not known. The most is the worst when rows are sorted. */
export function lossOrder(ranges, damagedBytes) {
  return ranges === null || ranges === undefined ? null : ranges + (damagedBytes ?? 0);
}

/** `href`: where more about it is, or null. */
export function Losses({ ranges, damagedBytes, href = null }) {
  if (ranges === null || ranges === undefined) return "–";
  const parts = [ranges > 0 && `${counted(ranges, "range")} lost`, damagedBytes > 0 && `${bytes(damagedBytes)} damaged`].filter(Boolean);
  if (parts.length === 0) return "none";
  const text = html`<span class="bad"><span aria-hidden="true">✖\u00a0</span>${parts.join(", ")}</span>`;
  return href ? html`<a href=${href}>${text}</a>` : text;
}
