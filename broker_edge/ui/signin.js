// Signing in with a name and password, or with a token. The view in the address stays, so the reader goes on where they were.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { isSignedOut, serverName, signIn } from "./api.js";
import { consoleInfo } from "./session.js";

export function SignIn() {
  const [isToken, setIsToken] = useState(false);
  const [problem, setProblem] = useState(null);
  const [isAsking, setIsAsking] = useState(false);
  const [hasEnded] = useState(consoleInfo.get() !== null);
  const form = useRef(null);
  useEffect(() => {
    document.title = "Sign in – headwater";
    form.current.elements[0].focus();
  }, [isToken]);

  const onSubmit = async (event) => {
    event.preventDefault();
    setIsAsking(true);
    try {
      await signIn(Object.fromEntries(new FormData(event.target)));
      isSignedOut.set(false);
    } catch (error) {
      setProblem(error.message);
      setIsAsking(false);
    }
  };

  return html`
    <main id="main" class="sign-in">
      <h1 tabindex="-1">Sign in</h1>
      ${hasEnded && html`<p>Your session has ended: you signed out in another tab, you signed in too long ago, or the ${serverName.get()} was started again.</p>`}
      <form ref=${form} onSubmit=${onSubmit}>
        ${isToken ? html`<${Field} key="token" name="token" label="Token" type="password" complete="off" />` : html`
          <${Field} key="user" name="user" label="Name" type="text" complete="username" />
          <${Field} key="password" name="password" label="Password" type="password" complete="current-password" />
        `}
        ${problem && html`<p class="problem" role="alert" id="sign-in-problem"><span aria-hidden="true">⚠\u00a0</span>${problem}</p>`}
        <p class="actions">
          <button type="button" class="quiet" onClick=${() => setIsToken(!isToken)}>
            ${isToken ? "Use a name and password" : "Use a token"}
          </button>
          <button type="submit" class="strong" disabled=${isAsking} aria-describedby=${problem && "sign-in-problem"}>Sign in</button>
        </p>
      </form>
    </main>
  `;
}

function Field({ name, label, type, complete }) {
  return html`
    <label>
      <span>${label}</span>
      <input name=${name} type=${type} autocomplete=${complete} autocapitalize="off" spellcheck=${false} required />
    </label>
  `;
}
