// What is near the window: content of a long list is drawn only there. `content-visibility` lays out each element alone.

import { directive, Directive } from "../../vendor/lit-html/directive.js";
import { noChange } from "../../vendor/lit-html/lit-html.js";
import { redraw } from "../core/draw.js";

/** Keys of elements that were near the window. They stay drawn. */
const SEEN = new Set();
const KEYS = new WeakMap();

const observer = new IntersectionObserver(note, { rootMargin: "300px" });
let all = false;

function note(entries) {
  const near = entries.filter((entry) => entry.isIntersecting);
  for (const { target } of near) {
    SEEN.add(KEYS.get(target));
    observer.unobserve(target);
  }
  if (near.length) redraw();
}

// On paper, everything is near.
addEventListener("beforeprint", () => {
  all = true;
  redraw.now();
});

/** Whether the content of an element is drawn. */
export const isNear = (key) => all || SEEN.has(key);

class WhenNear extends Directive {
  render(key) {
    return noChange;
  }

  update(part, [key]) {
    if (KEYS.get(part.element) === key) return noChange;
    KEYS.set(part.element, key);
    observer.observe(part.element);
    return noChange;
  }
}

/** Redraw when an element comes near: `<button ${whenNear(key)}>`. */
export const whenNear = directive(WhenNear);
