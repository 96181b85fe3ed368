// Writes decoded values as indented text. JSON keeps its own digits: a number of 20 digits must not become another one.

import { hex } from "./bytes.js";

/** Values of the decoders: maps are Map, bytes are Uint8Array, whole numbers may be bigint. */
export function print(value, indent = "") {
  const deeper = `${indent}  `;
  if (value instanceof Uint8Array) return `h'${hex(value)}'`;
  if (value instanceof Map) {
    const pairs = [...value].map(([key, item]) => `${typeof key === "string" ? JSON.stringify(key) : print(key)}: ${print(item, deeper)}`);
    return block("{", pairs, "}", indent);
  }
  if (Array.isArray(value)) return block("[", value.map((item) => print(item, deeper)), "]", indent);
  if (typeof value === "string") return JSON.stringify(value);
  return Object.is(value, -0) ? "-0" : String(value);
}

function block(open, items, close, indent) {
  if (items.length === 0) return open + close;
  const deeper = `${indent}  `;
  return `${open}\n${items.map((item) => deeper + item).join(",\n")}\n${indent}${close}`;
}

const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
// Deeper levels stay at this indentation: thousands of brackets would otherwise fill the memory with spaces.
const INDENTED_DEPTH_MAX = 40;

/** Indents JSON, which must be valid, without reading its values. */
export function indentJson(json) {
  const out = [];
  let depth = 0;
  let before = "";
  const newLine = () => out.push("\n", "  ".repeat(Math.min(depth, INDENTED_DEPTH_MAX)));
  for (const [token] of json.matchAll(TOKEN)) {
    const closes = token === "}" || token === "]";
    if (closes) depth -= 1;
    const isAfterOpening = before === "{" || before === "[";
    if (closes ? !isAfterOpening : before === "," || isAfterOpening) newLine();
    out.push(token === ":" ? ": " : token);
    if (token === "{" || token === "[") depth += 1;
    before = token;
  }
  return out.join("");
}
