/**
 * The transcript of a session: items for people, made from event lines. Text that comes in pieces becomes one item,
 * split between paragraphs so that no item grows without bound; updates of a tool call change the item of the call.
 *
 * @typedef {import("./types.js").EventLine} EventLine
 *
 * @typedef {object} Item
 * @property {string} id Stays the same while the item changes.
 * @property {"user" | "message" | "thought" | "content" | "tool" | "plan" | "permission" | "effect" | "notice" | "gap"
 *   | "end" | "other"} kind
 * @property {number} seq
 * @property {number} at
 * @property {string | null} run
 * @property {string} [text]
 * @property {boolean} [continues] True for the second and later parts of a text.
 * @property {string} [fence] Opening line of the code block in which the part begins.
 * @property {any} [data]
 *
 * @typedef {object} Transcript
 * @property {Item[]} items
 * @property {number} origin Place of the first item, counted from the first that was ever loaded.
 * @property {Map<string, number>} places Places of the items that later events change.
 * @property {number} first Number of the first loaded row, 0 if none.
 * @property {number} last Number of the last loaded row.
 * @property {number} chars Approximate size of all items in characters.
 * @property {any} usage Last report of the context's use.
 * @property {string | null} active Run that is not over.
 * @property {Map<string, EventLine>} queued Prompts whose runs have not begun, by run: each is shown where its run begins.
 */

/** Length from which a text is split at the next paragraph, in characters. */
const PART_CHARS = 3_000;
/** Length from which a text is split at the next line. */
const PART_CHARS_MAX = 12_000;
export const ITEMS_MAX = 20_000;
export const CHARS_MAX = 24_000_000;
/** Items behind which an unfinished tool call of an ended run is looked for. */
const TOOLS_BACK = 400;

/** @returns {Transcript} */
export function emptyTranscript() {
  return { items: [], origin: 0, places: new Map(), first: 0, last: 0, chars: 0, usage: null, active: null, queued: new Map() };
}

/**
 * Appends events. Rows that are there already are left out. The old transcript must not be used again.
 *
 * @param {Transcript} transcript
 * @param {EventLine[]} events
 * @returns {Transcript}
 */
export function append(transcript, events) {
  const next = { ...transcript, items: transcript.items.slice(), queued: new Map(transcript.queued) };
  for (const event of events) {
    if (event.session_seq <= next.last) continue;
    if (next.first === 0) next.first = event.session_seq;
    next.last = event.session_seq;
    take(next, event);
  }
  return trim(next);
}

/**
 * Puts older events before the others.
 *
 * @param {Transcript} transcript
 * @param {EventLine[]} events
 * @param {number} first Number of the first row of the page, whether it is shown or not.
 * @returns {Transcript}
 */
export function prepend(transcript, events, first) {
  const older = events.filter((event) => event.session_seq < transcript.first);
  const head = append(emptyTranscript(), older);
  const next = {
    ...transcript, items: head.items.concat(transcript.items), origin: transcript.origin - head.items.length,
    places: new Map(), first, chars: head.chars + transcript.chars, queued: new Map(transcript.queued),
  };
  for (const [key, place] of head.places) next.places.set(key, place + next.origin);
  joinHalves(next, head.items.length);
  for (const [key, place] of transcript.places) if (itemAt(next, place)) next.places.set(key, place);
  moveEarlyPrompts(next, head);
  for (const [run, event] of head.queued) {
    if (!insertPrompt(next, userItem(event), head.items.length) && next.active !== run) next.queued.set(run, event);
  }
  return next;
}

/**
 * Moves prompts with which the newer rows began, while a run of the older page was not over, to the begin of their runs.
 *
 * @param {Transcript} next
 * @param {Transcript} head
 */
function moveEarlyPrompts(next, head) {
  const from = head.items.length;
  for (let item = next.items[from]; head.active && item?.kind === "user" && !item.data.steer && item.run !== head.active; item = next.items[from]) {
    next.items.splice(from, 1);
    shift(next, from, -1);
    if (!insertPrompt(next, item, from)) return void insertAt(next, item, from);
  }
}

/** @param {Transcript} next @param {number} index @param {number} by */
function shift(next, index, by) {
  for (const [key, place] of next.places) if (place - next.origin >= index) next.places.set(key, place + by);
}

