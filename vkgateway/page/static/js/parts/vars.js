// Directive that sets custom properties of an element through its style object: style attributes are forbidden.

import { directive, Directive, PartType } from "../../vendor/lit-html/directive.js";
import { noChange } from "../../vendor/lit-html/lit-html.js";

class Vars extends Directive {
  /** @param {import("../../vendor/lit-html/directive.js").PartInfo} part */
  constructor(part) {
    super(part);
    if (part.type !== PartType.ELEMENT) throw new Error("vars belongs to an element");
    /** @type {Record<string, string | number>} */
    this.before = {};
  }

  /** @param {Record<string, string | number>} values */
  render(values) {
    return noChange;
  }

  /** @param {[Record<string, string | number>]} values */
  update(part, [values]) {
    for (const [name, value] of Object.entries(values)) {
      if (this.before[name] !== value) part.element.style.setProperty(name, String(value));
    }
    this.before = values;
    return noChange;
  }
}

/** Set custom properties: `<i ${vars({"--n": 3})}></i>`. */
export const vars = directive(Vars);
