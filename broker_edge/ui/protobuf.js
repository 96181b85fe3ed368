// Reads protobuf by its wire format, and Sparkplug B payloads by the fields of their message (Eclipse Sparkplug 3.0.0, 6.4).
// Without the message only field numbers and wire types are known, so a number is shown as it is on the wire.

import { Reader, text } from "./bytes.js";

const DEPTH_MAX = 8;
const VARINT = 0;
const FIXED64 = 1;
const BLOCK = 2;
const FIXED32 = 5;

const PAYLOAD = { 1: "timestamp", 2: "metrics", 3: "seq", 4: "uuid", 5: "body" };
const METRIC = {
  1: "name", 2: "alias", 3: "timestamp", 4: "datatype", 5: "is_historical", 6: "is_transient", 7: "is_null", 8: "metadata",
  9: "properties", 10: "value", 11: "value", 12: "value", 13: "value", 14: "value", 15: "value", 16: "value", 17: "dataset",
  18: "template", 19: "extension",
};
const TYPES = [
  "Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double", "Boolean", "String",
  "DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template",
];
// Data types whose numbers are two's complement in an unsigned field.
const SIGNED_BITS = { Int8: 8, Int16: 16, Int32: 32, Int64: 64 };
const FLAGS = ["is_historical", "is_transient", "is_null"];

/** A Map of the fields by number; a field that comes more than once is a list. */
export function readProtobuf(bytes, depth = 0) {
  const found = new Map();
  for (const { number, kind, bytes: content, value } of fields(bytes)) {
    const shown = kind === BLOCK ? blockValue(content, depth) : value;
    const key = `field ${number}`;
    found.set(key, found.has(key) ? [found.get(key), shown].flat() : shown);
  }
  return found;
}

export function readSparkplug(bytes) {
  const payload = new Map();
  const metrics = [];
  for (const field of fields(bytes)) {
    const name = PAYLOAD[field.number] ?? `field ${field.number}`;
    if (name === "metrics") metrics.push(metric(expectBlock(field)));
    else if (name === "uuid") payload.set(name, text(expectBlock(field)));
    else payload.set(name, name === "timestamp" ? instant(field.value) : field.bytes ?? field.value);
  }
  payload.set("metrics", metrics);
  return payload;
}

function metric(bytes) {
  const found = new Map();
  let value = null;
  for (const field of fields(bytes)) {
    const name = METRIC[field.number] ?? `field ${field.number}`;
    if (name === "value") value = field;
    else if (name === "name") found.set(name, text(expectBlock(field)));
    else if (name === "timestamp") found.set(name, instant(field.value));
    else if (name === "datatype") found.set(name, TYPES[Number(field.value)] ?? Number(field.value));
    else if (FLAGS.includes(name)) found.set(name, Boolean(field.value));
    else found.set(name, field.bytes ? readProtobuf(field.bytes, 1) : field.value);
  }
  if (value) found.set("value", metricValue(value, found.get("datatype")));
  return found;
}

function metricValue({ number, value, bytes }, type) {
  if (number === 14) return Boolean(value);
  if (number === 15) return text(expectBlock({ bytes }));
  if (bytes) return bytes;
  if (type === "DateTime") return instant(value);
  const bits = SIGNED_BITS[type];
  return bits && (number === 10 || number === 11) ? small(BigInt.asIntN(bits, BigInt(value))) : value;
}

function* fields(bytes) {
  const reader = new Reader(bytes);
  while (!reader.isAtEnd) {
    const start = reader.position;
    const key = varint(reader);
    const [number, kind] = [Number(key >> 3n), Number(key & 7n)];
    if (number === 0 || number > 0x1fff_ffff) throw new Error(`no field begins at byte ${start}`);
    if (kind === VARINT) yield { number, kind, value: small(varint(reader)) };
    else if (kind === FIXED64) yield { number, kind, value: reader.view.getFloat64(reader.skip(8), true) };
    else if (kind === FIXED32) yield { number, kind, value: reader.view.getFloat32(reader.skip(4), true) };
    else if (kind === BLOCK) yield { number, kind, bytes: reader.take(Number(varint(reader))) };
    else throw new Error(`byte ${start} has an unknown wire type`);
  }
}

function varint(reader) {
  let value = 0n;
  for (let shift = 0n; shift < 70n; shift += 7n) {
    const byte = reader.byte();
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return BigInt.asUintN(64, value);
  }
  throw new Error(`a number at byte ${reader.position} has more than 10 bytes`);
}

/** A block may be a text, a message or bytes; the wire does not say which. */
function blockValue(bytes, depth) {
  try {
    const value = text(bytes);
    if (!/[\u0000-\u0008\u000e-\u001f]/.test(value)) return value;
  } catch {
    // No text.
  }
  if (depth >= DEPTH_MAX) return bytes;
  try {
    return readProtobuf(bytes, depth + 1);
  } catch {
    return bytes;
  }
}

function expectBlock({ bytes }) {
  if (!bytes) throw new Error("a text or message is expected, and a number is there");
  return bytes;
}

function instant(milliseconds) {
  const at = new Date(Number(milliseconds));
  return Number.isNaN(at.getTime()) ? milliseconds : at.toISOString();
}

function small(value) {
  return value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER ? Number(value) : value;
}
