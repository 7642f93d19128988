// Details of a gang: why it waits, what is before it, when it starts, what helps.

import { html, nothing, svg } from "../../vendor/lit-html/lit-html.js";
import { now } from "../core/clock.js";
import { isWaiting, queueOf, resourceOf } from "../core/facts.js";
import { amount, clockTime, count, exactTime, plain, units } from "../core/format.js";
import { changedAddress, go, route, value } from "../core/route.js";
import { store } from "../core/store.js";
import { PERMANENT, reasonText } from "../core/words.js";
import { empty, expectedStart, foreign, gangLink, icon, since, stateChip, tenantName, timer } from "./basics.js";
import { eventRow } from "./events.js";

const MOST_AHEAD = 5;
const MOST_EVENTS = 8;

/** List and details side by side; on a narrow page, the details replace the list. */
export function withDetails(list, scope) {
  const key = value("gang");
  return html`<div class="split ${key ? "open" : ""}">
    <div class="split-list">${list}</div>
    ${key ? gangDetails(key, scope) : nothing}
  </div>`;
}

function gangDetails(key, scope) {
  const gang = store.get("gangs", key);
  return html`
    <section class="details" aria-labelledby="detail-title" @keydown=${(event) => event.key === "Escape" && go(changedAddress({ gang: "" }))}>
      <div class="details-head">
        <h2 id="detail-title" tabindex="-1">${gang ? gangTitle(gang) : foreign(key)}</h2>
        <a class="close" href=${changedAddress({ gang: "" })} aria-label="Close the details">${icon("bad")}</a>
      </div>
      ${gang ? facts(gang, scope) : ended(key)}
    </section>
  `;
}

const gangTitle = (gang) => html`<span class="dim">${foreign(`${gang.namespace}/`)}</span>${foreign(gang.name)}`;

const ended = (key) => html`
  ${empty("This gang has ended.", "All its pods have terminated, or it was deleted. Its last events are listed below.")} ${eventsOf(key)}
`;

function facts(gang, scope) {
  return html`
    <p class="details-state">
      ${stateChip(gang.state)} ${scope === "platform" ? tenantName(gang.tenant) : nothing}
      <span class="dim">${gang.since === null ? nothing : html`for ${since(gang.since)}`}</span>
    </p>
    ${gang.state === "leaving" ? eviction(gang) : nothing} ${isWaiting(gang) ? waiting(gang, scope) : nothing}
    <h3>Gang</h3>
    <dl class="facts">
      <dt>Pods</dt>
      <dd>${amount(gang.placed)} of ${amount(gang.pods)} placed${gang.minimum < gang.pods ? `, at least ${amount(gang.minimum)} start together` : ""}</dd>
      <dt>Requests</dt>
      <dd>${units(gang.units, resourceOf(gang.pool))}${gang.waitingUnits && gang.waitingUnits !== gang.units ? `, ${amount(gang.waitingUnits)} of them wait` : ""}</dd>
      <dt>${gang.placed ? "Runs in" : "Pools"}</dt>
      <dd>${poolList(gang)}</dd>
      ${gang.placed
        ? html`<dt>Capacity</dt>
            <dd>${gang.borrowed ? "borrowed, at least in part; may be reclaimed" : "inside the guarantee"}</dd>`
        : nothing}
      <dt>Band</dt>
      <dd>${gang.band}, priority ${amount(gang.priority)}</dd>
      <dt>Defined by</dt>
      <dd>${gang.way ? foreign(gang.way) : "a single pod"}</dd>
    </dl>
    ${eventsOf(gang.$key)}
    <h3>Pods</h3>
    <pre tabindex="0" aria-label="Command to list its pods"><code>kubectl get pods --namespace ${plain(gang.namespace)}</code></pre>
  `;
}

function poolList(gang) {
  const names = gang.placed ? (gang.spread?.length ? gang.spread : [gang.pool]) : gang.pools;
  return names.length ? names.map((name, index) => html`${index ? ", " : ""}${foreign(name)}`) : "–";
}

const eviction = (gang) => html`
  <div class="answer bad">
    <p class="answer-main">${gang.deadline ? html`Its pods are deleted in ${timer(gang.deadline)}` : "Its pods terminate"}</p>
    ${gang.message ? html`<p>${foreign(gang.message)}</p>` : nothing}
    <p class="dim">Save a checkpoint now. The pods get SIGTERM at the deadline and their grace period after it.</p>
  </div>
`;

