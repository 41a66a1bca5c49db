/**
 * State of the page and its reducer. Events change what they say for certain; what they imply is read again from the
 * gateway, which `dirty` asks for.
 *
 * @typedef {import("./types.js").SessionView} SessionView
 * @typedef {import("./types.js").PermissionView} PermissionView
 * @typedef {import("./types.js").EventLine} EventLine
 * @typedef {{ by: string | null, option: string | null, without: string | null, at: number }} Settled
 * @typedef {{ text: string, at: number }} Activity
 *
 * @typedef {object} State
 * @property {boolean} loaded
 * @property {Map<string, SessionView>} sessions
 * @property {Set<string>} gone Sessions that the gateway no longer has.
 * @property {Map<string, PermissionView>} permissions Pending requests by id.
 * @property {Map<string, Settled>} settled Recent answers by id of the request.
 * @property {Map<string, Activity>} activity What each session did last.
 * @property {Set<string>} dirty Sessions to be read again.
 * @property {boolean} permissionsDirty
 * @property {import("./stream.js").Connection} connection
 * @property {import("./outbox.js").Outgoing[]} outbox
 *
 * @typedef {{ type: "listed", sessions: SessionView[], permissions: PermissionView[] }
 *   | { type: "session", session: SessionView }
 *   | { type: "missing", key: string }
 *   | { type: "permissions", permissions: PermissionView[] }
 *   | { type: "events", events: EventLine[] }
 *   | { type: "connection", connection: import("./stream.js").Connection }
 *   | { type: "outbox", outbox: import("./outbox.js").Outgoing[] }
 *   | { type: "reading", keys: string[], permissions: boolean }
 *   | { type: "unread", keys: string[], permissions: boolean }} Action
 */

/** Number of answers and activities that are kept. */
const KEPT_MAX = 2_000;
const ACTIVITY_CHARS = 160;

/** @returns {State} */
export function initialState() {
  return {
    loaded: false, sessions: new Map(), gone: new Set(), permissions: new Map(), settled: new Map(), activity: new Map(), dirty: new Set(),
    permissionsDirty: false, connection: { phase: "connecting", retryAt: null, error: null }, outbox: [],
  };
}

/**
 * @param {State} state
 * @param {Action} action
 * @returns {State}
 */
export function reduce(state, action) {
  switch (action.type) {
    case "listed":
      return listed(state, action.sessions, action.permissions);
    case "session":
      return withSession(state, action.session);
    case "missing": {
      const sessions = new Map(state.sessions);
      sessions.delete(action.key);
      return { ...state, sessions, gone: new Set([...state.gone, action.key]) };
    }
    case "permissions":
      return { ...state, permissions: pending(action.permissions, state.settled) };
    case "events":
      return takeEvents(state, action.events);
    case "connection":
      return { ...state, connection: action.connection };
    case "outbox":
      return { ...state, outbox: action.outbox };
    case "reading": {
      const dirty = new Set(state.dirty);
      for (const key of action.keys) dirty.delete(key);
      return { ...state, dirty, permissionsDirty: action.permissions ? false : state.permissionsDirty };
    }
    case "unread":
      return { ...state, dirty: new Set([...state.dirty, ...action.keys]), permissionsDirty: state.permissionsDirty || action.permissions };
    default:
      return state;
  }
}

/** @param {State} state @param {SessionView[]} list @param {PermissionView[]} permissions @returns {State} */
function listed(state, list, permissions) {
  /** @type {Map<string, SessionView>} */
  const sessions = new Map();
  const dirty = new Set(state.dirty);
  for (const session of list) {
    const key = session.session_key;
    const before = state.sessions.get(key);
    // Events may have come while the list was under way; members that only one session's response has are kept.
    const isOld = before && before.last_session_seq > session.last_session_seq;
    sessions.set(key, isOld ? before : { ...session, ...(before?.runs ? { runs: before.runs } : {}) });
    if (isOld) dirty.add(key);
  }
  for (const [key, session] of state.sessions) if (session.state === "closed" && !sessions.has(key)) sessions.set(key, session);
  return { ...state, loaded: true, sessions, dirty, permissions: pending(permissions, state.settled) };
}

/** @param {PermissionView[]} list @param {Map<string, Settled>} settled */
function pending(list, settled) {
  return new Map(list.filter((row) => !settled.has(row.permission_id)).map((row) => [row.permission_id, row]));
}

/** @param {State} state @param {SessionView} session @returns {State} */
function withSession(state, session) {
  const before = state.sessions.get(session.session_key);
  // Events of the stream may be newer than this response.
  if (before && before.last_session_seq > session.last_session_seq) {
    return { ...state, dirty: new Set([...state.dirty, session.session_key]) };
  }
  const { permissions: asked, ...view } = session;
  const sessions = new Map(state.sessions);
  sessions.set(view.session_key, view);
  if (!asked) return { ...state, sessions };
  const permissions = new Map([...state.permissions].filter(([, row]) => row.session_key !== view.session_key));
  for (const row of asked) {
    if (!state.settled.has(row.permission_id)) permissions.set(row.permission_id, { ...row, session_key: view.session_key });
  }
  return { ...state, sessions, permissions };
}

/** @param {State} state @param {EventLine[]} events @returns {State} */
function takeEvents(state, events) {
  const next = {
    ...state, sessions: new Map(state.sessions), activity: new Map(state.activity), dirty: new Set(state.dirty),
    permissions: new Map(state.permissions), settled: new Map(state.settled),
  };
  for (const event of events) takeEvent(next, event);
  bound(next.settled);
  bound(next.activity);
  return next;
}

