/**
 * Keeps the transcript of one session: the newest rows first, older ones when asked for, then what the stream brings.
 */
import { asApiError, query, sessionPath } from "./api.js";
import { CHARS_MAX, ITEMS_MAX, append, emptyTranscript, prepend } from "./transcript.js";

/** Rows in a page of history. */
const PAGE = 200;
/** Delay before what may have been missed is read again, in milliseconds. */
const AGAIN_MS = 3_000;

/**
 * @typedef {import("./types.js").EventLine} EventLine
 * @typedef {{ phase: "loading" | "ready" | "failed", error: import("./api.js").ApiError | null, loadingOlder: boolean }} FeedStatus
 */

export class SessionFeed {
  /**
   * @param {import("./api.js").ApiClient} api
   * @param {string} key
   * @param {() => void} onChange
   * @param {(events: EventLine[]) => void} onRows Told of rows that come from the history.
   */
  constructor(api, key, onChange, onRows) {
    this.api = api;
    this.key = key;
    this.onChange = onChange;
    this.onRows = onRows;
    this.transcript = emptyTranscript();
    /** @type {FeedStatus} */
    this.status = { phase: "loading", error: null, loadingOlder: false };
    this.prunedSeq = 0;
    this.abort = new AbortController();
    /** Events of the stream that came while history was read. @type {EventLine[] | null} */
    this.waiting = [];
    /** True if rows may have been committed after the response of which the page waits, and before the stream. */
    this.isBehind = false;
  }

  /** Loads the newest rows. */
  async start() {
    try {
      const session = await this.api.json(sessionPath(this.key), { signal: this.abort.signal });
      this.prunedSeq = session.pruned_seq ?? 0;
      const after = Math.max(this.prunedSeq, session.last_session_seq - PAGE);
      await this.readFrom(after);
      this.transcript = { ...this.transcript, first: after + 1, last: Math.max(after, this.transcript.last) };
      this.set({ phase: "ready", error: null });
    } catch (error) {
      if (!this.abort.signal.aborted) this.set({ phase: "failed", error: asApiError(error) });
    }
  }

  /** Reads what may have been missed while there was no stream. */
  async catchUp() {
    if (this.status.phase === "failed") return this.restart();
    this.isBehind = true;
    if (this.waiting) return;
    this.waiting = [];
    await this.readRest();
  }

  /** Reads the rows after the last one. Those of the stream wait for them, also over a failure. */
  async readRest() {
    try {
      await this.readFrom(this.transcript.last);
    } catch (error) {
      if (this.abort.signal.aborted) return;
      const failure = asApiError(error);
      if (failure.code === "CURSOR_PRUNED") return this.restart();
      setTimeout(() => {
        if (!this.abort.signal.aborted) void this.readRest();
      }, failure.retryAfterMs ?? AGAIN_MS);
    }
  }

  async restart() {
    this.transcript = emptyTranscript();
    this.waiting = [];
    this.set({ phase: "loading", error: null });
    await this.start();
  }

  /** @param {number} after */
  async readFrom(after) {
    for (let from = after; ;) {
      this.isBehind = false;
      const page = await this.page(from, PAGE);
      this.onRows(page.events);
      this.transcript = append(this.transcript, page.events);
      from = page.next_after;
      if (!page.more && !this.isBehind) break;
      this.onChange();
    }
    this.flush();
  }

  flush() {
    /** @type {EventLine[]} */
    const waiting = this.waiting ?? [];
    this.waiting = null;
    this.transcript = append(this.transcript, waiting);
    this.onChange();
  }

  /** @param {number} after @param {number} limit */
  page(after, limit) {
    return this.api.json(sessionPath(this.key, `/events${query({ after, limit })}`), { signal: this.abort.signal });
  }

  get hasOlder() {
    return this.status.phase === "ready" && this.transcript.first > this.prunedSeq + 1;
  }

  /** True if older rows would not find room in memory. */
  get isFull() {
    return this.transcript.items.length > ITEMS_MAX * 0.9 || this.transcript.chars > CHARS_MAX * 0.9;
  }

  /** Loads the rows before the first. */
  async older() {
    if (!this.hasOlder || this.status.loadingOlder || this.isFull) return;
    this.set({ loadingOlder: true });
    try {
      const { first } = this.transcript;
      const after = Math.max(this.prunedSeq, first - 1 - PAGE);
      const page = await this.page(after, first - 1 - after);
      this.transcript = prepend(this.transcript, page.events, after + 1);
      this.set({ loadingOlder: false });
    } catch (error) {
      if (!this.abort.signal.aborted) this.set({ loadingOlder: false, error: asApiError(error) });
    }
  }

  /** Takes events of the stream. @param {EventLine[]} events */
  take(events) {
    const own = events.filter((event) => event.session_key === this.key);
    if (own.length === 0) return;
    if (this.waiting) this.waiting.push(...own);
    else this.transcript = append(this.transcript, own);
    this.onChange();
  }

  /** @param {Partial<FeedStatus>} change */
  set(change) {
    this.status = { ...this.status, ...change };
    this.onChange();
  }

  stop() {
    this.abort.abort();
  }
}
