// Pools of the platform: sums, fragmentation, and the map of nodes and GPUs.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { repeat } from "../../vendor/lit-html/directives/repeat.js";
import { amount, count, unitNoun } from "../core/format.js";
import { address, value } from "../core/route.js";
import { store } from "../core/store.js";
import { empty, foreign, icon } from "../parts/basics.js";
import { poolBar } from "../parts/capacity.js";
import { choice, filterBar } from "../parts/filters.js";
import { historySection } from "../parts/history.js";
import { freeByNode } from "../parts/freenodes.js";
import { mapLegend, nodeMap } from "../parts/nodemap.js";
import { conditionProblems } from "./clusters.js";

/** @typedef {import("../core/store.js").Item} Item */

const ORDERS = [
  ["", "by name"],
  ["free", "most free first"],
  ["partial", "partly used first"],
];

export function poolsView() {
  const pools = store.list("pools");
  return html`
    <h1 id="title" tabindex="-1">Pools</h1>
    ${pools.length
      ? html`
          <p class="lead">${summary(pools)}</p>
          ${clusterProblems()}
          ${filterBar(html`
            ${choice("Pool", "pool", [["", "all pools"], ...pools.map((pool) => [pool.$key, `${pool.node} ${unitNoun(pool.resource)}`])], "")} ${choice("Nodes", "order", ORDERS, "")}
            ${tenantChoice()}
          `)}
          ${mapLegend()} ${repeat(pools.filter((pool) => !value("pool") || pool.$key === value("pool")), (pool) => pool.$key, poolSection)}
          ${historySection(pools.map((pool) => [pool.$key, pool.node, pool.resource]), "allocatable")}
        `
      : empty("No pool has extended resources.", "A pool appears here with its nodes when a ComputeCluster names it and its nodes have GPUs.", "kubectl get computeclusters -o yaml")}
  `;
}

function summary(pools) {
  const kinds = [...new Set(pools.map((pool) => pool.resource))];
  const sum = (name) => pools.filter((pool) => pool.resource === kinds[0]).reduce((all, pool) => all + pool[name], 0);
  const waiting = store.derive("gangs waiting", () => store.list("gangs").filter((gang) => gang.state === "waiting").length);
  const below = pools.reduce((all, pool) => all + (pool.gangsBelowMinimum ?? 0), 0);
  const free = sum("free");
  return html`
    ${amount(sum("used") + sum("borrowed"))} of ${amount(sum("allocatable"))} ${unitNoun(kinds[0])} in use, ${amount(sum("borrowed"))} of them borrowed; ${amount(free)} free.
    <a href=${address("queue")}>${count(waiting, "gang")} ${waiting === 1 ? "waits" : "wait"}</a>${waiting ? html` for ${amount(sum("waiting"))}` : nothing}.
    ${below ? html`<strong class="tone-bad">${count(below, "running gang")} below the minimum.</strong>` : nothing}
  `;
}

function clusterProblems() {
  const problems = store.list("clusters").flatMap((cluster) => conditionProblems(cluster).map((condition) => ({ cluster, condition })));
  if (!problems.length) return nothing;
  return html`<ul class="problems">
    ${problems.slice(0, 3).map(({ cluster, condition }) => html`<li class="banner warn">${icon("leaving")}<p><strong>Compute cluster ${foreign(cluster.$key)}:</strong> ${foreign(condition.message || condition.reason)}</p><a href=${address("clusters")}>Conditions</a></li>`)}
  </ul>`;
}

function tenantChoice() {
  const tenants = store.derive("tenants on nodes", () => [...new Set(store.list("nodes").flatMap((node) => (node.parts ?? []).map((part) => part.tenant)))].sort());
  return tenants.length > 1 ? choice("Highlight", "tenant", [["", "all tenants"], ...tenants], "") : nothing;
}

function poolSection(pool) {
  const nodes = store.derive(`nodes of ${pool.$key} ${value("order")}`, () => ordered(nodesByPool().get(pool.$key) ?? []));
  const noun = unitNoun(pool.resource);
  return html`
    <section class="pool" aria-label=${`Pool ${pool.node}, ${pool.resource}`}>
      <header>
        <h2>${foreign(pool.node)} <span class="dim" title=${pool.resource}>${noun}</span></h2>
        <dl class="figures">
          <div><dt>Nodes</dt><dd>${amount(pool.usableNodes)}<span class="of"> of ${amount(pool.nodes)}</span></dd></div>
          <div><dt>${noun}</dt><dd>${amount(pool.allocatable)}</dd></div>
          <div><dt>In guarantees</dt><dd>${amount(pool.used)}<span class="of"> of ${amount(pool.guaranteed)}</span></dd></div>
          <div><dt>Borrowed</dt><dd>${amount(pool.borrowed)}${pool.lent ? html`<span class="of"> (${amount(pool.lent)} lent)</span>` : nothing}</dd></div>
          <div><dt>Unmanaged</dt><dd>${amount(pool.others)}</dd></div>
          <div><dt>Free</dt><dd>${amount(pool.free)}</dd></div>
          <div><dt>Waiting</dt><dd>${amount(pool.waiting)}</dd></div>
        </dl>
      </header>
      ${poolBar(pool)}
      ${pool.kept < pool.guaranteed ? html`<p class="note tone-bad">Missing nodes: of ${amount(pool.guaranteed)} guaranteed, the nodes hold ${amount(pool.kept)}.</p>` : nothing}
      ${nodes.length ? html`${freeByNode(pool, nodes)} ${nodeMap(pool, nodes)}` : empty("No node of this pool is known yet.", "Nodes that match the pool's node selector appear here.", "kubectl get nodes --show-labels")}
    </section>
  `;
}

/** Return the nodes of each pool and resource. */
const nodesByPool = () =>
  store.derive("nodes by pool", () => {
    const found = new Map();
    for (const node of store.list("nodes")) {
      const key = `${node.pool}/${node.resource}`;
      const nodes = found.get(key);
      if (nodes) nodes.push(node);
      else found.set(key, [node]);
    }
    return found;
  });

const NATURAL = new Intl.Collator("en", { numeric: true });

function ordered(nodes) {
  const byName = [...nodes].sort((one, other) => NATURAL.compare(one.name, other.name));
  if (value("order") === "free") return byName.sort((one, other) => Number(other.usable) - Number(one.usable) || other.free - one.free);
  if (value("order") === "partial") return byName.sort((one, other) => Number(isPartial(other)) - Number(isPartial(one)) || other.free - one.free);
  return byName;
}

const isPartial = (node) => node.usable && node.free > 0 && node.free < node.capacity;

