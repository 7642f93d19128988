// Small templates: names, times, chips, icons and empty states.

import { html, nothing, svg } from "../../vendor/lit-html/lit-html.js";
import { now } from "../core/clock.js";
import { signOf } from "../core/facts.js";
import { countdown, duration, exactTime, monthStart, plain, startRange } from "../core/format.js";
import { address } from "../core/route.js";
import { STATES } from "../core/words.js";

/** Outlines of icons in a square of 16 units. */
const SHAPES = {
  waiting: svg`<circle cx="8" cy="8" r="5.5" fill="none" stroke="currentColor" stroke-width="2"/><path d="M8 5v3.5l2 1.5" fill="none" stroke="currentColor" stroke-width="1.5"/>`,
  starting: svg`<circle cx="8" cy="8" r="5.5" fill="none" stroke="currentColor" stroke-width="2"/><path d="M8 2.5a5.5 5.5 0 0 1 0 11z" fill="currentColor"/>`,
  running: svg`<circle cx="8" cy="8" r="6.5" fill="currentColor"/>`,
  leaving: svg`<path d="M8 1.5 15 14.5H1z" fill="none" stroke="currentColor" stroke-width="2" stroke-linejoin="round"/><path d="M8 6v4M8 11.2v1.4" stroke="currentColor" stroke-width="1.6"/>`,
  good: svg`<path d="m2.5 8.5 3.5 3.5 7.5-8" fill="none" stroke="currentColor" stroke-width="2.2"/>`,
  bad: svg`<path d="m3 3 10 10M13 3 3 13" fill="none" stroke="currentColor" stroke-width="2.2"/>`,
  unknown: svg`<path d="M5 6a3 3 0 1 1 4 2.8c-.8.3-1 .7-1 1.7M8 12v1.6" fill="none" stroke="currentColor" stroke-width="2"/>`,
  info: svg`<circle cx="8" cy="8" r="6.5" fill="none" stroke="currentColor" stroke-width="1.6"/><path d="M8 7v4.5M8 4.2v1.6" stroke="currentColor" stroke-width="1.8"/>`,
  left: svg`<path d="M10.5 3 5.5 8l5 5" fill="none" stroke="currentColor" stroke-width="2"/>`,
  right: svg`<path d="m5.5 3 5 5-5 5" fill="none" stroke="currentColor" stroke-width="2"/>`,
};

export const icon = (name) => html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">${SHAPES[name]}</svg>`;

/** Text from outside, isolated: its writing direction does not leak, and any length wraps. */
export const foreign = (text) => html`<bdi class="foreign">${plain(text)}</bdi>`;

/** A name in one line, cut by its cell; the whole name is its title. */
export const shortName = (text) => html`<bdi class="short" title=${plain(text)}>${plain(text)}</bdi>`;

/** Namespace and name of a gang. */
export const gangName = (gang) =>
  html`<span class="gang-name"><bdi class="short" title=${plain(`${gang.namespace}/${gang.name}`)}><span class="dim">${plain(gang.namespace)}/</span>${plain(gang.name)}</bdi></span>`;

/** Link to the details of a gang in the current scope's list. */
export const gangLink = (gang, view = "gangs") => html`<a class="gang-link" href=${address(view, { gang: gang.$key ?? gang.id })}>${gangName(gang)}</a>`;

/** Name of a tenant with its sign: colour and letters, as on the map. */
export function tenantName(tenant) {
  const { colour, letters } = signOf(tenant);
  return html`<span class="tenant"><i class="sign t${colour}" aria-hidden="true">${letters}</i>${shortName(tenant)}</span>`;
}

const iso = (time) => new Date(time * 1000).toISOString();

/** Time since a moment: `12 min`. */
export const since = (time, suffix = "") =>
  time === null || time === undefined
    ? html`<span class="dim">–</span>`
    : html`<time datetime=${iso(time)} title=${exactTime(time)}>${duration(now() - time)}${suffix}</time>`;

/** A moment with given text; its title is the exact time. */
export const moment = (time, text) => html`<time datetime=${iso(time)} title=${exactTime(time)}>${text}</time>`;

/** Countdown to a moment. */
export const timer = (time) =>
  time === null || time === undefined
    ? html`<span class="countdown">soon</span>`
    : html`<time class="countdown" role="timer" datetime=${iso(time)} title=${exactTime(time)}>${time > now() ? countdown(time - now()) : "now"}</time>`;

/** Expected start of a waiting gang; its title has both times. */
export function expectedStart(gang) {
  const text = startText(gang);
  const title = [gang.earliest && `earliest ${exactTime(gang.earliest)}`, gang.likely && `likely by ${exactTime(gang.likely)}`];
  return html`<span class="start" title=${title.filter(Boolean).join("; ") || nothing}>${text}</span>`;
}

/** Return the expected start of a waiting gang in words. */
export function startText(gang) {
  if (gang.code === "Infeasible" || gang.code === "Invalid") return "never in this form";
  if (gang.code === "BudgetUsedUp" && (gang.earliest ?? null) === null) return `with the next budget, on ${monthStart(now())}`;
  if (gang.code === "WaitingForEviction" && (gang.earliest ?? null) === null) return "after the evictions";
  return startRange(gang.earliest, gang.likely, now());
}

/** State of a gang: icon and word. */
export const stateChip = (state) => html`<span class="chip state-${state in STATES ? state : "unknown"}">${icon(state in STATES ? state : "unknown")}${STATES[state] ?? state}</span>`;

/** What would appear here, and how to make it. */
export const empty = (title, text, command = "") => html`
  <div class="empty">
    <p class="empty-title">${title}</p>
    <p>${text}</p>
    ${command ? html`<pre tabindex="0"><code>${command}</code></pre>` : nothing}
  </div>
`;

/** Problem in words with its way out. */
export const problemBox = (problem, action = nothing) => html`
  <div class="problem" role="alert">
    ${icon("leaving")}
    <div>
      <p class="problem-title">${foreign(problem.message)}</p>
      ${problem.hint ? html`<p>${foreign(problem.hint)}</p>` : nothing} ${action}
    </div>
  </div>
`;
