// The view and its filters, kept in the address after `#`: #/gangs?q=train&gang=...

let current = parse(location.hash);
let changed = () => {};

function parse(hash) {
  // Anything else, such as a token, must not become a part of later addresses.
  if (!hash.startsWith("#/")) return { view: "", values: new URLSearchParams() };
  const [view, query] = hash.slice(2).split("?");
  return { view: view ?? "", values: new URLSearchParams(query ?? "") };
}

/** Call a function when the address changes. */
export function followAddress(onChange) {
  changed = () => {
    const before = current.view;
    current = parse(location.hash);
    onChange(before !== current.view);
  };
  addEventListener("hashchange", changed);
}

export const route = () => current;

/**
 * Return the address of the view that is drawn. That of the browser is ahead of it from a click until `hashchange`,
 * and a clock or an arriving change may draw between them.
 */
export const drawnAddress = () => changedAddress({});

/** Return the text of a filter; empty if it is not set. */
export const value = (name) => current.values.get(name) ?? "";

/** Return the address of a view. */
export function address(view, values = {}) {
  const query = new URLSearchParams(Object.entries(values).filter(([, text]) => text !== ""));
  return `#/${view}${query.size ? `?${query}` : ""}`;
}

/** Return the address of the same view with some filters changed; empty text removes a filter. */
export function changedAddress(values) {
  const all = Object.fromEntries(current.values);
  return address(current.view, { ...all, ...values });
}

/** Change filters without a new entry in the history of the browser. */
export function change(values) {
  history.replaceState(null, "", changedAddress(values));
  changed();
}

/** Go to an address with a new entry in the history. */
export function go(to) {
  if (location.hash === to) return;
  location.hash = to;
}
