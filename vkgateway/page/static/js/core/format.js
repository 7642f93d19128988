// Numbers, durations and times as text.

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const HOURS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const EXACT = new Intl.DateTimeFormat("en-GB", {
  weekday: "short",
  day: "numeric",
  month: "short",
  year: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  timeZoneName: "short",
});
const HOUR = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const SECOND = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const MONTH_DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "long", timeZone: "UTC" });
const DAY = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short" });

/** Return an amount of units, or a dash if it is unknown. */
export function amount(value) {
  if (value === null || value === undefined) return "–";
  // Most amounts of a large map: Intl takes 30 times as long.
  if (Number.isInteger(value) && value >= 0 && value < 1000) return String(value);
  return isNaN(value) ? value : NUMBER.format(value);
}

/** Return GPU-hours, with one decimal below 100. */
export const hours = (value) => (value < 100 ? HOURS : WHOLE).format(value);

/** Return a count with its noun: `1 gang`, `2 gangs`. */
export const count = (value, one, many = `${one}s`) => `${amount(value)} ${value === 1 ? one : many}`;

/**
 * Return a time of day, with its day if it is 12 hours away or more.
 * @param {number} time seconds since the epoch
 */
export function clockTime(time, now) {
  const then = new Date(time * 1000);
  const text = HOUR.format(then);
  return Math.abs(time - now) < 12 * 3600 ? text : `${DAY.format(then)}, ${text}`;
}

export const secondTime = (time) => SECOND.format(new Date(time * 1000));

export const dayName = (time) => DAY.format(new Date(time * 1000));

/** Return the day on which the next month begins in UTC, as budgets do: `1 December`. */
export function monthStart(time) {
  const then = new Date(time * 1000);
  return MONTH_DAY.format(Date.UTC(then.getUTCFullYear(), then.getUTCMonth() + 1));
}

export const exactTime = (time) => EXACT.format(new Date(time * 1000));

/** Return a duration in its two largest units: `45 s`, `12 min`, `3 h 20 min`, `9 d`. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  const wholeHours = Math.floor(minutes / 60);
  if (wholeHours < 24) return minutes % 60 && wholeHours < 10 ? `${wholeHours} h ${minutes % 60} min` : `${wholeHours} h`;
  const days = Math.floor(wholeHours / 24);
  return wholeHours % 24 && days < 3 ? `${days} d ${wholeHours % 24} h` : `${days} d`;
}

/** Return the rest of a countdown: `0:42`, `12:05`, `1:02:03`. */
export function countdown(seconds) {
  const left = Math.max(0, Math.ceil(seconds));
  const parts = [Math.floor(left / 3600), Math.floor(left / 60) % 60, left % 60];
  if (!parts[0]) parts.shift();
  return parts.map((part, index) => (index ? String(part).padStart(2, "0") : String(part))).join(":");
}

/** Coarser steps the further ahead a time is: seconds ahead, and the seconds to which it is rounded. */
const STEPS = [
  [600, 60],
  [3600, 300],
  [6 * 3600, 1800],
  [24 * 3600, 3600],
  [Infinity, 12 * 3600],
];

function rounded(seconds, round) {
  const [, step] = STEPS.find(([limit]) => seconds <= limit);
  return round(seconds / step) * step;
}

/** Return a rounded duration in one unit: `25 min`, `1.5 h`, `2 d`. */
const coarse = (seconds) => (seconds < 3600 ? `${seconds / 60} min` : seconds < 86_400 ? `${amount(seconds / 3600)} h` : `${amount(seconds / 86_400)} d`);

/**
 * Return the expected start in words, as the command line does, but relative to now: `within a minute`,
 * `in about 5 min`, `in 10–25 min`.
 */
export function startRange(earliest, likely, now) {
  if (earliest === null || earliest === undefined) return "not known";
  const first = Math.max(0, earliest - now);
  if (likely === null || likely === undefined) return first > 600 ? `not before ${clockTime(earliest, now)}` : "not known";
  const last = Math.max(first, likely - now);
  if (last <= 60) return "within a minute";
  const from = rounded(first, Math.floor);
  const to = rounded(last, Math.ceil);
  if (from < 60) return `within ${coarse(to)}`;
  return from === to || to - from <= 60 ? `in about ${coarse(to)}` : `in ${joined(coarse(from), coarse(to))}`;
}

/** Return `10–25 min` for `10 min` and `25 min`; both units are written if they differ. */
function joined(first, last) {
  const [number, unit] = first.split(" ");
  return last.endsWith(` ${unit}`) ? `${number}–${last}` : `${first} to ${last}`;
}

/** Return text whose marks of writing direction are visible: unclosed ones would leave the element that isolates them. */
export const plain = (text) => String(text ?? "").replace(/[\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

/** Return a name protected against its writing direction, for text that cannot hold elements. */
export const isolated = (text) => `\u2068${plain(text)}\u2069`;

/** Return the noun of a resource's units: `GPUs` for nvidia.com/gpu, else the name without its domain. */
export function unitNoun(resource, value = 2) {
  const name = (resource || "nvidia.com/gpu").split("/").pop() ?? "";
  if (/^gpu(\.|$)/.test(name)) return value === 1 ? "GPU" : "GPUs";
  return name;
}

/** Return an amount with its noun: `8 GPUs`. */
export const units = (value, resource = "") => `${amount(value)} ${unitNoun(resource, value)}`;
