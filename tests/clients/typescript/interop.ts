// Does everything that a client of the gateway does, with the official library and three connections: its argument
// is JSON that says how to connect and what to prompt; one JSON line for each step says what was seen. The test judges.
import { client, methods, ndJsonStream, PROTOCOL_VERSION } from "@agentclientprotocol/sdk";
import type { ClientConnection, SessionUpdate, Stream } from "@agentclientprotocol/sdk";
import { createHttpStream } from "@agentclientprotocol/sdk/experimental/http-client";
import { createWebSocketStream } from "@agentclientprotocol/sdk/experimental/ws-client";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { Readable, Writable } from "node:stream";
import WebSocket from "ws";

type Plan = {
  transport: "stdio" | "http" | "websocket";
  command: string[];
  url: string;
  token: string;
  cwd: string;
  mode: string;
  prompts: { stream: string; write: string; shared: string; long: string; mode: string; resumed: string };
};

const plan: Plan = JSON.parse(process.argv[2]!);

/** One connection to the gateway. */
class Peer {
  updates: SessionUpdate[] = [];
  connection: ClientConnection;
  process?: ChildProcess;
  /** True for a client that answers "allow once"; another leaves the question open. */
  allows = true;
  asked = 0;
  withdrawn = 0;
  fileRequests = 0;
  private wake: () => void = () => {};

  constructor() {
    const app = client({ name: "interop" })
      .onNotification(methods.client.session.update, ({ params }) => {
        this.updates.push(params.update);
        this.wake();
      })
      .onRequest(methods.client.session.requestPermission, async ({ params, signal }) => {
        this.asked += 1;
        this.wake();
        const once = params.options.find((option) => option.kind === "allow_once");
        if (this.allows && once) return { outcome: { outcome: "selected", optionId: once.optionId } };
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        this.withdrawn += 1;
        this.wake();
        return { outcome: { outcome: "cancelled" } };
      })
      .onRequest(methods.client.fs.readTextFile, () => ({ content: `${(this.fileRequests += 1)}` }))
      .onRequest(methods.client.fs.writeTextFile, () => void (this.fileRequests += 1))
      .onNotification("_acphost/permission/settled", (params) => params, () => {});
    this.connection = app.connect(this.open());
  }

  private open(): Stream {
    const headers = { Authorization: `Bearer ${plan.token}` };
    if (plan.transport === "http") return createHttpStream(plan.url, { headers });
    if (plan.transport === "websocket") {
      const url = plan.url.replace("http:", "ws:");
      return createWebSocketStream(url, { headers, WebSocket: WebSocket as never });
    }
    const [program, ...args] = plan.command;
    this.process = spawn(program!, args, { stdio: ["pipe", "pipe", "inherit"] });
    return ndJsonStream(Writable.toWeb(this.process.stdin!), Readable.toWeb(this.process.stdout!) as never);
  }

  get agent() {
    return this.connection.agent;
  }

  initialize() {
    const fs = { readTextFile: true, writeTextFile: true };
    return this.agent.request(methods.agent.initialize, {
      protocolVersion: PROTOCOL_VERSION,
      clientCapabilities: { fs },
      clientInfo: { name: "interop", version: "1" },
    });
  }

