// Reads numbers and blocks from bytes that a stranger has written. Every read is within the bytes, or it throws.

export class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.position = 0;
  }

  get isAtEnd() {
    return this.position >= this.bytes.length;
  }

  /** The position of `length` bytes, which are then behind the reader. */
  skip(length) {
    const start = this.position;
    if (length > this.bytes.length - start) throw new Error(`it ends within a value at byte ${start}`);
    this.position += length;
    return start;
  }

  take(length) {
    const start = this.skip(length);
    return this.bytes.subarray(start, start + length);
  }

  byte() {
    return this.bytes[this.skip(1)];
  }
}

export function text(bytes) {
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
}

export function fromBase64(encoded) {
  return Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
}

export function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Lines of 16 bytes with their position, in hex and as ASCII. */
export function hexLines(bytes) {
  const lines = [];
  for (let start = 0; start < bytes.length; start += 16) {
    const row = bytes.subarray(start, start + 16);
    const digits = Array.from(row, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = Array.from(row, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${start.toString(16).padStart(8, "0")}  ${digits.padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}
