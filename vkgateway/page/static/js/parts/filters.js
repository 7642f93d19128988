// Controls above a list: search, choices, and what they leave.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { live } from "../../vendor/lit-html/directives/live.js";
import { plain } from "../core/format.js";
import { change, value } from "../core/route.js";

/**
 * Search field whose text is kept in the address.
 * @param {string} [page] filter of the page number, which a new search resets
 */
export const search = (label, name = "q", page = "page") => html`
  <label class="field grow">
    <span>${label}</span>
    <input type="search" autocomplete="off" spellcheck="false" .value=${live(value(name))} @input=${(event) => change({ [name]: event.target.value, [page]: "" })} />
  </label>
`;

/**
 * Options of a select.
 * @param {(string | readonly [string, string])[]} choices values, or values with their texts
 */
export const options = (choices, chosen) =>
  choices.map((choice) => {
    const [key, text = key] = [choice].flat();
    return html`<option value=${key} .selected=${key === chosen}>${plain(text)}</option>`;
  });

/** Choice of one of few values, kept in the address. The first is the default. */
export const choice = (label, name, choices, page = "page") => html`
  <label class="field">
    <span>${label}</span>
    <select @change=${(event) => change({ [name]: event.target.value, [page]: "" })}>
      ${options(choices, value(name))}
    </select>
  </label>
`;

/** @param {unknown} [result] what they leave, in words */
export const filterBar = (controls, result = nothing) => html`
  <search class="filters">${controls} ${result === nothing ? nothing : html`<p class="filter-result">${result}</p>`}</search>
`;