/** The answer to: why does it wait, what is before it, and when does it start? */
function waiting(gang, scope) {
  const never = PERMANENT.has(gang.code);
  return html`
    <div class="answer ${never ? "bad" : "warn"}">
      <dl class="questions">
        <dt>Why it waits</dt>
        <dd>
          <strong>${reasonText(gang.code, scope)}</strong>
          ${gang.message ? html`<span class="message">${foreign(gang.message)}</span>` : nothing}
        </dd>
        <dt>Before it</dt>
        <dd>${ahead(gang, scope)}</dd>
        <dt>Expected start</dt>
        <dd><strong>${expectedStart(gang)}</strong>${never ? nothing : startLine(gang)}</dd>
        ${gang.help
          ? html`<dt>What helps</dt>
              <dd>${foreign(gang.help)}</dd>`
          : nothing}
      </dl>
    </div>
  `;
}

function ahead(gang, scope) {
  if (!gang.place) return html`It has no place in a queue.`;
  const queue = queueOf(gang.pool).filter((other) => other.place < gang.place);
  const others = gang.place - 1 - queue.length;
  const listed = queue.slice(-MOST_AHEAD);
  const units_ = queue.reduce((sum, other) => sum + other.waitingUnits, 0);
  const total = scope === "platform" && queue.length ? ` with ${units(units_, resourceOf(gang.pool))}` : "";
  return html`
    ${gang.place === 1 ? html`Nothing: it is first in the queue of ${foreign(gang.pool)}.` : html`${count(gang.place - 1, "gang")}${total} in the queue of ${foreign(gang.pool)}.`}
    ${gang.behind ? html`<p>Capacity is reserved for ${behindLink(gang.behind)}.</p>` : nothing}
    ${listed.length
      ? html`<ol class="ahead">
          ${queue.length > listed.length ? html`<li class="dim">${count(queue.length - listed.length, "more gang")}</li>` : nothing}
          ${listed.map((other) => html`<li><span class="place">${other.place}</span> ${scope === "platform" ? tenantName(other.tenant) : nothing} ${gangLink(other, viewNow())} <span class="dim">${units(other.waitingUnits, resourceOf(gang.pool))}</span></li>`)}
        </ol>`
      : nothing}
    ${scope === "tenant" && others > 0 && queue.length ? html`<p class="dim">${count(others, "gang")} of others.</p>` : nothing}
  `;
}

const viewNow = () => (route().view === "queue" ? "queue" : "gangs");

function behindLink(id) {
  const gang = store.get("gangs", id);
  return gang ? gangLink(gang, viewNow()) : foreign(id);
}

/** Line from now to the likely start, with the range. */
function startLine(gang) {
  if (gang.earliest === null || gang.earliest === undefined || gang.likely === null || gang.likely === undefined) return nothing;
  const start = now();
  const last = Math.max(gang.likely, gang.earliest, start + 60);
  const at = (time) => Math.max(0, Math.min(100, ((time - start) / (last - start)) * 100));
  const first = Math.min(at(gang.earliest), 97);
  return html`
    <svg class="start-line" role="img" preserveAspectRatio="none" aria-label=${`between ${clockTime(Math.max(gang.earliest, start), start)} and ${clockTime(last, start)}`}>
      ${svg`<line x1="0" x2="100%" y1="50%" y2="50%"></line><rect x="${first}%" width="${100 - first}%" y="25%" height="50%" rx="2"></rect>`}
    </svg>
    <span class="start-ends dim"><span>now</span><span title=${exactTime(last)}>${clockTime(last, start)}</span></span>
  `;
}

function eventsOf(key) {
  const events = store.derive(`events of ${key}`, () =>
    store
      .list("timeline")
      .filter((event) => event.gang === key || event.for === key)
      .slice(-MOST_EVENTS)
      .reverse(),
  );
  return events.length
    ? html`<h3>Events</h3>
        <ol class="events short">
          ${events.map((event) => html`<li>${eventRow(event, { withGang: event.gang !== key })}</li>`)}
        </ol>`
    : nothing;
}

