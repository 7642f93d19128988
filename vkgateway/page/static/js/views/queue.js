// The queue of each pool in order: who waits, why, and until when.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { gangMatches, isWaiting, poolNames, queueOf, resourceOf, searchWords, waitingGangs } from "../core/facts.js";
import { amount, count, units } from "../core/format.js";
import { value } from "../core/route.js";
import { store } from "../core/store.js";
import { reasonText } from "../core/words.js";
import { empty, expectedStart, foreign, gangLink, since, tenantName } from "../parts/basics.js";
import { barLegend, poolBar } from "../parts/capacity.js";
import { choice, filterBar, search } from "../parts/filters.js";
import { withDetails } from "../parts/gang.js";
import { dataTable } from "../parts/table.js";

export function queueView({ scope }) {
  const pools = poolNames();
  const chosen = value("pool") ? pools.filter((pool) => pool === value("pool")) : pools;
  const shown = chosen.filter((pool) => value("pool") || queueOf(pool).length);
  return html`
    <h1 id="title" tabindex="-1">Queue</h1>
    ${withDetails(
      waitingGangs().length
        ? html`
            ${filterBar(html`${search("Search names, tenants, reasons", "q", "")} ${choice("Pool", "pool", [["", "all pools"], ...pools], "")}`, count(waitingGangs().length, "waiting gang"))}
            ${barLegend(true)} ${shown.map((pool) => poolQueue(pool, pools.indexOf(pool), scope))} ${elsewhere(scope)}
          `
        : empty("No gang waits.", "Gangs that wait appear here in the order in which they start. The command line shows the same:", "vkgateway queue"),
      scope,
    )}
  `;
}

function matching(gangs, name) {
  const words = searchWords(value("q"));
  return words.length ? store.derive(`queue ${name} ${value("q")}`, () => gangs.filter((gang) => gangMatches(gang, words))) : gangs;
}

function poolQueue(pool, index, scope) {
  const queue = queueOf(pool);
  const rows = matching(queue, pool);
  const report = store.list("pools").find((each) => each.node === pool);
  return html`
    <section class="pool-queue">
      <header>
        <h2>${foreign(pool)}</h2>
        <p class="dim">
          ${count(queue.length, "gang")} ${queue.length === 1 ? "waits" : "wait"}${report ? html` for ${units(report.waiting, report.resource)}; ${amount(report.free)} of ${amount(report.allocatable)} free, at most ${amount(report.largest)} on one node` : nothing}
        </p>
      </header>
      ${report ? poolBar(report) : nothing} ${rows.length ? queueTable(rows, `p${index}`, `Queue of ${pool}`, scope) : html`<p class="dim">${queue.length ? "No gang in this queue matches." : "No gang waits in this queue."}</p>`}
    </section>
  `;
}

/** Gangs without a place: they never start, are incomplete, run and wait for more, wait for a budget, or their scheduler has no queue. */
function elsewhere(scope) {
  const gangs = store.derive(`elsewhere ${value("pool")}`, () => waitingGangs().filter((gang) => !gang.place && isWaiting(gang) && (!value("pool") || gang.pool === value("pool") || gang.pools?.includes(value("pool")))));
  const rows = matching(gangs, "elsewhere");
  if (!rows.length) return nothing;
  return html`
    <section class="pool-queue">
      <header>
        <h2>Not in a queue</h2>
        <p class="dim">Incomplete gangs, gangs that never start in this form, running gangs that wait for more pods, gangs of tenants whose budget is used up, and gangs of pools without a queue.</p>
      </header>
      ${queueTable(rows, "x", "Gangs that are in no queue", scope)}
    </section>
  `;
}

const queueTable = (rows, name, caption, scope) =>
  dataTable({
    name,
    caption,
    rows,
    size: 25,
    find: (key) => store.get("gangs", key),
    selected: value("gang"),
    columns: [
      { id: "place", title: "Place", number: true, by: (gang) => gang.place || null, cell: (gang) => html`<span class="place">${gang.place ? amount(gang.place) : "–"}</span>` },
      { id: "name", title: "Gang", main: true, by: (gang) => `${gang.namespace}/${gang.name}`, cell: (gang) => gangLink(gang, "queue") },
      { id: "tenant", title: "Tenant", by: (gang) => gang.tenant, cell: (gang) => tenantName(gang.tenant) },
      { id: "units", title: "GPUs", number: true, by: (gang) => gang.waitingUnits, cell: (gang) => html`<span title=${units(gang.waitingUnits, resourceOf(gang.pool))}>${amount(gang.waitingUnits)}</span>` },
      { id: "start", title: "Expected start", by: (gang) => gang.likely ?? gang.earliest, cell: (gang) => expectedStart(gang) },
      { id: "why", title: "Why it waits", look: "why", by: (gang) => gang.code, cell: (gang) => html`${reasonText(gang.code, scope)}<span class="message">${foreign(gang.message)}</span>` },
      { id: "pods", title: "Pods", look: "minor", number: true, by: (gang) => gang.pods, cell: (gang) => (gang.placed ? `${amount(gang.placed)}/${amount(gang.pods)}` : amount(gang.pods)) },
      { id: "band", title: "Band", look: "minor", by: (gang) => `${gang.band} ${gang.priority}`, cell: (gang) => html`${gang.band}${gang.priority ? html` <span class="dim">${amount(gang.priority)}</span>` : nothing}` },
      { id: "since", title: "Waits", look: "minor", number: true, by: (gang) => -(gang.since ?? 0), cell: (gang) => since(gang.since) },
    ],
  });
