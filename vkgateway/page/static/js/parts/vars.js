// Directive that sets custom properties of an element through its style object: style attributes are forbidden.

import { directive, Directive, PartType } from "../../vendor/lit-html/directive.js";
import { noChange } from "../../vendor/lit-html/lit-html.js";

class Vars extends Directive {
  constructor(part) {
    super(part);
    if (part.type !== PartType.ELEMENT) throw new Error("vars belongs to an element");
    this.before = {};
  }

  render(values) {
    return noChange;
  }

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
