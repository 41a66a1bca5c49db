/**
 * Prompts under way. Each has its idempotency key before it is sent, and stays in the session storage until its row of
 * the journal is seen: a reload sends it again with the same key, which has one effect.
 *
 * @typedef {object} Outgoing
 * @property {string} key Idempotency key.
 * @property {string} session
 * @property {string} text
 * @property {"prompt" | "steer"} mode
 * @property {boolean} [newConversation]
 * @property {{ name: string, mime: string, base64: string }[]} files
 * @property {"sending" | "accepted" | "failed"} state
 * @property {number} at
 * @property {string | null} run Run, once accepted.
 * @property {{ code: string, message: string, nextStep: string } | null} error
 *
 * @typedef {Pick<Storage, "getItem" | "setItem" | "removeItem">} KeyValues
 */

const NAME = "acphost.outbox";
/** Number of runs whose rows are remembered, for responses that come after the row. */
const SEEN_MAX = 500;
/** Maximum size of the stored outbox in characters; browsers allow about 5 million. */
const STORED_CHARS_MAX = 4_000_000;

export class Outbox {
  /** @param {KeyValues} storage */
  constructor(storage) {
    this.storage = storage;
    /** @type {Set<string>} */
    this.seen = new Set();
    /** @type {Outgoing[]} */
    this.entries = read(storage);
  }

  /** @param {Outgoing} entry @returns {boolean} False if it cannot survive a reload. */
  add(entry) {
    this.entries = [...this.entries, entry];
    return this.save();
  }

  /** @param {string} key @param {Partial<Outgoing>} change */
  update(key, change) {
    this.entries = this.entries.map((entry) => (entry.key === key ? { ...entry, ...change } : entry));
    this.drop((entry) => entry.run !== null && this.seen.has(entry.run));
    this.save();
  }

  /** @param {string} key */
  remove(key) {
    this.drop((entry) => entry.key === key);
    this.save();
  }

  /**
   * Notes the run of a `prompt` row, and removes its entry.
   *
   * @param {string} run
   * @returns {boolean} True if an entry was removed.
   */
  sawRow(run) {
    this.seen.add(run);
    if (this.seen.size > SEEN_MAX) this.seen.delete(/** @type {string} */ (this.seen.values().next().value));
    const changed = this.drop((entry) => entry.run === run);
    if (changed) this.save();
    return changed;
  }

  /** Entries of one session. @param {string} session */
  of(session) {
    return this.entries.filter((entry) => entry.session === session);
  }

  /** @param {(entry: Outgoing) => boolean} isDone */
  drop(isDone) {
    const kept = this.entries.filter((entry) => !isDone(entry));
    const changed = kept.length !== this.entries.length;
    this.entries = kept;
    return changed;
  }

  save() {
    try {
      if (this.entries.length === 0) {
        this.storage.removeItem(NAME);
        return true;
      }
      const text = JSON.stringify(this.entries);
      if (text.length > STORED_CHARS_MAX) return false;
      this.storage.setItem(NAME, text);
      return true;
    } catch {
      return false;
    }
  }
}

/** @param {KeyValues} storage @returns {Outgoing[]} */
function read(storage) {
  try {
    const entries = JSON.parse(storage.getItem(NAME) ?? "[]");
    return Array.isArray(entries) ? entries.filter((entry) => typeof entry?.key === "string") : [];
  } catch {
    return [];
  }
}
