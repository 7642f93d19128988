// Form to sign in, also shown when the session has ended.

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { signInWith } from "./app.js";
import { foreign, icon, problemBox } from "./parts/basics.js";

export const signInForm = (app) => html`
  <main class="lonely sign-in" id="main">
    <h1 id="title" tabindex="-1">Sign in to vkgateway</h1>
    ${app.ended && app.problem
      ? html`<div class="banner info" role="status">
          ${icon("info")}
          <p><strong>The session has ended.</strong> ${foreign(app.problem.message)} ${app.problem.hint ? foreign(app.problem.hint) : nothing}</p>
        </div>`
      : app.problem
        ? problemBox(app.problem)
        : nothing}
    <form @submit=${submit} aria-busy=${app.busy ? "true" : "false"}>
      <label class="field">
        <span>Token</span>
        <input name="token" type="password" required autocomplete="current-password" spellcheck="false" aria-describedby="token-help" />
      </label>
      <p class="help" id="token-help">A bearer token of your cluster. The browser keeps it only encrypted, in a cookie that scripts cannot read.</p>
      <label class="field">
        <span>Tenant</span>
        <input name="tenant" autocomplete="username" autocapitalize="none" spellcheck="false" aria-describedby="tenant-help" />
      </label>
      <p class="help" id="tenant-help">Name of your tenant. Leave it empty to see the whole platform.</p>
      <button class="primary" ?disabled=${app.busy}>${app.busy ? "Signing in…" : "Sign in"}</button>
    </form>
    <h2>Get a token</h2>
    <p>The command line opens this page, signed in:</p>
    <pre tabindex="0" aria-label="Command to open the page"><code>vkgateway ui</code></pre>
    <p>Or create a token of a service account in the cluster that you sign in to:</p>
    <pre tabindex="0" aria-label="Command to create a token"><code>kubectl create token NAME --duration 1h</code></pre>
  </main>
`;

function submit(event) {
  event.preventDefault();
  const form = event.target;
  const given = new FormData(form);
  // Empty the field: the token must not stay in the page.
  form.elements.namedItem("token").value = "";
  void signInWith(String(given.get("token")).trim(), String(given.get("tenant")).trim());
}
