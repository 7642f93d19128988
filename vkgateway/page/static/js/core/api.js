// Requests to the gateway, and the problems that it answers.

/** @typedef {{message: string, hint: string, status: number}} Problem */

/** A request failed; `problem.status` is 0 if no answer arrived. */
export class RequestError extends Error {
  constructor(problem) {
    super(problem.message);
    this.problem = problem;
  }
}

const UNREACHABLE = {
  message: "The gateway does not answer.",
  hint: "The page tries again by itself. If this lasts, check that the gateway runs and that the network reaches it.",
  status: 0,
};

/** Name of the session's key in the storage of this origin. Every port of the host receives the cookie, but not the key. */
const KEY = "vkgateway-session";
/** Name of the reader that the address gave, in the same storage. */
const READER = "vkgateway-reader";
/** What the browser does not store. */
const unstored = new Map();

function read(name) {
  try {
    return localStorage.getItem(name) ?? unstored.get(name) ?? "";
  } catch {
    return unstored.get(name) ?? "";
  }
}

function keep(name, text) {
  unstored.set(name, text);
  try {
    localStorage.setItem(name, text);
  } catch {
    // It ends with this page.
  }
}

/**
 * Send a request and return its response. The address is relative, because a proxy may serve the page elsewhere.
 * @throws {RequestError} for every status of 400 and above, and if no answer arrives
 */
export async function send(path, options = {}) {
  let response;
  try {
    const headers = { ...options.headers, "X-Vkgateway-Session": read(KEY) };
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(UNREACHABLE);
  }
  if (!response.ok) throw new RequestError(await readProblem(response));
  return response;
}

/** Return the JSON of an answer. */
export async function getJson(path, options) {
  const response = await send(path, options);
  try {
    return await response.json();
  } catch {
    throw new RequestError({ ...UNREACHABLE, message: "The gateway's answer was cut off." });
  }
}

/** Return the problem of a failed response; a proxy may have written any other text. */
async function readProblem(response) {
  const status = response.status;
  try {
    const body = await response.json();
    return { message: String(body.message || `The gateway answered ${status}.`), hint: String(body.hint || ""), status };
  } catch {
    return { message: `The gateway answered ${status} ${response.statusText}.`.replace(" .", "."), hint: "", status };
  }
}

/** Return the session of the cookie and the key. */
export const readSession = async () => ({ ...(await getJson("api/session")), reader: read(READER) });

/**
 * Sign in and return the session.
 * @param {string} tenant empty for the platform
 * @param {string} reader name to show instead of the account's
 */
export async function signIn(token, tenant, reader) {
  const { key, ...session } = await getJson("api/session", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ token, tenant }),
  });
  keep(KEY, key);
  keep(READER, reader);
  return { ...session, reader };
}

/** End the session. */
export const signOut = () => send("api/session", { method: "DELETE" });
