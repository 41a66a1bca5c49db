import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

/** What the modules use of a browser. */
function browser() {
  const values = new Map();
  globalThis.sessionStorage = { getItem: (name) => values.get(name) ?? null, setItem: (name, value) => void values.set(name, value), removeItem: (name) => void values.delete(name) };
  globalThis.document = { hidden: false };
  return values;
}

const { Console } = await import("../../gateway/console/core/console.js");

/** A gateway with one session: remembers prompts by key, and can lose responses. */
async function gateway(t) {
  const state = { runs: new Map(), rows: [], posts: [], lose: 0, hang: 0, wait: 0, streams: new Set(), tokens: new Set(["one", "two"]), refuse: null };
  const row = (event) => {
    const line = { session_key: "s", session_seq: state.rows.length + 1, created_at_ms: 1, run_id: null, ...event };
    state.rows.push(line);
    for (const stream of state.streams) stream.write(`id: ${line.session_seq}\ndata: ${JSON.stringify(line)}\n\n`);
  };
  const view = () => ({ session_key: "s", agent: "demo", state: "idle", cwd: "/w", last_session_seq: state.rows.length, last_activity_at_ms: 1, permissions: [], runs: [] });
  const json = (response, body, status = 200) => response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
  const http = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request) body += piece;
    if (!state.tokens.has((request.headers.authorization ?? "").slice(7))) return json(response, { code: "ACP_NOT_OWNER", message: "no token" }, 401);
    if (request.url === "/v1/stream") {
      const after = Number(request.headers["last-event-id"] ?? state.rows.length);
      response.writeHead(200, { "content-type": "text/event-stream" }).write(`id: ${after}\nevent: start\ndata: {}\n\n`);
      for (const line of state.rows.slice(after)) response.write(`id: ${line.session_seq}\ndata: ${JSON.stringify(line)}\n\n`);
      state.streams.add(response);
      response.on("close", () => state.streams.delete(response));
      return undefined;
    }
    if (request.url === "/v1/whoami") return json(response, { name: "ada", scopes: ["read", "prompt"], agents: [] });
    if (request.url === "/v1/permissions") return json(response, []);
    if (request.url === "/v1/sessions") return json(response, [view()]);
    if (request.url !== "/v1/sessions/s/prompt") return json(response, view());
    const key = request.headers["idempotency-key"];
    state.posts.push(key);
    if (state.hang > 0) {
      state.hang -= 1;
      return undefined;
    }
    if (state.wait > 0) {
      state.wait -= 1;
      await Promise.race([until(() => state.posts.length > 1, "another request"), new Promise((done) => setTimeout(done, 200))]);
    }
    if (state.refuse) return json(response, state.refuse, 409);
    if (!state.runs.has(key)) {
      state.runs.set(key, `run${state.runs.size + 1}`);
      row({ type: "prompt", run_id: state.runs.get(key), text: JSON.parse(body).text });
    }
    if (state.lose > 0) {
      state.lose -= 1;
      return request.socket.destroy();
    }
    return json(response, { run_id: state.runs.get(key), after_seq: 0, queued_behind: 0, steered: false });
  });
  await new Promise((done) => http.listen(0, "127.0.0.1", done));
  const base = `http://127.0.0.1:${http.address().port}`;
  const models = [];
  t.after(() => {
    for (const model of models) model.leave("");
    http.closeAllConnections();
    http.close();
  });
  const open = () => {
    const model = new Console();
    model.api.fetcher = (path, init) => fetch(base + path, init);
    models.push(model);
    return model;
  };
  return { state, open, row };
}

async function until(condition, what) {
  for (let i = 0; i < 1000; i += 1) {
    if (condition()) return;
    await new Promise((done) => setTimeout(done, 10));
  }
  assert.fail(`not in 10 s: ${what}`);
}

test("a_prompt_whose_response_is_lost_has_one_effect", async (t) => {
  browser();
  const { state, open } = await gateway(t);
  const model = open();
  await model.signIn("one");
  await until(() => model.state.connection.phase === "open" && model.state.loaded, "the stream");
  state.lose = 1;
  model.sendPrompt("s", { text: "hello" });
  assert.equal(model.state.outbox.length, 1, "it is shown at once");
  await until(() => model.state.outbox.length === 0, "its row is seen");
  assert.deepEqual([state.rows.length, new Set(state.posts).size], [1, 1]);
});

