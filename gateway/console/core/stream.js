/**
 * The one event stream of a tab. Reconnects with the position of the last event, so that nothing is lost or comes
 * twice; at once when the network or the page wakes.
 */
import { ApiError, asApiError } from "./api.js";
import { SseParser } from "./sse.js";

/**
 * @typedef {{ phase: "connecting" | "open" | "waiting" | "stopped", retryAt: number | null, error: ApiError | null }} Connection
 * @typedef {{ id: string, event: import("./types.js").EventLine }} StreamedEvent
 *
 * @typedef {object} StreamHandlers
 * @property {(connection: Connection) => void} onConnection
 * @property {(first: boolean, pruned: boolean) => void} onStart Called when the position is known.
 * @property {(events: StreamedEvent[]) => void} onEvents
 */

/** Silence after which the connection counts as lost, in milliseconds; the server sends a comment every 15 s. */
const SILENCE_MS = 45_000;
/** Silence after which a page that wakes does not trust its connection, in milliseconds. */
const DOUBT_MS = 20_000;
const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 15_000;

/** Delay before attempt `attempt`, in milliseconds, with some chance so that many tabs do not come at once. */
export function retryDelay(/** @type {number} */ attempt, random = Math.random) {
  const base = Math.min(RETRY_MS_MAX, RETRY_MS_MIN * 2 ** Math.max(0, attempt - 1));
  return Math.round(base * (0.75 + random() * 0.5));
}

export class EventStream {
  /**
   * @param {import("./api.js").ApiClient} api
   * @param {StreamHandlers} handlers
   */
  constructor(api, handlers) {
    this.api = api;
    this.handlers = handlers;
    /** Position of the last event. @type {string | null} */
    this.cursor = null;
    this.attempt = 0;
    this.lastByteAt = 0;
    /** @type {AbortController | null} */
    this.abort = null;
    /** @type {(() => void) | null} */
    this.wakeUp = null;
    this.stopped = false;
  }

  /** Runs until `stop`. */
  async run() {
    while (!this.stopped) {
      this.attempt += 1;
      this.tell("connecting");
      try {
        await this.connect();
        if (this.stopped) return;
        await this.pause(null, 0);
      } catch (error) {
        if (this.stopped) return;
        const failure = asApiError(error);
        if (failure.status === 401) {
          this.tell("stopped", null, failure);
          return;
        }
        if (failure.code === "CURSOR_PRUNED") this.cursor = null;
        await this.pause(failure, failure.retryAfterMs ?? retryDelay(this.attempt));
      }
    }
  }

  /** Reads one connection to its end. */
  async connect() {
    const abort = new AbortController();
    this.abort = abort;
    this.lastByteAt = Date.now();
    const watchdog = setInterval(() => {
      if (Date.now() - this.lastByteAt > SILENCE_MS) abort.abort();
    }, 5_000);
    try {
      /** @type {Record<string, string>} */
      const headers = { accept: "text/event-stream" };
      const resumed = this.cursor !== null;
      if (this.cursor !== null) headers["last-event-id"] = this.cursor;
      const response = await this.api.send("/v1/stream", { headers, signal: abort.signal });
      if (!response.body) throw new ApiError(0, "UNREACHABLE", "The stream has no body.", { retryable: true });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new SseParser();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        this.lastByteAt = Date.now();
        this.take(parser.feed(value), resumed);
        // Comments move the position past events that this stream leaves out.
        if (parser.lastId !== null) this.cursor = parser.lastId;
      }
    } finally {
      clearInterval(watchdog);
      abort.abort();
      if (this.abort === abort) this.abort = null;
    }
  }

  /** @param {import("./sse.js").ServerEvent[]} events @param {boolean} resumed */
  take(events, resumed) {
    /** @type {StreamedEvent[]} */
    const lines = [];
    for (const { id, event, data } of events) {
      if (event === "start") {
        this.attempt = 0;
        this.cursor = id;
        this.tell("open");
        this.handlers.onStart(!resumed, data.includes("pruned_event_id"));
      } else if (event === "message" && id !== null) {
        this.cursor = id;
        lines.push({ id, event: JSON.parse(data) });
      }
    }
    if (lines.length > 0) this.handlers.onEvents(lines);
  }

  /** @param {ApiError | null} error @param {number} ms */
  async pause(error, ms) {
    // An orderly end, such as a restart of the gateway, is tried again soon.
    const wait = ms || RETRY_MS_MIN;
    this.tell("waiting", Date.now() + wait, error);
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, wait);
      this.wakeUp = () => {
        clearTimeout(timer);
        resolve(null);
      };
    });
    this.wakeUp = null;
  }

  /** Connects now, instead of after the delay; a silent connection is replaced. */
  wake() {
    if (this.wakeUp) {
      this.attempt = 0;
      this.wakeUp();
    } else if (this.abort && Date.now() - this.lastByteAt > DOUBT_MS) {
      this.abort.abort();
      this.attempt = 0;
    }
  }

  stop() {
    this.stopped = true;
    this.abort?.abort();
    this.wakeUp?.();
    this.tell("stopped");
  }

  /**
   * @param {Connection["phase"]} phase
   * @param {number | null} [retryAt]
   * @param {ApiError | null} [error]
   */
  tell(phase, retryAt = null, error = null) {
    this.handlers.onConnection({ phase, retryAt, error });
  }
}
