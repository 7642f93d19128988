// Facts derived from the document: queues, order, units and tenants' signs. Each is computed once for a version.

import { store } from "./store.js";

/** @typedef {import("./store.js").Item} Item */

/** Whether a gang waits, or some of its pods wait while others run. */
export const isWaiting = (gang) => gang.state === "waiting" || gang.placed < gang.pods;

/** Compare waiting gangs: by pool and place; gangs without a place after them, the oldest first. */
export function byPlace(one, other) {
  return (
    Number(!one.place) - Number(!other.place) ||
    compareText(one.pool, other.pool) ||
    one.place - other.place ||
    (one.since ?? 0) - (other.since ?? 0) ||
    compareText(one.id, other.id)
  );
}

export const compareText = (one, other) => (one < other ? -1 : one > other ? 1 : 0);

/** Return the gangs with waiting pods, in queue order. */
export const waitingGangs = () => store.derive("waiting", () => store.list("gangs").filter(isWaiting).sort(byPlace));

/** Return the gangs that are evicted, those with the next deadline first. */
export const leavingGangs = () =>
  store.derive("leaving", () =>
    store
      .list("gangs")
      .filter((gang) => gang.state === "leaving")
      .sort((one, other) => (one.deadline ?? Infinity) - (other.deadline ?? Infinity)),
  );

/**
 * Return the gangs in the queue of a pool, in order. The queue of a gang in several pools is that of its `pool`.
 * @param {string} pool name of the virtual node
 */
export function queueOf(pool) {
  const queues = store.derive("queues", () => {
    const found = new Map();
    for (const gang of waitingGangs()) {
      if (!gang.place) continue;
      const queue = found.get(gang.pool);
      if (queue) queue.push(gang);
      else found.set(gang.pool, [gang]);
    }
    return found;
  });
  return queues.get(pool) ?? [];
}

/** Return the names of all pools, by their virtual nodes. */
export const poolNames = () =>
  store.derive("pool names", () => {
    const names = new Set(store.list("pools").map((pool) => pool.node));
    for (const tenant of store.list("tenants")) names.add(`${tenant.pool}.${tenant.computeCluster}`);
    return [...names].sort();
  });

/**
 * Return the first resource of a pool, in which the units of gangs are counted.
 * @param {string} pool name of the virtual node
 */
export function resourceOf(pool) {
  const resources = store.derive("resources", () => {
    const found = new Map();
    for (const report of store.list("pools")) if (!found.has(report.node)) found.set(report.node, report.resource);
    for (const tenant of store.list("tenants")) {
      const node = `${tenant.pool}.${tenant.computeCluster}`;
      if (!found.has(node)) found.set(node, tenant.resource);
    }
    return found;
  });
  return resources.get(pool) ?? "nvidia.com/gpu";
}

/** Return the names of all tenants. */
export const tenantNames = () =>
  store.derive("tenant names", () => {
    const names = new Set(store.list("tenants").map((tenant) => tenant.tenant));
    for (const key of store.sections.get("controlPlanes")?.keys() ?? []) names.add(key);
    for (const node of store.list("nodes")) for (const part of node.parts ?? []) names.add(part.tenant);
    return [...names].sort();
  });

/** Return the sign of a tenant on the map: a colour (0 to 9) and the shortest letters that no other tenant has. */
export function signOf(tenant) {
  const signs = store.derive("signs", () => {
    const found = new Map();
    const used = new Set();
    tenantNames().forEach((name, index) => {
      const letters = shortName(name, used);
      used.add(letters.toLowerCase());
      found.set(name, { colour: index % 10, letters });
    });
    return found;
  });
  return signs.get(tenant) ?? { colour: 9, letters: "?" };
}

function shortName(name, used) {
  const letters = [...name.normalize("NFKD")].filter((letter) => /[\p{L}\p{N}]/u.test(letter));
  const first = (letters[0] ?? "?").toUpperCase();
  if (!used.has(first.toLowerCase())) return first;
  for (const second of [...letters.slice(1), ..."123456789abcdefghijklmnopqrstuvwxyz"]) {
    const both = first + second.toLowerCase();
    if (!used.has(both.toLowerCase())) return both;
  }
  return first;
}

const SEARCHED = new WeakMap();

/**
 * Whether a gang matches all words of a search.
 * @param {string[]} words in lower case
 */
export function gangMatches(gang, words) {
  let text = SEARCHED.get(gang);
  if (text === undefined) {
    text = [gang.tenant, gang.namespace, gang.name, gang.state, gang.band, gang.code, gang.message, ...(gang.pools ?? []), gang.pool]
      .join("\n")
      .toLowerCase();
    SEARCHED.set(gang, text);
  }
  return words.every((word) => text.includes(word));
}

export const searchWords = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);
