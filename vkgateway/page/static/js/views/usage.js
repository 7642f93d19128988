// GPU-hours by day: a chart, sums, budgets, and the table.

import { html, nothing, svg } from "../../vendor/lit-html/lit-html.js";
import { amount, count, hours, unitNoun } from "../core/format.js";
import { usage } from "../core/remote.js";
import { value } from "../core/route.js";
import { empty, foreign, problemBox, tenantName } from "../parts/basics.js";
import { bar } from "../parts/bar.js";
import { choice, filterBar } from "../parts/filters.js";
import { plainTable } from "../parts/table.js";

/** @typedef {{day: string, inside: number, borrowed: number, lost: number}} Day */

const MOST_DAYS = 31;
/** Fewer days would make wide bars. */
const LEAST_DAYS = 14;

export function usageView(session) {
  const { data, problem } = usage.want();
  return html`
    <h1 id="title" tabindex="-1">Usage</h1>
    ${problem ? problemBox(problem) : nothing} ${data ? body(data, session.scope) : problem ? nothing : html`<div class="skeleton" role="status"><span class="unseen">Loading</span><i></i><i></i></div>`}
  `;
}

function body(data, scope) {
  const budgets = data.budgets ?? [];
  if (!data.days.length && !budgets.length) {
    return empty("No usage yet.", "GPU-hours of ended and running pods appear here by day, some minutes after the first pod with a GPU starts.", scope === "platform" ? "vkgateway usage --since 7d" : "kubectl get pods --all-namespaces");
  }
  const resources = unique(data.days.map((row) => row.resource));
  const resource = resources.includes(value("resource")) ? value("resource") : (resources.find((name) => /gpu/.test(name)) ?? resources[0] ?? "");
  const tenants = unique(data.days.map((row) => row.tenant));
  const pools = unique(data.days.map((row) => poolOf(row)));
  const rows = chosenRows(data.days, resource);
  return html`
    ${budgets.length ? budgetSection(budgets, scope) : nothing}
    ${filterBar(html`
      ${scope === "platform" ? choice("Tenant", "tenant", [["", "all tenants"], ...tenants]) : nothing} ${choice("Pool", "pool", [["", "all pools"], ...pools])} ${choice("Band", "band", [["", "all bands"], ...unique(data.days.map((row) => row.band))])}
      ${resources.length > 1 ? choice("Resource", "resource", [resource, ...resources.filter((name) => name !== resource)]) : nothing}
    `)}
    ${rows.length ? byDay(rows, resource) : empty("No usage matches.", "Choose another pool or band.")} ${rows.length && scope === "platform" && !value("tenant") ? byTenant(rows) : nothing}
  `;
}

/** Return the rows that the filters leave. */
function chosenRows(from, resource) {
  const [tenant, pool, band] = [value("tenant"), value("pool"), value("band")];
  return from.filter((row) => row.resource === resource && (!tenant || row.tenant === tenant) && (!pool || poolOf(row) === pool) && (!band || row.band === band));
}

const unique = (texts) => [...new Set(texts)].sort();

const poolOf = (row) => (row.computeCluster ? `${row.pool}.${row.computeCluster}` : row.pool);

