#!/usr/bin/env python3
"""Conformance suite of the plugin SDKs: plays the host against a plugin and checks the protocol. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import threading

METHODS = ["add", "busy", "correlate", "count", "denied", "echo", "fail", "kv", "print", "progress", "sleep"]
MAX_FRAME = 8 * 1024 * 1024
CREDIT = 64
CHECKS = {}


class Failure(Exception):
    """A violation of the protocol by the plugin."""


def check(function):
    CHECKS[function.__name__] = function
    return function


def expect(condition, message):
    if not condition:
        raise Failure(message)


def expect_equal(found, expected, what):
    expect(found == expected, f"{what}: expected {json.dumps(expected)[:200]}, found {json.dumps(found)[:200]}")


def frame(message):
    body = message if isinstance(message, bytes) else json.dumps(message, ensure_ascii=False).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def read_frame(stream):
    """Returns the next message, or None at the end of the file."""
    lengths, header = [], stream.readline(4096)
    if not header:
        return None
    while header != b"\r\n":
        match = re.fullmatch(rb"([!-9;-~]+): *(.*)\r\n", header)
        expect(match, f"the header is malformed: {header[:80]!r}")
        lengths += [int(match[2])] if match[1].lower() == b"content-length" else []
        header = stream.readline(4096)
    expect(len(lengths) == 1 and lengths[0] <= MAX_FRAME, f"Content-Length is wrong: {lengths}")
    return json.loads(stream.read(lengths[0]))


class Plugin:
    """A running plugin and a small host: it answers `kv.get` and `kv.set`, and denies `fs.read`."""

    def __init__(self, options):
        self.timeout, self.entry = options.timeout, options.entry
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            options.command, cwd=options.cwd, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0
        )
        self.messages, self.log = queue.Queue(), b""
        self.threads = [threading.Thread(target=target, daemon=True) for target in (self._read, self._read_log)]
        self.answers, self.notes, self.requests, self.values, self.sent = {}, [], [], {}, 0
        for thread in self.threads:
            thread.start()

    def _read(self):
        try:
            with os.fdopen(os.dup(self.process.stdout.fileno()), "rb") as stream:
                while (message := read_frame(stream)) is not None:
                    self.messages.put(message)
            self.messages.put(Failure("the plugin closed its output"))
        except (Failure, ValueError) as error:
            self.messages.put(Failure(f"a frame of the plugin is broken: {error}"))

    def _read_log(self):
        while data := self.process.stderr.read(65536):
            self.log += data

    def close(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        for thread in self.threads:
            thread.join()
        self.process.stdout.close()
        self.process.stderr.close()

    def send_bytes(self, data):
        view = memoryview(data)
        while view:
            view = view[self.process.stdin.write(view) :]

    def message(self, method, params=None, **members):
        """Returns a request with a new identifier and correlation identifier."""
        self.sent += 1
        message = {"jsonrpc": "2.0", "id": self.sent, "method": method, "correlationId": f"host-{self.sent}", **members}
        return {**message, **({} if params is None else {"params": params})}

    def call_message(self, method, input=None, **members):
        context = {"requestId": f"r{self.sent}", "tenant": "t", "metadata": {}, "depth": 0, "dropped": []}
        return self.message("call", {"method": method, "input": input, "context": context}, **members)

    def start(self, message):
        """Sends a request and returns its identifier."""
        self.send_bytes(frame(message))
        return message["id"]

    def notify(self, method, **params):
        self.send_bytes(frame({"jsonrpc": "2.0", "method": method, "params": params, "correlationId": "host-note"}))

    def pump(self):
        """Handles the next message of the plugin."""
        try:
            message = self.messages.get(timeout=self.timeout)
        except queue.Empty:
            raise Failure(f"no message within {self.timeout} s") from None
        if isinstance(message, Failure):
            raise message
        for item in message if isinstance(message, list) else [message]:
            self._handle(item)

    def _handle(self, message):
        expect_equal(message.get("jsonrpc"), "2.0", "jsonrpc")
        correlation = message.get("correlationId")
        expect(isinstance(correlation, str) and 0 < len(correlation) <= 128, "a message has no correlationId")
        if "method" not in message:
            expect(message.get("id") not in self.answers, f"request {message.get('id')} has two answers")
            expect(("result" in message) != ("error" in message), "a response needs a result or an error")
            self.answers[message["id"]] = message
        elif "id" in message:
            self.requests.append(message)
            self.send_bytes(frame({**self._serve(message["method"], message["params"]), "jsonrpc": "2.0",
                                   "id": message["id"], "correlationId": correlation}))
        else:
            self.notes.append(message)

    def _serve(self, method, params):
        if method == "kv.set":
            self.values[params["key"]] = params["value"]
            return {"result": {"version": 1}}
        if method == "kv.get":
            return {"result": {"value": self.values.get(params["key"]), "version": 1}}
        if method == "fs.read":
            data = {"kind": "permission-denied", "permission": "fs.read", "target": params["path"], "remedy": "add it"}
            return {"error": {"code": -32001, "message": "denied", "data": data}}
        return {"error": {"code": -32601, "message": "unknown method", "data": {"kind": "method-not-found"}}}

    def answer(self, id):
        """Waits for the answer of a request."""
        while id not in self.answers:
            self.pump()
        return self.answers[id]

    def result(self, message):
        answer = self.answer(self.start(message))
        expect("error" not in answer, f"{message['method']} failed: {json.dumps(answer.get('error'))[:300]}")
        expect_equal(answer["correlationId"], message["correlationId"], "correlationId of the response")
        return answer["result"]

    def call(self, method, input=None):
        return self.result(self.call_message(method, input))

    def error(self, message, code, kind):
        error = self.answer(self.start(message)).get("error") or {}
        expect_equal(error.get("code"), code, "code of the error")
        expect_equal((error.get("data") or {}).get("kind"), kind, "data.kind of the error")
        return error

    def notes_of(self, method):
        return [note["params"] for note in self.notes if note["method"] == method]

    def ping(self):
        expect_equal(self.result(self.message("ping")), None, "result of ping")

    def initialize(self):
        return self.result(self.message("initialize", {
            "protocolVersion": 1, "plugin": {"name": "conformance", "version": "1.0.0"}, "entry": self.entry,
            "methods": METHODS, "permissions": ["fs.read"], "config": {"greeting": "hello"}, "mode": "production",
            "maxMessage": MAX_FRAME,
        }))

    def status(self):
        """Waits for the end of the process and returns its status."""
        try:
            return self.process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            raise Failure(f"the process runs {self.timeout} s later") from None


@check
def initialize_returns_version_sdk_and_methods(plugin):
    # Each check starts with `initialize`.
    result = plugin.initialized
    expect_equal(result.get("protocolVersion"), 1, "protocolVersion")
    expect_equal(sorted(result.get("methods") or []), METHODS, "methods")
    sdk = result.get("sdk") or {}
    expect(sdk.get("name") and sdk.get("version"), "sdk needs a name and a version")


@check
def values_return_unchanged(plugin):
    text = "Grüße, 世界 🎉 \u0000 \u2028 \" \\ \r\n"
    for value in (None, True, 0, -1.5, 2**53 - 1, "", text, [], {}, [[1, [None]], {"a": {"": []}}], {text: text}):
        expect_equal(plugin.call("echo", value), value, "result of echo")


@check
def large_values_return_unchanged(plugin):
    text = "0123456789abcdeß" * (4 * 1024 * 1024 // 17)
    expect(plugin.call("echo", text) == text, "a text of 4 MiB has changed")


@check
def nested_values_return_unchanged(plugin):
    value = None
    for _ in range(50):
        value = [value]
    expect_equal(plugin.call("echo", value), value, "result of echo")


@check
def methods_get_their_input(plugin):
    expect_equal(plugin.call("add", {"a": 2, "b": 40}), 42, "result of add")
    plugin.error(plugin.call_message("add", {"a": 2}), -32602, "invalid-params")


@check
def a_raised_error_is_plugin_failed(plugin):
    error = plugin.error(plugin.call_message("fail", {"message": "the tank is empty"}), -32003, "plugin-failed")
    expect("the tank is empty" in error["message"], f"the message is missing in {error['message']!r}")
    plugin.ping()


@check
def a_long_error_is_cut(plugin):
    plugin.error(plugin.call_message("fail", {"message": "x" * 1_000_000}), -32003, "plugin-failed")
    plugin.ping()


@check
def unknown_methods_are_method_not_found(plugin):
    plugin.error(plugin.call_message("no-such-method"), -32601, "method-not-found")
    plugin.error(plugin.message("no/such/method"), -32601, "method-not-found")


@check
def unknown_notifications_are_ignored(plugin):
    plugin.notify("$/unknown", value=1)
    plugin.ping()


@check
def identifiers_may_be_texts(plugin):
    message = plugin.call_message("echo", 1, id="a-é-1")
    expect_equal(plugin.result(message), 1, "result of echo")


@check
def frames_may_be_split(plugin):
    message = plugin.call_message("echo", "split ß")
    data = frame(message)
    for index in range(len(data)):
        plugin.send_bytes(data[index : index + 1])
    expect_equal(plugin.answer(message["id"]).get("result"), "split ß", "result of echo")


@check
def frames_may_be_glued(plugin):
    messages = [plugin.call_message("echo", number) for number in range(20)]
    plugin.send_bytes(b"".join(map(frame, messages)))
    for number, message in enumerate(messages):
        expect_equal(plugin.answer(message["id"]).get("result"), number, "result of echo")


@check
def header_names_have_any_case(plugin):
    message = plugin.message("ping")
    body = json.dumps(message).encode()
    content_type = b"Content-Type: application/vscode-jsonrpc; charset=utf-8"
    plugin.send_bytes(b"%b\r\ncontent-LENGTH:%d\r\n\r\n%b" % (content_type, len(body), body))
    expect("result" in plugin.answer(message["id"]), "ping failed")


@check
def a_stream_sends_items_before_its_result(plugin):
    for n in (0, 1, CREDIT):
        plugin.notes.clear()
        message = plugin.call_message("count", {"n": n})
        expect_equal(plugin.result(message), n, "result of count")
        items = [(item["id"], item["seq"], item["value"]) for item in plugin.notes_of("$/stream")]
        expect_equal(items, [(message["id"], number, number) for number in range(n)], "items")


@check
def a_stream_waits_for_acknowledgements(plugin):
    id, total, acknowledged = plugin.start(plugin.call_message("count", {"n": 300})), 300, 0
    while acknowledged + CREDIT < total:
        while len(plugin.notes_of("$/stream")) < acknowledged + CREDIT:
            plugin.pump()
        plugin.ping()
        expect_equal(len(plugin.notes_of("$/stream")), acknowledged + CREDIT, "items without acknowledgement")
        acknowledged = min(acknowledged + 40, total)
        plugin.notify("$/streamAck", id=id, count=acknowledged)
    expect_equal(plugin.answer(id).get("result"), total, "result of count")
    expect_equal([item["value"] for item in plugin.notes_of("$/stream")], list(range(total)), "items")


@check
def a_waiting_stream_can_be_cancelled(plugin):
    id = plugin.start(plugin.call_message("count", {"n": 1000}))
    while len(plugin.notes_of("$/stream")) < CREDIT:
        plugin.pump()
    plugin.notify("$/cancelRequest", id=id)
    expect_equal((plugin.answer(id).get("error") or {}).get("code"), -32800, "code of the error")
    plugin.ping()
    expect_equal(len(plugin.notes_of("$/stream")), CREDIT, "items")


@check
def progress_has_the_id_of_the_request(plugin):
    message = plugin.call_message("progress", {})
    expect_equal(plugin.result(message), None, "result of progress")
    notes = [(note["token"], note["value"]["percent"]) for note in plugin.notes_of("$/progress")]
    expect_equal(notes, [(message["id"], percent) for percent in (0, 50, 100)], "progress")


@check
def a_cancelled_call_answers_once(plugin):
    message = plugin.call_message("sleep", {"seconds": 600})
    plugin.start(message)
    plugin.ping()
    for _ in range(2):
        plugin.notify("$/cancelRequest", id=message["id"])
    answer = plugin.answer(message["id"])
    error = answer.get("error") or {}
    expect_equal(error.get("code"), -32800, "code of the error")
    expect_equal((error.get("data") or {}).get("kind"), "cancelled", "data.kind of the error")
    expect_equal(answer["correlationId"], message["correlationId"], "correlationId of the response")
    plugin.ping()


@check
def cancelling_an_unknown_request_changes_nothing(plugin):
    for id in (999_999, "none"):
        plugin.notify("$/cancelRequest", id=id)
    expect_equal(plugin.call("sleep", {"seconds": 0}), None, "result of sleep")


@check
def a_value_is_stored_and_read(plugin):
    value = {"city": "Tromsø", "list": [1, None]}
    message = plugin.call_message("kv", {"key": "k", "value": value})
    expect_equal(plugin.result(message), value, "result of kv")
    expect_equal([request["method"] for request in plugin.requests], ["kv.set", "kv.get"], "requests")
    for request in plugin.requests:
        expect_equal(request["correlationId"], message["correlationId"], "correlationId of a request")


@check
def a_denial_reaches_the_plugin(plugin):
    expect_equal(plugin.call("denied", {}), "permission-denied", "result of denied")
    expect_equal([request["method"] for request in plugin.requests], ["fs.read"], "requests")


@check
def concurrent_calls_keep_their_correlation_identifiers(plugin):
    messages = [plugin.call_message("correlate", {}, correlationId=f"c-{number}") for number in range(50)]
    for message in messages:
        plugin.start(message)
    for message in messages:
        answer, expected = plugin.answer(message["id"]), message["correlationId"]
        expect_equal([answer.get("result"), answer["correlationId"]], [expected, expected], "correlation identifiers")


@check
def a_missing_correlation_identifier_is_filled_in(plugin):
    message = plugin.message("ping")
    del message["correlationId"]
    plugin.answer(plugin.start(message))


@check
def each_request_of_a_batch_has_an_answer(plugin):
    note = {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 12345}, "correlationId": "n"}
    messages = [plugin.call_message("echo", "a"), plugin.message("ping"), plugin.call_message("add", {"a": 1, "b": 2})]
    plugin.send_bytes(frame([*messages, note]))
    found = [plugin.answer(message["id"]).get("result", "none") for message in messages]
    expect_equal(found, ["a", None, 3], "results")
    plugin.ping()


@check
def a_print_goes_to_the_log(plugin):
    text = "Content-Length: 5\r\n\r\nhello from print"
    expect_equal(plugin.call("print", {"text": text}), None, "result of print")
    plugin.ping()
    plugin.result(plugin.message("shutdown"))
    plugin.notify("exit")
    plugin.status()
    plugin.threads[1].join(plugin.timeout)
    expect(b"hello from print" in plugin.log, "the print is not on standard error")


@check
def ping_is_answered_while_calls_run(plugin):
    busy = [plugin.start(plugin.call_message("busy", {"seconds": 1})) for _ in range(4)]
    plugin.ping()
    expect(not any(id in plugin.answers for id in busy), "ping was answered after the calls")
    for id in busy:
        expect("result" in plugin.answer(id), "busy failed")


@check
def shutdown_and_exit_end_the_process(plugin):
    expect_equal(plugin.result(plugin.message("shutdown")), None, "result of shutdown")
    plugin.notify("exit")
    expect_equal(plugin.status(), 0, "status of the process")


@check
def the_end_of_the_input_ends_the_process(plugin):
    plugin.process.stdin.close()
    plugin.status()


@check
def the_end_of_the_input_ends_a_busy_process(plugin):
    plugin.start(plugin.call_message("sleep", {"seconds": 600}))
    plugin.process.stdin.close()
    plugin.status()


def broken(name, data):
    def run(plugin):
        plugin.send_bytes(data)
        expect_equal(plugin.status(), 65, "status of the process")

    CHECKS[f"broken_frame_{name}_ends_the_process"] = run


PING = b'{"jsonrpc":"2.0","id":9999,"method":"ping","correlationId":"x"}'
DEEP = b'{"jsonrpc":"2.0","id":9999,"method":"ping","params":{"a":' + b"[" * 80 + b"]" * 80 + b"}}"
broken("without_length", b"Content-Type: text/plain\r\n\r\n" + PING)
broken("with_two_lengths", b"Content-Length: %d\r\n" % len(PING) + frame(PING))
broken("with_a_wrong_length", b"Content-Length: +5\r\n\r\n12345")
broken("too_large", b"Content-Length: %d\r\n\r\n" % (MAX_FRAME + 1))
broken("with_long_headers", b"X-Padding: " + b"a" * 8192)
broken("that_is_not_json", frame(b"{]"))
broken("that_is_not_utf8", frame(PING.replace(b"x", b"\xff")))
broken("with_an_empty_batch", frame(b"[]"))
broken("too_deep", frame(DEEP))
broken("much_too_deep", frame(b"[" * 1_000_000))
broken("with_an_unknown_response", frame(b'{"jsonrpc":"2.0","id":77,"result":null}'))


def run_check(name, options):
    """Runs a check on a new process. Returns the failure, or None."""
    plugin = Plugin(options)
    try:
        plugin.initialized = plugin.initialize()
        CHECKS[name](plugin)
        return None
    except (Failure, OSError, KeyError, TypeError) as error:
        log = plugin.log[-2000:].decode("utf-8", "replace")
        return f"{type(error).__name__}: {error}" + (f"\n  log: {log}" if log else "")
    finally:
        plugin.close()


def arguments():
    parser = argparse.ArgumentParser(description="Check that a plugin SDK keeps the protocol of plugins.")
    parser.add_argument("--entry", default="main:activate", metavar="ENTRY", help="set 'entry' of initialize")
    parser.add_argument("--cwd", metavar="DIRECTORY", help="set the working directory of the command")
    parser.add_argument("--only", action="append", choices=CHECKS, metavar="NAME", help="run one check; repeatable")
    parser.add_argument("--list", action="store_true", help="list the checks")
    parser.add_argument("--timeout", type=float, default=30, metavar="SECONDS", help="limit the wait for a message")
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="command of the plugin, after --")
    options = parser.parse_args()
    if not options.command and not options.list:
        parser.error("a command is required")
    return options


def main():
    options = arguments()
    if options.list:
        print("\n".join(CHECKS))
        return 0
    failures = 0
    for name in options.only or CHECKS:
        failure = run_check(name, options)
        failures += failure is not None
        print(f"ok     {name}" if failure is None else f"FAILED {name}\n  {failure}", flush=True)
    print(f"{len(options.only or CHECKS) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