/** @param {Transcript} next @param {Item} item @param {number} index */
function insertAt(next, item, index) {
  shift(next, index, 1);
  next.items.splice(index, 0, { ...item, seq: next.items[index]?.seq ?? item.seq });
}

/**
 * Shows a prompt where its run begins; false if it has not begun.
 *
 * @param {Transcript} next
 * @param {Item} prompt
 * @param {number} from Index of the first newer item.
 */
function insertPrompt(next, prompt, from) {
  const index = next.items.findIndex((item, at) => at >= from && item.run === prompt.run);
  if (index >= 0) insertAt(next, prompt, index);
  return index >= 0;
}

/** @param {EventLine} event @returns {Item} */
function userItem(event) {
  return {
    id: `${event.session_seq}`, kind: "user", seq: event.session_seq, at: event.created_at_ms, run: event.run_id,
    text: string(event.text), data: { author: string(event.author), steer: event.mode === "steer" },
  };
}

/**
 * Moves what newer rows say about a tool call or a question to the item with its beginning.
 *
 * @param {Transcript} next
 * @param {number} from Index of the first newer item.
 */
function joinHalves(next, from) {
  for (let index = from; index < next.items.length; index += 1) {
    const item = /** @type {Item} */ (next.items[index]);
    if (!item.data?.isOrphan) continue;
    const place = next.places.get(placeKey(item));
    const start = place === undefined ? undefined : itemAt(next, place);
    if (!start || place === undefined || place - next.origin >= from) continue;
    const { isOrphan: _, ...rest } = item.data;
    next.items[place - next.origin] = { ...start, data: { ...start.data, ...rest } };
    next.items[index] = { ...item, kind: "other", data: { hidden: true } };
  }
}

/** @param {Item} item */
function placeKey(item) {
  return item.kind === "permission" ? `permission ${item.data.permission_id}` : `tool ${item.run} ${item.data.tool_call_id}`;
}

/** @param {Transcript} transcript @param {number} place */
function itemAt(transcript, place) {
  return transcript.items[place - transcript.origin];
}

/** Drops the oldest items beyond the limits. @param {Transcript} next */
function trim(next) {
  let drop = Math.max(0, next.items.length - ITEMS_MAX);
  let { chars } = next;
  for (let i = 0; i < drop; i += 1) chars -= sizeOf(next.items[i]);
  while (chars > CHARS_MAX && drop < next.items.length - 1) {
    chars -= sizeOf(next.items[drop]);
    drop += 1;
  }
  if (drop === 0) return next;
  next.items = next.items.slice(drop);
  next.origin += drop;
  next.chars = chars;
  next.first = next.items[0]?.seq ?? next.last;
  for (const [key, place] of next.places) if (place < next.origin) next.places.delete(key);
  return next;
}

/** @param {Item | undefined} item */
function sizeOf(item) {
  return 200 + (item?.text?.length ?? 0) + (item?.data?.size ?? 0);
}

/**
 * @param {Transcript} next
 * @param {Item["kind"]} kind
 * @param {EventLine} event
 * @param {Partial<Item>} [more]
 */
function push(next, kind, event, more = {}) {
  const item = { id: `${event.session_seq}`, kind, seq: event.session_seq, at: event.created_at_ms, run: event.run_id, ...more };
  next.items.push(item);
  next.chars += sizeOf(item);
  return next.origin + next.items.length - 1;
}

/** @param {Transcript} next @param {EventLine} event */
function take(next, event) {
  if (event.run_id && event.type !== "prompt" && begin(next, event, event.run_id)) return;
  switch (event.type) {
    case "text_delta": return takeText(next, event);
    case "prompt": return takePrompt(next, event);
    case "tool_call": return takeTool(next, event, true);
    case "tool_call_update": return takeTool(next, event, false);
    case "plan": return takePlan(next, event);
    case "permission": return takePermission(next, event);
    case "permission_settled": return takeSettled(next, event);
    case "host_request": return void push(next, "effect", event, { data: event });
    case "status": return takeStatus(next, event);
    case "gap": return void push(next, "gap", event, { text: string(event.text) });
    case "done": case "error": case "closed": return takeEnd(next, event);
    case "update": return takeUpdate(next, event);
    default: return void push(next, "other", event, { data: { name: event.type, event, hidden: false } });
  }
}