  prompt(sessionId: string, text: string) {
    return this.agent.request(methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
  }

  texts(kind: "agent_message_chunk" | "user_message_chunk", from = 0): string[] {
    const found = [];
    for (const update of this.updates.slice(from)) {
      if (update.sessionUpdate === kind && update.content.type === "text") found.push(update.content.text);
    }
    return found;
  }

  text(from = 0) {
    return this.texts("agent_message_chunk", from).join("");
  }

  /** Waits for a state; the test's own limit ends a wait that is in vain. */
  async until(is: () => boolean) {
    while (!is()) await new Promise<void>((resolve) => (this.wake = resolve));
  }

  /** Closes the connection and returns the exit code of the bridge, or null. */
  async close() {
    this.connection.close();
    if (!this.process) return null;
    this.process.stdin!.end();
    const [code] = this.process.exitCode === null ? await once(this.process, "exit") : [this.process.exitCode];
    return code;
  }
}

function report(step: string, seen: object) {
  console.log(JSON.stringify({ step, ...seen }));
}

async function errorCode(request: Promise<unknown>) {
  return request.then(() => 0, (error) => error.code);
}

const [first, second, third] = [new Peer(), new Peer(), new Peer()];
const info = await first.initialize();
const created = await first.agent.request(methods.agent.session.new, { cwd: plan.cwd, mcpServers: [] });
const sessionId = created.sessionId;
report("new", {
  session: sessionId,
  version: info.protocolVersion,
  agent: info.agentInfo?.name,
  modes: created.modes?.availableModes.map((mode) => mode.id),
});

let from = first.updates.length;
const streamed = await first.prompt(sessionId, plan.prompts.stream);
const pieces = first.texts("agent_message_chunk", from).length;
report("prompt", { stop: streamed.stopReason, text: first.text(from), pieces });

from = first.updates.length;
const written = await first.prompt(sessionId, plan.prompts.write);
report("permission", { stop: written.stopReason, text: first.text(from), asked: first.asked });

// The second client joins in the middle of the turn and answers the question that both are asked.
from = first.updates.length;
first.allows = false;
const shared = first.prompt(sessionId, plan.prompts.shared);
await first.until(() => first.texts("agent_message_chunk", from).length > 3);
await second.initialize();
const place = { sessionId, cwd: plan.cwd, mcpServers: [] };
await second.agent.request(methods.agent.session.load, place);
const replayed = second.text().length;
const stop = (await shared).stopReason;
const text = first.text(from);
await second.until(() => second.text().length >= first.text().length);
await first.until(() => first.withdrawn > 0);
report("load", {
  stop,
  text,
  whole: second.text() === first.text(),
  joined: replayed > 0 && replayed < first.text().length,
  prompts: second.texts("user_message_chunk"),
  echoes: first.texts("user_message_chunk").length,
  asked: [first.asked, second.asked],
  withdrawn: first.withdrawn,
});

from = first.updates.length;
const long = first.prompt(sessionId, plan.prompts.long);
await first.until(() => first.text(from) !== "");
await first.agent.notify(methods.agent.session.cancel, { sessionId });
report("cancel", { stop: (await long).stopReason });

await third.initialize();
await third.agent.request(methods.agent.session.resume, place);
const history = third.texts("agent_message_chunk").length;
from = second.updates.length;
const resumed = await third.prompt(sessionId, plan.prompts.resumed);
await second.until(() => second.text(from).length >= third.text().length);
report("resume", {
  stop: resumed.stopReason,
  history,
  text: third.text(),
  observed: second.text(from),
  prompts: second.texts("user_message_chunk", from),
});

first.allows = true;
const before = first.asked + second.asked + third.asked;
await first.agent.request(methods.agent.session.setMode, { sessionId, modeId: plan.mode });
from = first.updates.length;
const free = await first.prompt(sessionId, plan.prompts.mode);
const asked = first.asked + second.asked + third.asked - before;
report("mode", { stop: free.stopReason, text: first.text(from), asked });

const listed = async () => {
  const { sessions } = await second.agent.request(methods.agent.session.list, {});
  return sessions.some((session) => session.sessionId === sessionId);
};
await third.agent.request(methods.agent.session.close, { sessionId });
const closed = await errorCode(third.prompt(sessionId, plan.prompts.resumed));
const there = [await listed()];
await second.agent.request(methods.agent.session.delete, { sessionId });
there.push(await listed());
const gone = await errorCode(first.agent.request(methods.agent.session.load, place));
report("close", { closed, gone, listed: there });

const peers = [first, second, third];
const files = peers.reduce((sum, peer) => sum + peer.fileRequests, 0);
const codes = [];
for (const peer of peers) codes.push(await peer.close());
report("end", { files, codes });
