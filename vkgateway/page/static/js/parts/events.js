// An event of the timeline: start, eviction, withdrawal, promotion or end, with its reason.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { resourceOf } from "../core/facts.js";
import { count, secondTime, units } from "../core/format.js";
import { address } from "../core/route.js";
import { store } from "../core/store.js";
import { EVENTS } from "../core/words.js";
import { foreign, gangName, icon, moment, tenantName } from "./basics.js";

const LOOKS = { start: ["running", "good"], evict: ["leaving", "bad"], reprieve: ["good", "info"], promote: ["good", "info"], end: ["starting", "quiet"] };

/** What happened, in words. */
export const eventWord = (event) => (event.kind === "evict" && event.reclaim ? "evicted: reclaim" : (EVENTS[event.kind] ?? event.kind));

export function eventRow(event, { withGang = true, withTenant = false } = {}) {
  const [shape, tone] = LOOKS[event.kind] ?? ["info", "quiet"];
  return html`
    <span class="event-time">${moment(event.time, secondTime(event.time))}</span>
    <span class="event-kind tone-${tone}">${icon(shape)}${eventWord(event)}</span>
    <span class="event-text">
      ${withTenant ? tenantName(event.tenant) : nothing} ${withGang ? html`<a class="gang-link" href=${address("gangs", { gang: event.gang })}>${gangName(event)}</a>` : nothing}
      <span class="dim">${units(event.units, resourceOf(event.pool))}, ${count(event.pods, "pod")} in ${foreign(event.pool)}${event.borrowed ? ", borrowed" : ""}</span>
      ${event.reason ? html`<span class="event-reason">${foreign(event.reason)}</span>` : nothing} ${event.for ? html`<span class="event-reason">for ${forGang(event.for)}</span>` : nothing}
    </span>
  `;
}

function forGang(id) {
  const gang = store.get("gangs", id);
  return html`<a class="gang-link" href=${address("gangs", { gang: id })}>${gang ? html`${foreign(gang.tenant)} ${gangName(gang)}` : foreign(id)}</a>`;
}
