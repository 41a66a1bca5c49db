import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import { ApiClient, ApiError } from "../../gateway/console/core/api.js";
import { EventStream, retryDelay } from "../../gateway/console/core/stream.js";

/** Serves with a function for each request in turn; the last one serves the rest. */
async function server(t, ...answers) {
  const requests = [];
  const http = createServer((request, response) => {
    requests.push(request.headers);
    (answers[Math.min(requests.length, answers.length) - 1])(response, request);
  });
  await new Promise((done) => http.listen(0, "127.0.0.1", done));
  t.after(() => {
    http.closeAllConnections();
    http.close();
  });
  const base = `http://127.0.0.1:${http.address().port}`;
  return { requests, api: new ApiClient({ token: () => "secret", onRefused: () => undefined, fetch: (path, init) => fetch(base + path, init) }) };
}

const start = (response, id) => response.writeHead(200, { "content-type": "text/event-stream" }).write(`id: ${id}\nevent: start\ndata: {}\n\n`);
const row = (response, id) => response.write(`id: ${id}\ndata: {"session_key":"s","session_seq":${id},"type":"gap"}\n\n`);

function follow(api) {
  const seen = { events: [], phases: [], starts: [] };
  const stream = new EventStream(api, {
    onConnection: ({ phase }) => seen.phases.push(phase),
    onStart: (first) => seen.starts.push(first),
    onEvents: (events) => seen.events.push(...events.map(({ id }) => id)),
  });
  return { seen, stream };
}

async function until(condition) {
  for (let i = 0; i < 500; i += 1) {
    if (condition()) return;
    await new Promise((done) => setTimeout(done, 10));
  }
  assert.fail("it did not happen in 5 s");
}

test("a_broken_connection_goes_on_behind_the_last_event", async (t) => {
  const { requests, api } = await server(t,
    (response) => { start(response, 4); row(response, 5); row(response, 6); response.write("id: 7\ndata: {\"half"); setTimeout(() => response.destroy(), 50); },
    (response) => { start(response, 6); row(response, 7); });
  const { seen, stream } = follow(api);
  void stream.run();
  await until(() => seen.phases.includes("waiting"));
  stream.wake();
  await until(() => seen.events.length === 3);
  stream.stop();
  assert.deepEqual(seen.events, ["5", "6", "7"]);
  assert.deepEqual(requests.map((headers) => headers["last-event-id"]), [undefined, "6"]);
  assert.equal(requests[0].authorization, "Bearer secret");
  assert.deepEqual(seen.starts, [true, false]);
  assert.equal(seen.phases.at(-1), "stopped");
});

test("a_pruned_position_begins_anew_and_says_so", async (t) => {
  const { requests, api } = await server(t,
    (response) => { start(response, 4); response.end(); },
    (response) => response.writeHead(410, { "content-type": "application/json" }).end('{"code":"CURSOR_PRUNED","message":"gone"}'),
    (response) => { start(response, 90); row(response, 91); });
  const { seen, stream } = follow(api);
  void stream.run();
  await until(() => { stream.wake(); return seen.events.length === 1; });
  stream.stop();
  assert.deepEqual(requests.slice(0, 3).map((headers) => headers["last-event-id"]), [undefined, "4", undefined]);
  assert.deepEqual(seen.starts, [true, true]);
});

test("a_refused_token_stops_the_stream", async (t) => {
  const { requests, api } = await server(t, (response) => response.writeHead(401).end());
  const { seen, stream } = follow(api);
  await stream.run();
  assert.deepEqual([requests.length, seen.phases.at(-1)], [1, "stopped"]);
});

test("delays_grow_to_a_limit", () => {
  const delays = [1, 2, 3, 4, 5, 6, 20].map((attempt) => retryDelay(attempt, () => 0.5));
  assert.deepEqual(delays, [500, 1000, 2000, 4000, 8000, 15000, 15000]);
});

test("a_lost_response_is_repeated_with_the_same_key", async (t) => {
  const { requests, api } = await server(t, (response) => response.destroy(), (response) => response.end('{"run_id":"r"}'));
  assert.deepEqual(await api.persist("/v1/x", {}), { run_id: "r" });
  const keys = requests.map((headers) => headers["idempotency-key"]);
  assert.ok(keys.length >= 2 && new Set(keys).size === 1 && keys[0], `${keys}`);
});

test("a_refusal_is_not_repeated_and_names_the_next_step", async (t) => {
  const { requests, api } = await server(t, (response) => response.writeHead(409).end('{"code":"ACP_SESSION_CLOSED","message":"closed"}'));
  await assert.rejects(api.persist("/v1/x", {}), (/** @type {ApiError} */ error) => {
    assert.deepEqual([error.code, error.message, error.status], ["ACP_SESSION_CLOSED", "closed", 409]);
    assert.match(error.nextStep, /new session/);
    return true;
  });
  assert.equal(requests.length, 1);
});
