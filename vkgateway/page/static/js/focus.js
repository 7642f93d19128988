// Where the focus goes when the view or the open details change.

import { value } from "./core/route.js";

let moveToTitle = false;
let detailsBefore = null;

/** After the next drawing, the focus goes to the title of the new view. */
export function viewChanged() {
  moveToTitle = true;
}

/** Move the focus if the drawing changed the view or the details. */
export function afterDraw() {
  if (!document.getElementById("title")) return;
  const details = value("gang");
  const before = detailsBefore;
  detailsBefore = details;
  if (moveToTitle) {
    moveToTitle = false;
    scrollTo(0, 0);
    focusOn(details ? "detail-title" : "title");
  } else if (before !== null && before !== details) {
    if (details) focusOn("detail-title");
    else linkOf(before)?.focus({ preventScroll: true });
  }
}

function focusOn(id) {
  document.getElementById(id)?.focus({ preventScroll: id === "title" });
}

function linkOf(key) {
  const links = document.querySelectorAll("a.gang-link");
  return [...links].find((link) => new URLSearchParams(link.hash.split("?")[1]).get("gang") === key);
}
