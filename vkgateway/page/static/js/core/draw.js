// Redraws: at most one for each frame, and none while the page is hidden.

let drawPage = () => {};
let asked = false;

/** Set the function that draws the page. */
export function drawWith(draw) {
  drawPage = draw;
  document.addEventListener("visibilitychange", redraw);
}

/** Draw the page in the next frame. */
export function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    drawPage();
  });
}

/** Draw the page at once. */
redraw.now = () => drawPage();