function byDay(rows, resource) {
  const days = daySums(rows);
  const noun = `${unitNoun(resource, 1)}-hours`;
  const total = days.reduce((sum, day) => sum + day.inside + day.borrowed, 0);
  const borrowed = days.reduce((sum, day) => sum + day.borrowed, 0);
  const lost = days.reduce((sum, day) => sum + day.lost, 0);
  return html`
    <section aria-labelledby="days-title">
      <h2 id="days-title">${noun} by day</h2>
      <p><strong>${hours(total)}</strong> ${noun} in ${count(days.length, "day")}: ${hours(total - borrowed)} inside guarantees, ${hours(borrowed)} borrowed. ${hours(lost)} of them were lost to evictions.</p>
      ${dayChart(days, noun)}
      <p class="legend"><span><i class="key key-used"></i>inside guarantees</span><span><i class="key key-borrowed"></i>borrowed</span><span><i class="key key-lost"></i>lost to evictions</span></p>
      <details>
        <summary>Table of the chart</summary>
        ${plainTable(
          "Figures by day",
          [
            { id: "day", title: "Day (UTC)", main: true, cell: (day) => day.day },
            { id: "inside", title: "Inside guarantees", number: true, cell: (day) => hours(day.inside) },
            { id: "borrowed", title: "Borrowed", number: true, cell: (day) => hours(day.borrowed) },
            { id: "sum", title: "Sum", number: true, cell: (day) => hours(day.inside + day.borrowed) },
            { id: "lost", title: "Lost", number: true, cell: (day) => hours(day.lost) },
          ],
          [...days].reverse(),
          false,
        )}
      </details>
    </section>
  `;
}

/** Return the sums of all days from the first to the last, without gaps. */
function daySums(rows) {
  const sums = new Map();
  const names = rows.map((row) => row.day).sort();
  const first = Date.parse(names[0]);
  const last = Date.parse(names[names.length - 1]);
  const from = Math.max(Math.min(first, last - (LEAST_DAYS - 1) * 86_400_000), last - (MOST_DAYS - 1) * 86_400_000);
  for (let time = from; time <= last; time += 86_400_000) {
    const day = new Date(time).toISOString().slice(0, 10);
    sums.set(day, { day, inside: 0, borrowed: 0, lost: 0 });
  }
  for (const row of rows) {
    const sum = sums.get(row.day);
    if (!sum) continue;
    sum.inside += row.hours - row.borrowed;
    sum.borrowed += row.borrowed;
    sum.lost += row.lost;
  }
  return [...sums.values()];
}

function dayChart(days, noun) {
  const most = Math.max(...days.map((day) => day.inside + day.borrowed), 1e-9);
  const top = niceTop(most);
  const width = 100 / days.length;
  const high = (amount_) => (amount_ / top) * 100;
  return html`
    <figure class="day-chart" role="group" aria-label=${`${noun} by day; the table below has the figures`}>
      <div class="day-scale" aria-hidden="true"><span>${hours(top)} ${noun.replace("-hours", "-h")}</span><span>${hours(top / 2)}</span><span>0</span></div>
      <svg class="day-bars" preserveAspectRatio="none" aria-hidden="true">
        ${svg`<line x1="0" x2="100%" y1="0" y2="0"></line><line x1="0" x2="100%" y1="50%" y2="50%"></line><line x1="0" x2="100%" y1="100%" y2="100%"></line>`}
        ${days.map((day, index) => {
          const inside = high(day.inside);
          const borrowed = high(day.borrowed);
          const x = `${(index + 0.14) * width}%`;
          const w = `${width * 0.72}%`;
          return svg`<g>
            <title>${day.day}: ${hours(day.inside)} inside guarantees, ${hours(day.borrowed)} borrowed, ${hours(day.lost)} lost</title>
            <rect class="bar-used" x=${x} width=${w} y="${100 - inside}%" height="${inside}%"></rect>
            <rect class="bar-borrowed" x=${x} width=${w} y="${100 - inside - borrowed}%" height="${borrowed}%"></rect>
            <rect fill="url(#stripes)" x=${x} width=${w} y="${100 - inside - borrowed}%" height="${borrowed}%"></rect>
            <rect class="bar-lost" x=${x} width=${w} y="${100 - high(day.lost)}%" height="${high(day.lost)}%"></rect>
            <rect class="day-hit" x="${index * width}%" width="${width}%" y="0" height="100%"></rect>
          </g>`;
        })}
      </svg>
      <div class="day-names" aria-hidden="true"><span>${days[0].day}</span><span>${days.length > 1 ? days[days.length - 1].day : ""}</span></div>
    </figure>
  `;
}

/** Return a round number at or above the largest value. */
function niceTop(most) {
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 5, 8, 10].find((step) => step * power >= most) * power;
}

