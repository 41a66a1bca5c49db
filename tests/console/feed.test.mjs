import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError } from "../../gateway/console/core/api.js";
import { SessionFeed } from "../../gateway/console/core/feed.js";

const row = (seq) => ({ session_key: "s", session_seq: seq, run_id: `r${seq}`, type: "gap", text: `row ${seq}`, created_at_ms: seq });

/** A session whose journal grows, and whose responses come when the test lets them. */
function session(t) {
  const journal = [row(1), row(2)];
  const waiting = [];
  const respond = (path) => {
    if (!path.includes("/events")) return { last_session_seq: journal.length, pruned_seq: 0 };
    const after = Number(new URLSearchParams(path.split("?")[1]).get("after"));
    const events = journal.filter((event) => event.session_seq > after);
    return { events, more: false, next_after: events.at(-1)?.session_seq ?? after };
  };
  const api = {
    json: (path) => {
      const answer = respond(path);
      return new Promise((done, fail) => waiting.push({ path, done: () => done(answer), fail }));
    },
  };
  const feed = new SessionFeed(api, "s", () => undefined, () => undefined);
  t.after(() => feed.stop());
  const next = async () => {
    for (let i = 0; waiting.length === 0; i += 1) {
      assert.ok(i < 500, "no request in 5 s");
      await new Promise((done) => setTimeout(done, 10));
    }
    return waiting.shift();
  };
  const settle = async () => {
    for (let i = 0; i < 20; i += 1) await Promise.resolve();
  };
  const answer = async () => {
    (await next()).done();
    await settle();
  };
  const shown = () => feed.transcript.items.map((item) => item.seq);
  /** A row of which the stream tells, or which is committed before the stream begins. */
  const commit = (isStreamed) => {
    journal.push(row(journal.length + 1));
    if (isStreamed) feed.take([journal.at(-1)]);
  };
  return { feed, answer, next, settle, shown, commit };
}

async function loaded(t) {
  const all = session(t);
  const started = all.feed.start();
  await all.answer();
  await all.answer();
  await started;
  assert.deepEqual(all.shown(), [1, 2]);
  return all;
}

test("rows_between_a_page_and_the_begin_of_the_stream_are_read", async (t) => {
  const { feed, answer, next, shown, commit } = session(t);
  const started = feed.start();
  await answer();
  const page = await next();
  // The page is on its way.
  commit(false);
  void feed.catchUp();
  commit(true);
  page.done();
  await answer();
  await started;
  assert.deepEqual(shown(), [1, 2, 3, 4]);
  commit(true);
  assert.deepEqual(shown(), [1, 2, 3, 4, 5]);
});

test("failed_catch_up_leaves_no_hole", async (t) => {
  const { feed, answer, next, settle, shown, commit } = await loaded(t);
  commit(false);
  void feed.catchUp();
  (await next()).fail(new ApiError(503, "GATEWAY_UNAVAILABLE", "away", { retryAfterMs: 10 }));
  await settle();
  commit(true);
  assert.deepEqual(shown(), [1, 2], "row 4 waits for row 3");
  await answer();
  assert.deepEqual(shown(), [1, 2, 3, 4]);
  commit(true);
  assert.deepEqual(shown(), [1, 2, 3, 4, 5]);
});

test("pruned_rows_begin_the_transcript_anew", async (t) => {
  const { feed, answer, next, shown, commit } = await loaded(t);
  commit(false);
  void feed.catchUp();
  (await next()).fail(new ApiError(410, "CURSOR_PRUNED", "pruned"));
  await answer();
  await answer();
  assert.deepEqual([feed.status.phase, shown()], ["ready", [1, 2, 3]]);
});

test("page_that_is_left_reads_nothing_more", async (t) => {
  const { feed, next, settle, commit } = await loaded(t);
  commit(false);
  void feed.catchUp();
  const page = await next();
  feed.stop();
  page.fail(new ApiError(0, "UNREACHABLE", "aborted"));
  await settle();
  await new Promise((done) => setTimeout(done, 50));
  assert.deepEqual(feed.transcript.last, 2);
});
