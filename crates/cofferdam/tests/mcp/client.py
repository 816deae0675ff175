"""Uses `cofferdam mcp` through the official SDK, in both revisions: client.py PROGRAM|URL TOKEN."""

import asyncio
import sys

from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client


def check(holds, what):
    if not holds:
        raise AssertionError(what)


async def use(connect, mode):
    logs, progress = [], []

    async def on_log(message):
        logs.append(message)

    async def on_progress(done, total, message):
        progress.append(done)

    async with connect(mode, on_log) as client:
        check(client.protocol_version == ("2025-11-25" if mode == "legacy" else mode), client.protocol_version)
        names = [tool.name for tool in (await client.list_tools()).tools]
        check(len(names) == 8 and "run_code" in names and "fork_sandbox" not in names, names)

        async def call(name, **arguments):
            result = await client.call_tool(name, arguments)
            check(not result.is_error, result)
            return result

        made = (await call("create_sandbox", limits={"timeout_seconds": 30})).structured_content
        sandbox = made["sandbox"]
        code = "import time\nprint('one', flush=True)\ntime.sleep(0.6)\nopen('f.txt', 'w').write('x')\n6 * 7"
        arguments = {"language": "python", "code": code, "sandbox": sandbox}
        result = await client.call_tool("run_code", arguments, progress_callback=on_progress)
        value = result.structured_content
        check(value["stdout"] == "one\n" and value["results"][0]["data"]["text/plain"] == "42", result)
        check(progress == sorted(progress) and progress, progress)
        check(any("one" in str(log.data) for log in logs), logs)
        live = {"language": "python", "sandbox": sandbox, "session": "main"}
        await call("run_code", code="kept = 41", **live)
        value = (await call("run_code", code="kept + 1", **live)).structured_content
        check(value["results"][0]["data"]["text/plain"] == "42" and value["session"]["calls"] == 2, value)
        lost = await call("run_code", code="while True: pass", timeout_seconds=1, **live)
        check("did not end within" in lost.structured_content["session"]["lost"], lost)
        after = await client.call_tool("run_code", {"code": "kept", **live})
        check(after.is_error and "close_sandbox" in after.content[0].text, after)
        await call("close_sandbox", sandbox=sandbox, session="main")
        await call("run_code", code="1", **live)
        await call("run_command", command="mkdir -p d; cd d; echo y > g", sandbox=sandbox)
        where = await call("run_command", command="pwd", sandbox=sandbox)
        check(where.structured_content["stdout"] == "/workspace/d\n", where)
        await call("write_file", path="h.txt", content="a b", sandbox=sandbox)
        await call("edit_file", path="h.txt", old_text="b", new_text="c", sandbox=sandbox)
        read = await call("read_file", path="h.txt", sandbox=sandbox)
        check(read.content[0].text == "a c", read)
        listed = await call("list_files", depth=3, sandbox=sandbox)
        paths = [entry["path"] for entry in listed.structured_content["entries"]]
        check(paths == ["d", "d/g", "f.txt", "h.txt"], paths)
        resource = await client.read_resource(f"cofferdam://{sandbox}/d/g")
        check(resource.contents[0].text == "y\n", resource)
        for name in ("snapshot_sandbox", "fork_sandbox"):
            result = await client.call_tool(name, {"sandbox": sandbox})
            check(result.is_error and "try:" in result.content[0].text, result)
        climbing = await client.call_tool("read_file", {"path": "../etc/passwd", "sandbox": sandbox})
        check(climbing.is_error, climbing)
        await call("close_sandbox", sandbox=sandbox)
        gone = await client.call_tool("run_command", {"command": "true", "sandbox": sandbox})
        check(gone.is_error, gone)


async def main(place, token):
    def connect(mode, on_log):
        if place.startswith("http"):
            http = create_mcp_http_client(headers={"Authorization": f"Bearer {token}"})
            server = streamable_http_client(place, http_client=http)
        else:
            server = StdioServerParameters(command=place, args=["mcp"])
        return Client(server, mode=mode, logging_callback=on_log, log_level="info")

    for mode in ("legacy", "2026-07-28"):
        await use(connect, mode)
    print("all went well")


asyncio.run(main(sys.argv[1], sys.argv[2]))
