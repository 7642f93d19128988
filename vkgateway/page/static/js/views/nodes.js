// A tenant's virtual nodes: capacity and problems.

import { html } from "../../vendor/lit-html/lit-html.js";
import { amount } from "../core/format.js";
import { store } from "../core/store.js";
import { empty, foreign, icon, shortName } from "../parts/basics.js";
import { dataTable, figure } from "../parts/table.js";

export function nodesView(session) {
  const nodes = store.list("nodes");
  return html`
    <h1 id="title" tabindex="-1">Nodes</h1>
    <p class="lead">Each virtual node represents a pool of GPUs, or its part in one zone. Your pods are bound to it and run on machines of the compute cluster.</p>
    ${nodes.length
      ? dataTable({
          name: "",
          caption: "Virtual nodes",
          rows: nodes,
          find: (key) => store.get("nodes", key),
          columns: [
            { id: "name", title: "Node", main: true, by: (node) => node.name, cell: (node) => shortName(node.name) },
            { id: "state", title: "State", by: (node) => Number(node.usable), cell: (node) => nodeState(node) },
            { id: "pool", title: "Pool", by: (node) => node.pool, cell: (node) => shortName(node.pool) },
            { id: "resource", title: "Resource", by: (node) => node.resource, cell: (node) => shortName(node.resource) },
            figure("capacity", "Capacity"),
            { id: "problem", title: "Problem", look: "why", cell: (node) => (node.problem ? foreign(node.problem) : "–") },
          ],
        })
      : empty("No virtual node yet.", "At least one virtual node appears for each pool of your tenant.", session.tenant ? `kubectl get tenant ${session.tenant} -o yaml    # spec.pools, by an admin` : "kubectl get nodes")}
  `;
}

const nodeState = (node) => html`<span class="chip ${node.usable ? "tone-good" : "tone-bad"}">${icon(node.usable ? "good" : "bad")}${node.usable ? "ready" : "not usable"}</span>`;
