// The search field above a list, and the end of a list that has more.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { counted } from "./format.js";
import { change } from "./router.js";

const QUIET_MS = 250;

/** The text goes into the view, under `name`, once the reader has stopped typing. */
export function Search({ label, name, value, children }) {
  const [text, setText] = useState(value);
  const timer = useRef(null);
  const told = useRef(value);
  // Only what comes from elsewhere: the reader may have typed on since the field told its text.
  useEffect(() => {
    if (value !== told.current) setText(value);
    told.current = value;
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const onInput = (event) => {
    const typed = event.target.value;
    setText(typed);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      told.current = typed;
      change({ [name]: typed, row: null });
    }, QUIET_MS);
  };
  return html`
    <form role="search" class="bar" onSubmit=${(event) => event.preventDefault()}>
      <label class="wide">
        <span>${label}</span>
        <input type="search" data-search value=${text} onInput=${onInput} autocapitalize="off" autocomplete="off" spellcheck=${false} />
      </label>
      ${children}
    </form>
  `;
}

/** How many `rows` there are so far, and a way to more. */
export function More({ what, rows, isComplete, more }) {
  return html`
    <p class="more">
      ${isComplete ? "" : "The first "}${counted(rows.length, what)}.
      ${!isComplete && html` <button type="button" onClick=${more}>More</button>`}
    </p>
  `;
}
