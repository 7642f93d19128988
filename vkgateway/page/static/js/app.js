// State of the page: session, connection, and what changes them.

import { dropAhead, takeSession } from "./ahead.js";
import { announce, newsOf } from "./announce.js";
import { readSession, RequestError, signIn, signOut } from "./core/api.js";
import { learnTime } from "./core/clock.js";
import { redraw } from "./core/draw.js";
import { history24, starts, usage } from "./core/remote.js";
import { store } from "./core/store.js";
import { Stream } from "./core/stream.js";

/** @typedef {{user: string, reader: string, scope: "platform" | "tenant", tenant: string, expires: number | null, version: string, documentation: string, namespaces: string[] | null}} Session */
/** @typedef {import("./core/api.js").Problem} Problem */

/** How long opening may take before the page says so. */
export const PATIENCE_MS = 300;

export const app = {
  /** opening: the session is not known; signed-out: the form is shown; open: the views are shown. */
  phase: "opening",
  session: null,
  /** Why the session could not be opened, or why it ended. */
  problem: null,
  /** Whether a request to sign in is on its way. */
  busy: false,
  /** Whether the session ended while the page was open. */
  ended: false,
  /** Time in ms from which on waiting is worth a word. */
  patientUntil: 0,
  connection: {
    state: "connecting",
    /** Time in ms of the break. */
    since: 0,
    problem: null,
  },
  /** Another version of the gateway serves the page since. */
  outdated: false,
};

let stream = null;
let openFailures = 0;

function startPatience() {
  app.patientUntil = performance.now() + PATIENCE_MS;
  setTimeout(redraw, PATIENCE_MS + 10);
}

/** Open the session of the cookie, or show the form. Retries while the gateway does not answer. */
export async function openPage() {
  app.phase = "opening";
  if (!openFailures) startPatience();
  redraw();
  try {
    open(await (takeSession() ?? readSession()));
  } catch (error) {
    dropAhead();
    const problem = problemOf(error);
    if (problem.status === 401 || problem.status === 403) {
      openFailures = 0;
      signedOut(null);
      return;
    }
    app.problem = problem;
    redraw();
    setTimeout(() => void openPage(), Math.min(10_000, 1000 * 2 ** openFailures++));
  }
}

/** Sign in with a token, which another name may stand for than that of its account. */
export async function signInWith(token, tenant, reader = "") {
  stream?.stop();
  dropAhead();
  app.phase = "signed-out";
  app.busy = true;
  app.problem = null;
  redraw();
  try {
    open(await signIn(token, tenant, reader));
  } catch (error) {
    app.problem = problemOf(error);
  } finally {
    app.busy = false;
    redraw();
  }
}

/** Sign out, also if the gateway does not answer. */
export async function leave() {
  stream?.stop();
  try {
    await signOut();
    signedOut(null);
  } catch (error) {
    const { message, status } = problemOf(error);
    const hint = "The session may still be open at the gateway. Close the browser, or sign out again later.";
    signedOut({ message: `Signing out failed: ${message}`, hint, status });
  }
}

function open(session) {
  openFailures = 0;
  store.clear();
  history24.forget();
  usage.forget();
  starts.forget();
  Object.assign(app, { phase: "open", session, problem: null, ended: false, outdated: false });
  app.connection = { state: "connecting", since: Date.now(), problem: null };
  startPatience();
  stream = new Stream({ onState, onDelta, onBroken, onEnd });
  stream.start();
  redraw();
}

function signedOut(problem) {
  stream?.stop();
  app.phase = "signed-out";
  app.problem = problem;
  app.session = null;
  store.clear();
  redraw();
}

function onState(document) {
  const again = app.connection.state === "broken";
  store.replace(document);
  learnTime(document.time);
  app.connection = { state: "live", since: Date.now(), problem: null };
  if (again) {
    announce("Connected again. The page is current.");
    void compareSession();
  }
  redraw();
}

function onDelta(delta) {
  if (app.session) for (const text of newsOf(delta, app.session.scope)) announce(text);
  store.apply(delta);
  learnTime(delta.time);
  redraw();
}

function onBroken(problem) {
  if (app.connection.state === "live") announce("The connection is lost. The page shows old data.");
  const since = app.connection.state === "broken" ? app.connection.since : Date.now();
  app.connection = { state: "broken", since, problem };
  redraw();
}

function onEnd(problem) {
  app.ended = true;
  signedOut(problem);
}

/** After a break, the gateway may serve another version of this page, or the reader may see other namespaces. */
async function compareSession() {
  try {
    const session = await readSession();
    if (app.session) {
      app.outdated = session.version !== app.session.version;
      app.session = { ...app.session, namespaces: session.namespaces };
    }
    redraw();
  } catch {
    // The stream notices the end of the session by itself.
  }
}

/** Connect now instead of after the delay. */
export const reconnect = () => stream?.retryNow();

export function problemOf(error) {
  if (error instanceof RequestError) return error.problem;
  return { message: String(error?.message ?? error), hint: "Reload the page.", status: 0 };
}
