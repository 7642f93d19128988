// Requests for session and state before the rest of the page has arrived: both need time of their own.

import { readSession, send } from "./core/api.js";

const signsIn = !location.hash.startsWith("#/") && /[#&]token=/.test(location.hash);
const stop = new AbortController();
let session = signsIn ? null : readSession();
let stream = signsIn ? null : send("api/stream", { signal: stop.signal, headers: { Accept: "text/event-stream" } });

// Failures are handled by who takes the answers.
session?.catch(() => {});
stream?.catch(() => {});

/** Return the session that was asked for; null: it was taken, or never asked for. */
export function takeSession() {
  const asked = session;
  session = null;
  return asked;
}

/** Return the stream that was asked for, which ends with the signal; null as for the session. */
export function takeStream(signal) {
  const asked = stream;
  stream = null;
  if (asked) signal.addEventListener("abort", () => stop.abort());
  return asked;
}

/** Give up what nobody took: another session begins. */
export function dropAhead() {
  session = stream = null;
  stop.abort();
}
