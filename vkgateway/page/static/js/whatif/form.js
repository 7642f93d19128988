// Form of the what-if questions.

import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { live } from "../../vendor/lit-html/directives/live.js";
import { poolNames, tenantNames } from "../core/facts.js";
import { store } from "../core/store.js";
import { options } from "../parts/filters.js";

/** @typedef {import("./questions.js").Fields} Fields */

const KINDS = [
  ["gang", "A new gang"],
  ["guarantee", "A guarantee"],
  ["drain", "Drain nodes"],
  ["grow", "More nodes"],
];

export function questionForm({ fields, wrong, busy, onChange, onAsk }) {
  const given = { fields, wrong, onChange };
  return html`
    <form class="question" novalidate @submit=${(event) => (event.preventDefault(), onAsk())}>
      <fieldset class="kinds">
        <legend>What changes</legend>
        ${KINDS.map(
          ([kind, text]) => html`<label><input type="radio" name="kind" value=${kind} .checked=${live((fields.kind || "gang") === kind)} @change=${() => onChange("kind", kind)} /><span>${text}</span></label>`,
        )}
      </fieldset>
      ${controls(given)}
      <div class="actions"><button class="primary" ?disabled=${busy}>${busy ? "Asking…" : "Ask the arbiter"}</button> <span class="dim">Nothing is changed.</span></div>
    </form>
  `;
}

function controls(given) {
  const resource = input(given, "resource", "Resource", { placeholder: "nvidia.com/gpu", list: resources() });
  switch (given.fields.kind) {
    case "guarantee":
      return html`<div class="fields">
          ${input(given, "tenant", "Tenant", { list: tenantNames(), required: true, help: "existing or new" })} ${select(given, "pool", "Pool", [["", "choose"], ...poolNames()])}
          ${input(given, "guarantee", "Guarantee", { mode: "numeric", required: true, help: "units of the resource" })} ${input(given, "limit", "Limit", { mode: "numeric", help: "empty: unchanged" })}
        </div>
        ${more(html`${resource} ${input(given, "weight", "Weight", { mode: "decimal", help: "empty: unchanged" })} ${input(given, "cells", "Cells", { placeholder: "2x8+1", help: "empty: from the guarantee" })}`)}`;
    case "drain":
      return html`<div class="fields">${input(given, "nodes", "Nodes", { required: true, wide: true, list: nodeNames(), help: "names of compute nodes, with spaces between; CLUSTER/NODE if two clusters have the name" })}</div>`;
    case "grow":
      return html`<div class="fields">
        ${select(given, "pool", "Pool", [["", "choose"], ...poolNames()])} ${input(given, "count", "Additional nodes", { mode: "numeric", required: true })}
        ${input(given, "like", "Like node", { list: nodeNames(), help: "empty: the most common kind" })}
      </div>`;
    default:
      return html`<div class="fields">
          ${select(given, "tenant", "Tenant", [["", "choose"], ...tenantNames()])} ${select(given, "pool", "Pool", [["", "all pools"], ...poolNames()])}
          ${input(given, "pods", "Pods", { mode: "numeric", required: true })} ${input(given, "units", "GPUs of each pod", { mode: "numeric", required: true })}
          ${select(given, "band", "Band", ["guaranteed", "low"])}
        </div>
        ${more(html`
          ${resource} ${input(given, "more", "Other requests of each pod", { placeholder: "cpu=4,memory=16Gi" })} ${input(given, "minimum", "Min members", { mode: "numeric", help: "empty: all pods start together" })}
          ${input(given, "priority", "Priority", { mode: "numeric", help: "value of the PriorityClass" })} ${input(given, "runLimit", "Run limit", { placeholder: "90m", help: "90m, 1h30m, 2d" })} ${input(given, "within", "Within one", { placeholder: "topology.kubernetes.io/zone", help: "node label of which all pods share a value" })}
        `)}`;
  }
}

const more = (fields) => html`<details><summary>More</summary><div class="fields">${fields}</div></details>`;

const resources = () => [...new Set(store.list("pools").map((pool) => pool.resource))];
const nodeNames = () => store.derive("node names", () => [...new Set(store.list("nodes").map((node) => node.name))].sort().slice(0, 1000));

function input({ fields, wrong, onChange }, name, label, { list, placeholder = "", help = "", mode = "text", required = false, wide = false } = {}) {
  const message = wrong?.field === name ? wrong.message : "";
  const described = [help && `${name}-help`, message && `${name}-wrong`].filter(Boolean).join(" ");
  return html`<label class="field ${wide ? "wide" : ""}">
    <span>${label}</span>
    <input name=${name} .value=${live(fields[name] ?? "")} placeholder=${placeholder} inputmode=${mode} autocomplete="off" autocapitalize="none" spellcheck="false" list=${list ? `list-${name}` : nothing} aria-required=${required ? "true" : "false"} aria-invalid=${message ? "true" : "false"} aria-describedby=${described || nothing} @input=${(event) => onChange(name, event.target.value)} />
    ${list ? html`<datalist id="list-${name}">${list.map((text) => html`<option value=${text}></option>`)}</datalist>` : nothing}
    ${help ? html`<span class="help" id="${name}-help">${help}</span>` : nothing} ${message ? html`<span class="wrong" id="${name}-wrong">${message}</span>` : nothing}
  </label>`;
}

function select({ fields, wrong, onChange }, name, label, choices) {
  const message = wrong?.field === name ? wrong.message : "";
  return html`<label class="field">
    <span>${label}</span>
    <select name=${name} aria-invalid=${message ? "true" : "false"} aria-describedby=${message ? `${name}-wrong` : nothing} @change=${(event) => onChange(name, event.target.value)}>
      ${options(choices, fields[name] ?? "")}
    </select>
    ${message ? html`<span class="wrong" id="${name}-wrong">${message}</span>` : nothing}
  </label>`;
}
