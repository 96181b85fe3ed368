// Decodes the payload of a record: by its content type, else by its topic, else by its look. What cannot be decoded is shown
// as hex with the reason, never dropped.

import { hexLines, text } from "./bytes.js";
import { readCbor } from "./cbor.js";
import { indentJson, print } from "./print.js";
import { readProtobuf, readSparkplug } from "./protobuf.js";

const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/;

const READERS = {
  JSON: (bytes) => {
    const json = text(bytes);
    JSON.parse(json);
    return indentJson(json);
  },
  CBOR: (bytes) => print(readCbor(bytes)),
  "Sparkplug B": (bytes) => print(readSparkplug(bytes)),
  Protobuf: (bytes) => print(readProtobuf(bytes)),
  text: (bytes) => {
    const value = text(bytes);
    if (CONTROL.test(value)) throw new Error("it has control characters");
    return value;
  },
};

/**
 * `{kind, text, reason}`: `reason` says why it is not what it claims to be, or why only a part is there. Of what gzip unpacks to
 * at most `unpackedMax` bytes are made: a small payload may unpack to very much.
 */
export async function decode(bytes, { contentType = "", topic = "", isCut = false, unpackedMax = 1024 * 1024 }) {
  if (bytes.length === 0) return { kind: "empty", text: "", reason: null };
  if (isGzip(bytes)) return inside(bytes, { contentType, topic, isCut, unpackedMax });
  if (isCut) return beginning(bytes);
  const claim = claimed(contentType, topic);
  if (!claim) return byLook(bytes, null);
  try {
    return { kind: claim.kind, text: READERS[claim.kind](bytes), reason: null };
  } catch (error) {
    return byLook(bytes, `${claim.by} says ${claim.kind}, but ${error.message}`);
  }
}

function claimed(contentType, topic) {
  const type = contentType.toLowerCase();
  const kind = kindOfType(type);
  if (kind) return { kind, by: "The content type" };
  // STATE messages of hosts are JSON.
  if (!type && /^spBv1\.0\/[^/]+\/[ND]/.test(topic)) return { kind: "Sparkplug B", by: "The topic" };
  return null;
}

function kindOfType(type) {
  if (/\bjson\b/.test(type)) return "JSON";
  if (/\bcbor\b/.test(type)) return "CBOR";
  if (/sparkplug/.test(type)) return "Sparkplug B";
  if (/protobuf|\bproto\b/.test(type)) return "Protobuf";
  if (type.startsWith("text/")) return "text";
  return null;
}

function byLook(bytes, reason) {
  for (const kind of looksLike(bytes)) {
    try {
      return { kind, text: READERS[kind](bytes), reason };
    } catch {
      // It only looked like it.
    }
  }
  return { kind: "hex", text: hexLines(bytes), reason: reason ?? "It is no JSON, text, CBOR or Protobuf." };
}

/** The first byte tells JSON and the lists, maps and tags of CBOR; single numbers of CBOR could be anything. */
function looksLike(bytes) {
  const kinds = /^\s*[[{"\-\dtfn]/.test(String.fromCharCode(...bytes.subarray(0, 64))) ? ["JSON", "text"] : ["text"];
  if (bytes[0] >> 5 >= 4 && bytes[0] >> 5 <= 6) kinds.push("CBOR");
  return bytes.length > 1 ? [...kinds, "Protobuf"] : kinds;
}

function beginning(bytes) {
  const reason = `Only the first ${bytes.length.toLocaleString("en")} bytes are here.`;
  try {
    // The last character may be cut as well: a stream keeps it back.
    const value = new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: true });
    if (!CONTROL.test(value)) return { kind: "text", text: value, reason };
  } catch {
    // No text.
  }
  return { kind: "hex", text: hexLines(bytes), reason };
}

function isGzip(bytes) {
  return bytes[0] === 0x1f && bytes[1] === 0x8b && bytes[2] === 8;
}

async function inside(bytes, { contentType, topic, isCut, unpackedMax }) {
  try {
    const { unpacked, isMore } = await unpack(bytes, isCut, unpackedMax);
    const found = isGzip(unpacked)
      ? { kind: "hex", text: hexLines(unpacked), reason: "It is compressed more than once." }
      : await decode(unpacked, { contentType, topic, isCut: isMore });
    return { ...found, kind: `${found.kind} in gzip` };
  } catch {
    return { kind: "hex", text: hexLines(bytes), reason: "It begins like gzip, but is damaged or ends early." };
  }
}

async function unpack(bytes, isCut, unpackedMax) {
  const gzip = new DecompressionStream("gzip");
  const writer = gzip.writable.getWriter();
  // What is wrong with the bytes comes out at the other end.
  writer.write(bytes).catch(() => undefined);
  writer.close().catch(() => undefined);
  const reader = gzip.readable.getReader();
  const unpacked = new Uint8Array(unpackedMax);
  let size = 0;
  let isMore = false;
  while (!isMore) {
    const { value, done } = await nextPart(reader, isCut && size > 0);
    if (done) break;
    isMore = size + value.length > unpackedMax;
    unpacked.set(value.subarray(0, unpackedMax - size), size);
    size = Math.min(unpackedMax, size + value.length);
  }
  if (isMore) reader.cancel().catch(() => undefined);
  return { unpacked: unpacked.slice(0, size), isMore: isMore || isCut };
}

async function nextPart(reader, mayEndEarly) {
  try {
    return await reader.read();
  } catch (error) {
    if (mayEndEarly) return { done: true };
    throw error;
  }
}
