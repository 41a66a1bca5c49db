/**
 * The page's model: login, state, the event stream, and what people do. Views read `state` and call the methods.
 */
import { ApiClient, ApiError, asApiError, newKey, query, sessionPath } from "./api.js";
import { Outbox } from "./outbox.js";
import { initialState, reduce } from "./state.js";
import { EventStream } from "./stream.js";
import { oneLine } from "./text.js";

/**
 * @typedef {import("./types.js").EventLine} EventLine
 * @typedef {import("./types.js").Login} Login
 * @typedef {import("./types.js").Scope} Scope
 * @typedef {{ id: number, text: string, tone: "info" | "error", detail?: string }} Toast
 */

const LOGIN = "acphost.login";
/** @type {Scope[]} */
const SCOPES = ["read", "prompt", "approve", "admin"];
/** Delay between an event and the reading of what it implies, in milliseconds. */
const READ_MS = 150;
/** Number of changed sessions from which the whole list is read. */
const LIST_FROM = 6;
const TOAST_MS = 6_000;
/** Minimum time between two drawings of what is not the transcript, in milliseconds. */
const DRAW_MS = 80;
/** Delay before what failed for a moment is tried again, in milliseconds. */
const AGAIN_MS = 3_000;

export class Console {
  constructor() {
    this.state = initialState();
    /** @type {Login | null} */
    this.login = null;
    this.loginNote = "";
    /** @type {Toast[]} */
    this.toasts = [];
    this.announcement = "";
    /** @type {Set<() => void>} */
    this.listeners = new Set();
    /** @type {Set<(events: EventLine[]) => void>} */
    this.eventListeners = new Set();
    /** Told when the stream is back, and whether events may be missing. @type {Set<(isGap: boolean) => void>} */
    this.gapListeners = new Set();
    this.api = new ApiClient({ token: () => this.login?.token ?? null, onRefused: () => this.refused() });
    this.outbox = new Outbox(sessionStorage);
    this.state.outbox = this.outbox.entries;
    /** Requests that this page answered. @type {Set<string>} */
    this.answered = new Set();
    /** Names of files that went with prompts of this page, by run: the journal has the text alone. @type {Map<string, string[]>} */
    this.sentFiles = new Map();
    /** @type {EventStream | null} */
    this.stream = null;
    this.readTimer = 0;
    this.drawn = 0;
    this.drawnAt = -DRAW_MS;
    this.toastIds = 0;
    /** Notifications about requests that wait. @type {Map<string, Notification>} */
    this.notifications = new Map();
    this.canNotify = typeof Notification !== "undefined";
  }

  // --- Views

