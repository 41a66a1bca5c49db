import assert from "node:assert/strict";
import { test } from "node:test";
import { groupOf, grouped, initialState, reduce } from "../../gateway/console/core/state.js";

const session = (key, more = {}) => ({ session_key: key, agent: "demo", state: "idle", cwd: `/w/${key}`, label: null, last_session_seq: 10, last_activity_at_ms: 1, ...more });
const event = (type, more = {}) => ({ session_key: "a", session_seq: 11, run_id: "r", type, created_at_ms: 99, ...more });
const listed = (sessions, permissions = []) => reduce(initialState(), { type: "listed", sessions, permissions });
const take = (state, ...events) => reduce(state, { type: "events", events });

test("sessions_are_grouped_by_what_they_need", () => {
  assert.equal(groupOf(session("a"), true), "needs");
  assert.equal(groupOf(session("a", { state: "closed" }), true), "closed");
  assert.equal(groupOf(session("a", { state: "cancelling" }), false), "running");
  assert.equal(groupOf(session("a", { active_run: "r" }), false), "running");
  assert.equal(groupOf(session("a", { state: "error" }), false), "failed");
  assert.equal(groupOf(session("a", { last_error: { code: "C", message: "m" } }), false), "failed");
  assert.equal(groupOf(session("a"), false), "idle");
});

test("filters_take_every_word_and_sort_by_activity", () => {
  const state = listed([session("a", { label: "Fix login" }), session("b", { last_activity_at_ms: 5 }), session("c", { agent: "qwen" })]);
  const keys = (filter) => [...grouped(state, filter).values()].flat().map((one) => one.session_key);
  assert.deepEqual(keys({}), ["b", "a", "c"]);
  assert.deepEqual(keys({ text: "LOGIN fix" }), ["a"]);
  assert.deepEqual(keys({ text: "/w/b" }), ["b"]);
  assert.deepEqual(keys({ agent: "qwen" }), ["c"]);
  assert.deepEqual(keys({ group: "running" }), []);
});

test("a_permission_is_pending_until_it_is_settled", () => {
  const asked = take(listed([session("a")]), event("permission", { permission_id: "p", title: "Write", options: [] }));
  assert.deepEqual([...asked.permissions.keys()], ["p"]);
  assert.ok(asked.permissionsDirty);
  const settled = take(asked, event("permission_settled", { session_seq: 12, permission_id: "p", by: "bob", option_name: "Yes" }));
  assert.equal(settled.permissions.size, 0);
  assert.deepEqual(settled.settled.get("p"), { by: "bob", option: "Yes", without: null, at: 99 });
  // A response that was under way meanwhile does not bring it back.
  const late = reduce(settled, { type: "permissions", permissions: [{ permission_id: "p", session_key: "a", options: [], title: "", created_at_ms: 1 }] });
  assert.equal(late.permissions.size, 0);
});

test("a_permission_that_the_policy_settles_at_once_never_shows", () => {
  const state = take(listed([session("a")]), event("permission", { permission_id: "p", title: "Read", options: [] }), event("permission_settled", { session_seq: 12, permission_id: "p", without: "policy" }));
  assert.equal(state.permissions.size, 0);
});

test("events_change_the_state_and_ask_to_read_the_session_again", () => {
  const running = take(listed([session("a")]), event("prompt", { text: "hi", author: "ada" }));
  assert.equal(running.sessions.get("a").state, "running");
  assert.ok(running.dirty.has("a"));
  assert.equal(running.activity.get("a").text, "ada: hi");
  const failed = take(running, event("error", { session_seq: 12, code: "C", message: "m" }));
  assert.deepEqual([failed.sessions.get("a").state, failed.sessions.get("a").last_error.code], ["idle", "C"]);
  const closed = take(failed, event("closed", { session_seq: 13 }));
  assert.equal(closed.sessions.get("a").state, "closed");
});

test("events_that_the_list_has_already_change_nothing", () => {
  const state = take(listed([session("a")]), event("prompt", { session_seq: 10, text: "old" }));
  assert.equal(state.sessions.get("a").state, "idle");
});

test("an_unknown_session_is_read", () => {
  assert.ok(take(listed([]), event("prompt", { text: "x" })).dirty.has("a"));
});

test("an_older_response_does_not_replace_what_events_said", () => {
  const newer = take(listed([session("a")]), event("prompt", { session_seq: 12, text: "x" }));
  const state = reduce(newer, { type: "session", session: session("a", { last_session_seq: 11 }) });
  assert.equal(state.sessions.get("a").last_session_seq, 12);
  assert.ok(state.dirty.has("a"));
});

test("a_session_response_replaces_its_permissions", () => {
  const asked = take(listed([session("a")]), event("permission", { permission_id: "p", options: [] }));
  const state = reduce(asked, { type: "session", session: session("a", { last_session_seq: 20, permissions: [] }) });
  assert.equal(state.permissions.size, 0);
});

test("reading_and_failing_to_read_keep_what_is_dirty", () => {
  const dirty = take(listed([session("a")]), event("prompt", { text: "x" }));
  const reading = reduce(dirty, { type: "reading", keys: ["a"], permissions: true });
  assert.equal(reading.dirty.size, 0);
  assert.ok(reduce(reading, { type: "unread", keys: ["a"], permissions: false }).dirty.has("a"));
});

test("what_sessions_say_is_kept_short", () => {
  let state = listed([session("a")]);
  for (let i = 0; i < 200; i += 1) state = take(state, event("text_delta", { session_seq: 11 + i, stream: "output", text: "word ".repeat(20) }));
  assert.ok(state.activity.get("a").text.length <= 160);
});

test("a_session_that_the_gateway_does_not_have_is_known_to_be_gone", () => {
  const state = reduce(listed([session("s")]), { type: "missing", key: "s" });
  assert.deepEqual([[...state.sessions.keys()], [...state.gone]], [[], ["s"]]);
});
