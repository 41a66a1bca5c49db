import assert from "node:assert/strict";
import { test } from "node:test";
import { ITEMS_MAX, append, emptyTranscript, prepend, splitPoint } from "../../gateway/console/core/transcript.js";

let seq = 0;
const at = (type, more = {}) => ({ session_key: "s", session_seq: ++seq, run_id: "r1", type, created_at_ms: 1_000 + seq, ...more });
const chunk = (text, more = {}) => at("text_delta", { stream: "output", text, ...more });
const kinds = (transcript) => transcript.items.map((item) => item.kind).join(" ");

function turn() {
  seq = 0;
  return [
    at("prompt", { text: "hi", author: "ada", mode: "prompt" }),
    at("text_delta", { stream: "thought", text: "hm" }), at("text_delta", { stream: "thought", text: "m" }),
    chunk("Hello "), chunk("there."),
    at("tool_call", { tool_call_id: "t", title: "Edit", kind: "edit", status: "pending", arguments_text: "{}" }),
    at("permission", { permission_id: "p", title: "Edit a", options: [{ option_id: "y", name: "Yes", kind: "allow_once" }] }),
    at("permission_settled", { permission_id: "p", outcome: "selected", option_id: "y", option_name: "Yes", by: "bob" }),
    at("tool_call_update", { tool_call_id: "t", status: "completed", content: [{ type: "diff", path: "/a", newText: "x" }] }),
    at("plan", { entries: [{ content: "a", status: "pending" }] }), at("plan", { entries: [{ content: "a", status: "completed" }] }),
    at("update", { update_kind: "usage_update", update: { used: 5, size: 10 } }),
    chunk("Done."), at("done", { stop_reason: "end_turn", usage: { totalTokens: 9 } }),
  ];
}

test("events_become_items", () => {
  const transcript = append(emptyTranscript(), turn());
  assert.equal(kinds(transcript), "user thought message tool permission plan message end");
  const [user, thought, message, tool, permission, plan, , end] = transcript.items;
  assert.deepEqual([user.text, user.data.author, thought.text, message.text], ["hi", "ada", "hmm", "Hello there."]);
  assert.deepEqual([tool.data.status, tool.data.title, tool.data.content[0].path], ["completed", "Edit", "/a"]);
  assert.deepEqual([permission.data.settled.by, permission.data.settled.option], ["bob", "Yes"]);
  assert.equal(plan.data.entries[0].status, "completed");
  assert.deepEqual(transcript.usage, { used: 5, size: 10 });
  assert.equal(end.data.took, 13);
});

test("rows_that_come_again_change_nothing", () => {
  const events = turn();
  const once = append(emptyTranscript(), events);
  assert.deepEqual(append(once, events).items, once.items);
});

test("history_in_pages_of_any_size_gives_the_same_items", () => {
  const events = turn();
  const whole = append(emptyTranscript(), events);
  for (let size = 1; size < events.length; size += 1) {
    let transcript = emptyTranscript();
    for (let end = events.length; end > 0; end -= size) {
      const page = events.slice(Math.max(0, end - size), end);
      transcript = end === events.length ? append(transcript, page) : prepend(transcript, page, page[0].session_seq);
    }
    const visible = transcript.items.filter((item) => !item.data?.hidden);
    const tool = visible.find((item) => item.kind === "tool");
    assert.deepEqual([tool.data.title, tool.data.status], ["Edit", "completed"], `pages of ${size}`);
    const permission = visible.filter((item) => item.kind === "permission");
    assert.deepEqual([permission.length, permission[0].data.title, permission[0].data.settled.by], [1, "Edit a", "bob"], `pages of ${size}`);
    const text = (items) => items.filter((item) => item.kind === "message").map((item) => item.text).join("");
    assert.equal(text(visible), text(whole.items));
    assert.equal(transcript.last, events.length);
  }
});

test("updates_after_a_prepend_reach_their_item", () => {
  const events = turn();
  const transcript = prepend(append(emptyTranscript(), events.slice(9)), events.slice(0, 9), 1);
  const later = append(transcript, [at("tool_call_update", { tool_call_id: "t", status: "failed" })]);
  assert.equal(later.items.find((item) => item.kind === "tool").data.status, "failed");
});

test("unfinished_tools_of_an_ended_run_are_marked", () => {
  seq = 0;
  const transcript = append(emptyTranscript(), [at("tool_call", { tool_call_id: "t", title: "x", status: "in_progress" }), at("error", { code: "C", message: "m" })]);
  assert.equal(transcript.items[0].data.status, "unfinished");
});

