import assert from "node:assert/strict";
import { test } from "node:test";
import { Outbox } from "../../gateway/console/core/outbox.js";

function storage(limit = Infinity) {
  const values = new Map();
  return {
    getItem: (name) => values.get(name) ?? null,
    setItem: (name, value) => {
      if (value.length > limit) throw new DOMException("full", "QuotaExceededError");
      values.set(name, value);
    },
    removeItem: (name) => values.delete(name),
  };
}
const entry = (key) => ({ key, session: "s", text: "hi", mode: "prompt", files: [], state: "sending", at: 1, run: null, error: null });

test("a_prompt_survives_a_reload_with_its_key_until_its_row_is_seen", () => {
  const kept = storage();
  new Outbox(kept).add(entry("k"));
  const reloaded = new Outbox(kept);
  assert.deepEqual(reloaded.of("s").map(({ key, state }) => [key, state]), [["k", "sending"]]);
  reloaded.update("k", { state: "accepted", run: "r" });
  assert.equal(new Outbox(kept).entries.length, 1);
  assert.ok(reloaded.sawRow("r"));
  assert.equal(new Outbox(kept).entries.length, 0);
});

test("a_row_before_the_response_removes_the_prompt_too", () => {
  const outbox = new Outbox(storage());
  outbox.add(entry("k"));
  assert.equal(outbox.sawRow("r"), false);
  outbox.update("k", { state: "accepted", run: "r" });
  assert.equal(outbox.entries.length, 0);
});

test("a_full_storage_is_told_and_the_prompt_stays_in_the_page", () => {
  const outbox = new Outbox(storage(10));
  assert.equal(outbox.add(entry("k")), false);
  assert.equal(outbox.entries.length, 1);
});

test("a_damaged_storage_is_an_empty_outbox", () => {
  const kept = storage();
  kept.setItem("acphost.outbox", "{broken");
  assert.deepEqual(new Outbox(kept).entries, []);
});

test("seen_rows_are_bounded", () => {
  const outbox = new Outbox(storage());
  for (let i = 0; i < 5_000; i += 1) outbox.sawRow(`r${i}`);
  assert.ok(outbox.seen.size <= 500);
});
