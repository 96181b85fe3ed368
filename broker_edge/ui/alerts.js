// What is wrong now, and what to do about it. In a fleet each alert names its broker.

import { html } from "./vendor/htm-preact.js";
import { serverName } from "./api.js";
import { liveState } from "./live.js";
import { Name } from "./name.js";
import { useStore } from "./store.js";

export function Alerts({ alerts }) {
  const { phase } = useStore(liveState);
  const server = useStore(serverName);
  return html`
    <section aria-labelledby="alerts-title">
      <h2 id="alerts-title">What is wrong now</h2>
      ${alerts === null && html`<p class="waiting">${phase === "polling" ? "Not known without a live stream." : `Asking the ${server}…`}</p>`}
      ${alerts?.length === 0 && html`<p class="fine"><span aria-hidden="true">✓ </span>Nothing that the ${server} knows of.</p>`}
      ${alerts?.length > 0 && html`<ul class="alerts">${alerts.map((alert) => html`<${Alert} key=${`${alert.broker ?? ""} ${alert.name}`} alert=${alert} />`)}</ul>`}
    </section>
  `;
}

function Alert({ alert: { broker, name, severity, summary, remedy } }) {
  const isCritical = severity === "critical";
  return html`
    <li class=${isCritical ? "critical" : "warning"}>
      <p><strong>
        <span aria-hidden="true">${isCritical ? "✖" : "⚠"} </span>${isCritical ? "Critical" : "Warning"}${broker && html` at <${Name} text=${broker} length=${80} />`}: <${Name} text=${summary} length=${600} />
      </strong></p>
      <p><${Name} text=${remedy} length=${1_000} /> <code>${name}</code></p>
    </li>
  `;
}
