// Table with sorting, pages and a steady order: the address keeps sort and page, the page stays small.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { repeat } from "../../vendor/lit-html/directives/repeat.js";
import { amount } from "../core/format.js";
import { change, value } from "../core/route.js";
import { icon } from "./basics.js";
import { heldRows, release } from "./hold.js";

/** @typedef {import("../core/store.js").Item} Item */

/**
 * @typedef {object} Column
 * @property {string} id
 * @property {string} title
 * @property {(row: any) => unknown} cell
 * @property {(row: any) => string | number | null | undefined} [by] value to sort by; without it, the column is not sorted
 * @property {boolean} [number] aligned at the end
 * @property {boolean} [main] the row's header
 * @property {string} [look] class of its cells
 * @property {string} [help] title of the header
 */

/**
 * @typedef {object} TableOptions
 * @property {string} name prefix of its filters in the address, unique in a view
 * @property {string} caption
 * @property {Column[]} columns
 * @property {Item[]} rows in their natural order; the same array if nothing changed
 * @property {(key: string) => Item | undefined} find current object of a key
 * @property {number} [size] rows of a page
 * @property {string} [selected] key of the selected row
 * @property {boolean} [stacked] on a narrow page, each row becomes a card
 */

export const PAGE_SIZE = 50;

const SORTED = new Map();

/** Column of a number that is a field of the rows. */
export const figure = (id, title, more = {}) => ({ id, title, number: true, by: (row) => row[id], cell: (row) => amount(row[id]), ...more });

export function dataTable(options) {
  const { name, caption, columns, size = PAGE_SIZE, selected = "", stacked = true } = options;
  const sort = value(`${name}sort`);
  const sorted = sortRows(options, sort);
  const pages = Math.max(1, Math.ceil(sorted.length / size));
  const page = Math.min(pages, Math.max(1, Number(value(`${name}page`)) || 1));
  const shown = sorted.slice((page - 1) * size, page * size);
  const { rows, changed } = heldRows(name, shown, options.find);
  return html`
    <div class="table-frame" role="region" aria-label=${caption} tabindex="0">
      <table class="data ${stacked ? "stacked" : ""}" role="table">
        <caption class="unseen">
          ${caption}
        </caption>
        <thead role="rowgroup">
          <tr role="row">
            ${columns.map((column) => headerCell(name, column, sort))}
          </tr>
        </thead>
        <tbody role="rowgroup" data-hold=${name} @pointerleave=${release} @focusout=${release}>
          ${repeat(
            rows,
            ({ item }) => item.$key,
            ({ item, ended }) => html`
              <tr role="row" class=${`${item.$key === selected ? "selected" : ""} ${ended ? "ended" : ""}`}>
                ${columns.map((column) => bodyCell(column, item))}
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
    <div class="table-foot">
      ${pages > 1 ? pager(options, page, pages, sorted.length) : nothing}
      ${changed ? html`<span class="held">Order held while you read: ${amount(changed)} of these rows changed.</span>` : nothing}
    </div>
  `;
}

function sortRows({ name, columns, rows }, sort) {
  const known = SORTED.get(name);
  if (known && known.rows === rows && known.sort === sort) return known.sorted;
  const column = columns.find(({ id, by }) => by && id === sort.replace("-", ""));
  const sorted = column?.by ? sortBy(rows, column.by, sort.startsWith("-") ? -1 : 1) : rows;
  SORTED.set(name, { rows, sort, sorted });
  return sorted;
}

/** Return sorted rows; missing values come last in both directions. */
function sortBy(rows, by, sign) {
  const keyed = rows.map((row) => [by(row) ?? "", row]);
  keyed.sort(([one], [other]) => {
    if (one === other) return 0;
    if (one === "" || other === "") return one === "" ? 1 : -1;
    return one < other ? -sign : sign;
  });
  return keyed.map(([, row]) => row);
}

function headerCell(name, column, sort) {
  const look = `${column.number ? "number" : ""} ${column.look ?? ""}`;
  if (!column.by) return html`<th role="columnheader" scope="col" class=${look} title=${column.help ?? nothing}>${column.title}</th>`;
  const ascending = sort === column.id;
  const descending = sort === `-${column.id}`;
  // Numbers start with the largest; a third press restores the natural order.
  const order = column.number ? [`-${column.id}`, column.id, ""] : [column.id, `-${column.id}`, ""];
  const next = order[(order.indexOf(ascending || descending ? sort : "") + 1) % 3];
  return html`
    <th role="columnheader" scope="col" class=${look} aria-sort=${ascending ? "ascending" : descending ? "descending" : nothing}>
      <button class="sort" title=${column.help ?? nothing} @click=${() => change({ [`${name}sort`]: next, [`${name}page`]: "" })}>
        ${column.title}<span class="sort-mark" aria-hidden="true">${ascending ? "▲" : descending ? "▼" : ""}</span>
      </button>
    </th>
  `;
}

function bodyCell(column, row) {
  const look = `${column.number ? "number" : ""} ${column.look ?? ""}`;
  return column.main
    ? html`<th role="rowheader" scope="row" class=${look} data-title=${column.title}>${column.cell(row)}</th>`
    : html`<td role="cell" class=${look} data-title=${column.title}>${column.cell(row)}</td>`;
}

function pager({ name, caption, size = PAGE_SIZE }, page, pages, total) {
  const to = (target) => () => change({ [`${name}page`]: target === 1 ? "" : String(target) });
  return html`
    <nav class="pager" aria-label=${`Pages: ${caption}`}>
      <button ?disabled=${page === 1} @click=${to(1)}>First</button>
      <button ?disabled=${page === 1} @click=${to(page - 1)}>${icon("left")} Previous</button>
      <span>${amount((page - 1) * size + 1)}–${amount(Math.min(total, page * size))} of ${amount(total)}</span>
      <button ?disabled=${page === pages} @click=${to(page + 1)}>Next ${icon("right")}</button>
      <button ?disabled=${page === pages} @click=${to(pages)}>Last</button>
    </nav>
  `;
}

/** Table without sorting, pages and held order, for short lists. */
export const plainTable = (caption, columns, rows, stacked = true) => html`
  <div class="table-frame" role="region" aria-label=${caption} tabindex="0">
    <table class="data ${stacked ? "stacked" : ""}" role="table">
      <caption class="unseen">
        ${caption}
      </caption>
      <thead role="rowgroup">
        <tr role="row">
          ${columns.map((column) => html`<th role="columnheader" scope="col" class=${`${column.number ? "number" : ""} ${column.look ?? ""}`}>${column.title}</th>`)}
        </tr>
      </thead>
      <tbody role="rowgroup">
        ${rows.map((row) => html`<tr role="row">${columns.map((column) => bodyCell(column, row))}</tr>`)}
      </tbody>
    </table>
  </div>
`;