/** Return the function from a row to its tenant: the name, with the first part of the UID if several tenants had it. */
function labelsOf(rows) {
  const uids = new Map();
  for (const { tenant, tenantUid } of rows) if (tenantUid) uids.set(tenant, (uids.get(tenant) ?? new Set()).add(tenantUid));
  return ({ tenant, tenantUid }) => (tenantUid && uids.get(tenant).size > 1 ? `${tenant} (${tenantUid.split("-")[0]})` : tenant);
}

function byTenant(rows) {
  const sums = new Map();
  const labels = labelsOf(rows);
  for (const row of rows) {
    const tenant = labels(row);
    const sum = sums.get(tenant) ?? { tenant, inside: 0, borrowed: 0, lost: 0 };
    sum.inside += row.hours - row.borrowed;
    sum.borrowed += row.borrowed;
    sum.lost += row.lost;
    sums.set(tenant, sum);
  }
  const all = [...sums.values()].sort((one, other) => other.inside + other.borrowed - one.inside - one.borrowed);
  const most = Math.max(...all.map((sum) => sum.inside + sum.borrowed));
  return html`
    <section aria-labelledby="by-tenant">
      <h2 id="by-tenant">By tenant</h2>
      ${plainTable(
        "Usage by tenant",
        [
          { id: "tenant", title: "Tenant", main: true, cell: (sum) => tenantName(sum.tenant) },
          { id: "bar", title: "Share", look: "bar-cell", cell: (sum) => bar({ segments: [{ amount: sum.inside, look: "used" }, { amount: sum.borrowed, look: "borrowed" }], whole: most, label: `${hours(sum.inside)} inside guarantees, ${hours(sum.borrowed)} borrowed` }) },
          { id: "inside", title: "Inside guarantees", number: true, cell: (sum) => hours(sum.inside) },
          { id: "borrowed", title: "Borrowed", number: true, cell: (sum) => hours(sum.borrowed) },
          { id: "lost", title: "Lost", number: true, cell: (sum) => hours(sum.lost) },
        ],
        all.slice(0, 50),
      )}
      ${all.length > 50 ? html`<p class="dim">and ${count(all.length - 50, "more tenant")}; the table of all rows has them</p>` : nothing}
    </section>
  `;
}

const BUDGET_STATES = { ok: ["good", "within the budget"], warning: ["warn", "over 80 %"], exhausted: ["bad", "exhausted: no more borrowing"] };

const budgetSection = (budgets, scope) => html`
  <section aria-labelledby="budget-title">
    <h2 id="budget-title">Budget of ${monthName(budgets[0].month)}</h2>
    <ul class="cards">
      ${budgets.map((budget) => {
        const [tone, text] = BUDGET_STATES[budget.state] ?? ["quiet", budget.state];
        return html`<li class="card">
          <h3>${scope === "platform" ? tenantName(budget.tenant) : nothing} <span class="dim" title=${budget.resource}>${unitNoun(budget.resource, 1)}-hours ${budget.pool ? html`in ${foreign(budget.pool)}` : "in all pools"}</span></h3>
          ${bar({ segments: [{ amount: budget.used, look: tone === "good" ? "used" : tone }], whole: Math.max(budget.budget, budget.used), marks: budget.used > budget.budget ? [{ at: budget.budget, look: "guarantee" }] : [], label: `${hours(budget.used)} of ${hours(budget.budget)} used` })}
          <p class="note"><strong>${hours(budget.used)}</strong> of ${hours(budget.budget)} (${amount(Math.round((100 * budget.used) / (budget.budget || 1)))} %) <span class="tone-${tone}">${foreign(text)}</span></p>
        </li>`;
      })}
    </ul>
  </section>
`;

/** Return `November 2026` for `2026-11`. */
const monthName = (month) => new Intl.DateTimeFormat("en-GB", { month: "long", year: "numeric", timeZone: "UTC" }).format(new Date(`${month}-01`));
