// Fragmentation in one look: how many nodes have how many units free.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { amount, count, unitNoun } from "../core/format.js";
import { vars } from "./vars.js";

/** More columns do not fit on a narrow page; the sentence says the same in short. */
const MOST_COLUMNS = 9;

export function freeByNode(pool, nodes) {
  const noun = unitNoun(pool.resource);
  const usable = nodes.filter((node) => node.usable);
  const capacity = Math.max(...usable.map((node) => node.capacity), 0);
  const columns = capacity + 1 <= MOST_COLUMNS ? capacity + 1 : 0;
  const sentence = fragmentText(pool, noun);
  if (!columns || !usable.length) return html`<p class="note">${sentence}</p>`;
  const counts = Array.from({ length: columns }, () => 0);
  for (const node of usable) counts[Math.min(columns - 1, Math.floor(node.free))]++;
  const most = Math.max(...counts, 1);
  const broken = nodes.length - usable.length;
  return html`
    <div class="fragments">
      <table class="free-table">
        <caption>
          Free ${noun} of a node, and the number of such nodes
        </caption>
        <thead>
          <tr>
            <th scope="row">${noun} free</th>
            ${counts.map((_, free) => html`<th scope="col">${free}</th>`)}
          </tr>
        </thead>
        <tbody>
          <tr>
            <th scope="row">Nodes</th>
            ${counts.map((number, free) => html`<td class=${number ? "" : "none"}><i class="free-bar ${free === 0 ? "full" : free === capacity ? "whole" : "partial"}" aria-hidden="true" ${vars({ "--h": number / most })}></i>${amount(number)}</td>`)}
          </tr>
        </tbody>
      </table>
      <p class="note">${sentence} ${broken ? html`<span class="tone-bad">${count(broken, "node")} not usable.</span>` : nothing}</p>
    </div>
  `;
}

function fragmentText(pool, noun) {
  if (!pool.free) return "Nothing is free.";
  const share = Math.round(pool.fragmentation * 100);
  return html`<strong>${share} %</strong> of the ${amount(pool.free)} free ${noun} are on partly used nodes. The largest pod that fits now has ${amount(pool.largest)}; ${count(pool.wholeNodes, "node")} ${pool.wholeNodes === 1 ? "is" : "are"} unused. Guarantees that share nodes use ${amount(pool.spareNodesInUse)} of ${count(pool.spareNodes, "spare node")}.`;
}
