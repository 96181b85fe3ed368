// Decodes one CBOR value (RFC 8949). Maps become Map, tags become a Map with the tag as its key, whole numbers over 53 bits
// become bigint.

import { Reader, text } from "./bytes.js";

const DEPTH_MAX = 64;
const BREAK = Symbol("break");

export function readCbor(bytes) {
  const reader = new Reader(bytes);
  const value = item(reader, 0);
  if (value === BREAK) throw new Error("an end without a beginning");
  if (!reader.isAtEnd) throw new Error(`${bytes.length - reader.position} bytes follow the value`);
  return value;
}

function item(reader, depth) {
  if (depth > DEPTH_MAX) throw new Error(`values are nested more than ${DEPTH_MAX} deep`);
  const start = reader.position;
  const first = reader.byte();
  const [major, info] = [first >> 5, first & 31];
  if (major === 7) return simple(reader, info, start);
  const argument = info === 31 ? null : whole(reader, info, start);
  switch (major) {
    case 0: return argument ?? wrong(start);
    case 1: return argument === null ? wrong(start) : negative(argument);
    case 2: return argument === null ? joined(reader, depth) : reader.take(size(argument)).slice();
    case 3: return argument === null ? list(reader, null, depth).join("") : text(reader.take(size(argument)));
    case 4: return list(reader, argument, depth);
    case 5: return map(reader, argument, depth);
    default: return argument === null ? wrong(start) : new Map([[`tag ${argument}`, item(reader, depth + 1)]]);
  }
}

function whole(reader, info, start) {
  const { view } = reader;
  if (info < 24) return info;
  if (info === 24) return view.getUint8(reader.skip(1));
  if (info === 25) return view.getUint16(reader.skip(2));
  if (info === 26) return view.getUint32(reader.skip(4));
  if (info === 27) return small(view.getBigUint64(reader.skip(8)));
  return wrong(start);
}

function simple(reader, info, start) {
  const { view } = reader;
  switch (info) {
    case 20: return false;
    case 21: return true;
    case 22: return null;
    case 23: return undefined;
    case 25: return half(view.getUint16(reader.skip(2)));
    case 26: return view.getFloat32(reader.skip(4));
    case 27: return view.getFloat64(reader.skip(8));
    case 31: return BREAK;
    default: return wrong(start);
  }
}

function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** Each item takes at least one byte, so that a claimed length cannot make the list longer than the bytes are. */
function list(reader, length, depth) {
  const items = [];
  while (length === null || items.length < length) {
    const value = item(reader, depth + 1);
    if (value === BREAK) {
      if (length === null) return items;
      throw new Error(`a list ends early at byte ${reader.position}`);
    }
    items.push(value);
  }
  return items;
}

function map(reader, length, depth) {
  const items = list(reader, length === null ? null : 2 * size(length), depth);
  if (items.length % 2) throw new Error("a map has a key without a value");
  return new Map(Array.from({ length: items.length / 2 }, (_, index) => [items[2 * index], items[2 * index + 1]]));
}

function joined(reader, depth) {
  return Uint8Array.from(list(reader, null, depth).flatMap((part) => (part instanceof Uint8Array ? [...part] : wrong(reader.position))));
}

function negative(argument) {
  return typeof argument === "bigint" ? -1n - argument : small(-1n - BigInt(argument));
}

function size(argument) {
  if (typeof argument === "bigint") throw new Error("a length over 53 bits");
  return argument;
}

function small(value) {
  return value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER ? Number(value) : value;
}

function wrong(position) {
  throw new Error(`no value begins with the byte at ${position}`);
}
