// The document of the gateway: sections of objects by key, changed in place by deltas.

/** @typedef {Record<string, any> & {$key: string}} Item */

const SECTIONS = ["pools", "tenants", "gangs", "nodes", "timeline", "clusters", "controlPlanes"];

/** The document. `version` grows with each change, so that derived lists know when they are outdated. */
export class Store {
  constructor() {
    this.version = 0;
    /** Number of the session: objects of an earlier one must not be shown. */
    this.session = 0;
    /** Whether a state has arrived. */
    this.filled = false;
    this.leading = true;
    /** Time of the gateway at the last change, in seconds since the epoch. */
    this.time = 0;
    this.sections = new Map();
    this.clear();
  }

  clear() {
    this.filled = false;
    this.sections = new Map(SECTIONS.map((name) => [name, new Map()]));
    this.session++;
    this.version++;
  }

  /** Replace everything. */
  replace(document) {
    this.sections = new Map(
      SECTIONS.map((name) => [name, new Map(Object.entries(document[name] ?? {}).map(([key, value]) => [key, item(key, value)]))]),
    );
    this.filled = true;
    this.leading = document.leading !== false;
    this.time = document.time ?? 0;
    this.version++;
  }

  /** Apply a delta. */
  apply(delta) {
    for (const [name, objects] of Object.entries(delta.set ?? {})) {
      const section = this.sections.get(name);
      if (section) for (const [key, value] of Object.entries(objects)) section.set(key, item(key, value));
    }
    for (const [name, objects] of Object.entries(delta.change ?? {})) {
      const section = this.sections.get(name);
      // A changed object is a new one: what is drawn from it knows by its identity.
      if (section) for (const [key, fields] of Object.entries(objects)) section.set(key, item(key, { ...section.get(key), ...fields }));
    }
    for (const [name, keys] of Object.entries(delta.remove ?? {})) {
      const section = this.sections.get(name);
      if (section) for (const key of keys) section.delete(key);
    }
    this.leading = delta.leading !== false;
    this.time = delta.time ?? this.time;
    this.version++;
  }

  /** Return an object of a section. */
  get(section, key) {
    return this.sections.get(section)?.get(key);
  }

  /** Return a section's objects in the order of their keys. The same array is returned until the document changes. */
  list(section) {
    return this.derive(`list ${section}`, () => [...(this.sections.get(section)?.values() ?? [])].sort(section === "timeline" ? byNumber : byKey));
  }

  /** Return a value derived from the document, computed once for each version. */
  derive(name, compute) {
    if (this.derivedVersion !== this.version) {
      this.derived = new Map();
      this.derivedVersion = this.version;
    }
    const known = this.derived;
    if (!known.has(name)) known.set(name, compute());
    return known.get(name);
  }
}

const byKey = (one, other) => (one.$key < other.$key ? -1 : one.$key > other.$key ? 1 : 0);
const byNumber = (one, other) => one.$key - other.$key;

function item(key, value) {
  value.$key = key;
  return value;
}

export const store = new Store();
