/**
 * Parser of server-sent events, fed with pieces of text as they arrive.
 *
 * @typedef {{ id: string | null, event: string, data: string }} ServerEvent
 */

/** Maximum length of a line that is kept, in characters; the server's longest line is one event. */
const LINE_CHARS_MAX = 64 * 1024 * 1024;

export class SseParser {
  constructor() {
    /** Pieces of the unfinished line. @type {string[]} */
    this.rest = [];
    this.restChars = 0;
    this.endedWithCr = false;
    this.data = /** @type {string[]} */ ([]);
    this.event = "";
    /** Id of the event under way. @type {string | null} */
    this.id = null;
    /** Id of the last whole event, or comment, that had one. @type {string | null} */
    this.lastId = null;
  }

  /**
   * Takes a piece of text and returns the events that it completes.
   *
   * @param {string} text
   * @returns {ServerEvent[]}
   */
  feed(text) {
    if (this.endedWithCr && text.startsWith("\n")) text = text.slice(1);
    if (text === "") return [];
    this.endedWithCr = text.endsWith("\r");
    const lines = text.split(/\r\n|\n|\r/);
    const last = /** @type {string} */ (lines.pop());
    /** @type {ServerEvent[]} */
    const events = [];
    for (const line of lines) {
      const whole = this.rest.length === 0 ? line : this.rest.join("") + line;
      this.rest = [];
      this.restChars = 0;
      const event = this.line(whole);
      if (event) events.push(event);
    }
    if (last !== "") {
      this.restChars += last.length;
      if (this.restChars > LINE_CHARS_MAX) throw new Error("an event of the stream is too long");
      this.rest.push(last);
    }
    return events;
  }

  /**
   * @param {string} line
   * @returns {ServerEvent | null}
   */
  line(line) {
    if (line === "") return this.dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return null;
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (name === "data") this.data.push(value);
    else if (name === "event") this.event = value;
    else if (name === "id" && !value.includes("\0")) this.id = value;
    return null;
  }

  /** @returns {ServerEvent | null} */
  dispatch() {
    const { data, event } = this;
    this.lastId = this.id;
    this.data = [];
    this.event = "";
    if (data.length === 0) return null;
    return { id: this.lastId, event: event || "message", data: data.join("\n") };
  }
}
