"""A host for tests: runs the SDK as a process and exchanges frames with it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

TESTS = Path(__file__).resolve().parent
SDK = TESTS.parent / "src" / "cofferdam_plugin" / "__init__.py"


def frame(message: Any) -> bytes:
    body = json.dumps(message).encode()
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Client:
    """A running plugin. `services` answers its requests; a request without a service has no answer."""

    def __init__(self, entry: str = "sample:activate", command: Optional[List[str]] = None, **initialize: Any) -> None:
        subscribe = {"events.subscribe": lambda params: {"subscription": params["pattern"]}}
        self.services: Dict[str, Callable[[Any], Any]] = subscribe
        self.answers: Dict[Any, Any] = {}
        self.notes: List[Any] = []
        self.requests: List[Any] = []
        self._ids = 0
        self._log = tempfile.TemporaryFile()
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command or [sys.executable, str(SDK)], cwd=TESTS / "plugin", stdin=pipe, stdout=pipe, stderr=self._log
        )
        # A plugin that hangs must not hang the tests.
        self._watchdog = threading.Timer(120, self.process.kill)
        self._watchdog.start()
        plugin = {"name": "test", "version": "1.0.0"}
        params = {"protocolVersion": 1, "plugin": plugin, "entry": entry, "mode": "production"}
        lists = {"methods": [], "permissions": [], "config": {}}
        self.initialized = self.request("initialize", **{**params, **lists, **initialize})

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._log):
            stream.close()

    def write(self, data: bytes) -> None:
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def message(self, method: str, /, **params: Any) -> Dict[str, Any]:
        self._ids += 1
        id = self._ids
        return {"jsonrpc": "2.0", "id": id, "method": method, "params": params, "correlationId": f"host-{id}"}

    def send(self, method: str, /, **params: Any) -> int:
        message = self.message(method, **params)
        self.write(frame(message))
        return message["id"]

    def notify(self, method: str, /, **params: Any) -> None:
        self.write(frame({"jsonrpc": "2.0", "method": method, "params": params}))

    def start(self, method: str, input: Any = None, **context: Any) -> int:
        return self.send("call", method=method, input=input, context=context)

    def request(self, method: str, /, **params: Any) -> Any:
        return self.answer(self.send(method, **params))

    def call(self, method: str, input: Any = None, **context: Any) -> Any:
        """Calls a method and returns its result, or the member `error`."""
        answer = self.answer(self.start(method, input, **context))
        return answer.get("result", answer.get("error"))

    def answer(self, id: int) -> Any:
        while id not in self.answers:
            self.pump()
        return self.answers[id]

    def pump(self) -> Any:
        """Handles the next message of the plugin and returns it."""
        header = self.process.stdout.readline()
        if not header.startswith(b"Content-Length: "):
            raise AssertionError(f"not a frame: {header!r}; log: {self.log()}")
        assert self.process.stdout.readline() == b"\r\n"
        message = json.loads(self.process.stdout.read(int(header[16:])))
        assert message["jsonrpc"] == "2.0" and message["correlationId"], message
        if "method" not in message:
            assert message["id"] not in self.answers, message
            self.answers[message["id"]] = message
        elif "id" in message:
            self.requests.append(message)
            self._serve(message)
        else:
            self.notes.append(message)
        return message

    def _serve(self, message: Any) -> None:
        if message["method"] in self.services:
            outcome = self.services[message["method"]](message["params"])
            outcome = outcome if "error" in (outcome or {}) else {"result": outcome}
            self.write(frame({"jsonrpc": "2.0", "id": message["id"], **outcome}))

    def notes_of(self, method: str) -> List[Any]:
        return [note["params"] for note in self.notes if note["method"] == method]

    def wait_for(self, method: str, count: int = 1) -> List[Any]:
        """Waits for notifications of a method."""
        while len(self.notes_of(method)) < count:
            self.pump()
        return self.notes_of(method)

    def wait_for_request(self) -> Any:
        while not self.requests:
            self.pump()
        return self.requests[-1]

    def status(self) -> int:
        return self.process.wait(60)

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")
