// A tenant's capacity in a pool: guarantee, limit, used, borrowed and waiting, as a bar and in words.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { amount, count, unitNoun } from "../core/format.js";
import { foreign } from "./basics.js";
import { bar } from "./bar.js";

/** Bar of a tenant: used, then borrowed, up to the limit; a line marks the guarantee. */
export function tenantBar(tenant) {
  const total = tenant.used + tenant.borrowed;
  const whole = Math.max(tenant.limit ?? 0, tenant.guarantee, total) || 1;
  const limit = tenant.limit === null ? "no limit" : `limit ${amount(tenant.limit)}`;
  return bar({
    segments: [
      { amount: tenant.used, look: "used" },
      { amount: tenant.borrowed, look: "borrowed" },
    ],
    marks: tenant.guarantee ? [{ at: tenant.guarantee, look: "guarantee" }] : [],
    whole,
    label: `${amount(tenant.used)} used inside the guarantee of ${amount(tenant.guarantee)}, ${amount(tenant.borrowed)} borrowed, ${limit}`,
  });
}

/** Card of the tenant's own capacity in a pool. */
export const capacityCard = (tenant) => html`
  <li class="card">
    <h3>${foreign(`${tenant.pool}.${tenant.computeCluster}`)} <span class="dim" title=${tenant.resource}>${unitNoun(tenant.resource)}</span></h3>
    ${tenantBar(tenant)}
    <dl class="figures">
      <div><dt>Guarantee</dt><dd>${amount(tenant.used)}<span class="of"> of ${amount(tenant.guarantee)}</span></dd></div>
      <div><dt>Borrowed</dt><dd>${amount(tenant.borrowed)}</dd></div>
      <div><dt>Limit</dt><dd>${tenant.limit === null ? html`<span class="of">none</span>` : html`${amount(tenant.used + tenant.borrowed)}<span class="of"> of ${amount(tenant.limit)}</span>`}</dd></div>
      <div><dt>Waiting</dt><dd>${amount(tenant.waiting)}</dd></div>
    </dl>
    ${tenant.kept < tenant.guarantee ? html`<p class="note tone-warn">Missing nodes reduce the guarantee to ${amount(tenant.kept)}${tenant.reduced ? html` (cells ${foreign(tenant.reduced)})` : nothing}.</p>` : nothing}
    <p class="note dim">${count(tenant.gangsRunning, "gang")} running, ${amount(tenant.gangsWaiting)} waiting</p>
  </li>
`;

/** Bar of a pool: used, borrowed, unmanaged pods; the rest is free. A line marks the sum of guarantees. */
export const poolBar = (pool) =>
  bar({
    segments: [
      { amount: pool.used, look: "used" },
      { amount: pool.borrowed, look: "borrowed" },
      { amount: pool.others, look: "others" },
    ],
    marks: pool.guaranteed ? [{ at: pool.guaranteed, look: "guarantee" }] : [],
    whole: Math.max(pool.allocatable, pool.used + pool.borrowed + pool.others) || 1,
    label: `Of ${amount(pool.allocatable)}: ${amount(pool.used)} used inside guarantees, ${amount(pool.borrowed)} borrowed, ${amount(pool.others)} by unmanaged pods, ${amount(pool.free)} free; ${amount(pool.guaranteed)} guaranteed`,
  });

/** Legend of bars. @param {boolean} platform */
export const barLegend = (platform) => html`
  <p class="legend">
    <span><i class="key key-used"></i>inside the guarantee</span>
    <span><i class="key key-borrowed"></i>borrowed</span>
    ${platform ? html`<span><i class="key key-others"></i>unmanaged pods</span>` : nothing}
    <span><i class="key key-free"></i>free</span>
    <span><i class="key key-mark"></i>guarantee</span>
  </p>
`;
