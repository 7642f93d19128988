// All tenants by pool: guaranteed, kept, used, borrowed, waiting; and one tenant with its gangs, at an address of its own.

import { html } from "../../vendor/lit-html/lit-html.js";
import { searchWords } from "../core/facts.js";
import { amount, count, unitNoun } from "../core/format.js";
import { address, value } from "../core/route.js";
import { store } from "../core/store.js";
import { empty, foreign, shortName, tenantName } from "../parts/basics.js";
import { barLegend, capacityCard, tenantBar } from "../parts/capacity.js";
import { filterBar, search } from "../parts/filters.js";
import { dataTable, figure } from "../parts/table.js";
import { gangTable, inOrder } from "./gangs.js";

export const tenantsView = () => (value("tenant") ? oneTenant(value("tenant")) : allTenants());

function oneTenant(name) {
  const pools = store.derive(`pools of ${name}`, () => store.list("tenants").filter((each) => each.tenant === name));
  const gangs = store.derive(`gangs of ${name}`, () => inOrder(store.list("gangs").filter((gang) => gang.tenant === name)));
  return html`
    <p><a href=${address("tenants")}>All tenants</a></p>
    <h1 id="title" tabindex="-1">${tenantName(name)}</h1>
    ${pools.length
      ? html`<h2>Capacity</h2>
          ${barLegend(false)}
          <ul class="cards">
            ${pools.map(capacityCard)}
          </ul>`
      : empty("No pool.", "There is no tenant of this name, or it has no pool.", `vkgateway tenant describe ${name}`)}
    <h2>Its gangs</h2>
    ${gangs.length ? gangTable(gangs, "platform") : html`<p class="dim">None runs or waits.</p>`}
    <p>
      <a href=${address("usage", { tenant: name })}>Usage and budgets</a> · <a href=${address("timeline", { q: name })}>Timeline</a>
    </p>
  `;
}

function allTenants() {
  const all = store.list("tenants");
  const rows = store.derive(`tenants ${value("q")}`, () => {
    const words = searchWords(value("q"));
    return words.length ? all.filter((tenant) => words.every((word) => `${tenant.tenant} ${tenant.pool}.${tenant.computeCluster} ${tenant.resource}`.toLowerCase().includes(word))) : all;
  });
  return html`
    <h1 id="title" tabindex="-1">Tenants</h1>
    ${all.length
      ? html`${filterBar(search("Search tenants and pools"), count(new Set(rows.map((tenant) => tenant.tenant)).size, "tenant"))} ${barLegend(false)} ${tenantTable(rows)}`
      : empty("No tenant has a pool yet.", "Each tenant appears here with its guarantee, limit and usage by pool.", "vkgateway tenant create alpha --pool a100:guarantee=nvidia.com/gpu=16")}
  `;
}

const tenantTable = (rows) =>
  dataTable({
    name: "",
    caption: "Tenants by pool",
    rows,
    find: (key) => store.get("tenants", key),
    columns: [
      { id: "tenant", title: "Tenant", main: true, by: (tenant) => tenant.tenant, cell: (tenant) => html`<a href=${address("tenants", { tenant: tenant.tenant })}>${tenantName(tenant.tenant)}</a>` },
      { id: "pool", title: "Pool", by: (tenant) => `${tenant.pool}.${tenant.computeCluster}`, look: "line", cell: (tenant) => html`${shortName(`${tenant.pool}.${tenant.computeCluster}`)} <span class="dim" title=${tenant.resource}>${unitNoun(tenant.resource)}</span>` },
      { id: "bar", title: "Usage", look: "bar-cell", by: (tenant) => tenant.used + tenant.borrowed, number: true, cell: tenantBar },
      figure("used", "Inside"),
      figure("guarantee", "Guarantee"),
      { id: "kept", title: "Kept", number: true, by: (tenant) => tenant.kept, cell: (tenant) => keptText(tenant), help: "part of the guarantee that the nodes hold" },
      figure("borrowed", "Borrowed"),
      figure("limit", "Limit", { help: "a dash: only the pool limits it" }),
      figure("waiting", "Waiting"),
      { id: "gangs", title: "Gangs", number: true, by: (tenant) => tenant.gangsWaiting, cell: (tenant) => html`${amount(tenant.gangsRunning)} <span class="dim">+ ${amount(tenant.gangsWaiting)}</span>`, help: "running + waiting" },
      figure("weight", "Weight"),
    ],
  });

const keptText = (tenant) => (tenant.kept < tenant.guarantee ? html`<strong class="tone-bad" title=${`cells ${tenant.reduced}`}>${amount(tenant.kept)}</strong>${tenant.reduced ? html`<span class="message">${foreign(tenant.reduced)}</span>` : ""}` : amount(tenant.kept));
