import asyncio
import os
import sys

import acp
from acp.schema import AgentMessageChunk, AllowedOutcome, DeniedOutcome, RequestPermissionResponse


class Client(acp.Client):
    async def session_update(self, session_id, update, **kwargs):
        if isinstance(update, AgentMessageChunk):
            print(update.content.text, end="", flush=True)

    async def request_permission(self, session_id, tool_call, options, **kwargs):
        print(f"allowed once: {tool_call.title}", file=sys.stderr)
        for option in options:
            if option.kind == "allow_once":
                chosen = AllowedOutcome(outcome="selected", option_id=option.option_id)
                return RequestPermissionResponse(outcome=chosen)
        return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))


async def main():
    async with acp.spawn_agent_process(Client(), "acp-gateway", "acp", env=os.environ) as (agent, _):
        await agent.initialize(acp.PROTOCOL_VERSION)
        session = await agent.new_session(cwd=os.getcwd(), mcp_servers=[])
        await agent.prompt(session.session_id, [acp.text_block(sys.argv[1])])


asyncio.run(main())