/** @param {Transcript} next @param {EventLine} event */
function takePrompt(next, event) {
  const waits = event.mode !== "steer" && event.run_id !== null && next.active !== null && next.active !== event.run_id;
  if (waits) next.queued.set(/** @type {string} */ (event.run_id), event);
  else push(next, "user", event, userItem(event));
  if (!waits && event.mode !== "steer") next.active = event.run_id;
}

/**
 * Shows the prompt of a run that begins; true if it ended in the queue, of which nothing else is shown.
 *
 * @param {Transcript} next
 * @param {EventLine} event
 * @param {string} run
 */
function begin(next, event, run) {
  const prompt = next.queued.get(run);
  const isEnd = event.type === "done" || event.type === "error";
  next.queued.delete(run);
  if (prompt && event.type === "done" && event.stop_reason === "cancelled") {
    push(next, "notice", event, { text: `Removed from the queue: ${string(prompt.text)}`, data: {} });
    return true;
  }
  if (prompt) push(next, "user", event, { ...userItem(prompt), seq: event.session_seq });
  if (isEnd && next.active === run) next.active = null;
  else if (!isEnd && event.type !== "status") next.active = run;
  return false;
}

/** @param {unknown} value */
function string(value) {
  return typeof value === "string" ? value : "";
}

/** @param {Transcript} next @param {EventLine} event */
function takeText(next, event) {
  const kind = event.stream === "thought" ? "thought" : "message";
  if (event.content !== undefined || typeof event.text !== "string") {
    push(next, "content", event, { data: { content: event.content ?? event.payload ?? event.payload_text, thought: kind === "thought" } });
    return;
  }
  const last = next.items[next.items.length - 1];
  const joins = last && last.kind === kind && last.run === event.run_id
    && (event.message_id === undefined || last.data?.message === event.message_id);
  if (!joins || !last) {
    if (event.text === "") return;
    push(next, kind, event, { text: "", data: { message: event.message_id } });
  }
  grow(next, event, event.text);
}

/**
 * Adds text to the last item and splits it where it has become long.
 *
 * @param {Transcript} next
 * @param {EventLine} event
 * @param {string} text
 */
function grow(next, event, text) {
  const index = next.items.length - 1;
  const last = /** @type {Item} */ (next.items[index]);
  const whole = `${last.text ?? ""}${text}`;
  next.chars += text.length;
  const cut = whole.length > PART_CHARS ? splitPoint(whole, last.fence) : null;
  if (!cut) {
    next.items[index] = { ...last, text: whole };
    return;
  }
  next.items[index] = { ...last, text: whole.slice(0, cut.at), data: { ...last.data, ended: true } };
  const part = (last.data?.part ?? 0) + 1;
  const base = last.id.split("+", 1)[0];
  push(next, last.kind, event, {
    id: `${base}+${part}`, text: "", continues: true, data: { message: last.data?.message, part },
    ...(cut.fence ? { fence: cut.fence } : {}),
  });
  next.chars -= whole.length - cut.at;
  grow(next, event, whole.slice(cut.at));
}

/**
 * Returns where a text is split: behind the first paragraph that ends behind `PART_CHARS`, or in a code block behind the
 * first line behind `PART_CHARS_MAX`.
 *
 * @param {string} text
 * @param {string | undefined} openFence
 * @returns {{ at: number, fence: string | null } | null}
 */
export function splitPoint(text, openFence) {
  let fence = openFence ?? null;
  let at = 0;
  for (;;) {
    const end = text.indexOf("\n", at);
    if (end < 0) return null;
    const line = text.slice(at, Math.min(end, at + 200));
    const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1];
    if (fence === null && mark) fence = line;
    else if (fence !== null && mark && fence.trimStart().startsWith(mark) && line.trim() === mark) fence = null;
    const isBlank = line.trim() === "";
    at = end + 1;
    if (at >= text.length) return null;
    if (at > PART_CHARS && isBlank && fence === null && !/^[ \t>|*+-]|^\d+[.)]/.test(text.slice(at, at + 6))) return { at, fence: null };
    if (at > PART_CHARS_MAX) return { at, fence };
  }
}

/** Members of a tool call that later events replace. */
const TOOL_MEMBERS = ["title", "kind", "status", "content", "locations", "raw_output", "raw_input", "arguments_text", "name"];

