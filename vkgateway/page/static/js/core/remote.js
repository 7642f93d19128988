// Data that a view fetches when it is shown, and again when it is old.

import { getJson, RequestError } from "./api.js";
import { redraw } from "./draw.js";

/** Answer of a path, kept for `maxAge` seconds. */
export class Remote {
  constructor(path, maxAge) {
    this.path = path;
    this.maxAge = maxAge;
    this.forget();
  }

  /** Drop the answer, such as at the end of a session. */
  forget() {
    this.data = null;
    this.problem = null;
    this.fetched = -Infinity;
    this.request = {};
  }

  /** Return this, and fetch if the answer is missing or old. Call it while drawing. */
  want() {
    if (performance.now() / 1000 - this.fetched > this.maxAge) {
      this.fetched = performance.now() / 1000;
      void this.fetch();
    }
    return this;
  }

  async fetch() {
    const request = (this.request = {});
    let data = this.data;
    let problem = null;
    try {
      data = await getJson(this.path);
    } catch (error) {
      problem = error instanceof RequestError ? error.problem : { message: String(error), hint: "", status: 0 };
      // Soon again: the gateway may be restarting.
      this.fetched = performance.now() / 1000 - this.maxAge + 5;
    }
    if (request !== this.request) return;
    this.data = data;
    this.problem = problem;
    redraw();
  }
}

/** The last 24 hours: used, borrowed and waiting units. */
export const history24 = new Remote("api/history", 60);

/** Starts of pods by phase. */
export const starts = new Remote("api/starts", 15);

/** GPU-hours of the last days. */
export const usage = new Remote("api/usage?days=31", 300);
