// Entry point: the session, the current page, and the context that all pages share.
import { Problem, get } from "./api.js";
import { Context } from "./context.js";
import { html, render, useCallback, useEffect, useMemo, useState } from "./html.js";
import { Live } from "./live.js";
import { pageOf } from "./pages.js";
import { SignIn } from "./pages/signin.js";
import { Confirmation } from "./parts/confirm.js";
import { PageOf } from "./parts/page.js";
import { Shell } from "./parts/shell.js";
import { Toasts } from "./parts/toasts.js";
import { useRoute } from "./router.js";

function App() {
  const [session, setSession] = useState(null);
  const [failure, setFailure] = useState(null);

  const load = useCallback(async () => {
    try {
      setSession(await get("/session"));
      setFailure(null);
    } catch (problem) {
      if (problem instanceof Problem && problem.status === 401) setSession({ role: null });
      else setFailure(problem.message);
    }
  }, []);
  useEffect(() => load(), []);

  if (failure) {
    return html`<main class="alone"><h1>Fairlead</h1><p role="alert">${failure}</p><button onClick=${load}>Try again</button></main>`;
  }
  if (session === null) return html`<main class="alone" aria-busy="true"><p class="muted">Connecting…</p></main>`;
  if (session.role === null) return html`<${SignIn} onSignedIn=${setSession} />`;
  return html`<${SignedIn} key=${session.name} session=${session} onSignedOut=${() => setSession({ role: null })} />`;
}

function SignedIn({ session, onSignedOut }) {
  const live = useMemo(() => new Live({ onSignedOut }), []);
  useEffect(() => () => live.stop(), [live]);
  const [question, ask] = useState(null);
  const [messages, setMessages] = useState([]);
  const notify = useCallback((message) => {
    const id = crypto.randomUUID?.() ?? `${Date.now()}${Math.random()}`;
    setMessages((before) => [...before, { id, message }]);
    setTimeout(() => setMessages((before) => before.filter((each) => each.id !== id)), 6_000);
  }, []);
  const route = useRoute();
  const page = pageOf(route, session);
  const shared = useMemo(() => ({ session, live, ask, notify }), [session, live]);
  return html`<${Context.Provider} value=${shared}>
    <${Shell} page=${page} onSignedOut=${onSignedOut}>
      <${PageOf} key=${page.key} page=${page} route=${route} />
    <//>
    ${question && html`<${Confirmation} question=${question} onClose=${() => ask(null)} />`}
    <${Toasts} messages=${messages} />
  <//>`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
