"""Tests of the harness, and of the example in the README."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import unittest
from concurrent import futures
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS.parent / "src"))

from cofferdam_plugin import Cancelled, Conflict, Context, InvalidParams, MethodNotFound, NotFound  # noqa: E402
from cofferdam_plugin import MAX_PROFILE_EVENTS, STREAM_CREDIT, PermissionDenied, Plugin, PluginError, Profile  # noqa: E402
from cofferdam_plugin import Session, Unavailable  # noqa: E402
from cofferdam_plugin import decode  # noqa: E402
from cofferdam_plugin.testing import Harness  # noqa: E402

ALL = ["fs.read", "fs.write", "secrets.read", "secrets.write", "events.publish", "events.subscribe"]
ALL += ["scheduler.create", "scheduler.cancel", "artifacts.read", "artifacts.write"]


def harness(function, **options) -> Harness:
    plugin = Plugin()
    plugin.method("run")(function)
    return Harness(plugin, **options)


class HarnessTests(unittest.TestCase):
    def run_all(self, function, **options):
        """Returns the result of a function with all permissions."""
        with harness(function, permissions=ALL, **options) as host:
            return host.call("run")

    def test_values_have_versions(self):
        def run(ctx: Context):
            version = ctx.kv.set("a", {"n": 1})
            ctx.kv.set("b", 2, if_version=None, ttl=60)
            with self.assertRaises(Conflict):
                ctx.kv.set("a", 3, if_version=version + 100)
            self.assertEqual(ctx.kv.get_with_version("a"), ({"n": 1}, version))
            self.assertEqual(ctx.kv.list(limit=1), (["a"], True))
            self.assertEqual(ctx.kv.list(prefix="b", after="a"), (["b"], False))
            return [ctx.kv.get("missing"), ctx.kv.delete("a", if_version=version), ctx.kv.delete("a"), ctx.kv.get("b")]

        self.assertEqual(self.run_all(run), [None, True, False, 2])

    def test_requests_that_cannot_be_sent_leave_nothing_behind(self):
        def run(ctx: Context):
            for _ in range(300):
                with self.assertRaisesRegex(PluginError, "cannot be sent as JSON"):
                    ctx.kv.set("a", object())
            return ctx.kv.get("a")

        self.assertIsNone(self.run_all(run))

    def test_files_keep_bytes(self):
        def run(ctx: Context):
            self.assertEqual(ctx.fs.write("d/x", b"\xff\x00"), 2)
            self.assertEqual(ctx.fs.write("d/x", "é", append=True), 4)
            self.assertEqual(ctx.fs.read("d/x", 1, 1), b"\x00")
            self.assertEqual(ctx.fs.read("d/x"), b"\xff\x00\xc3\xa9")
            self.assertEqual(ctx.fs.stat("d/x")["size"], 4)
            self.assertEqual(ctx.fs.list("d"), [{"name": "x", "kind": "file", "size": 4}])
            self.assertEqual([entry["kind"] for entry in ctx.fs.list("")], [])
            ctx.fs.remove("d/x")
            with self.assertRaises(NotFound):
                ctx.fs.read("d/x")
            return ctx.fs.read_text("given")

        self.assertEqual(self.run_all(run, files={"given": "text"}), "text")

    def test_other_services_are_in_memory(self):
        def run(ctx: Context):
            ctx.secrets.set("B", "2")
            ctx.secrets.delete("A")
            with self.assertRaises(NotFound):
                ctx.secrets.get("A")
            ctx.events.publish("x.y", {"n": 1})
            ctx.events.unsubscribe(ctx.events.subscribe("x.*"))
            timer = ctx.scheduler.create("tick", every=1.5)
            self.assertEqual([found["every"] for found in ctx.scheduler.list()], ["1500ms"])
            self.assertTrue(ctx.scheduler.cancel(timer["id"]))
            found = ctx.artifacts.write("a", b"\x80")
            self.assertEqual(ctx.artifacts.read(digest=found["digest"])["content"], b"\x80")
            self.assertEqual([item["name"] for item in ctx.artifacts.list().items], ["a"])
            return ctx.get_config() == ctx.config == {"unit": "C"}

        with harness(run, permissions=ALL, secrets={"A": "1"}, config={"unit": "C"}) as host:
            self.assertTrue(host.call("run"))
            self.assertEqual((host.secrets, host.subscriptions), ({"B": "2"}, []))
            self.assertEqual(host.published, [{"name": "x.y", "payload": {"n": 1}}])

    def test_permissions_are_checked(self):
        def run(ctx: Context):
            ctx.fs.read("data/x")

        with harness(run) as host, self.assertRaises(PermissionDenied) as denied:
            host.call("run")
        self.assertEqual((denied.exception.permission, denied.exception.target), ("fs.read", "data/x"))
        self.assertIn("add 'fs.read'", denied.exception.remedy)

    def test_services_can_be_replaced(self):
        services = {"invoke": lambda params: [params["plugin"], params["method"], params["input"]]}
        with harness(lambda ctx: ctx.invoke("other", "m", 1), permissions=["invoke"], services=services) as host:
            self.assertEqual(host.call("run"), ["other", "m", 1])
        with harness(lambda ctx: ctx.invoke("other", "m"), permissions=["invoke"]) as host:
            self.assertRaises(Unavailable, host.call, "run")

    def test_asynchronous_services_have_the_same_results(self):
        async def run(ctx: Context):
            await ctx.aio.kv.set("a", 1)
            return await ctx.aio.kv.get("a"), (await ctx.aio.kv.list()).items

        self.assertEqual(self.run_all(run), [1, ["a"]])

    def test_streams_progress_and_logs_are_recorded(self):
        def run(ctx: Context, n: int):
            for number in range(n):
                ctx.progress(percent=number)
                yield number
            ctx.log.info("done", n=n)
            return "end"

        with harness(run) as host:
            call = host.start("run", {"n": 200})
            self.assertEqual(call.result(), "end")
            self.assertEqual(call.items, list(range(200)))
            self.assertEqual(call.progress[1], {"percent": 1})
            self.assertEqual(host.logs, [{"level": "info", "message": "done", "fields": {"n": 200}}])

    def test_an_acknowledgement_may_arrive_before_the_next_item(self):
        done = futures.Future()

        def send(frame: bytes, last: bool) -> None:
            message = decode(frame.partition(b"\r\n\r\n")[2])
            if message.get("id") == 1:
                session.receive({"jsonrpc": "2.0", "id": 2, "method": "call", "params": {"method": "run"}})
            elif message.get("id") == 2:
                done.set_result(message["result"])
            elif message["params"]["seq"] % STREAM_CREDIT == STREAM_CREDIT - 1:
                params = {"id": 2, "count": message["params"]["seq"] + 1}
                session.receive({"jsonrpc": "2.0", "method": "$/streamAck", "params": params})

        plugin = Plugin()
        plugin.method("run")(lambda ctx: (number for number in range(4 * STREAM_CREDIT)))
        session = Session(send, plugin)
        self.addCleanup(session.close)
        cancel = {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 2}}
        self.addCleanup(session.receive, cancel)
        params = {"protocolVersion": 1}
        session.receive({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        self.assertIsNone(done.result(60))

    def test_calls_fail_as_with_a_host(self):
        def run(ctx: Context, n: int):
            raise ZeroDivisionError("no")

        with harness(run) as host:
            with self.assertRaises(PluginError) as failed:
                host.call("run", {"n": 1})
            self.assertEqual(failed.exception.data["type"], "ZeroDivisionError")
            self.assertRaises(InvalidParams, host.call, "run", {})
            self.assertRaises(MethodNotFound, host.call, "other")

    def test_calls_can_be_cancelled(self):
        def run(ctx: Context):
            if ctx.cancelled.wait(60):
                raise Cancelled()

        with harness(run) as host:
            call = host.start("run")
            call.cancel()
            self.assertRaises(Cancelled, call.result)

    def test_events_timers_and_shutdown_run_handlers(self):
        seen = []

        def activate(plugin: Plugin):
            plugin.on_event("a.**")(lambda ctx, event: seen.append(event.payload))
            plugin.on_timer("tick")(lambda ctx, timer: seen.append(timer.name))
            plugin.on_shutdown(lambda: seen.append("stopped"))

        with Harness(activate, permissions=["events.subscribe"]) as host:
            self.assertEqual(host.subscriptions, ["a.**"])
            host.deliver("a.b.c", 1)
            host.fire("tick")
            self.assertRaises(NotFound, host.deliver, "b")
        self.assertEqual(seen, [1, "tick", "stopped"])
        self.assertRaises(PermissionDenied, Harness, activate)

    def test_temporary_files_are_removed(self):
        def activate(plugin):
            outside.append(plugin.host.temporary_file())
            plugin.method("run")(lambda ctx: ctx.temporary_file())

        outside = []
        with Harness(activate) as host:
            self.assertFalse(os.path.exists(host.call("run")))
            self.assertTrue(os.path.exists(outside[0]))
        self.assertFalse(os.path.exists(outside[0]))

    def test_names_are_registered_once(self):
        plugin = Plugin()
        plugin.method("a")(lambda ctx: None)
        self.assertRaises(ValueError, plugin.method("a"), lambda ctx: None)
        self.assertRaises(Unavailable, lambda: plugin.host)


class Profiles(unittest.TestCase):
    def test_the_number_of_events_is_bounded(self):
        profile, code = Profile(os.devnull), Profile.write.__code__
        for _ in range(MAX_PROFILE_EVENTS + 2):
            profile._add(code, None, 0)
        self.assertEqual((len(profile._events), profile._dropped), (MAX_PROFILE_EVENTS, 2))


class Readme(unittest.TestCase):
    def test_the_example_runs(self):
        blocks = re.findall(r"```python\n(.*?)```", (TESTS.parent / "README.md").read_text("utf-8"), re.DOTALL)
        self.assertEqual(len(blocks), 2)
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "weather.py").write_text(blocks[0], "utf-8")
            sys.path.insert(0, directory)
            try:
                exec(compile(blocks[1], "README.md", "exec"), {})
            finally:
                sys.path.remove(directory)
                sys.modules.pop("weather", None)


if __name__ == "__main__":
    unittest.main()
