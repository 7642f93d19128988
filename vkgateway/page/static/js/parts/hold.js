// Order of rows while a reader points at them or has the focus in them: rows stay where they are, so that clicks meet.

import { redraw } from "../core/draw.js";
import { drawnAddress } from "../core/route.js";
import { store } from "../core/store.js";

/** @typedef {import("../core/store.js").Item} Item */

/** Rows as they were drawn last, by the name of their list. */
const DRAWN = new Map();

let mouse = false;
addEventListener("pointermove", (event) => (mouse = event.pointerType === "mouse"), { passive: true });

/** Whether a reader is among the rows: with the mouse, or with the keyboard. A touch leaves no pointer behind. */
function isRead(name) {
  const rows = document.querySelector(`[data-hold="${CSS.escape(name)}"]`);
  if (!rows) return false;
  return (mouse && rows.matches(":hover")) || rows.querySelector(":focus-visible") !== null;
}

/**
 * Return the rows to show: the current page or, while it is read, the rows drawn last with current values. Rows that
 * ended meanwhile stay, marked. Any change of view, filters, order or page releases the order.
 * @param {string} name of the list; its element has it as `data-hold`
 */
export function heldRows(name, page, find) {
  const view = drawnAddress();
  const last = DRAWN.get(name);
  const held = last !== undefined && last.view === view && last.session === store.session && isRead(name);
  const rows = (held ? last.rows : page).map((item) => ({ item: find(item.$key) ?? item, ended: find(item.$key) === undefined }));
  DRAWN.set(name, { view, session: store.session, rows: rows.map(({ item }) => item) });
  if (!held) return { rows, changed: 0 };
  const changed = rows.filter(({ item, ended }, index) => ended || page[index]?.$key !== item.$key).length;
  return { rows, changed: changed + Math.max(0, page.length - rows.length) };
}

/** Listeners of the element with the rows: the order is current again when the reader has left. */
export const release = () => redraw();
