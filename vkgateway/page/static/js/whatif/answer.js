// Answer of the arbiter to a what-if question, in the words of the command line.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { now } from "../core/clock.js";
import { amount, count, duration, secondTime, startRange, unitNoun } from "../core/format.js";
import { EFFECTS, reasonText, VERDICT_TONES, VERDICTS } from "../core/words.js";
import { foreign, gangName, icon, moment, shortName, tenantName } from "../parts/basics.js";
import { poolBar } from "../parts/capacity.js";
import { figure, plainTable } from "../parts/table.js";
import { commandOf } from "./questions.js";

const MOST_ROWS = 20;
const MOST_NODES = 8;

const ICONS = { good: "good", warn: "waiting", bad: "bad", quiet: "info" };

export function answerView(answer) {
  const tone = VERDICT_TONES[answer.verdict] ?? "quiet";
  const kind = answer.question.kind;
  return html`
    <section class="verdict" aria-labelledby="verdict-title">
      <h2 id="verdict-title" class="tone-${tone}">${icon(ICONS[tone])} ${VERDICTS[answer.verdict] ?? answer.verdict}</h2>
      <p class="lead">${foreign(answer.summary)}</p>
      ${kind === "gang" ? answer.gangs.map((outcome) => outcomeFacts(outcome)) : nothing} ${answer.notes.map((note) => html`<p class="note">${foreign(note)}</p>`)}
      ${kind === "drain" ? section("Gangs that move", answer.gangs, MOVES) : nothing} ${section("Cells", answer.cells, CELLS)}
      ${section(kind === "guarantee" ? "Evicted if the guarantee is used at once" : "Evicted", answer.evictions, EVICTIONS)} ${section("Other gangs", answer.effects, OTHERS, answer.moreEffects)}
      ${section("Guarantees", answer.guarantees, GUARANTEES)} ${answer.pools.length ? poolChanges(answer.pools) : nothing}
      <p class="dim">Decided at ${moment(answer.time, secondTime(answer.time))}, from the arbiter's state at ${moment(answer.seen, secondTime(answer.seen))}. Nothing was changed.</p>
      <p class="dim">The same on the command line:</p>
      <pre tabindex="0" aria-label="Command"><code>${commandOf(answer.question)}</code></pre>
    </section>
  `;
}

function outcomeFacts(outcome) {
  const rows = ([
    ["Starts", outcome.starting ? `${count(outcome.starting, "pod")} of ${amount(outcome.pods)}` : ""],
    ["Nodes", outcome.placements.length ? firstNames(outcome.placements.map((each) => `${each.node} (${each.pods})`)) : ""],
    ["Capacity", outcome.starting ? (outcome.borrowed ? "borrowed; may be reclaimed" : "all inside the tenant's guarantee") : ""],
    ["Why it waits", outcome.code ? html`<strong>${reasonText(outcome.code)}</strong> <span class="message">${foreign(outcome.message)}</span>` : ""],
    ["Place", outcome.place ? html`${amount(outcome.place)} in ${foreign(outcome.pool)}` : ""],
    ["Expected start", outcome.verdict === "Starts" ? "now" : outcome.earliest || outcome.likely ? startRange(outcome.earliest, outcome.likely, now()) : outcome.expected],
    ["Reserved for", outcome.behind ? foreign(outcome.behind) : ""],
    ["What helps", outcome.help ? foreign(outcome.help) : ""],
  ]);
  return html`<dl class="facts">${rows.filter(([, text]) => text).map(([title, text]) => html`<dt>${title}</dt><dd>${text}</dd>`)}</dl>`;
}

function firstNames(names) {
  const more = names.length - MOST_NODES;
  return html`${names.slice(0, MOST_NODES).map((name, index) => html`${index ? ", " : ""}${foreign(name)}`)}${more > 0 ? ` and ${more} more` : nothing}`;
}

function section(title, rows, columns, more = 0) {
  if (!rows.length) return nothing;
  const left = more + Math.max(0, rows.length - MOST_ROWS);
  return html`<h3>${title}</h3>
    ${plainTable(title, columns, rows.slice(0, MOST_ROWS))} ${left ? html`<p class="dim">and ${amount(left)} more; the command line lists all with -o json</p>` : nothing}`;
}

