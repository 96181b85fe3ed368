// The frame of the console: header, navigation, the page that the address names, and signing in.

import { html, render, useCallback, useEffect, useErrorBoundary, useRef, useState } from "./vendor/htm-preact.js";
import { AlertsNumber } from "./alerts.js";
import { isSignedOut, serverName } from "./api.js";
import { Help } from "./dialog.js";
import { useKey } from "./keys.js";
import { liveState, samples, startLive } from "./live.js";
import { LOG_ID_SHOWN, Name } from "./name.js";
import { Notice } from "./notice.js";
import { pagesOf } from "./pages.js";
import { scheme, setScheme, showScheme } from "./preferences.js";
import { firstPage, go, link, view } from "./router.js";
import { consoleInfo, consoleTrouble, isOutdated, leave, loadConsole } from "./session.js";
import { SignIn } from "./signin.js";
import { useStore } from "./store.js";

const RETRY_MS = 2_000;
const SCHEMES = { auto: "Auto", light: "Light", dark: "Dark" };

function App() {
  const signedOut = useStore(isSignedOut);
  const info = useStore(consoleInfo);
  const { phase } = useStore(liveState);
  const [isHelp, setIsHelp] = useState(false);
  const openHelp = useCallback(() => setIsHelp(true), []);
  useKey("?", openHelp);
  const isStale = !signedOut && phase === "quiet";
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Header} info=${signedOut ? null : info} onHelp=${openHelp} />
    <${Notice} />
    ${signedOut ? html`<${SignIn} />` : info ? html`<${Frame} info=${info} isStale=${isStale} />` : html`<${Opening} />`}
    ${isHelp && html`<${Help} pages=${info ? pagesOf(info) : []} onClose=${() => setIsHelp(false)} />`}
  `;
}

function Header({ info, onHelp }) {
  const colours = useStore(scheme);
  const { phase } = useStore(liveState);
  const outdated = useStore(isOutdated);
  const first = useStore(firstPage);
  return html`
    <header class="top">
      <a class="brand" href=${link(first)}><img src="ui/favicon.svg" alt="" width="22" height="22" />headwater</a>
      ${info && html`
        <span class="identity">${location.host}${info.tenant && html` · <${Name} text=${info.tenant} length=${40} />`} · ${info.version}${info.log_id && html` · log <code><${Name} text=${info.log_id} length=${LOG_ID_SHOWN} /></code>`}</span>
        <span class=${`phase ${phase}`}>${PHASES[phase]}</span>
        ${outdated && html`<button type="button" class="strong" onClick=${() => location.reload()}>New version: reload</button>`}
      `}
      <span class="tools">
        ${info?.has_users && html`
          <span class="user">${info.user && html`<${Name} text=${info.user} length=${40} />`}</span>
          <button type="button" onClick=${leave}>Sign out</button>
        `}
        <label><span class="hidden">Colours</span>
          <select onChange=${(event) => setScheme(event.target.value)}>
            ${Object.entries(SCHEMES).map(([name, title]) => html`<option key=${name} value=${name} selected=${name === colours}>${title}</option>`)}
          </select>
        </label>
        <button type="button" onClick=${onHelp} aria-label="Keys and help" title="Keys and help (?)">?</button>
      </span>
    </header>
  `;
}

const PHASES = { opening: "… opening", live: "●\u00a0live", quiet: "⚠\u00a0no answer", polling: "◐\u00a0every 5 s", refused: "⚠\u00a0not allowed" };

function Frame({ info, isStale }) {
  const { page } = useStore(view);
  const pages = pagesOf(info);
  const shown = pages.find(({ name }) => name === page);
  return html`
    <div class="frame">
      <nav aria-label="Pages">
        ${pages.map(({ name, title, keys }, place) => html`
          <a key=${name} href=${link(name)} aria-current=${name === shown?.name ? "page" : null}>
            <span>${title}${place === 0 && html`<${AlertsMark} />`}</span><kbd aria-hidden="true">${keys}</kbd>
          </a>
          <${PageKey} key=${`key-${name}`} name=${name} keys=${keys} />
        `)}
      </nav>
      <main id="main" class=${isStale ? "stale" : null}>
        <${Title} title=${shown?.title ?? "No such page"} />
        ${shown ? html`<${Page} key=${shown.name} load=${shown.load} />` : pages.slice(0, 1).map(({ name, title }) => html`<p><a href=${link(name)}>Go to ${title}</a></p>`)}
      </main>
    </div>
  `;
}

/** At the page that lists the alerts, so that every page says that there are some. */
function AlertsMark() {
  const { alerts } = useStore(samples);
  return alerts?.length > 0 && html` <${AlertsNumber} alerts=${alerts} /><span class="hidden"> alert${alerts.length === 1 ? "" : "s"}</span>`;
}

function PageKey({ name, keys }) {
  const open = useCallback(() => go(name), [name]);
  useKey(keys, open);
  return null;
}

/** Moves the focus to the title of a new page, as if it had been loaded. */
function Title({ title }) {
  const element = useRef(null);
  const before = useRef(null);
  useEffect(() => {
    document.title = `${title} – ${location.host} – headwater`;
    if (before.current) element.current.focus();
    before.current = title;
  }, [title]);
  return html`<h1 tabindex="-1" ref=${element}>${title}</h1>`;
}

function Page({ load }) {
  const [loaded, setLoaded] = useState(null);
  const [problem, setProblem] = useState(null);
  const { query } = useStore(view);
  const [failure] = useErrorBoundary();
  useEffect(() => {
    let timer = null;
    const attempt = () => load().then(({ default: component }) => setLoaded({ component }), () => {
      setProblem("The page could not be loaded. It is tried again; if that does not help, reload.");
      timer = setTimeout(attempt, RETRY_MS);
    });
    attempt();
    return () => clearTimeout(timer);
  }, [load]);
  if (failure) return html`<p class="problem">This page has failed: ${failure.message}. Reload it.</p>`;
  if (!loaded && problem) return html`<p class="problem">${problem}</p>`;
  if (!loaded) return html`<p class="waiting">Opening…</p>`;
  return html`<${loaded.component} query=${query} />`;
}

function Opening() {
  const trouble = useStore(consoleTrouble);
  const server = useStore(serverName);
  return html`
    <main id="main">
      <h1 tabindex="-1">headwater</h1>
      <p class=${trouble ? "problem" : "waiting"}>${trouble ?? `Asking the ${server}…`}</p>
    </main>
  `;
}

function skip(event) {
  event.preventDefault();
  document.querySelector("main h1").focus();
}

showScheme();
startLive();
loadConsole();
render(html`<${App} />`, document.getElementById("app"));
