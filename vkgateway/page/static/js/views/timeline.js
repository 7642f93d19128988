// Starts, evictions, withdrawals, promotions and ends, the latest first, each with its reason.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { repeat } from "../../vendor/lit-html/directives/repeat.js";
import { searchWords } from "../core/facts.js";
import { count, dayName } from "../core/format.js";
import { change, value } from "../core/route.js";
import { store } from "../core/store.js";
import { empty } from "../parts/basics.js";
import { eventRow } from "../parts/events.js";
import { choice, filterBar, search } from "../parts/filters.js";
import { heldRows, release } from "../parts/hold.js";
import { runBars } from "../parts/runs.js";

const STEP = 100;

const KINDS = [
  ["", "all events"],
  ["start", "starts"],
  ["evict", "evictions"],
  ["reclaim", "reclaims"],
  ["reprieve", "evictions withdrawn"],
  ["promote", "moves into the guarantee"],
  ["end", "ends"],
];

export function timelineView({ scope }) {
  const all = store.list("timeline");
  const found = store.derive(`timeline ${value("q")}`, () => matching(all));
  const kind = value("kind");
  const events = store.derive(`timeline ${value("q")} ${kind}`, () => found.filter((event) => !kind || (kind === "reclaim" ? event.reclaim : event.kind === kind)));
  const most = STEP * Math.max(1, Number(value("steps")) || 1);
  const { rows, changed } = heldRows("timeline", events.slice(0, most), (key) => store.get("timeline", key));
  return html`
    <h1 id="title" tabindex="-1">Timeline</h1>
    ${all.length
      ? html`
          ${filterBar(html`${search("Search names, tenants, pools, reasons", "q", "steps")} ${choice("Events", "kind", KINDS, "steps")}`, count(events.length, "event"))}
          ${changed ? html`<p class="held">Order held while you read: there are newer events.</p>` : nothing}
          ${runBars(found, scope === "platform")}
          ${events.length
            ? html`<ol class="events" data-hold="timeline" @pointerleave=${release} @focusout=${release}>
                ${repeat(
                  rows,
                  ({ item }) => item.$key,
                  ({ item }, index) => html`<li>
                    ${index === 0 || dayName(item.time) !== dayName(rows[index - 1].item.time) ? html`<h2 class="day">${dayName(item.time)}</h2>` : nothing}
                    <div class="event">${eventRow(item, { withTenant: scope === "platform" })}</div>
                  </li>`,
                )}
              </ol>`
            : empty("No event matches.", "Change the search or the kind of events.")}
          ${events.length > most ? html`<p><button @click=${() => change({ steps: String(most / STEP + 1) })}>Show older events</button></p>` : nothing}
        `
      : empty("Nothing has happened yet.", "Starts, evictions and ends of gangs since the start of the gateway appear here, each with its reason.", scope === "platform" ? "vkgateway queue" : "kubectl get events --all-namespaces")}
  `;
}

/** Return the events that the search leaves, the latest first. */
function matching(all) {
  const words = searchWords(value("q"));
  return all.filter((event) => !words.length || words.every((word) => textOf(event).includes(word))).reverse();
}

const textOf = (event) => [event.tenant, event.namespace, event.name, event.pool, event.reason, event.for].join("\n").toLowerCase();
