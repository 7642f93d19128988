// Announcements for screen readers: few, joined, and never for a mere tick.

import { now } from "./core/clock.js";
import { duration, isolated } from "./core/format.js";
import { store } from "./core/store.js";

const PAUSE_MS = 4000;

let pending = [];
let timer = 0;

/** Announce a sentence. Sentences within four seconds are announced together. */
export function announce(text) {
  pending.push(text);
  timer ||= setTimeout(flush, 200);
}

function flush() {
  const region = document.getElementById("announcements");
  const more = pending.length - 3;
  if (region) region.textContent = pending.slice(0, 3).join(" ") + (more > 0 ? ` And ${more} more.` : "");
  pending = [];
  timer = setTimeout(() => {
    timer = 0;
    if (pending.length) flush();
  }, PAUSE_MS);
}

/** Return sentences about a delta that is not applied yet. Platform admins get none: too much happens. */
export function newsOf(delta, scope) {
  if (scope !== "tenant") return [];
  const news = [];
  const changed = Object.entries(delta.change?.gangs ?? {}).map(([key, fields]) => [key, { ...store.get("gangs", key), ...fields }]);
  for (const [key, gang] of [...Object.entries(delta.set?.gangs ?? {}), ...changed]) {
    const before = store.get("gangs", key)?.state ?? "";
    const name = isolated(`${gang.namespace}/${gang.name}`);
    if (gang.state === "leaving" && before !== "leaving") {
      const left = gang.deadline ? ` in ${duration(gang.deadline - now())}` : "";
      news.push(`Eviction: ${name} is deleted${left}.`);
    } else if (before === "leaving" && gang.state === "running") {
      news.push(`The eviction of ${name} is withdrawn.`);
    } else if (before === "waiting" && gang.state !== "waiting") {
      news.push(`${name} starts.`);
    }
  }
  return news;
}
