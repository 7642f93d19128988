// Chart of the last 24 hours with its table: used, borrowed and waiting units of pools or of a tenant.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { amount, clockTime, unitNoun } from "../core/format.js";
import { now } from "../core/clock.js";
import { history24 } from "../core/remote.js";
import { change, value } from "../core/route.js";
import { foreign, moment, problemBox } from "./basics.js";
import { chart } from "./chart.js";
import { options } from "./filters.js";
import { plainTable } from "./table.js";

/** Rows of the table: the chart has more points. */
const TABLE_ROWS = 24;

/**
 * @param {[key: string, title: string, resource: string][]} choices series that may be shown
 * @param {string} total what the series `total` means
 */
export function historySection(choices, total) {
  const { data, problem } = history24.want();
  if (problem) return html`<section aria-labelledby="history-title"><h2 id="history-title">Last 24 hours</h2>${problemBox(problem)}</section>`;
  const known = choices.filter(([key]) => data?.series?.[key]);
  if (!data || !known.length || data.times.length < 2) return nothing;
  const [key, title, resource] = known.find(([each]) => each === value("series")) ?? known[0];
  return html`
    <section aria-labelledby="history-title">
      <div class="section-head">
        <h2 id="history-title">Last ${spanText(data.times)}</h2>
        ${known.length > 1
          ? html`<label class="field"><span>Pool</span>
              <select @change=${(event) => change({ series: event.target.value })}>
                ${options(known.map(([each, text, kind]) => [each, `${text} ${unitNoun(kind)}`]), key)}
              </select></label>`
          : html`<p class="dim">${foreign(title)} ${unitNoun(resource)}</p>`}
      </div>
      ${chart(data.times, data.series[key], total, `${title}: used, borrowed and waiting ${unitNoun(resource)}; the table below has the figures`)}
      <p class="legend">
        <span><i class="key key-used"></i>inside the guarantee</span><span><i class="key key-borrowed"></i>borrowed</span>
        <span><i class="key key-waiting"></i>waiting</span><span><i class="key key-mark"></i>${total}</span>
      </p>
      <details>
        <summary>Table of the chart</summary>
        ${historyTable(data.times, data.series[key], total)}
      </details>
    </section>
  `;
}

function spanText(times) {
  const span = (times[times.length - 1] - times[0]) / 3600;
  return span >= 1.5 ? `${Math.round(span)} hours` : `${Math.max(1, Math.round(span * 60))} minutes`;
}

function historyTable(times, series, total) {
  const step = Math.max(1, Math.ceil(times.length / TABLE_ROWS));
  const rows = [];
  for (let index = times.length - 1; index >= 0; index -= step) rows.push(index);
  const figure = (name) => (index) => amount(series[name]?.[index]);
  return plainTable(
    "Figures of the chart",
    [
      { id: "time", title: "Time", main: true, cell: (index) => moment(times[index], clockTime(times[index], now())) },
      { id: "used", title: "Inside the guarantee", number: true, cell: figure("used") },
      { id: "borrowed", title: "Borrowed", number: true, cell: figure("borrowed") },
      { id: "waiting", title: "Waiting", number: true, cell: figure("waiting") },
      { id: "total", title: total[0].toUpperCase() + total.slice(1), number: true, cell: figure("total") },
    ],
    rows,
    false,
  );
}
