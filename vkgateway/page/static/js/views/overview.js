// A tenant's start: evictions, capacity by pool, and its waiting gangs with the reason and the expected start.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { repeat } from "../../vendor/lit-html/directives/repeat.js";
import { leavingGangs, resourceOf, waitingGangs } from "../core/facts.js";
import { amount, count, units } from "../core/format.js";
import { address } from "../core/route.js";
import { store } from "../core/store.js";
import { reasonText } from "../core/words.js";
import { empty, expectedStart, foreign, gangLink, icon, since, startText, timer } from "../parts/basics.js";
import { barLegend, capacityCard } from "../parts/capacity.js";
import { historySection } from "../parts/history.js";
import { conditionProblems } from "./clusters.js";

const MOST_WAITING = 20;
const MOST_LEAVING = 10;

export function overviewView(session) {
  const tenants = store.list("tenants");
  return html`
    <h1 id="title" tabindex="-1">Overview</h1>
    <p class="lead">${summary()}</p>
    ${planeProblems()} ${evictions()} ${session.namespaces ? namespaceNote(session) : capacity(session, tenants)}
    <section aria-labelledby="waiting-title">
      <h2 id="waiting-title">Waiting</h2>
      ${waiting(session)}
    </section>
    ${tenants.length ? historySection(tenants.map((tenant) => [tenant.$key, `${tenant.pool}.${tenant.computeCluster}`, tenant.resource]), "guarantee") : nothing}
  `;
}

const namespaceNote = ({ namespaces }) => html`
  <p class="note">
    You see ${namespaces.length > 1 ? "the namespaces" : "the namespace"} ${namespaces.map((name, index) => html`${index ? ", " : ""}${foreign(name)}`)}.
    <span class="dim">Guarantee, limit, nodes and usage belong to the whole tenant; the ClusterRole view for the whole cluster shows them.</span>
  </p>
`;

function capacity(session, tenants) {
  return html`
    <section aria-labelledby="capacity-title">
      <h2 id="capacity-title">Capacity</h2>
      ${tenants.length
        ? html`${barLegend(false)}
            <ul class="cards">
              ${repeat(tenants, (tenant) => tenant.$key, capacityCard)}
            </ul>`
        : empty(
            "No pool yet.",
            "The guarantee and the limit of each pool of your tenant appear here. An admin adds a pool to the tenant:",
            `kubectl edit tenant ${session.tenant}    # spec.pools`,
          )}
    </section>
  `;
}

/** The state in one sentence. */
function summary() {
  const gangs = store.list("gangs");
  const waiting = waitingGangs();
  const running = gangs.filter((gang) => gang.state === "running" || gang.state === "starting").length;
  if (!gangs.length) return html`Nothing runs or waits.`;
  const first = waiting.find((gang) => gang.place);
  return html`
    <a href=${address("gangs", { state: "running" })}>${count(running, "gang")} running</a>,
    ${waiting.length ? html`<a href=${address("gangs", { state: "waiting" })}>${amount(waiting.length)} waiting</a>` : "none waiting"}.
    ${first ? html`Next in a queue: ${gangLink(first)}, expected ${startText(first)}.` : nothing}
  `;
}

function evictions() {
  const gangs = leavingGangs();
  if (!gangs.length) return nothing;
  return html`
    <section class="evictions" aria-labelledby="evictions-title">
      <h2 id="evictions-title">${icon("leaving")} ${count(gangs.length, "gang")} ${gangs.length === 1 ? "is" : "are"} being evicted</h2>
      <ul>
        ${repeat(
          gangs.slice(0, MOST_LEAVING),
          (gang) => gang.$key,
          (gang) => html`<li>
            <span class="eviction-time">${timer(gang.deadline)}</span>
            <div>
              <p>${gangLink(gang)} <span class="dim">${units(gang.units, resourceOf(gang.pool))} in ${foreign(gang.pool)}</span></p>
              ${gang.message ? html`<p>${foreign(gang.message)}</p>` : nothing}
            </div>
          </li>`,
        )}
      </ul>
      ${gangs.length > MOST_LEAVING ? html`<p><a href=${address("gangs", { state: "leaving" })}>All ${amount(gangs.length)} evictions</a></p>` : nothing}
      <p class="dim">Their pods are deleted at the end of the countdown. Save a checkpoint before; your controllers re-create the pods, and the gangs wait again.</p>
    </section>
  `;
}

function planeProblems() {
  const problems = store.list("controlPlanes").flatMap((plane) => conditionProblems(plane));
  if (!problems.length) return nothing;
  return html`<ul class="problems">
    ${problems.map((condition) => html`<li class="banner warn">${icon("leaving")}<p><strong>${foreign(condition.type)}</strong> is ${condition.status}: ${foreign(condition.message || condition.reason)}</p></li>`)}
  </ul>`;
}

function waiting(session) {
  const gangs = waitingGangs();
  if (!gangs.length) {
    return empty(
      "No gang waits.",
      "A gang that waits appears here with its place, the reason, the expected start, and what helps. To try it, request GPUs:",
      `kubectl run try --image=busybox --restart=Never --overrides='{"spec":{"containers":[{"name":"try","image":"busybox","command":["sleep","60"],"resources":{"limits":{"nvidia.com/gpu":"1"}}}]}}'`,
    );
  }
  return html`
    <ol class="waiting">
      ${repeat(gangs.slice(0, MOST_WAITING), (gang) => gang.$key, (gang) => waitingItem(gang, session.scope))}
    </ol>
    ${gangs.length > MOST_WAITING ? html`<p><a href=${address("gangs", { state: "waiting" })}>All ${amount(gangs.length)} waiting gangs</a></p>` : nothing}
  `;
}

const waitingItem = (gang, scope) => html`
  <li class="wait">
    <div class="wait-place">${gang.place ? html`<span class="unseen">Place </span><strong>${amount(gang.place)}</strong><span>${foreign(gang.pool)}</span>` : html`<strong>–</strong><span>no place</span>`}</div>
    <div class="wait-what">
      <p class="wait-name">${gangLink(gang)}</p>
      <p class="dim">
        ${count(gang.pods - gang.placed, "pod")}, ${units(gang.waitingUnits, resourceOf(gang.pool))}, ${gang.band} band,
        ${gang.placed ? html`${amount(gang.placed)} of ${amount(gang.pods)} run` : html`waits for ${since(gang.since)}`}
      </p>
    </div>
    <div class="wait-why">
      <p><strong>${reasonText(gang.code, scope)}</strong></p>
      ${gang.message ? html`<p class="clamp">${foreign(gang.message)}</p>` : nothing}
      ${gang.help
        ? html`<details>
            <summary>What helps</summary>
            <p>${foreign(gang.help)}</p>
          </details>`
        : nothing}
    </div>
    <div class="wait-start"><span class="dim">Expected start</span> <strong>${expectedStart(gang)}</strong></div>
  </li>
`;
