// Connection to the stream of changes: reads it, watches for silence, and reconnects with a growing delay.

import { takeStream } from "../ahead.js";
import { RequestError, send } from "./api.js";

/** The gateway writes at least every 15 s. */
const SILENCE_MS = 40_000;
const DELAYS_MS = [300, 1000, 2000, 4000, 8000, 15_000];

/**
 * @typedef {object} StreamHandlers
 * @property {(document: any) => void} onState
 * @property {(delta: any) => void} onDelta
 * @property {(problem: import("./api.js").Problem | null) => void} onBroken the stream ended; it is retried
 * @property {(problem: import("./api.js").Problem) => void} onEnd the session is over; nothing is retried
 */

/** Stream that reconnects until it is stopped or the session ends. */
export class Stream {
  constructor(handlers) {
    this.handlers = handlers;
    this.failures = 0;
    this.stopped = true;
    this.request = null;
    this.wake = () => {};
    this.retryNow = () => this.wake();
  }

  start() {
    this.stopped = false;
    addEventListener("online", this.retryNow);
    document.addEventListener("visibilitychange", this.retryNow);
    void this.run();
  }

  stop() {
    this.stopped = true;
    removeEventListener("online", this.retryNow);
    document.removeEventListener("visibilitychange", this.retryNow);
    this.request?.abort();
    this.wake();
  }

  async run() {
    while (!this.stopped) {
      const problem = await this.readOnce();
      if (this.stopped) return;
      if (problem && (problem.status === 401 || problem.status === 403)) {
        this.stop();
        this.handlers.onEnd(problem);
        return;
      }
      this.handlers.onBroken(problem);
      await this.pause();
    }
  }

  /** Read the stream until it breaks. Returns the problem; null: the gateway closed it. */
  async readOnce() {
    const request = (this.request = new AbortController());
    let timer = setTimeout(() => request.abort(), SILENCE_MS);
    try {
      const response = await (takeStream(request.signal) ?? send("api/stream", { signal: request.signal, headers: { Accept: "text/event-stream" } }));
      const reader = response.body.getReader();
      const decoder = new TextDecoder();
      const parse = eventParser((event, data) => this.handle(event, data));
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return null;
        clearTimeout(timer);
        timer = setTimeout(() => request.abort(), SILENCE_MS);
        parse(decoder.decode(value, { stream: true }));
        if (this.stopped) return null;
      }
    } catch (error) {
      return error instanceof RequestError ? error.problem : null;
    } finally {
      clearTimeout(timer);
      request.abort();
    }
  }

  handle(event, data) {
    if (this.stopped) return;
    const content = JSON.parse(data);
    if (event === "state") {
      this.failures = 0;
      this.handlers.onState(content);
    } else if (event === "delta") {
      this.handlers.onDelta(content);
    } else if (event === "end") {
      this.stop();
      this.handlers.onEnd({ message: content.message, hint: content.hint || "", status: 401 });
    }
  }

  /** Wait before the next attempt; `retryNow` ends the wait. */
  pause() {
    const delay = DELAYS_MS[Math.min(this.failures++, DELAYS_MS.length - 1)] * (0.75 + Math.random() / 2);
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, delay);
      this.wake = () => {
        clearTimeout(timer);
        resolve(undefined);
      };
    });
  }
}

/**
 * Return a function that takes pieces of text and calls `onEvent(event, data)` for each complete event.
 * Comments are ignored, as the format requires.
 */
function eventParser(onEvent) {
  let rest = "";
  let event = "";
  let data = [];
  const take = (line) => {
    if (line === "") {
      if (data.length) onEvent(event || "message", data.join("\n"));
      event = "";
      data = [];
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "event") event = value;
    if (field === "data") data.push(value);
  };
  return (text) => {
    // A large state arrives in many pieces: only the new piece is searched for line ends.
    const lines = text.split("\n");
    lines[0] = rest + lines[0];
    rest = lines.pop();
    for (const line of lines) take(line.endsWith("\r") ? line.slice(0, -1) : line);
  };
}
