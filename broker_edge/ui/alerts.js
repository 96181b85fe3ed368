// What is wrong now, and what to do about it. In a fleet each alert names its broker.

import { html } from "./vendor/htm-preact.js";
import { serverName } from "./api.js";
import { count, cut } from "./format.js";
import { liveState } from "./live.js";
import { Name } from "./name.js";
import { keyOf } from "./notice.js";
import { link } from "./router.js";
import { hasPage } from "./session.js";
import { useStore } from "./store.js";

const REMEDY_MAX = 1_000;

/** Where more about an alert is, at the broker that it is about. */
const PAGES = {
  group: { page: "groups", title: "All groups" },
  damage: { page: "damage", title: "All damage" },
  refused: { page: "access", title: "Ask why something is refused" },
};

/** `more` makes the link to {page, title} for the broker of an alert; null where it has no such page. */
export function Alerts({ alerts, more = here }) {
  const { phase } = useStore(liveState);
  const server = useStore(serverName);
  return html`
    <section aria-labelledby="alerts-title">
      <h2 id="alerts-title">What is wrong now</h2>
      ${alerts === null && html`<p class="waiting">${phase === "polling" ? "Not known without a live stream." : `Asking the ${server}…`}</p>`}
      ${alerts?.length === 0 && html`<p class="fine"><span aria-hidden="true">✓\u00a0</span>Nothing that the ${server} knows of.</p>`}
      ${alerts?.length > 0 && html`<ul class="alerts">${inOrder(alerts).map(({ key, alert }) => html`<${Alert} key=${key} alert=${alert} more=${more} />`)}</ul>`}
    </section>
  `;
}

/** Critical ones first, each with a key of its own that stays while numbers in it change. */
function inOrder(alerts) {
  const seen = new Map();
  const keyed = alerts.map((alert) => {
    const key = keyOf(alert);
    seen.set(key, (seen.get(key) ?? 0) + 1);
    return { key: `${key} ${seen.get(key)}`, alert };
  });
  const rank = ({ alert }) => (alert.severity === "critical" ? 0 : 1);
  return keyed.sort((left, right) => rank(left) - rank(right));
}

function here({ page, title }) {
  return hasPage(page) ? html`<a href=${link(page)}>${title}</a>` : null;
}

function Alert({ alert: { broker, name, severity, summary, remedy }, more }) {
  const isCritical = severity === "critical";
  const to = Object.hasOwn(PAGES, name) ? more(PAGES[name], broker) : null;
  return html`
    <li class=${isCritical ? "critical" : "warning"}>
      <p><strong>
        <span aria-hidden="true">${isCritical ? "✖" : "⚠"}\u00a0</span>${isCritical ? "Critical" : "Warning"}${broker && html` at <${Name} text=${broker} length=${80} />`}: <${Name} text=${summary} length=${600} />
      </strong></p>
      <p><${Remedy} text=${remedy} />${to && html` ${to}`}</p>
    </li>
  `;
}

/** How many there are, in the look of the worst. */
export function AlertsNumber({ alerts }) {
  const isCritical = alerts.some(({ severity }) => severity === "critical");
  return html`<span class=${isCritical ? "bad" : "warned"}><span aria-hidden="true">${isCritical ? "✖" : "⚠"}\u00a0</span>${count(alerts.length)}</span>`;
}

/** What stands between backticks is code. */
function Remedy({ text }) {
  const pieces = cut(text ?? "", REMEDY_MAX).split("`");
  return html`<bdi>${pieces.map((piece, index) => (index % 2 === 1 ? html`<code>${piece}</code>` : piece))}</bdi>`;
}
