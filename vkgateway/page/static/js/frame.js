// Frame of the page: header, navigation, banners, and the view of the address.

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { leave, reconnect } from "./app.js";
import { count, duration, plain } from "./core/format.js";
import { leavingGangs, waitingGangs } from "./core/facts.js";
import { address, route } from "./core/route.js";
import { store } from "./core/store.js";
import { empty, foreign, icon, problemBox } from "./parts/basics.js";
import { stripesDefinition } from "./parts/bar.js";
import { signInForm } from "./signin.js";
import { viewsOf } from "./views/index.js";

export function frame(app) {
  if (app.phase === "signed-out") {
    document.title = "Sign in · vkgateway";
    return signInForm(app);
  }
  if (app.phase === "opening") return opening(app);
  return open(app);
}

function opening(app) {
  if (app.problem) {
    return html`<main class="lonely" id="main">
      <h1 id="title" tabindex="-1">vkgateway</h1>
      ${problemBox(app.problem)}
      <p class="dim">The page tries again by itself.</p>
    </main>`;
  }
  return performance.now() < app.patientUntil ? nothing : html`<main class="lonely" id="main"><h1 class="unseen">vkgateway</h1>${skeleton()}</main>`;
}

function open(app) {
  const session = app.session;
  const views = viewsOf(session);
  const view = views.find(({ id }) => id === route().view) ?? views[0];
  document.title = pageTitle(view.title, session);
  return html`
    <a class="skip" href="#main" @click=${skip}>Skip to the content</a>
    ${stripesDefinition}
    <header class="top">
      <div class="brand">
        <span class="product">vkgateway</span>
        <span class="scope">${session.scope === "platform" ? "Platform" : html`Tenant ${foreign(session.tenant)}${ofNamespaces(session)}`}</span>
      </div>
      <nav class="views" aria-label="Views">
        ${views.map(
          (each) =>
            html`<a href=${address(each.id)} aria-current=${each === view ? "page" : nothing}>${each.title}${badge(each.id)}</a>`,
        )}
      </nav>
      <div class="who">
        ${connection(app)}
        <span class="user" title=${plain(session.user)}>${foreign(session.reader || session.user.replace(/^system:serviceaccount:[^:]+:/, ""))}</span>
        <button class="quiet" @click=${leave}>Sign out</button>
      </div>
    </header>
    ${banners(app)}
    <main id="main" tabindex="-1" class=${app.connection.state === "broken" && store.filled ? "old" : ""}>${content(app, view)}</main>
    <footer class="foot">vkgateway ${session.version} · ${session.documentation ? html`<a href=${session.documentation} target="_blank" rel="noreferrer">documentation</a> · ` : nothing}<span>times are local; point at a time for the exact one</span></footer>
  `;
}

/** The namespaces that a reader sees, if not all. */
const ofNamespaces = ({ namespaces }) => (namespaces ? html`, <span title=${plain(namespaces.join(", "))}>${namespaces.length > 1 ? count(namespaces.length, "namespace") : html`namespace ${foreign(namespaces[0])}`}</span>` : nothing);

function skip(event) {
  // The address after `#` is the view, so a plain link would leave it.
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function pageTitle(title, session) {
  const leaving = session.scope === "tenant" ? leavingGangs().length : 0;
  const notice = leaving ? `(${count(leaving, "eviction")}) ` : "";
  return `${notice}${title} · ${session.scope === "tenant" ? session.tenant : "platform"} · vkgateway`;
}

function badge(view) {
  const number = view === "queue" || view === "overview" ? waitingGangs().length : 0;
  return number ? html` <span class="badge" title=${`${count(number, "waiting gang")}`}>${number > 999 ? "999+" : number}<span class="unseen"> waiting</span></span>` : nothing;
}

function connection({ connection: { state, since } }) {
  if (state === "live") return html`<span class="connection live"><i></i>Live</span>`;
  if (state === "connecting") return html`<span class="connection"><i></i>Connecting</span>`;
  return html`<span class="connection broken"><i></i>Stale for ${duration((Date.now() - since) / 1000)}</span>`;
}

function banners(app) {
  const { state, since, problem } = app.connection;
  const stale = state === "broken" && store.filled;
  if (!stale && !app.outdated) return nothing;
  return html`<section aria-label="Connection">
    ${stale
      ? html`<div class="banner warn">
          ${icon("leaving")}
          <p>
            <strong>The connection is lost.</strong> The page shows the state of ${duration((Date.now() - since) / 1000)} ago and
            connects again by itself. ${problem?.status ? foreign(problem.message) : nothing}
          </p>
          <button @click=${reconnect}>Connect now</button>
        </div>`
      : nothing}
    ${app.outdated
      ? html`<div class="banner info">
          ${icon("info")}
          <p>The gateway was updated.</p>
          <button @click=${() => location.reload()}>Reload the page</button>
        </div>`
      : nothing}
  </section>`;
}

function content(app, view) {
  if (!store.filled) {
    const { state, problem } = app.connection;
    if (state === "broken" && problem) return problem.status === 503 ? standby(problem.message) : html`<h1 id="title" tabindex="-1">${view.title}</h1>${problemBox(problem, html`<p><button @click=${reconnect}>Try again now</button></p>`)}`;
    return performance.now() < app.patientUntil ? nothing : html`<h1 id="title" tabindex="-1">${view.title}</h1>${skeleton()}`;
  }
  if (!store.leading) return standby();
  return view.draw(app.session);
}

const standby = (message = "") => html`
  <h1 id="title" tabindex="-1">Standby</h1>
  ${empty(
    "This gateway is a standby.",
    html`Another gateway leads and has the state of pools and gangs. This page shows it as soon as this gateway leads. To see it
      now, open the page of the leader. ${message ? foreign(message) : nothing}`,
    "kubectl get lease --all-namespaces -o custom-columns=NAME:.metadata.name,LEADER:.spec.holderIdentity",
  )}
`;

/** Grey shapes where the content will be. */
const skeleton = () => html`
  <div class="skeleton" role="status">
    <span class="unseen">Loading</span>
    <i></i><i></i><i></i><i></i>
  </div>
`;

