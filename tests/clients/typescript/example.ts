import { client, methods, PROTOCOL_VERSION } from "@agentclientprotocol/sdk";
import { createWebSocketStream } from "@agentclientprotocol/sdk/experimental/ws-client";
import WebSocket from "ws";

const { ACP_URL = "ws://127.0.0.1:7433/acp", ACP_TOKEN } = process.env;
const headers = { Authorization: `Bearer ${ACP_TOKEN}` };
const stream = createWebSocketStream(ACP_URL, { headers, WebSocket: WebSocket as never });

await client({ name: "example" })
  .onNotification(methods.client.session.update, ({ params: { update } }) => {
    if (update.sessionUpdate === "agent_message_chunk" && update.content.type === "text") {
      process.stdout.write(update.content.text);
    }
  })
  .onRequest(methods.client.session.requestPermission, ({ params: { options, toolCall } }) => {
    console.error(`allowed once: ${toolCall.title}`);
    const once = options.find((option) => option.kind === "allow_once");
    return { outcome: once ? { outcome: "selected", optionId: once.optionId } : { outcome: "cancelled" } };
  })
  .connectWith(stream, async (agent) => {
    await agent.request(methods.agent.initialize, { protocolVersion: PROTOCOL_VERSION, clientCapabilities: {} });
    const { sessionId } = await agent.request(methods.agent.session.new, { cwd: process.cwd(), mcpServers: [] });
    const prompt = [{ type: "text" as const, text: process.argv[2] ?? "hello" }];
    await agent.request(methods.agent.session.prompt, { sessionId, prompt });
  });
