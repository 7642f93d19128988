// Map of nodes: each unit a cell, with the tenant's colour and letters, the pattern of its capacity, and free cells.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { guard } from "../../vendor/lit-html/directives/guard.js";
import { repeat } from "../../vendor/lit-html/directives/repeat.js";
import { signOf, tenantNames } from "../core/facts.js";
import { amount, count, plain, units } from "../core/format.js";
import { redraw } from "../core/draw.js";
import { address, change, value } from "../core/route.js";
import { store } from "../core/store.js";
import { foreign, gangName, icon, shortName, tenantName } from "./basics.js";
import { isNear, whenNear } from "./near.js";
import { dataTable, figure } from "./table.js";
import { vars } from "./vars.js";

/** @typedef {import("../core/store.js").Item} Item */

/** Nodes drawn at once; more are on further pages. */
const MOST_NODES = 1200;
const MOST_LEGEND = 24;

/** Nodes of a pool above which nodes are small, and drawn when they come near the window. */
const FEW = 96;

/** Node with the focus of the arrow keys, by pool. */
const ACTIVE = new Map();

/** Node whose content is shown, by pool. */
const CHOSEN = new Map();

export const mapLegend = () => html`
  <div class="legend map-legend">
    <span><i class="part solid t0" aria-hidden="true">A</i> inside the guarantee</span>
    <span><i class="part borrowed t0" aria-hidden="true">a</i> borrowed</span>
    <span><i class="part leaving t0" aria-hidden="true">a</i> evicted soon</span>
    <span><i class="part others" aria-hidden="true"></i> unmanaged pods</span>
    <span><i class="part free" aria-hidden="true"></i> free</span>
    <span><i class="part broken" aria-hidden="true">!</i> not usable</span>
    <span class="legend-tenants">${tenantNames().slice(0, MOST_LEGEND).map((tenant) => tenantName(tenant))} ${tenantNames().length > MOST_LEGEND ? `and ${tenantNames().length - MOST_LEGEND} more` : nothing}</span>
  </div>
`;

/** @param {Item[]} nodes in the order of the map */
export function nodeMap(pool, nodes) {
  const name = pool.$key;
  const page = Math.max(1, Math.min(Math.ceil(nodes.length / MOST_NODES), Number(value(`map-${name}`)) || 1));
  const shown = nodes.slice((page - 1) * MOST_NODES, page * MOST_NODES);
  const capacity = Math.max(...shown.map((node) => node.capacity), 1);
  const active = shown.some((node) => node.$key === ACTIVE.get(name)) ? ACTIVE.get(name) : shown[0].$key;
  const tenant = value("tenant");
  // Signs of all tenants may change with a new tenant.
  const signs = tenantNames().join("\n");
  const chosen = nodes.find((node) => node.$key === CHOSEN.get(name));
  const many = shown.length > FEW;
  return html`
    <div class="map ${many ? "compact" : ""}" role="group" aria-label=${`Map of ${count(nodes.length, "node")} of ${pool.node}. Arrow keys move, Enter shows a node.`} @keydown=${(event) => move(event, name)} @click=${(event) => choose(event, name)} ${vars({ "--cells": capacity })}>
      ${repeat(
        shown,
        (node) => node.$key,
        (node) => {
          const near = !many || isNear(node.$key);
          return guard([node, tenant, node.$key === active, node === chosen, signs, near], () => nodeBox(node, tenant, node.$key === active, node === chosen, near));
        },
      )}
    </div>
    ${nodes.length > shown.length ? html`<p class="pager"><button ?disabled=${page === 1} @click=${() => change({ [`map-${name}`]: String(page - 1) })}>Previous nodes</button> ${amount((page - 1) * MOST_NODES + 1)}–${amount((page - 1) * MOST_NODES + shown.length)} of ${amount(nodes.length)} <button ?disabled=${page * MOST_NODES >= nodes.length} @click=${() => change({ [`map-${name}`]: String(page + 1) })}>Next nodes</button></p>` : nothing}
    ${chosen ? nodeContent(chosen, name) : nothing}
    <details>
      <summary>Table of the map</summary>
      ${nodeTable(pool, nodes)}
    </details>
  `;
}

function nodeBox(node, tenant, active, chosen, near) {
  const text = nodeText(node);
  return html`<button class="node ${node.usable ? "" : "unusable"}" data-key=${node.$key} tabindex=${active ? 0 : -1} aria-pressed=${chosen ? "true" : "false"} title=${near ? text : nothing} aria-label=${text} ${near ? nothing : whenNear(node.$key)}>
    <span class="node-name">${node.usable ? nothing : html`<b class="broken-mark">!</b>`}<bdi>${plain(node.name)}</bdi></span>
    <span class="parts">${near ? partsOf(node).map((part) => partBox(part, tenant)) : nothing}</span>
  </button>`;
}

/** Return the parts of a node, with neighbours of the same tenant and kind as they are, then others and free. */
function partsOf(node) {
  const parts = (node.parts ?? []).map((part) => ({ ...part, look: part.leaving ? "leaving" : part.borrowed ? "borrowed" : "solid" }));
  if (node.others) parts.push({ tenant: "", units: node.others, look: "others" });
  const used = parts.reduce((sum, part) => sum + part.units, 0);
  const free = node.usable ? node.free : Math.max(0, node.capacity - used);
  if (free > 0) parts.push({ tenant: "", units: free, look: node.usable ? "free" : "broken" });
  return parts;
}