  /** @param {() => void} listener */
  subscribe(listener) {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  /** @param {import("./state.js").Action} action */
  dispatch(action) {
    this.state = reduce(this.state, action);
    this.draw();
    if (this.state.dirty.size > 0 || this.state.permissionsDirty) this.readSoon();
  }

  /** Redraws soon, but not too often. A hidden page has no frames, and its title changes, too. */
  draw() {
    if (this.drawn) return;
    const now = () => {
      this.drawn = 0;
      this.drawnAt = performance.now();
      for (const listener of [...this.listeners]) listener();
    };
    const rest = DRAW_MS - (performance.now() - this.drawnAt);
    this.drawn = Number(setTimeout(now, Math.max(0, rest)));
  }

  /** @param {string} text @param {Toast["tone"]} [tone] @param {string} [detail] */
  toast(text, tone = "info", detail = "") {
    this.toastIds += 1;
    const id = this.toastIds;
    this.toasts = [...this.toasts.slice(-3), { id, text, tone, detail }];
    setTimeout(() => this.dropToast(id), tone === "error" ? TOAST_MS * 2 : TOAST_MS);
    this.draw();
  }

  /** @param {number} id */
  dropToast(id) {
    this.toasts = this.toasts.filter((toast) => toast.id !== id);
    this.draw();
  }

  /** @param {unknown} error @param {string} what */
  failed(error, what) {
    const failure = asApiError(error);
    this.toast(`${what}: ${failure.message}`, "error", `${failure.code}. ${failure.nextStep}`.trim());
  }

  /** Says something to screen readers. @param {string} text */
  announce(text) {
    this.announcement = text;
    this.draw();
  }

  // --- Login

  /** Restores the login of this tab, or exchanges the code of the address. @param {string | null} code */
  async begin(code) {
    if (code) {
      try {
        this.accept(await this.api.json("/v1/login", { method: "POST", body: { code }, token: null }));
        return;
      } catch (error) {
        const failure = asApiError(error);
        this.loginNote = `The code was not accepted: ${failure.message} Run \`acp-gateway console\` again for a new one.`;
      }
    }
    const kept = sessionStorage.getItem(LOGIN);
    try {
      this.login = kept ? JSON.parse(kept) : null;
    } catch {
      this.login = null;
    }
    if (this.login) this.start();
    this.draw();
  }

  /** Signs in with a token that a person pastes. @param {string} token */
  async signIn(token) {
    this.accept({ ...(await this.api.json("/v1/whoami", { token })), token });
  }

  /** @param {{ token: string, name: string, scopes?: Scope[], agents?: string[], expires_at_ms?: number | null, console?: boolean }} answer */
  accept(answer) {
    const scope = SCOPES.filter((name) => answer.scopes?.includes(name)).pop() ?? "read";
    const { token, name, expires_at_ms = null, console = false } = answer;
    this.login = { token, name, scope, expires_at_ms, console, isLimited: (answer.agents ?? []).length > 0 };
    this.loginNote = "";
    sessionStorage.setItem(LOGIN, JSON.stringify(this.login));
    // A key counts for its token alone: sent again with another one, a prompt could run twice.
    for (const { key, state } of this.outbox.entries) {
      if (state !== "sending") continue;
      const message = "The sign-in changed while this was being sent. Look in the transcript if it arrived.";
      this.outbox.update(key, { state: "failed", error: { code: "UNCERTAIN", message, nextStep: "Send it again if it did not." } });
    }
    this.start();
  }

  /** The token has expired or was revoked. */
  refused() {
    if (!this.login) return;
    this.leave("Your sign-in has ended: the token has expired or was revoked.");
  }

  async signOut() {
    try {
      await this.api.json("/v1/logout", { method: "POST", body: {} });
    } catch {
      // The token is forgotten here in any case.
    }
    this.leave("You are signed out.");
  }

  /** @param {string} note */
  leave(note) {
    this.stream?.stop();
    this.stream = null;
    this.login = null;
    this.loginNote = note;
    sessionStorage.removeItem(LOGIN);
    this.state = { ...initialState(), outbox: this.outbox.entries };
    this.draw();
  }

  /** True if the token's scope allows it. @param {Scope} scope */
  may(scope) {
    return this.login !== null && SCOPES.indexOf(this.login.scope) >= SCOPES.indexOf(scope);
  }

  // --- Stream

  start() {
    this.stream?.stop();
    const stream = new EventStream(this.api, {
      onConnection: (connection) => {
        if (this.stream === stream) this.dispatch({ type: "connection", connection });
      },
      onStart: (first, pruned) => void this.onStart(first, pruned),
      onEvents: (events) => this.onEvents(events.map(({ event }) => event)),
    });
    this.stream = stream;
    void stream.run();
    void this.list();
    this.flushOutbox();
  }

  /** @param {boolean} first @param {boolean} pruned */
  async onStart(first, pruned) {
    for (const listener of this.gapListeners) listener(first || pruned);
    // A request that was sent before the stream broke may wait for a response that was lost with the network.
    if (!first) for (const abort of this.transmitting.values()) abort.abort();
    await this.list();
    this.flushOutbox();
  }

  /** @param {EventLine[]} events */
  onEvents(events) {
    const known = new Set(this.state.permissions.keys());
    for (const event of events) {
      if (event.type === "prompt" && event.run_id) this.outbox.sawRow(event.run_id);
      if (event.type === "permission_settled") this.tellSettled(event);
    }
    this.dispatch({ type: "events", events });
    if (this.state.outbox !== this.outbox.entries) this.dispatch({ type: "outbox", outbox: this.outbox.entries });
    for (const listener of this.eventListeners) listener(events);
    for (const [id, row] of this.state.permissions) if (!known.has(id)) this.notify(row);
    for (const [id, notification] of this.notifications) {
      if (this.state.permissions.has(id)) continue;
      notification.close();
      this.notifications.delete(id);
    }
  }

  /** Tells that somebody else has answered a question that was shown here. @param {EventLine} event */
  tellSettled(event) {
    const row = this.state.permissions.get(event.permission_id);
    if (!row || this.answered.has(event.permission_id)) return;
    const what = oneLine(event.option_name ?? event.outcome, 60);
    this.toast(`${event.by ? `${oneLine(event.by, 60)} answered` : "Settled"}: ${what} – ${oneLine(row.title, 80)}`);
  }

  /** @param {import("./types.js").PermissionView} row */
  notify(row) {
    this.announce(`Permission needed: ${oneLine(row.title, 120)}`);
    if (!document.hidden || !this.canNotify || Notification.permission !== "granted") return;
    try {
      const session = this.state.sessions.get(row.session_key ?? "");
      const notification = new Notification(`${oneLine(session?.label || session?.agent || "A session", 80)} needs you`, {
        body: oneLine(row.title, 160), tag: row.permission_id, icon: "/icon.svg",
      });
      this.notifications.set(row.permission_id, notification);
      notification.onclick = () => {
        window.focus();
        location.hash = `#/s/${encodeURIComponent(row.session_key ?? "")}`;
        notification.close();
      };
    } catch {
      // Some browsers notify from service workers only.
      this.canNotify = false;
    }
  }

  /** Tries at once what waits for the network. */
  wake() {
    this.stream?.wake();
    this.flushOutbox();
  }

  // --- Reading

  async list() {
    try {
      const [sessions, permissions] = await Promise.all([
        this.api.json("/v1/sessions"), this.api.json("/v1/permissions"),
      ]);
      if (this.login) this.dispatch({ type: "listed", sessions, permissions });
    } catch (error) {
      if (!this.state.loaded && this.login) this.failed(error, "The sessions could not be read");
    }
  }

  /** Reads the closed sessions, too. */
  async listClosed() {
    for (const session of await this.api.json(`/v1/sessions${query({ state: "closed", all: true, limit: 200 })}`)) {
      this.dispatch({ type: "session", session });
    }
  }

  readSoon() {
    if (!this.readTimer) this.readTimer = Number(setTimeout(() => void this.readDirty(), READ_MS));
  }

  async readDirty() {
    const keys = [...this.state.dirty];
    const permissions = this.state.permissionsDirty;
    this.state = reduce(this.state, { type: "reading", keys, permissions });
    try {
      if (keys.length >= LIST_FROM) await this.list();
      else await Promise.all([...keys.map((key) => this.readSession(key)), permissions ? this.readPermissions() : null]);
      this.readTimer = 0;
      if (this.state.dirty.size > 0 || this.state.permissionsDirty) this.readSoon();
    } catch {
      if (!this.login) {
        this.readTimer = 0;
        return;
      }
      this.state = reduce(this.state, { type: "unread", keys, permissions });
      this.readTimer = Number(setTimeout(() => void this.readDirty(), AGAIN_MS));
    }
  }

  async readPermissions() {
    this.dispatch({ type: "permissions", permissions: await this.api.json("/v1/permissions") });
  }

  /** @param {string} key */
  async readSession(key) {
    try {
      this.dispatch({ type: "session", session: await this.api.json(sessionPath(key)) });
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      this.dispatch({ type: "missing", key });
    }
  }

  // --- Doing

  /**
   * Sends a prompt, exactly once.
   *
   * @param {string} session
   * @param {{ text: string, mode?: "prompt" | "steer", files?: { name: string, mime: string, base64: string }[], newConversation?: boolean }} prompt
   */
  sendPrompt(session, { text, mode = "prompt", files = [], newConversation = false }) {
    const key = newKey();
    const kept = this.outbox.add({ key, session, text, mode, files, newConversation, state: "sending", at: Date.now(), run: null, error: null });
    if (!kept) this.toast("The files are too large to survive a reload of the page. Keep it open until they are sent.");
    this.dispatch({ type: "outbox", outbox: this.outbox.entries });
    this.flushOutbox();
  }

  /** Sends the oldest prompt of each session. The next one follows its response: two requests could overtake each other. */
  flushOutbox() {
    const sessions = new Set();
    for (const { key, session, state } of this.outbox.entries) {
      if (state === "sending" && !sessions.has(session)) void this.transmit(key);
      if (state === "sending") sessions.add(session);
    }
  }

  /** @param {string} key */
  async transmit(key) {
    const entry = this.outbox.entries.find((one) => one.key === key);
    if (!entry || entry.state !== "sending" || !this.login || this.transmitting.has(key)) return;
    const abort = new AbortController();
    this.transmitting.set(key, abort);
    /** @type {Partial<import("./outbox.js").Outgoing>} */
    let change = {};
    try {
      const accepted = await this.api.persist(sessionPath(entry.session, "/prompt"), {
        text: entry.text, mode: entry.mode, interactive: true,
        ...(entry.files.length ? { files: entry.files } : {}), ...(entry.newConversation ? { new_conversation: true } : {}),
      }, { key, attempts: 1, signal: abort.signal });
      if (entry.files.length) this.sentFiles.set(accepted.run_id, entry.files.map((file) => file.name));
      change = { state: "accepted", run: accepted.run_id, files: [] };
    } catch (error) {
      const failure = asApiError(error);
      // Without an answer it stays in the outbox, and goes again with the same key.
      if (failure.isTransient) setTimeout(() => this.flushOutbox(), AGAIN_MS);
      else if (failure.status !== 401) {
        change = { state: "failed", error: { code: failure.code, message: failure.message, nextStep: failure.nextStep } };
      }
    } finally {
      this.transmitting.delete(key);
    }
    this.outbox.update(key, change);
    this.dispatch({ type: "outbox", outbox: this.outbox.entries });
    if (change.state) this.flushOutbox();
  }

  /** Prompts that are being sent, by key. @type {Map<string, AbortController>} */
  transmitting = new Map();

  /** @param {string} key */
  discard(key) {
    this.outbox.remove(key);
    this.dispatch({ type: "outbox", outbox: this.outbox.entries });
  }

  /** Rows of history show what has arrived, too. @param {EventLine[]} events */
  sawRows(events) {
    for (const event of events) if (event.type === "prompt" && event.run_id) this.outbox.sawRow(event.run_id);
    if (this.state.outbox !== this.outbox.entries) this.dispatch({ type: "outbox", outbox: this.outbox.entries });
  }

  /**
   * Answers a question of an agent.
   *
   * @param {import("./types.js").PermissionView} row
   * @param {Record<string, unknown>} answer
   */
  async answer(row, answer) {
    this.answered.add(row.permission_id);
    const path = sessionPath(row.session_key ?? "", `/permissions/${encodeURIComponent(row.permission_id)}`);
    try {
      await this.api.persist(path, answer);
    } catch (error) {
      this.answered.delete(row.permission_id);
      throw error;
    } finally {
      this.readSoonPermissions();
    }
  }

  readSoonPermissions() {
    this.state = { ...this.state, permissionsDirty: true };
    this.readSoon();
  }

  /**
   * Posts to a session and reads it again.
   *
   * @param {string} session
   * @param {string} verb
   * @param {unknown} [body]
   * @param {string} [method]
   */
  async act(session, verb, body = {}, method = "POST") {
    const answer = await this.api.persist(sessionPath(session, verb), body, { method });
    await this.readSession(session);
    return answer;
  }
}