test("prompts_of_a_session_arrive_in_their_order", async (t) => {
  browser();
  const { state, open } = await gateway(t);
  const model = open();
  await model.signIn("one");
  await until(() => model.state.connection.phase === "open" && model.state.loaded, "the stream");
  // The gateway is slow with the first one.
  state.wait = 1;
  for (const text of ["first", "second", "third"]) model.sendPrompt("s", { text });
  await until(() => model.state.outbox.length === 0, "their rows are seen");
  assert.deepEqual(state.rows.map((row) => row.text), ["first", "second", "third"]);
  assert.equal(state.posts.length, 3);
});

test("a_request_that_hangs_is_sent_again_when_the_stream_is_back", async (t) => {
  browser();
  const { state, open } = await gateway(t);
  const model = open();
  await model.signIn("one");
  await until(() => model.state.connection.phase === "open" && model.state.loaded, "the stream");
  state.hang = 1;
  for (const text of ["first", "second"]) model.sendPrompt("s", { text });
  await until(() => state.posts.length === 1, "the first request");
  for (const stream of state.streams) stream.destroy();
  await until(() => model.state.outbox.length === 0, "their rows are seen");
  assert.deepEqual(state.rows.map((row) => row.text), ["first", "second"]);
  assert.deepEqual([state.posts.length, new Set(state.posts).size], [3, 2]);
});

test("a_prompt_survives_a_reload_and_is_sent_once", async (t) => {
  browser();
  const { state, open } = await gateway(t);
  const model = open();
  await model.signIn("one");
  model.sendPrompt("s", { text: "hello" });
  state.lose = 100;
  await until(() => state.posts.length >= 1, "the first request");
  model.stream.stop();
  model.transmit = async () => undefined;
  await until(() => model.transmitting.size === 0, "nothing is under way");
  state.lose = 0;
  const before = state.posts.length;
  const reloaded = open();
  await reloaded.begin(null);
  assert.equal(reloaded.state.outbox.length, 1);
  await until(() => state.posts.length > before, "another request");
  reloaded.sawRows(state.rows);
  await until(() => reloaded.state.outbox.length === 0, "its row is seen");
  assert.deepEqual([state.rows.length, new Set(state.posts).size], [1, 1]);
});

test("a_prompt_of_another_sign_in_is_not_sent_again", async (t) => {
  browser();
  const { state, open } = await gateway(t);
  const model = open();
  await model.signIn("one");
  state.lose = 100;
  model.sendPrompt("s", { text: "hello" });
  await until(() => state.posts.length >= 1, "a request");
  model.leave("signed out");
  await until(() => model.transmitting.size === 0, "nothing is under way");
  const posts = state.posts.length;
  state.lose = 0;
  await model.signIn("two");
  await until(() => model.state.connection.phase === "open", "the stream");
  assert.deepEqual([model.outbox.entries[0].state, model.outbox.entries[0].error.code], ["failed", "UNCERTAIN"]);
  assert.equal(state.posts.length, posts);
});

test("a_refused_prompt_keeps_its_text_and_says_why", async (t) => {
  browser();
  const { state, open } = await gateway(t);
  const model = open();
  await model.signIn("one");
  state.refuse = { code: "ACP_SESSION_CLOSED", message: "The session is closed." };
  model.sendPrompt("s", { text: "hello" });
  await until(() => model.state.outbox[0]?.state === "failed", "the refusal");
  assert.deepEqual([model.state.outbox[0].text, model.state.outbox[0].error.code, state.posts.length], ["hello", "ACP_SESSION_CLOSED", 1]);
});

test("a_revoked_token_leads_to_the_sign_in_with_a_reason", async (t) => {
  const values = browser();
  const { state, open } = await gateway(t);
  const model = open();
  await model.signIn("one");
  await until(() => model.state.connection.phase === "open", "the stream");
  assert.ok(values.has("acphost.login"));
  state.tokens.clear();
  for (const stream of state.streams) stream.destroy();
  await until(() => model.login === null, "the sign-out");
  assert.match(model.loginNote, /expired or was revoked/);
  assert.equal(values.has("acphost.login"), false);
});

test("scopes_and_agents_of_a_token_are_known", async (t) => {
  browser();
  const { open } = await gateway(t);
  const model = open();
  await model.signIn("one");
  assert.deepEqual([model.may("read"), model.may("prompt"), model.may("approve"), model.login.isLimited], [true, true, false, false]);
  await assert.rejects(open().signIn("wrong"), (error) => error.status === 401);
});