function partBox(part, tenant) {
  const { colour, letters } = part.tenant ? signOf(part.tenant) : { colour: 0, letters: "" };
  const text = part.borrowed ? letters.toLowerCase() : letters;
  const dimmed = tenant && part.tenant !== tenant && part.look !== "free" ? "dimmed" : "";
  return html`<i class="part ${part.look} ${part.tenant ? `t${colour}` : ""} ${dimmed}" ${vars({ "--u": part.units })}>${text}</i>`;
}

/** The content of a node in words. */
function nodeText(node) {
  const parts = (node.parts ?? []).map((part) => `${part.tenant} ${amount(part.units)} ${part.borrowed ? "borrowed" : "guaranteed"}${part.leaving ? ", evicted soon" : ""}`);
  if (node.others) parts.push(`unmanaged pods ${amount(node.others)}`);
  if (node.usable) parts.push(`${amount(node.free)} free`);
  const problem = node.usable ? "" : `, not usable${node.problem ? `: ${node.problem}` : ""}`;
  const doubt = node.failedGangs ? `, chosen last: pods of ${amount(node.failedGangs)} gangs failed there within an hour` : "";
  return plain(`${node.name}: ${units(node.capacity, node.resource)}${problem}${doubt}; ${parts.join("; ")}`);
}

/** Arrow keys move between the nodes, so that the map is one stop of the Tab key. */
function move(event, name) {
  const map = event.currentTarget;
  const buttons = [...map.querySelectorAll(".node")];
  const index = buttons.indexOf(event.target);
  if (index < 0) return;
  const top = buttons[0].offsetTop;
  const row = buttons.findIndex((button) => button.offsetTop !== top);
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row < 0 ? 0 : row, ArrowUp: row < 0 ? 0 : -row, Home: -index, End: buttons.length - 1 - index };
  const step = steps[event.key];
  if (step === undefined) return;
  event.preventDefault();
  const target = buttons[Math.max(0, Math.min(buttons.length - 1, index + step))];
  ACTIVE.set(name, target.dataset.key ?? "");
  // At once: the Tab key may come before the next frame.
  for (const button of buttons) if (button.tabIndex === 0) button.tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
  redraw();
}

function choose(event, name) {
  const button = event.target.closest(".node");
  if (!button) return;
  const key = button.dataset.key ?? "";
  ACTIVE.set(name, key);
  if (CHOSEN.get(name) === key) CHOSEN.delete(name);
  else CHOSEN.set(name, key);
  redraw();
}

/** What runs on a chosen node. */
const nodeContent = (node, name) => html`
  <div class="node-content card">
    <h3>${foreign(node.name)} <button class="quiet" @click=${() => (CHOSEN.delete(name), redraw())}>Close</button></h3>
    ${node.usable ? nothing : html`<p class="tone-bad">${icon("bad")} Not usable${node.problem ? html`: ${foreign(node.problem)}` : nothing}</p>`}
    <ul>
      ${(node.parts ?? []).map((part) => html`<li>${tenantName(part.tenant)} ${units(part.units, node.resource)} ${part.borrowed ? "borrowed" : "inside the guarantee"}${part.leaving ? ", evicted soon" : ""} ${gangOf(part.gang)}</li>`)}
      ${node.others ? html`<li>Unmanaged pods use ${units(node.others, node.resource)}</li>` : nothing}
      ${node.usable ? html`<li>${units(node.free, node.resource)} free</li>` : nothing}
    </ul>
  </div>
`;

function gangOf(id) {
  const gang = store.get("gangs", id);
  return html`<a class="gang-link" href=${address("gangs", { gang: id })}>${gang ? gangName(gang) : foreign(id)}</a>`;
}

const nodeTable = (pool, nodes) =>
  dataTable({
    name: `n-${pool.$key}`,
    caption: `Nodes of ${pool.node}, ${pool.resource}`,
    rows: nodes,
    find: (key) => store.get("nodes", key),
    columns: [
      { id: "name", title: "Node", main: true, by: (node) => node.name, cell: (node) => shortName(node.name) },
      figure("capacity", "Capacity"),
      { id: "free", title: "Free", number: true, by: (node) => (node.usable ? node.free : null), cell: (node) => (node.usable ? amount(node.free) : "–") },
      figure("others", "Unmanaged"),
      { id: "tenants", title: "Tenants", look: "wide", cell: (node) => tenantsOf(node) },
      { id: "problem", title: "Problem", by: (node) => node.problem, cell: (node) => (node.problem ? foreign(node.problem) : "–") },
    ],
  });

const tenantsOf = (node) =>
  (node.parts ?? []).map((part) => html`<span class="tenant-part">${tenantName(part.tenant)} ${amount(part.units)}${part.borrowed ? html` <span class="dim">borrowed</span>` : nothing}${part.leaving ? html` <span class="tone-bad">evicted soon</span>` : nothing}</span>`);