/** Drops the oldest entries. @param {Map<string, unknown>} map */
function bound(map) {
  for (const key of map.keys()) {
    if (map.size <= KEPT_MAX) return;
    map.delete(key);
  }
}

/** @param {State} next @param {EventLine} event */
function takeEvent(next, event) {
  const key = event.session_key;
  const session = next.sessions.get(key);
  if (!session) next.dirty.add(key);
  else if (event.session_seq <= session.last_session_seq && event.type !== "permission_settled") return;
  /** @type {Partial<SessionView>} */
  const change = { last_session_seq: event.session_seq, last_activity_at_ms: event.created_at_ms };
  switch (event.type) {
    case "prompt":
      if (session && ["idle", "error"].includes(session.state)) change.state = "running";
      note(next, event, `${event.author || "You"}: ${event.text}`);
      next.dirty.add(key);
      break;
    case "text_delta":
      if (event.stream === "output") noteText(next, event);
      break;
    case "tool_call":
      note(next, event, event.title || event.name);
      break;
    case "permission":
      if (!next.settled.has(event.permission_id)) next.permissions.set(event.permission_id, permissionOf(event));
      next.permissionsDirty = true;
      break;
    case "permission_settled":
      settle(next, event);
      break;
    case "done": case "error":
      change.state = (session?.queued_runs ?? 0) > 0 ? "running" : "idle";
      if (event.type === "error") change.last_error = { code: event.code, message: event.message };
      dropRun(next, event);
      next.dirty.add(key);
      break;
    case "closed":
      change.state = "closed";
      for (const [id, row] of next.permissions) if (row.session_key === key) next.permissions.delete(id);
      next.dirty.add(key);
      break;
    case "status": case "update": case "gap":
      next.dirty.add(key);
      break;
    default:
  }
  if (session) next.sessions.set(key, { ...session, ...change });
}

/** @param {State} next @param {EventLine} event @param {unknown} text */
function note(next, event, text) {
  const line = String(text ?? "").slice(0, ACTIVITY_CHARS * 2);
  next.activity.delete(event.session_key);
  next.activity.set(event.session_key, { text: line, at: event.created_at_ms });
}

/** Keeps the end of what the agent says. @param {State} next @param {EventLine} event */
function noteText(next, event) {
  const before = next.activity.get(event.session_key);
  const joins = before && /** @type {any} */ (before).run === event.run_id;
  const text = `${joins ? before.text : ""}${String(event.text ?? "").slice(-ACTIVITY_CHARS)}`.slice(-ACTIVITY_CHARS);
  next.activity.set(event.session_key, /** @type {any} */ ({ text, at: event.created_at_ms, run: event.run_id }));
}

/** @param {State} next @param {EventLine} event */
function settle(next, event) {
  next.permissions.delete(event.permission_id);
  next.settled.set(event.permission_id, {
    by: event.by ?? null, option: event.option_name ?? event.option_id ?? event.outcome ?? null,
    without: event.without ?? null, at: event.created_at_ms,
  });
}

/** Questions of an ended run are answered. @param {State} next @param {EventLine} event */
function dropRun(next, event) {
  for (const [id, row] of next.permissions) {
    if (row.session_key === event.session_key && row.run_id && row.run_id === event.run_id) next.permissions.delete(id);
  }
}

/** @param {EventLine} event @returns {PermissionView} */
function permissionOf(event) {
  return {
    permission_id: event.permission_id, session_key: event.session_key, run_id: event.run_id, title: event.title ?? "",
    kind: event.kind ?? null, tool_call: event.tool_call, options: event.options ?? [], form: event.form,
    created_at_ms: event.created_at_ms,
  };
}

/** @typedef {"needs" | "running" | "idle" | "failed" | "closed"} Group */

/** Groups of the list, in their order. @type {{ id: Group, title: string, empty: string }[]} */
export const GROUPS = [
  { id: "needs", title: "Needs you", empty: "Nothing waits for you." },
  { id: "running", title: "Running", empty: "No session is running." },
  { id: "failed", title: "Failed", empty: "No session has failed." },
  { id: "idle", title: "Idle", empty: "No session is idle." },
  { id: "closed", title: "Closed", empty: "No session is closed." },
];

/** @param {SessionView} session @param {boolean} asks @returns {Group} */
export function groupOf(session, asks) {
  if (session.state === "closed") return "closed";
  if (asks) return "needs";
  if (["creating", "running", "cancelling"].includes(session.state) || session.active_run) return "running";
  if (session.state === "error" || session.last_error) return "failed";
  return "idle";
}

/**
 * Sorts the sessions that a filter admits into groups, the most recent first.
 *
 * @param {State} state
 * @param {{ text?: string, agent?: string, group?: Group | "" }} [filter]
 * @returns {Map<Group, SessionView[]>}
 */
export function grouped(state, filter = {}) {
  const asking = new Set([...state.permissions.values()].map((row) => row.session_key));
  const words = (filter.text ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  /** @type {Map<Group, SessionView[]>} */
  const groups = new Map(GROUPS.map(({ id }) => [id, []]));
  for (const session of state.sessions.values()) {
    if (filter.agent && session.agent !== filter.agent) continue;
    const text = `${session.label ?? ""} ${session.session_key} ${session.cwd} ${session.agent}`.toLowerCase();
    if (!words.every((word) => text.includes(word))) continue;
    const group = groupOf(session, asking.has(session.session_key));
    if (filter.group && filter.group !== group) continue;
    groups.get(group)?.push(session);
  }
  for (const list of groups.values()) list.sort((a, b) => b.last_activity_at_ms - a.last_activity_at_ms);
  return groups;
}
