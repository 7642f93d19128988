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

/**
 * Send a request and return its response. The address is relative, because a proxy may serve the page elsewhere.
 * @throws {RequestError} for every status of 400 and above, and if no answer arrives
 */
export async function send(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
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

/** Return the session of the cookie. */
export const readSession = () => getJson("api/session");

/**
 * Sign in and return the session.
 * @param {string} tenant empty for the platform
 */
export function signIn(token, tenant) {
  return getJson("api/session", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ token, tenant }),
  });
}

/** End the session. */
export const signOut = () => send("api/session", { method: "DELETE" });
