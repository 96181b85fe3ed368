// A record of the log: a line in the table of the tail, and everything about it when it is open or traced.

import { Component, html, useEffect, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";
import { fromBase64, hexLines, text } from "./bytes.js";
import { copy } from "./clipboard.js";
import { bytes as sizeOf, cut } from "./format.js";
import { Name } from "./name.js";
import { decode } from "./payload.js";
import { link } from "./router.js";
import { hasPage, partitionName } from "./session.js";
import { Time } from "./state.js";
import { rowProperties } from "./table.js";

const PREVIEW_MAX = 240;
// Hundreds of lines a second may be compressed.
const LINE_UNPACKED_MAX = 16 * 1024;
const HEADER_MAX = 2_000;
export const COLUMNS = ["time", "topic", "payload", "client id", "offset", "actions"];

/** The record with what its line shows. The payload stays as it came, and is decoded again when it is opened. */
export async function received(record) {
  const { kind, text: shown, reason } = await decodeValue(record, { unpackedMax: LINE_UNPACKED_MAX });
  const line = kind.startsWith("hex") ? fromBase64(record.value.slice(0, 64)).reduce(toHex, "") : shown;
  const preview = cut(line.slice(0, 4 * PREVIEW_MAX).replace(/\s+/g, " "), PREVIEW_MAX);
  return { ...record, position: `${partitionName(record.partition)}:${record.offset}`, kind, reason, preview };
}

/** A line changes rarely while hundreds come, so it is drawn again only when it must. */
export class RecordRow extends Component {
  shouldComponentUpdate(next) {
    return ["record", "isOpen", "isPinned", "current"].some((name) => next[name] !== this.props[name]);
  }

  render({ record, isOpen, isPinned, current, onOpen, onPin }) {
    const { position } = record;
    return html`
      <tr ...${rowProperties(position, current)} class=${isPinned ? "pinned" : null}>
        <td class="nowrap"><${Time} ms=${record.time_us / 1_000} /></td>
        <td><${Name} text=${record.topic} length=${80} /></td>
        <td class="payload">
          <button type="button" class="open" data-open aria-expanded=${isOpen} onClick=${() => onOpen(position)}>
            <span class="hidden">Record ${position}</span>
            <span class="kind">${record.kind}</span>
            <code><bdi>${record.preview}</bdi></code>
          </button>
        </td>
        <td><${Name} text=${record.client_id} length=${40} /></td>
        <th scope="row" title=${position}><code>${position}</code></th>
        <td class="nowrap">
          <button type="button" class="quiet" aria-pressed=${isPinned} onClick=${() => onPin(record)}>
            ${isPinned ? "Unpin" : "Pin"}<span class="hidden"> ${position}</span>
          </button>
          <button type="button" class="quiet" onClick=${() => copyRecord(record)}>Copy<span class="hidden"> ${position} as JSON</span></button>
          ${hasPage("trace") && html`<a class="quiet" href=${link("trace", { at: position })}>Trace<span class="hidden"> ${position}</span></a>`}
        </td>
      </tr>
      ${isOpen && html`<tr class="detail"><td colspan=${COLUMNS.length}><${RecordDetail} record=${record} /></td></tr>`}
    `;
  }
}

/** Everything about a record, with its payload decoded. */
export function RecordDetail({ record: line }) {
  const [whole, setWhole] = useState(null);
  const [isHex, setIsHex] = useState(false);
  useEffect(() => {
    const ends = new AbortController();
    const show = async () => {
      const record = await longer(line, ends.signal);
      setWhole({ record, decoded: await decodeValue(record) });
    };
    show().catch(() => undefined);
    return () => ends.abort();
  }, [line]);
  if (!whole) return html`<p class="waiting">Decoding…</p>`;
  const { record, decoded } = whole;
  const isAlwaysHex = decoded.kind.startsWith("hex");
  return html`
    <dl class="facts">
      <${Fact} name="Topic"><${Name} text=${record.topic} length=${2_000} /><//>
      <${Fact} name="Client id"><${Name} text=${record.client_id} length=${2_000} /><//>
      <${Fact} name="Payload">${decoded.kind}, ${sizeOf(record.size)}<//>
      <${Fact} name="QoS">${record.qos}${record.retain ? ", retained" : ""}<//>
      ${record.headers.map(([name, value], index) => html`
        <${Fact} key=${index} name=${html`<${Name} text=${name} length=${80} />`}><${Name} text=${headerText(value)} length=${HEADER_MAX} /><//>
      `)}
    </dl>
    ${decoded.reason && html`<p class="note"><span aria-hidden="true">⚠\u00a0</span><bdi>${decoded.reason}</bdi></p>`}
    ${!isAlwaysHex && html`
      <p><button type="button" class="quiet" aria-pressed=${isHex} onClick=${() => setIsHex(!isHex)}>${isHex ? "Show decoded" : "Show as hex"}</button></p>
    `}
    <pre role="region" tabindex="0" aria-label="Payload"><bdi>${isHex ? hexLines(fromBase64(record.value)) : decoded.text}</bdi></pre>
  `;
}

/** A tail has only the beginning of a long payload; the log has more of it, unless it is gone by now. */
async function longer(record, signal) {
  if (!record.is_cut) return record;
  try {
    const { partition, offset } = record;
    const { records } = await ask("api/v1/records", { query: { partition, from: offset, limit: 1 }, signal });
    return records[0]?.offset === offset ? records[0] : record;
  } catch {
    signal.throwIfAborted();
    return record;
  }
}

function Fact({ name, children }) {
  return html`<div><dt>${name}</dt><dd>${children}</dd></div>`;
}

function decodeValue(record, limits) {
  const type = record.headers.find(([name]) => name === "mqtt.content-type")?.[1];
  const hints = { contentType: type ? headerText(type) : "", topic: record.topic, isCut: record.is_cut, ...limits };
  return decode(fromBase64(record.value), hints);
}

function headerText(value) {
  const bytes = fromBase64(value);
  try {
    return text(bytes);
  } catch {
    return `h'${bytes.reduce(toHex, "")}'`;
  }
}

function toHex(digits, byte) {
  return digits + byte.toString(16).padStart(2, "0");
}

/** As the broker has sent it, with the payload as text where it is text. */
async function copyRecord({ position, kind, reason, preview, ...record }) {
  const headers = record.headers.map(([name, value]) => [name, headerText(value)]);
  const bytes = fromBase64(record.value);
  const value = readable(bytes);
  const shown = { position, time: new Date(record.time_us / 1_000).toISOString(), ...record, headers };
  if (value !== null) Object.assign(shown, { value });
  else Object.assign(shown, { value_base64: record.value, value: undefined });
  await copy(JSON.stringify(shown, null, 2), `Record ${position}`);
}

function readable(bytes) {
  try {
    return text(bytes);
  } catch {
    return null;
  }
}
