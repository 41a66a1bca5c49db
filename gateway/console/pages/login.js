/** The sign-in with a token. */
import { asApiError } from "../core/api.js";
import { ErrorNote, Icon, html, useConsole, useState } from "../ui/base.js";

export function LoginPage() {
  const model = useConsole();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    const token = String(new FormData(event.target).get("password") ?? "").trim();
    if (!token) return;
    setBusy(true);
    setError(null);
    try {
      await model.signIn(token);
    } catch (failure) {
      setError(asApiError(failure));
      setBusy(false);
    }
  };
  return html`<main id="main" class="login"><div class="login-card">
    <p class="brand"><span class="logo" aria-hidden="true"></span>acp-host</p><h1 tabindex="-1">Sign in</h1>
    ${model.loginNote ? html`<p class="note" role="status"><${Icon} name="alert" /><span>${model.loginNote}</span></p>` : null}
    <form class="stack" onSubmit=${submit}>
      <input class="sr" type="text" name="username" autocomplete="username" value="acp-host" readonly tabindex="-1"
        aria-hidden="true" />
      <div class="field"><label for="token">Token</label><input id="token" name="password" type="password"
        autocomplete="current-password" placeholder="acp_…" required spellcheck=${false} autocapitalize="off"
          aria-describedby="token-hint" />
        <p class="hint" id="token-hint">It is kept in this tab until you sign out or close it.</p></div>
      <${ErrorNote} error=${error} what="The sign-in failed" />
      <button class="button primary" disabled=${busy} aria-busy=${busy ? "true" : "false"}>${busy ? html`<${Icon}
        name="spinner" />` : null}Sign in</button>
    </form>
    <details><summary>Where do I get a token?</summary>
    <p>On the gateway's machine, <code>acp-gateway console</code> opens this page signed in, and <code>acp-gateway token add phone --scope approve</code> prints a token for another device.</p></details>
  </div></main>`;
}
