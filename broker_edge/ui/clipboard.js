// Copies a text, also where the page came without TLS from another machine and the browser has no clipboard for it.

import { say } from "./notice.js";

export async function copy(text, what) {
  const isCopied = navigator.clipboard ? await write(text) : copySelected(text);
  say(isCopied ? `${what} copied.` : "The browser does not allow to copy.");
}

async function write(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text);
  }
}

function copySelected(text) {
  const field = document.createElement("textarea");
  const focused = document.activeElement;
  field.value = text;
  field.className = "hidden";
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return isCopied;
}
