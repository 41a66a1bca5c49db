"""Does everything that a client of the gateway does, with the official library and three connections.

The argument is JSON that says how to connect and what to prompt; one JSON line for each step says what was seen. The
test judges.
"""

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack

import acp
from acp.http.client import create_http_stream
from acp.schema import (
    AgentMessageChunk,
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    FileSystemCapabilities,
    Implementation,
    ReadTextFileResponse,
    RequestPermissionResponse,
    UserMessageChunk,
)
from acp.ws.client import create_websocket_stream

PLAN = json.loads(sys.argv[1])
PROMPTS = PLAN["prompts"]


class Peer(acp.Client):
    """One connection to the gateway."""

    def __init__(self):
        self.updates = []
        # True for a client that answers "allow once"; another leaves the question open.
        self.allows = True
        self.asked = self.withdrawn = self.file_requests = 0
        self.settled = asyncio.Event()
        self.changed = asyncio.Event()
        self.resources = AsyncExitStack()
        self.process = None

    async def connect(self):
        headers = {"Authorization": f"Bearer {PLAN['token']}"}
        if PLAN["transport"] == "stdio":
            program, *args = PLAN["command"]
            started = acp.spawn_agent_process(self, program, *args, env=os.environ)
            self.agent, self.process = await self.resources.enter_async_context(started)
            return
        if PLAN["transport"] == "http":
            transport = create_http_stream(PLAN["url"], headers=headers)
        else:
            url = PLAN["url"].replace("http:", "ws:")
            transport = await create_websocket_stream(url, headers=headers)
        self.agent = await self.resources.enter_async_context(acp.connect_to_agent(self, transport))

    async def session_update(self, session_id, update, **kwargs):
        self.updates.append(update)
        self.changed.set()

    async def request_permission(self, session_id, tool_call, options, **kwargs):
        self.asked += 1
        self.changed.set()
        if not self.allows:
            await self.settled.wait()
            self.withdrawn += 1
            self.changed.set()
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        once = next(option for option in options if option.kind == "allow_once")
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=once.option_id))

    async def read_text_file(self, session_id, path, **kwargs):
        self.file_requests += 1
        return ReadTextFileResponse(content="")

    async def write_text_file(self, session_id, path, content, **kwargs):
        self.file_requests += 1

    async def ext_notification(self, method, params):
        if method == "acphost/permission/settled":
            self.settled.set()

    async def initialize(self):
        capabilities = ClientCapabilities(fs=FileSystemCapabilities(read_text_file=True, write_text_file=True))
        info = Implementation(name="interop", version="1")
        return await self.agent.initialize(acp.PROTOCOL_VERSION, client_capabilities=capabilities, client_info=info)

    async def prompt(self, session_id, text):
        return await self.agent.prompt(session_id, [acp.text_block(text)])

    def texts(self, kind, start=0):
        return [update.content.text for update in self.updates[start:] if isinstance(update, kind)]

    def text(self, start=0):
        return "".join(self.texts(AgentMessageChunk, start))

    async def until(self, is_so):
        """Waits for a state; the test's own limit ends a wait that is in vain."""
        while not is_so():
            self.changed.clear()
            await self.changed.wait()

    async def close(self):
        """Closes the connection and returns the exit code of the bridge, or None."""
        if self.process is None:
            await self.resources.aclose()
            return None
        self.process.stdin.close()
        code = await self.process.wait()
        await self.resources.aclose()
        return code


def report(step, **seen):
    print(json.dumps({"step": step, **seen}), flush=True)


async def error_code(request):
    try:
        await request
    except acp.RequestError as error:
        return error.code
    return 0


async def main():
    first, second, third = peers = [Peer(), Peer(), Peer()]
    for peer in peers:
        await peer.connect()
    info = await first.initialize()
    created = await first.agent.new_session(cwd=PLAN["cwd"], mcp_servers=[])
    session = created.session_id
    modes = [mode.id for mode in created.modes.available_modes]
    agent = info.agent_info.name
    report("new", session=session, version=info.protocol_version, agent=agent, modes=modes)

    start = len(first.updates)
    streamed = await first.prompt(session, PROMPTS["stream"])
    pieces = len(first.texts(AgentMessageChunk, start))
    report("prompt", stop=streamed.stop_reason, text=first.text(start), pieces=pieces)

    start = len(first.updates)
    written = await first.prompt(session, PROMPTS["write"])
    report("permission", stop=written.stop_reason, text=first.text(start), asked=first.asked)

    # The second client joins in the middle of the turn and answers the question that both are asked.
    start = len(first.updates)
    first.allows = False
    first.settled.clear()
    shared = asyncio.create_task(first.prompt(session, PROMPTS["shared"]))
    await first.until(lambda: len(first.texts(AgentMessageChunk, start)) > 3)
    await second.initialize()
    place = {"cwd": PLAN["cwd"], "session_id": session, "mcp_servers": []}
    await second.agent.load_session(**place)
    replayed = len(second.text())
    stop = (await shared).stop_reason
    text = first.text(start)
    await second.until(lambda: len(second.text()) >= len(first.text()))
    await first.until(lambda: first.withdrawn > 0)
    report(
        "load",
        stop=stop,
        text=text,
        whole=second.text() == first.text(),
        joined=0 < replayed < len(first.text()),
        prompts=second.texts(UserMessageChunk),
        echoes=len(first.texts(UserMessageChunk)),
        asked=[first.asked, second.asked],
        withdrawn=first.withdrawn,
    )

    start = len(first.updates)
    long = asyncio.create_task(first.prompt(session, PROMPTS["long"]))
    await first.until(lambda: first.text(start) != "")
    await first.agent.cancel(session_id=session)
    report("cancel", stop=(await long).stop_reason)

    await third.initialize()
    await third.agent.resume_session(**place)
    history = len(third.texts(AgentMessageChunk))
    start = len(second.updates)
    resumed = await third.prompt(session, PROMPTS["resumed"])
    await second.until(lambda: len(second.text(start)) >= len(third.text()))
    report(
        "resume",
        stop=resumed.stop_reason,
        history=history,
        text=third.text(),
        observed=second.text(start),
        prompts=second.texts(UserMessageChunk, start),
    )

    first.allows = True
    before = sum(peer.asked for peer in peers)
    await first.agent.set_session_mode(session_id=session, mode_id=PLAN["mode"])
    start = len(first.updates)
    free = await first.prompt(session, PROMPTS["mode"])
    asked = sum(peer.asked for peer in peers) - before
    report("mode", stop=free.stop_reason, text=first.text(start), asked=asked)

    async def is_listed():
        listed = await second.agent.list_sessions()
        return any(found.session_id == session for found in listed.sessions)

    await third.agent.close_session(session)
    closed = await error_code(third.prompt(session, PROMPTS["resumed"]))
    listed = [await is_listed()]
    # The library has no method for `session/delete`.
    await second.agent._conn.send_request("session/delete", {"sessionId": session})
    listed.append(await is_listed())
    gone = await error_code(first.agent.load_session(**place))
    report("close", closed=closed, gone=gone, listed=listed)

    files = sum(peer.file_requests for peer in peers)
    report("end", files=files, codes=[await peer.close() for peer in peers])


asyncio.run(main())