/** @param {Transcript} next @param {EventLine} event @param {boolean} starts */
function takeTool(next, event, starts) {
  const id = string(event.tool_call_id);
  const key = `tool ${event.run_id} ${id}`;
  /** @type {Record<string, any>} */
  const change = {};
  for (const name of TOOL_MEMBERS) if (event[name] !== undefined && event[name] !== "") change[name] = event[name];
  if (event.extra?._meta) change["meta"] = event.extra._meta;
  const size = roughSize(change);
  const place = next.places.get(key);
  const item = place === undefined ? undefined : itemAt(next, place);
  if (item && place !== undefined && item.kind === "tool") {
    next.items[place - next.origin] = { ...item, data: { ...item.data, ...change, updated: event.created_at_ms, size: Math.max(item.data.size, size) } };
    return;
  }
  const data = { tool_call_id: id, ...change, updated: event.created_at_ms, size, ...(starts ? {} : { isOrphan: true }) };
  next.places.set(key, push(next, "tool", event, { data }));
}

/** @param {unknown} value @returns {number} */
function roughSize(value) {
  if (typeof value === "string") return value.length;
  if (value === null || typeof value !== "object") return 8;
  let size = 0;
  for (const part of Object.values(value)) size += roughSize(part);
  return size;
}

/** @param {Transcript} next @param {EventLine} event */
function takePlan(next, event) {
  const entries = Array.isArray(event.entries) ? event.entries : [];
  const key = `plan ${event.run_id}`;
  const place = next.places.get(key);
  const item = place === undefined ? undefined : itemAt(next, place);
  if (item && place !== undefined) next.items[place - next.origin] = { ...item, data: { entries, updated: event.created_at_ms } };
  else next.places.set(key, push(next, "plan", event, { data: { entries } }));
}

/** @param {Transcript} next @param {EventLine} event */
function takePermission(next, event) {
  const key = `permission ${event.permission_id}`;
  next.places.set(key, push(next, "permission", event, { data: { ...event, settled: null } }));
}

/** @param {Transcript} next @param {EventLine} event */
function takeSettled(next, event) {
  const settled = {
    outcome: event.outcome, option: event.option_name ?? event.option_id ?? null, by: event.by ?? null,
    without: event.without ?? null, at: event.created_at_ms,
  };
  const place = next.places.get(`permission ${event.permission_id}`);
  const item = place === undefined ? undefined : itemAt(next, place);
  if (item && place !== undefined) next.items[place - next.origin] = { ...item, data: { ...item.data, settled } };
  else push(next, "permission", event, { data: { permission_id: event.permission_id, settled, isOrphan: true } });
}

/** Statuses that say nothing to a reader of the transcript. */
const QUIET = new Set(["agent_ready", "noise", "agent_rests"]);

/** @param {Transcript} next @param {EventLine} event */
function takeStatus(next, event) {
  push(next, "notice", event, { text: string(event.text), data: { status: event.status, code: event.code, quiet: QUIET.has(event.status) } });
}

/** @param {Transcript} next @param {EventLine} event */
function takeEnd(next, event) {
  if (event.type !== "closed" && event.run_id) endTools(next, event);
  const start = event.run_id ? startOf(next, event.run_id) : null;
  push(next, "end", event, { data: { ...event, took: start === null ? null : event.created_at_ms - start } });
}

/** Marks tool calls that never completed. @param {Transcript} next @param {EventLine} event */
function endTools(next, event) {
  for (let index = next.items.length - 1; index >= Math.max(0, next.items.length - TOOLS_BACK); index -= 1) {
    const item = /** @type {Item} */ (next.items[index]);
    if (item.run !== event.run_id || item.kind !== "tool") continue;
    if (item.data.status === "completed" || item.data.status === "failed") continue;
    next.items[index] = { ...item, data: { ...item.data, status: "unfinished" } };
  }
}

/** Time of the run's prompt. @param {Transcript} next @param {string} run */
function startOf(next, run) {
  for (let index = next.items.length - 1; index >= 0 && index > next.items.length - 5_000; index -= 1) {
    const item = next.items[index];
    if (item?.kind === "user" && item.run === run) return item.at;
  }
  return null;
}

/** @param {Transcript} next @param {EventLine} event */
function takeUpdate(next, event) {
  if (event.update_kind === "usage_update") {
    next.usage = event.update;
    return;
  }
  const known = ["available_commands_update", "current_mode_update", "config_option_update", "session_info_update"];
  push(next, "other", event, { data: { name: event.update_kind ?? "update", event: event.update, hidden: known.includes(event.update_kind) } });
}
