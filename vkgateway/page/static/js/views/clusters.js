// Compute clusters and tenants' control planes with their conditions, problems first.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { repeat } from "../../vendor/lit-html/directives/repeat.js";
import { searchWords, tenantNames } from "../core/facts.js";
import { amount, count } from "../core/format.js";
import { value } from "../core/route.js";
import { store } from "../core/store.js";
import { empty, foreign, icon, shortName, since, tenantName } from "../parts/basics.js";
import { filterBar, search } from "../parts/filters.js";
import { dataTable } from "../parts/table.js";

/** Return the conditions that report a problem. All conditions of the gateway are good while they are true. */
export const conditionProblems = (object) => (object.conditions ?? []).filter((condition) => condition.status !== "True");

export function clustersView() {
  const clusters = store.list("clusters");
  return html`
    <h1 id="title" tabindex="-1">Clusters and control planes</h1>
    <section aria-labelledby="clusters-title">
      <h2 id="clusters-title">Compute clusters</h2>
      ${clusters.length
        ? html`<ul class="cards wide">
            ${repeat(clusters, (cluster) => cluster.$key, clusterCard)}
          </ul>`
        : empty("No compute cluster.", "Each attached compute cluster appears here with its conditions.", "kubectl get computeclusters")}
    </section>
    <section aria-labelledby="planes-title">
      <h2 id="planes-title">Control planes of tenants</h2>
      ${controlPlanes()}
    </section>
  `;
}

function clusterCard(cluster) {
  const pools = store.list("pools").filter((pool) => pool.computeCluster === cluster.$key);
  const problems = conditionProblems(cluster).length;
  return html`<li class="card">
    <h3>${foreign(cluster.$key)} ${health(problems)}</h3>
    ${pools.length ? html`<p class="note dim">${pools.map((pool, index) => html`${index ? ", " : ""}${foreign(pool.pool)} ${amount(pool.usableNodes)}/${amount(pool.nodes)} nodes`)}</p>` : nothing}
    ${conditionList(cluster.conditions ?? [])}
  </li>`;
}

const health = (problems) => html`<span class="chip ${problems ? "tone-bad" : "tone-good"}">${icon(problems ? "bad" : "good")}${problems ? count(problems, "problem") : "healthy"}</span>`;

const conditionList = (conditions) => html`
  <ul class="conditions">
    ${[...conditions].sort((one, other) => Number(one.status === "True") - Number(other.status === "True")).map(
      (condition) => html`<li class=${condition.status === "True" ? "" : "failing"}>
        <span class=${tone(condition)}>${icon(condition.status === "True" ? "good" : condition.status === "False" ? "bad" : "unknown")}</span>
        <div>
          <strong>${foreign(condition.type)}</strong> <span class="dim">${condition.status}${condition.since ? html` for ${since(condition.since)}` : nothing}</span>
          ${condition.status === "True" ? nothing : html`<p>${foreign(condition.message || condition.reason)} ${condition.message && condition.reason ? html`<code>${foreign(condition.reason)}</code>` : nothing}</p>`}
        </div>
      </li>`,
    )}
  </ul>
`;

const tone = ({ status }) => (status === "True" ? "tone-good" : status === "False" ? "tone-bad" : "tone-warn");

function controlPlanes() {
  const all = store.list("controlPlanes");
  if (!all.length) return empty("No tenant.", "The control plane of each tenant appears here with its conditions.", "vkgateway tenant create alpha --pool a100:guarantee=nvidia.com/gpu=16");
  const rows = store.derive(`planes ${value("q")}`, () => {
    const words = searchWords(value("q"));
    return all
      .filter((plane) => words.every((word) => `${plane.$key} ${plane.phase} ${plane.driver}`.toLowerCase().includes(word)))
      .sort((one, other) => Number(!conditionProblems(one).length) - Number(!conditionProblems(other).length) || (one.$key < other.$key ? -1 : 1));
  });
  const healthy = all.filter((plane) => !conditionProblems(plane).length).length;
  return html`
    ${tenantNames().length > 10 ? filterBar(search("Search tenants"), `${amount(healthy)} of ${count(all.length, "control plane")} healthy`) : nothing}
    ${rows.length
      ? dataTable({
          name: "",
          caption: "Tenants' control planes",
          rows,
          find: (key) => store.get("controlPlanes", key),
          columns: [
            { id: "tenant", title: "Tenant", main: true, by: (plane) => plane.$key, cell: (plane) => tenantName(plane.$key) },
            { id: "phase", title: "Phase", by: (plane) => plane.phase, cell: (plane) => phaseChip(plane) },
            { id: "driver", title: "Driver", by: (plane) => plane.driver, cell: (plane) => shortName(plane.driver || "default") },
            { id: "conditions", title: "Conditions", look: "why", cell: (plane) => planeConditions(plane) },
          ],
        })
      : empty("No tenant matches.", "Change the search.")}
  `;
}

const phaseChip = (plane) => html`<span class="chip ${plane.phase === "Ready" ? "tone-good" : plane.phase === "Degraded" ? "tone-bad" : "tone-warn"}">${icon(plane.phase === "Ready" ? "good" : plane.phase === "Degraded" ? "bad" : "starting")}${foreign(plane.phase)}</span>`;

function planeConditions(plane) {
  const conditions = plane.conditions ?? [];
  const problems = conditionProblems(plane);
  return html`
    ${problems.length ? conditionList(problems) : html`<span class="dim">all ${amount(conditions.length)} true</span>`}
    ${problems.length && problems.length < conditions.length ? html`<span class="dim">${count(conditions.length - problems.length, "other")} true</span>` : nothing}
  `;
}
