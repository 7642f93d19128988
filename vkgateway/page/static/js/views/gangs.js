// All gangs of the scope: search, state, order, details.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { byPlace, compareText, gangMatches, isWaiting, resourceOf, searchWords } from "../core/facts.js";
import { amount, count, plain, unitNoun } from "../core/format.js";
import { address, changedAddress, value } from "../core/route.js";
import { store } from "../core/store.js";
import { reasonText } from "../core/words.js";
import { empty, expectedStart, gangLink, gangName, icon, shortName, since, stateChip, tenantName, timer } from "../parts/basics.js";
import { choice, filterBar, search } from "../parts/filters.js";
import { withDetails } from "../parts/gang.js";
import { dataTable } from "../parts/table.js";

const STATES = [
  ["", "all states"],
  ["waiting", "waiting"],
  ["starting", "starting"],
  ["running", "running"],
  ["leaving", "evicted soon"],
];

const RANKS = { leaving: 0, waiting: 1, starting: 2, running: 3 };

export function gangsView({ scope }) {
  const all = store.list("gangs");
  const rows = store.derive(`gangs ${value("q")} ${value("state")} ${value("of")}`, () => chosen(all));
  return html`
    <h1 id="title" tabindex="-1">Gangs</h1>
    ${withDetails(
      all.length
        ? html`
            ${filterBar(html`${search("Search names, pools, reasons")} ${choice("State", "state", STATES)}`, `${count(rows.length, "gang")}${rows.length < all.length ? ` of ${amount(all.length)}` : ""}`)}
            ${value("of") ? html`<p class="held">Single pods of ${shortName(value("of"))}. <a href=${changedAddress({ of: "" })}>Show all gangs</a></p>` : nothing}
            ${rows.length ? gangTable(rows, scope) : empty("No gang matches.", "Change the search or the state.")}
          `
        : empty("No gang runs or waits.", "Pods that request GPUs, and groups of pods that start together, appear here.", "kubectl get pods --all-namespaces"),
      scope,
    )}
  `;
}

function chosen(all) {
  const words = searchWords(value("q"));
  const state = value("state");
  const of = value("of");
  return inOrder(all.filter((gang) => (!of || ofController(gang) === of) && (!state || gang.state === state || (state === "waiting" && isWaiting(gang))) && (!words.length || gangMatches(gang, words))));
}

/** Sort gangs: evicted, waiting in queue order, starting, running. */
export const inOrder = (gangs) =>
  gangs.sort((one, other) => (RANKS[one.state] ?? 4) - (RANKS[other.state] ?? 4) || byPlace(one, other) || compareText(one.$key, other.$key));

/** What tells controllers of single pods apart; empty for other gangs. */
const ofController = ({ tenant, namespace, controller }) => (controller ? `${tenant}/${namespace}/${controller}` : "");

const TOGETHER = new WeakMap();

/**
 * Return rows in which the single pods of one controller are one row, at the place of the first of them.
 * @param {any[]} rows the same array if nothing changed
 */
function together(rows) {
  let found = TOGETHER.get(rows);
  if (!found) TOGETHER.set(rows, (found = [...byController(rows).values()].map((gangs) => (gangs.length > 1 ? sumOf(gangs) : gangs[0]))));
  return found;
}

function byController(rows) {
  const groups = new Map();
  for (const gang of rows) {
    const key = ofController(gang) || gang.$key;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(gang);
  }
  return groups;
}

/** Return a row for several pods: the state, reason and place are those of the first. */
function sumOf(gangs) {
  const [first] = gangs;
  const total = (field) => gangs.reduce((sum, gang) => sum + gang[field], 0);
  const key = ofController(first);
  const name = first.controller.slice(first.controller.indexOf("/") + 1);
  const since = Math.min(...gangs.map((gang) => gang.since ?? Infinity));
  return { ...first, $key: key, of: key, members: gangs.length, name, units: total("units"), pods: total("pods"), placed: total("placed"), borrowed: gangs.some((gang) => gang.borrowed), since: Number.isFinite(since) ? since : null };
}

const nameCell = (gang) =>
  gang.members
    ? html`<a class="gang-link" href=${address("gangs", { of: gang.of })}>${gangName(gang)}</a> <span class="dim">${count(gang.members, "single pod")}</span>`
    : gangLink(gang);

/** Table of gangs with links to their details. */
export function gangTable(gangs, scope) {
  const rows = value("of") ? gangs : together(gangs);
  const tenant = { id: "tenant", title: "Tenant", by: (gang) => gang.tenant, cell: (gang) => tenantName(gang.tenant) };
  return dataTable({
    name: "",
    caption: "Gangs",
    rows,
    find: (key) => store.get("gangs", key) ?? rows.find((row) => row.$key === key),
    selected: value("gang"),
    columns: [
      { id: "name", title: "Gang", main: true, by: (gang) => `${gang.namespace}/${gang.name}`, cell: nameCell },
      ...(scope === "platform" ? [tenant] : []),
      { id: "state", title: "State", look: "line", by: (gang) => RANKS[gang.state] ?? 4, cell: stateCell },
      { id: "units", title: "GPUs", number: true, by: (gang) => gang.units, cell: (gang) => html`<span title=${unitNoun(resourceOf(gang.pool))}>${amount(gang.units)}</span>` },
      { id: "pods", title: "Pods", look: "minor", number: true, by: (gang) => gang.pods, cell: (gang) => (gang.placed === gang.pods ? amount(gang.pods) : `${amount(gang.placed)}/${amount(gang.pods)}`), help: "placed pods of all pods" },
      { id: "pool", title: "Pool", look: "minor", by: (gang) => gang.pool, cell: (gang) => shortName(gang.pool || "–") },
      { id: "place", title: "Place", number: true, by: (gang) => gang.place || null, cell: (gang) => (gang.place ? amount(gang.place) : nothing), help: "place in the queue of its pool" },
      { id: "start", title: "Expected start", by: (gang) => (isWaiting(gang) ? (gang.likely ?? gang.earliest) : null), cell: (gang) => (isWaiting(gang) ? expectedStart(gang) : nothing) },
      { id: "why", title: "Why it waits", look: "wide", by: (gang) => (isWaiting(gang) ? gang.code : ""), cell: (gang) => (isWaiting(gang) ? html`<span title=${plain(gang.message)}>${reasonText(gang.code, scope)}</span>` : nothing) },
      { id: "since", title: "For", look: "minor", number: true, by: (gang) => -(gang.since ?? 0), cell: (gang) => since(gang.since), help: "since its creation, or its placement if it runs" },
    ],
  });
}

/** State, with the countdown of an eviction; whether it borrows. */
const stateCell = (gang) =>
  gang.state === "leaving" && gang.deadline
    ? html`<span class="chip state-leaving">${icon("leaving")}evicted in ${timer(gang.deadline)}</span>`
    : html`${stateChip(gang.state)}${gang.placed && gang.borrowed ? html` <span class="dim">borrowed</span>` : nothing}`;
