// Words of the field that a newcomer may not know, each with what it means here.

import { html } from "./vendor/htm-preact.js";

export const WORDS = {
  ack: "From a message until its acknowledgement. 99 of 100 in the last second were faster than p99.",
  sync: "How long the disk takes to make records safe. 99 of 100 in the last second were faster than p99.",
  loop: "A loop is a thread that serves connections. Busy: the part of the time in which it works.",
  logStart: "The first offset that the log still has: older records are removed.",
  highWatermark: "The offset up to which records are safe and may be read: the one after the newest.",
  epoch: "A number that grows with each leader, so that a former one can write no more.",
  inSync: "Has every acknowledged record, so it can become the leader.",
  trust: "Whether the copy of this node is whole: unproven after a crash, suspect when bytes are missing.",
  lag: "How many records are still to be read.",
  heldBy: "Groups that still have records of the partition to read, the furthest behind first.",
  heldNext: "Groups that still have to read what is removed next, the furthest behind first.",
  index: "Finds the records of a topic in a segment without reading all of it.",
};

export function Word({ of, children }) {
  return html`<abbr title=${WORDS[of]}>${children}</abbr>`;
}