const gangColumns = [
  { id: "tenant", title: "Tenant", cell: (row) => tenantName(row.gang.tenant) },
  { id: "name", title: "Gang", main: true, cell: (row) => gangName(row.gang) },
];

const startOf = (outcome) => (outcome.verdict === "Starts" ? "now" : foreign(outcome.expected || "–"));

const MOVES = [
  ...gangColumns,
  figure("pods", "Pods"),
  figure("running", "Keep running"),
  { id: "to", title: "To", cell: (row) => firstNames(row.placements.map((each) => `${each.node} (${each.pods})`)) },
  { id: "start", title: "Start", cell: startOf },
  { id: "capacity", title: "Capacity", cell: (row) => (row.starting ? (row.borrowed ? "borrowed" : "inside the guarantee") : "–") },
  { id: "why", title: "Why it waits", look: "why", cell: (row) => (row.code ? html`${reasonText(row.code)}<span class="message">${foreign(row.message)}</span>` : "–") },
];

const CELLS = [
  figure("size", "Size"),
  { id: "state", title: "State", cell: (cell) => (cell.bound ? "in use" : cell.borrowed ? "cannot bind: a pod would borrow" : cell.verdict === "Starts" ? "free" : cell.node ? "lent" : "cannot bind now") },
  { id: "node", title: "Node", cell: (cell) => shortName(cell.node || "–") },
  { id: "start", title: "Start", cell: (cell) => (cell.bound ? "–" : startOf(cell)) },
  { id: "message", title: "Message", look: "why", cell: (cell) => foreign(cell.message || "–") },
];

const EVICTIONS = [
  ...gangColumns,
  { id: "pods", title: "Pods", number: true, cell: (row) => `${amount(row.pods)} of ${amount(row.of)}` },
  { id: "capacity", title: "Capacity", cell: (row) => (row.inside ? "inside the guarantee" : "borrowed") },
  { id: "notice", title: "Notice", number: true, cell: (row) => duration(row.notice) },
  { id: "grace", title: "Grace", number: true, cell: (row) => duration(row.grace) },
  { id: "lost", title: "Lost", number: true, cell: (row) => `${amount(row.lost / 3600)} GPU-h` },
  { id: "nodes", title: "Nodes", cell: (row) => firstNames(row.nodes) },
];

const OTHERS = [
  ...gangColumns,
  figure("pods", "Pods"),
  { id: "what", title: "Effect", cell: (row) => EFFECTS[row.what] ?? row.what },
  { id: "before", title: "Without it", cell: (row) => foreign(row.before || "–") },
  { id: "after", title: "With it", cell: (row) => foreign(row.after || "–") },
];

const GUARANTEES = [
  { id: "tenant", title: "Tenant", main: true, cell: (row) => tenantName(row.tenant) },
  { id: "pool", title: "Pool", cell: (row) => shortName(row.pool) },
  { id: "before", title: "Without it", cell: (row) => html`${foreign(row.before)}${row.unitsLostBefore ? ` (${amount(row.unitsLostBefore)} lost)` : nothing}` },
  { id: "after", title: "With it", cell: (row) => html`${foreign(row.after)}${row.unitsLostAfter ? ` (${amount(row.unitsLostAfter)} lost)` : nothing}` },
];

const poolChanges = (changes) => html`
  <h3>Pools</h3>
  <ul class="cards">
    ${changes.map(({ before, after }) => {
      const pool = after ?? before;
      return html`<li class="card">
        <h4>${foreign(pool.node)} <span class="dim">${unitNoun(pool.resource)}</span></h4>
        ${before ? html`<p class="note dim">without it</p>${poolBar(before)}` : nothing} ${after ? html`<p class="note dim">with it</p>${poolBar(after)}` : nothing}
        <dl class="figures">${change("Free", before?.free, after?.free)} ${change("Borrowed", before?.borrowed, after?.borrowed)} ${change("Waiting", before?.waiting, after?.waiting)} ${change("Largest free", before?.largest, after?.largest)}</dl>
      </li>`;
    })}
  </ul>
`;

const change = (title, before, after) => html`<div><dt>${title}</dt><dd>${before === after ? amount(after) : html`${amount(before)} → ${amount(after)}`}</dd></div>`;
