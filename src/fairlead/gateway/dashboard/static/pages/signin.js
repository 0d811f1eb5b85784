import { call } from "../api.js";
import { html, useRef, useState } from "../html.js";

export function SignIn({ onSignedIn }) {
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState(null);
  const input = useRef(null);
  const enter = async (event) => {
    event.preventDefault();
    setBusy(true);
    setTrouble(null);
    try {
      onSignedIn(await call("POST", "/session", { key: key.trim() }));
    } catch (problem) {
      setTrouble(problem.status === 401 ? "This key is unknown or revoked." : problem.message);
      setBusy(false);
      input.current.focus();
    }
  };
  return html`<main class="alone">
    <img src="/static/icon.svg" width="48" height="48" alt="" />
    <h1>Sign in to Fairlead</h1>
    <form class="card" onSubmit=${enter}>
      <label class="field"><span>Key</span>
        <input ref=${input} type="password" name="key" value=${key} required autofocus autocomplete="current-password" spellcheck="false"
          aria-invalid=${trouble !== null} aria-describedby="signin-trouble" onInput=${(event) => setKey(event.target.value)} /></label>
      <p id="signin-trouble" class=${trouble ? "trouble" : "trouble none"} role="alert">${trouble}</p>
      <button class="primary" disabled=${busy || !key.trim()}>${busy ? "Signing in…" : "Sign in"}</button>
    </form>
    <p class="muted">Operators create keys: <code>fairlead keys create --role viewer</code> for a read-only key, ${""}
      <code>--role admin</code> for full access.</p>
  </main>`;
}
