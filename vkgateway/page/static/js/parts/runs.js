// When gangs ran, as bars: from their starts to their evictions or ends, or until now.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { now } from "../core/clock.js";
import { clockTime, count } from "../core/format.js";
import { address } from "../core/route.js";
import { store } from "../core/store.js";
import { gangName, tenantName } from "./basics.js";
import { bar } from "./bar.js";
import { plainTable } from "./table.js";

const MOST = 20;

/** @typedef {{from: number, to: number | null, borrowed: boolean}} Run */

/**
 * Return the runs of each gang of these events.
 * @param {any[]} events the latest first
 */
function runsOf(events) {
  /** @type {Map<string, {event: any, runs: Run[]}>} */
  const gangs = new Map();
  for (const event of [...events].reverse()) {
    const { runs } = gangs.get(event.gang) ?? { runs: [] };
    gangs.set(event.gang, { event, runs });
    const last = runs[runs.length - 1];
    const open = last?.to === null ? last : null;
    if (event.kind === "start" && !open) runs.push({ from: event.time, to: null, borrowed: event.borrowed });
    else if (event.kind === "reprieve" && last) last.to = null;
    else if (event.kind === "promote") {
      if (open) open.to = event.time;
      runs.push({ from: event.time, to: null, borrowed: false });
    } else if (event.kind === "evict" || event.kind === "end") {
      const to = event.deadline ?? event.time;
      if (open) open.to = to;
      else if (event.since) runs.push({ from: event.since, to, borrowed: event.borrowed });
    }
  }
  for (const [id, { runs }] of gangs) {
    const last = runs[runs.length - 1];
    if (!last) continue;
    // Of an evicted or ended part, the rest goes on. What ended without an event ended when it was last heard of.
    if (store.get("gangs", id)?.placed) last.to = null;
    else last.to ??= gangs.get(id).event.time;
  }
  return [...gangs.values()].filter(({ runs }) => runs.length);
}

/** Return the bars of one gang, with gaps between them. */
function segmentsOf(runs, begin, end) {
  const segments = [];
  let at = begin;
  for (const { from, to, borrowed } of runs) {
    const until = Math.min(end, to ?? end);
    if (from > at) segments.push({ amount: from - at, look: "gap" });
    segments.push({ amount: Math.max(0, until - Math.max(at, from)), look: borrowed ? "borrowed" : "used" });
    at = Math.max(at, until);
  }
  return segments;
}

const runWords = ({ from, to, borrowed }, time) => `${borrowed ? "borrowed " : ""}from ${clockTime(from, time)} ${to === null ? "until now" : `to ${clockTime(to, time)}`}`;

/** The runs of the gangs that these events are about, the latest first. */
export function runBars(events, withTenant) {
  const all = runsOf(events);
  if (!all.length) return nothing;
  const time = now();
  const begin = Math.min(...all.map(({ runs }) => runs[0].from));
  return html`
    <section aria-labelledby="runs-title">
      <h2 id="runs-title">Runs from ${clockTime(begin, time)} until now</h2>
      <p class="legend"><span><i class="key key-used"></i>inside guarantees</span><span><i class="key key-borrowed"></i>borrowed</span></p>
      ${plainTable(
        "Runs of gangs",
        [
          { id: "gang", title: "Gang", main: true, cell: ({ event }) => html`${withTenant ? tenantName(event.tenant) : nothing} <a class="gang-link" href=${address("gangs", { gang: event.gang })}>${gangName(event)}</a>` },
          { id: "runs", title: "Runs", look: "run-cell", cell: ({ runs }) => bar({ segments: segmentsOf(runs, begin, time), whole: time - begin, label: runs.map((run) => runWords(run, time)).join(", ") }) },
        ],
        all.slice(-MOST).reverse(),
      )}
      ${all.length > MOST ? html`<p class="dim">and ${count(all.length - MOST, "more gang")}; the search narrows them</p>` : nothing}
    </section>
  `;
}
