// Start of the page: signs in by the address if it holds a token, then opens the session.

import { render } from "../vendor/lit-html/lit-html.js";
import { app, openPage, signInWith } from "./app.js";
import { drawWith, redraw } from "./core/draw.js";
import { leavingGangs } from "./core/facts.js";
import { followAddress } from "./core/route.js";
import { afterDraw, viewChanged } from "./focus.js";
import { frame } from "./frame.js";

const SLOW = 10;

/** Redraw for the passing of time: each second while a countdown or an outage is shown, otherwise every 10 s. */
function tick() {
  let seconds = 0;
  setInterval(() => {
    seconds++;
    if (document.hidden) return;
    const urgent = app.phase === "open" && (app.connection.state === "broken" || leavingGangs().length > 0);
    if (urgent || seconds % SLOW === 0) redraw();
  }, 1000);
}

const root = document.getElementById("page");

/** Return what an address like `#tenant=alpha&reader=jane&token=...` gives, and remove it from address and history. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (location.hash.startsWith("#/") || !given.has("token")) return null;
  history.replaceState(null, "", location.pathname + location.search);
  return { token: given.get("token") ?? "", tenant: given.get("tenant") ?? "", reader: given.get("reader") ?? "" };
}

root.replaceChildren();
const given = takeToken();
drawWith(() => {
  render(frame(app), root);
  afterDraw();
});
followAddress((other) => {
  if (other) viewChanged();
  redraw();
});
addEventListener("hashchange", () => {
  const late = takeToken();
  if (late) void signInWith(late.token, late.tenant, late.reader);
});
tick();
redraw();
if (given) void signInWith(given.token, given.tenant, given.reader);
else void openPage();
