// A refusal as the question that the page Access asks: may this client do this, and which line of the ACL file decides.

import { html } from "./vendor/htm-preact.js";
import { Name } from "./name.js";
import { link } from "./router.js";
import { hasPage } from "./session.js";

// The broker keeps no more characters of a name in an event, so one of this length may be the beginning of another.
const NAME_MAX = 64;
const TOPIC_SHOWN = 120;
// The reasons in words. Others are names of limits, which docs/security.md lists.
const REASONS = {
  acl: "the ACL file does not allow it",
  bad_credentials: "wrong user name or password",
  bad_token: "a token that is not valid here",
  busy: "too many passwords are being checked",
  client_id: "the client id belongs to somebody else",
  expired_token: "a token or a session that has ended",
  method: "a way of signing in that the broker does not know",
  no_credentials: "no user name and password",
  origin: "the address of a browser's page that may not ask",
};
// What was refused, as the form asks for it.
const ACCESS_OF = { publish: "publish", will: "publish", produce: "publish", subscribe: "subscribe", replay: "replay", read: "replay" };

/** Names of which the broker says nothing else: null where only the beginning may be known. */
export function whole(name) {
  return name !== null && Array.from(name).length < NAME_MAX ? name : null;
}

/**
 * What is known of a refusal: `act`, `reason`, `user`, `clientId`, `topic`, null where there is none. `isCut`: something of
 * it is only the beginning. The question is then filled in as far as it is known, and not asked.
 */
export function questionOf({ act, reason, user, clientId, topic, isCut }) {
  if (reason !== "acl" || !Object.hasOwn(ACCESS_OF, act) || !hasPage("access")) return null;
  const isComplete = Boolean(topic) && !isCut;
  return { isComplete, href: link("access", { user, client_id: clientId, access: ACCESS_OF[act], topic: isComplete ? topic : null }) };
}

/** `about`: what is asked, for those who hear only the link. */
export function AskWhy({ question, about, onClick }) {
  return question && html`<a data-open href=${question.href} onClick=${onClick}>Ask why<span class="hidden"> ${about}</span></a>`;
}

/** Why something was refused. Reasons that have no words here are names. */
export function Why({ reason }) {
  return Object.hasOwn(REASONS, reason) ? REASONS[reason] : html`<code>${reason}</code>`;
}

/** The topic or filter of a refusal, on a line of its own: it may be long. */
export function RefusedTopic({ topic, isCut }) {
  if (topic === null) return null;
  return html`
    <div><code><${Name} text=${isCut ? `${topic}…` : topic} length=${TOPIC_SHOWN} /></code></div>
    ${isCut && html`<div class="note">The broker keeps only the beginning of a topic this long. To ask, type all of it.</div>`}
  `;
}
