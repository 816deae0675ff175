"""Tests of the SDK as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest

from client import SDK, TESTS, Client, frame


class Methods(unittest.TestCase):
    def test_functions_of_the_entry_are_methods(self):
        with Client() as client:
            result = client.initialized["result"]
            self.assertEqual(result["protocolVersion"], 1)
            self.assertIn("renamed.method", result["methods"])
            self.assertEqual(client.call("renamed.method"), "renamed")
            self.assertIs(client.call("same_module"), True)

    def test_entries_may_be_instances_or_functions(self):
        for entry, name, result in (
            ("instance:plugin", "of_instance", "instance"),
            ("instance:create", "of_instance", "instance"),
            ("instance:nothing", "of_module", "module"),
            ("instance:activate_async", "lambda_like", "async"),
        ):
            with self.subTest(entry), Client(entry) as client:
                self.assertEqual(client.call(name), result)

    def test_failed_activation_is_reported(self):
        for entry, text in (
            ("instance:fail", "no activation"),
            ("instance:missing", "missing"),
            ("no_such_module:x", "no_such_module"),
            ("instance", "module:function"),
        ):
            with self.subTest(entry), Client(entry) as client:
                self.assertIn(text, client.initialized["error"]["message"])
                self.assertEqual(client.request("call", method="x")["error"]["data"]["kind"], "invalid-request")

    def test_another_protocol_version_is_refused(self):
        with Client(protocolVersion=2) as client:
            self.assertEqual(client.initialized["error"]["data"]["kind"], "invalid-params")

    def test_the_module_can_be_run_with_m(self):
        source = str(SDK.parent.parent)
        command = ["env", f"PYTHONPATH={source}", sys.executable, "-m", "cofferdam_plugin"]
        with Client(command=command) as client:
            self.assertIs(client.call("same_module"), True)

    def test_input_is_whole_or_keywords(self):
        with Client() as client:
            self.assertEqual(client.call("whole", [1, "ä"]), [1, "ä"])
            self.assertEqual(client.call("keywords", {"call": 1, "self": 2}), [1, 2, 0])
            for input in ({}, {"call": 1, "other": 2}, {"ctx": 1, "call": 2}, [1], None):
                self.assertEqual(client.call("keywords", input)["data"]["kind"], "invalid-params", input)

    def test_context_reaches_the_method(self):
        context = {"requestId": "r", "tenant": "t", "traceparent": "00-1", "deadline": "2030-01-01T00:00:00Z"}
        context.update(metadata={"a": 1}, depth=2, dropped=["/x"])
        with Client(config={"unit": "C"}) as client:
            id = client.start("context", **context)
            self.assertEqual(client.answer(id)["result"], [*context.values(), {"unit": "C"}, f"host-{id}"])

    def test_prints_do_not_reach_the_protocol(self):
        with Client() as client:
            self.assertEqual(client.call("noise"), "")
            for text in ("from print", "from descriptor 1", "from a child"):
                self.assertIn(text, client.log())


    def test_child_processes_find_the_module(self):
        with Client() as client:
            self.assertEqual(client.call("in_process"), "Plugin", client.log())


class Profiles(unittest.TestCase):
    def test_profile_names_the_functions_of_calls(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "profile.json")
            with Client(command=["env", f"COFFERDAM_PROFILE={path}", sys.executable, str(SDK)]) as client:
                client.call("whole", [1])
                client.call("flaky_async", {"failures": 0})
                client.call("noise")
                client.notify("exit")
                self.assertEqual(client.status(), 0, client.log())
            with open(path, encoding="utf-8") as file:
                profile = json.load(file)
        events = {event["name"]: event for event in profile["traceEvents"]}
        self.assertEqual(events["whole"]["args"]["file"], str(TESTS / "plugin" / "sample.py"))
        self.assertIn("flaky_async", events)
        self.assertIn("print", events)
        self.assertNotIn("activate", events)
        for event in events.values():
            self.assertEqual(event["ph"], "X")
            self.assertGreaterEqual(event["dur"], 0)


class Errors(unittest.TestCase):
    def test_exceptions_have_type_and_stack(self):
        with Client() as client:
            types = {"recurse": "RecursionError", "leave": "SystemExit", "unprintable": "Unprintable"}
            for method, type in types.items():
                error = client.call(method)
                self.assertEqual((error["code"], error["data"]["kind"]), (-32003, "plugin-failed"))
                self.assertIn(type, error["data"]["type"])
                self.assertLessEqual(len(error["data"]["stack"]), 16 * 1024)
                self.assertIn("sample.py", error["data"]["stack"])
            self.assertIn("SystemExit", client.call("leave_async")["message"])
            self.assertEqual(client.call("fast"), "fast")

    def test_results_that_cannot_be_sent_are_errors(self):
        with Client() as client:
            for kind in ("object", "nan", "cycle", "surrogate"):
                self.assertEqual(client.call("result", {"kind": kind})["data"]["kind"], "plugin-failed", kind)
            for kind in ("large", "deep"):
                self.assertEqual(client.call("result", {"kind": kind})["data"]["kind"], "limit", kind)

    def test_the_host_limits_the_size_of_messages(self):
        with Client(maxMessage=10_000) as client:
            self.assertEqual(client.call("whole", "x" * 10_000)["data"]["kind"], "limit")

    def test_errors_of_services_reach_the_method(self):
        data = {"kind": "permission-denied", "permission": "fs.read", "target": "/x", "remedy": "add it"}
        with Client() as client:
            client.services["fs.read"] = lambda _: {"error": {"code": -32001, "message": "denied", "data": data}}
            error = client.call("read", {"path": "/x"})
            self.assertEqual((error["code"], error["message"], error["data"]), (-32001, "denied", data))

    def test_hints_of_permissions_are_checked(self):
        with Client(permissions=["fs.read"]) as client:
            data = client.call("guarded")["data"]
            self.assertEqual((data["permission"], data["target"]), ("net", "guarded"))
        with Client(permissions=["fs.read", "net"]) as client:
            self.assertEqual(client.call("guarded"), "open")


class Running(unittest.TestCase):
    def test_timeouts_answer_and_cancel(self):
        with Client() as client:
            for method in ("slow", "slow_async"):
                self.assertEqual(client.call(method)["data"]["kind"], "timeout")
            self.assertEqual(client.call("fast"), "fast")

    def test_a_call_sends_nothing_after_its_timeout(self):
        with Client() as client:
            self.assertEqual(client.call("late")["data"]["kind"], "timeout")
            self.assertEqual(client.wait_for("log")[0]["message"], "ended")
            self.assertEqual(client.notes_of("$/progress"), [])

    def test_a_cancelled_stream_is_closed_before_the_answer(self):
        with Client() as client:
            id = client.start("endless")
            client.wait_for("$/stream", 64)
            client.notify("$/cancelRequest", id=id)
            self.assertEqual(client.answer(id)["error"]["code"], -32800)
            self.assertEqual([line["message"] for line in client.notes_of("log")], ["closed"])

    def test_retryable_errors_are_retried(self):
        with Client() as client:
            for method in ("flaky", "flaky_async"):
                self.assertEqual(client.call(method, {"failures": 2}, requestId=method), 3)
                self.assertIs(client.call(method, {"failures": 9}, requestId=method + "2")["data"]["retryable"], True)

    def test_streams_are_not_retried(self):
        with Client() as client:
            self.assertEqual(client.call("flaky_items")["message"], "too late")
            self.assertEqual(len(client.notes_of("$/stream")), 1)

    def test_calls_can_be_cancelled(self):
        with Client() as client:
            for method in ("wait", "wait_async", "stubborn"):
                client.notes.clear()
                id = client.start(method)
                client.wait_for("log")
                client.notify("$/cancelRequest", id=id)
                self.assertEqual(client.answer(id)["error"]["code"], -32800)

    def test_cancellation_reaches_requests_of_the_call(self):
        with Client() as client:
            for method, input in (("get", {"key": "k"}), ("get_async", {"keys": ["k"]})):
                client.requests.clear()
                client.notes.clear()
                id = client.start(method, input)
                request = client.wait_for_request()
                client.notify("$/cancelRequest", id=id)
                self.assertEqual(client.answer(id)["error"]["code"], -32800)
                self.assertEqual(client.wait_for("$/cancelRequest")[0], {"id": request["id"]})
                client.write(frame({"jsonrpc": "2.0", "id": request["id"], "result": {"value": 1, "version": 1}}))
            self.assertEqual(client.call("fast"), "fast")

    def test_queued_calls_can_be_cancelled(self):
        with Client() as client:
            running = [client.start("wait") for _ in range(16)]
            client.wait_for("log", 16)
            queued = client.start("wait")
            client.notify("$/cancelRequest", id=queued)
            self.assertEqual(client.answer(queued)["error"]["code"], -32800)
            self.assertEqual(len(client.notes_of("log")), 16)
            for id in running:
                client.notify("$/cancelRequest", id=id)
                self.assertIn("error", client.answer(id))

    def test_ping_is_answered_while_all_threads_are_busy(self):
        with Client() as client:
            ids = [client.start("wait") for _ in range(20)]
            self.assertIsNone(client.request("ping")["result"])
            self.assertFalse(set(ids) & set(client.answers))

    def test_asynchronous_streams_wait_for_acknowledgements(self):
        with Client() as client:
            id = client.start("items", {"n": 100})
            client.wait_for("$/stream", 64)
            client.request("ping")
            self.assertEqual(len(client.notes_of("$/stream")), 64)
            client.notify("$/streamAck", id=id, count=50)
            self.assertIsNone(client.answer(id)["result"])
            self.assertEqual([item["value"] for item in client.notes_of("$/stream")], list(range(100)))
            self.assertEqual(client.call("broken_items")["message"], "broken")

    def test_wrong_acknowledgements_give_no_credit(self):
        with Client() as client:
            id = client.start("items", {"n": 200})
            client.wait_for("$/stream", 64)
            for count in (10**9, -5, "64", None):
                client.notify("$/streamAck", id=id, count=count)
            client.wait_for("$/stream", 128)
            client.request("ping")
            self.assertEqual(len(client.notes_of("$/stream")), 128)

    def test_messages_of_a_call_have_its_correlation_identifier(self):
        with Client() as client:
            client.services["kv.get"] = lambda _: {"value": "v", "version": 1}
            for method, input in (("get", {"key": "k"}), ("get_async", {"keys": ["a", "b"]}), ("in_thread", None)):
                client.requests.clear()
                id = client.start(method, input)
                client.answer(id)
                self.assertEqual({request["correlationId"] for request in client.requests}, {f"host-{id}"})

    def test_log_lines_reach_the_host(self):
        with Client() as client:
            id = client.start("logs")
            client.answer(id)
            self.assertEqual({note["correlationId"] for note in client.notes}, {f"host-{id}"})
            lines = client.notes_of("log")
            self.assertEqual([line["level"] for line in lines], ["warn", "error", "debug", "error"])
            self.assertEqual(lines[0], {"level": "warn", "message": "hot: 40", "fields": {"logger": "weather"}})
            self.assertIn("ValueError: cold", lines[1]["fields"]["exception"])
            self.assertEqual(lines[2]["fields"], {"degrees": 20})
            self.assertLessEqual(len(lines[3]["fields"]["text"]), 128)

    def test_temporary_files_are_tracked_and_removed_with_their_call(self):
        with Client() as client:
            client.services["resources.track"] = lambda _: None
            for fail in (False, True):
                answer = client.call("temporary", {"fail": fail})
                path = client.requests[-1]["params"]["path"]
                self.assertEqual(answer["message"] if fail else answer, path)
                self.assertEqual(client.notes_of("$/progress")[-1]["value"], {"message": path})
                self.assertFalse(os.path.exists(path))
            path, existed = client.call("temporary_async")
            self.assertTrue(existed)
            self.assertFalse(os.path.exists(path))
            client.services["resources.track"] = lambda _: {"error": {"code": -32004, "message": "full"}}
            self.assertEqual(client.call("temporary")["data"]["kind"], "limit")
            self.assertFalse(os.path.exists(client.requests[-1]["params"]["path"]))

    def test_events_and_timers_run_their_handlers(self):
        event = {"id": "1", "name": "weather.rain", "payload": None, "publisher": "p", "attempt": 1}
        timer = {"id": "1", "name": "tick", "payload": None, "scheduled": "2030-01-01T00:00:00Z", "missed": 0}
        with Client() as client:
            self.assertEqual(client.requests[0]["params"], {"pattern": "weather.*"})
            self.assertIsNone(client.request("events.deliver", **event, subscription="weather.*")["result"])
            self.assertIsNone(client.request("events.deliver", **event, subscription="s1")["result"])
            self.assertIn("error", client.request("events.deliver", **{**event, "payload": "bad"}))
            self.assertIn("error", client.request("events.deliver", **{**event, "name": "weather.rain.heavy"}))
            self.assertIsNone(client.request("scheduler.fire", **timer)["result"])
            self.assertIn("error", client.request("scheduler.fire", **{**timer, "name": "other"}))
            self.assertEqual([line["message"] for line in client.notes_of("log")], ["event", "event", "timer"])


class Ends(unittest.TestCase):
    def test_shutdown_runs_handlers_and_ends_messages(self):
        with Client() as client:
            client.start("wait")
            client.wait_for("log")
            self.assertIsNone(client.request("shutdown")["result"])
            client.send("ping")
            client.notify("exit")
            self.assertEqual(client.process.stdout.read(), b"")
            self.assertEqual(client.status(), 0)
            self.assertIn("stopped", client.log())

    def test_the_end_of_the_file_ends_the_process(self):
        with Client() as client:
            client.start("wait")
            client.wait_for("log")
            client.process.stdin.close()
            self.assertEqual(client.status(), 0)

    def test_broken_messages_end_the_process(self):
        ping = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
        cases = {
            "batch": [ping] * 101,
            "version": {**ping, "jsonrpc": "1.0"},
            "float": {**ping, "id": 1.5},
            "negative": {**ping, "id": -1},
            "null": {**ping, "id": None},
            "boolean": {**ping, "id": True},
            "surrogate": {**ping, "id": "\ud800"},
            "long": {**ping, "id": "x" * 129},
            "correlation": {**ping, "correlationId": "x" * 129},
            "params": {**ping, "params": [1]},
            "number": 5,
            "both": {"jsonrpc": "2.0", "id": 1, "result": 1, "error": {"code": 1, "message": "x"}},
            "error": {"jsonrpc": "2.0", "id": 1, "error": None},
        }
        for name, message in cases.items():
            with self.subTest(name), Client("instance:nothing") as client:
                client.write(frame(message))
                self.assertEqual(client.status(), 65)
                self.assertIn("the host broke the protocol: ", client.log())

    def test_the_same_running_id_ends_the_process(self):
        with Client() as client:
            message = client.message("call", method="wait")
            client.write(frame(message) * 2)
            self.assertEqual(client.status(), 65)

    def test_too_many_requests_end_the_process(self):
        with Client() as client:
            client.write(b"".join(frame(client.message("call", method="wait_async")) for _ in range(256)))
            client.wait_for("log", 256)
            client.write(frame(client.message("call", method="wait_async")))
            self.assertEqual(client.status(), 65)

    def test_an_incomplete_frame_ends_the_process(self):
        for data in (b"Content-Le", b"Content-Length: 10\r\n\r\n{}"):
            with self.subTest(data), Client("instance:nothing") as client:
                client.write(data)
                client.process.stdin.close()
                self.assertEqual(client.status(), 65)


class Conformance(unittest.TestCase):
    def test_the_conformance_suite_passes(self):
        suite = TESTS.parent.parent / "conformance"
        if not suite.exists():
            self.skipTest("the conformance suite is part of the repository only")
        command = [sys.executable, str(suite / "conformance.py"), "--cwd", str(suite / "python")]
        environment = {**os.environ, "PYTHONWARNINGS": "error"}
        done = subprocess.run(
            [*command, "--", sys.executable, str(SDK)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
        self.assertEqual(done.returncode, 0, done.stdout.decode())


if __name__ == "__main__":
    unittest.main()