test("a_long_text_is_split_between_paragraphs_and_loses_nothing", () => {
  seq = 0;
  const fence = "```rust\nlet a = 1;\n\n\n```\n\n";
  const text = `${"word ".repeat(400)}\n\n${fence}`.repeat(30) + "`".repeat(3) + "js\n" + "code();\n".repeat(5_000) + "```\n\nend";
  const events = [];
  for (let from = 0; from < text.length; from += 37) events.push(chunk(text.slice(from, from + 37)));
  const { items } = append(emptyTranscript(), events);
  assert.ok(items.length > 10);
  assert.equal(items.map((item) => item.text).join(""), text);
  assert.ok(items.every((item) => item.text.length <= 13_000), `${Math.max(...items.map((item) => item.text.length))}`);
  assert.equal(new Set(items.map((item) => item.id)).size, items.length);
  assert.ok(items.some((item) => item.fence === "```js"));
  assert.equal(items.at(-1).fence, undefined);
});

test("a_line_without_end_is_one_item", () => {
  assert.equal(splitPoint("x".repeat(100_000), undefined), null);
});

test("ten_thousand_events_are_taken_quickly_and_memory_is_bounded", () => {
  seq = 0;
  const events = Array.from({ length: 10_000 }, (_, i) => (i % 3 ? chunk(`text ${i}\n`) : at("tool_call", { tool_call_id: `t${i}`, title: "x" })));
  let transcript = emptyTranscript();
  let longest = 0;
  for (let from = 0; from < events.length; from += 300) {
    const start = performance.now();
    transcript = append(transcript, events.slice(from, from + 300));
    longest = Math.max(longest, performance.now() - start);
  }
  assert.ok(longest < 50, `${longest} ms`);
  const many = append(transcript, Array.from({ length: ITEMS_MAX + 500 }, (_, i) => at("tool_call", { tool_call_id: `u${i}`, title: "x" })));
  assert.equal(many.items.length, ITEMS_MAX);
  assert.ok(many.first > 1);
  assert.equal(append(many, [at("tool_call_update", { tool_call_id: `u${ITEMS_MAX}`, status: "failed" })]).items.find((item) => item.data.tool_call_id === `u${ITEMS_MAX}`).data.status, "failed");
});

test("malformed_events_become_items_without_an_exception", () => {
  seq = 0;
  const odd = [chunk(undefined), at("text_delta", { payload_text: "{" }), at("tool_call", {}), at("tool_call_update", { tool_call_id: 7 }), at("plan", { payload: null }),
    at("permission", {}), at("permission_settled", {}), at("status", {}), at("gap", {}), at("update", {}), at("host_request", {}), at("unheard_of", {}), at("prompt", { text: 5 })];
  assert.equal(append(emptyTranscript(), odd).items.length > 8, true);
});

test("a_queued_prompt_is_shown_where_its_run_begins", () => {
  seq = 0;
  const events = [
    at("prompt", { text: "one" }), chunk("a"), at("prompt", { text: "two", run_id: "r2" }), chunk("b"), at("prompt", { text: "now", mode: "steer", run_id: "r3" }),
    chunk("c"), at("prompt", { text: "three", run_id: "r4" }), at("done", { stop_reason: "end_turn" }), chunk("d", { run_id: "r2" }), at("done", { run_id: "r2", stop_reason: "end_turn" }),
    at("done", { run_id: "r4", stop_reason: "cancelled" }), at("prompt", { text: "four", run_id: "r5" }),
  ];
  const shown = (transcript) => transcript.items.map((item) => item.text ?? item.kind).join(" ");
  const want = "one ab now c end two d end Removed from the queue: three four";
  assert.equal(shown(append(emptyTranscript(), events)), want);
  assert.equal(append(emptyTranscript(), events.slice(0, 7)).queued.size, 2);
  for (let cut = 1; cut < 6; cut += 1) {
    const paged = prepend(append(emptyTranscript(), events.slice(cut)), events.slice(0, cut), 1);
    assert.equal(shown(paged).replace("a b", "ab"), want, `cut at ${cut}`);
    const after = append(paged, [at("tool_call_update", { tool_call_id: "x", status: "failed" })]);
    assert.equal(after.items.length, paged.items.length + 1);
    seq = events.length;
  }
});
