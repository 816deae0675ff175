"""A plugin without an SDK: python-lsp-jsonrpc speaks the protocol."""

import functools
import os
import sys
import threading
from concurrent.futures import Future

sys.path.insert(0, "lib")

from pylsp_jsonrpc.endpoint import Endpoint
from pylsp_jsonrpc.exceptions import JsonRpcException, JsonRpcRequestCancelled
from pylsp_jsonrpc.streams import JsonRpcStreamReader, JsonRpcStreamWriter


class Peer(Endpoint):
    def _handle_request(self, msg_id, method, params):
        # The library does not pass the id of a request to its handler, and streams need it.
        self.id = msg_id
        super()._handle_request(msg_id, method, params)

    def _handle_cancel_notification(self, msg_id):
        # The library sends no answer to a request that is cancelled.
        self._client_request_futures[msg_id].set_exception(JsonRpcRequestCancelled())


def log(message):
    peer.notify("log", {"level": "info", "message": message})


def ask(method, **params):
    return peer.request(method, params).result()


def kv(call, input):
    ask("kv.set", **input)
    return ask("kv.get", key=input["key"])["value"]


def denied(call, input):
    try:
        return ask("fs.read", path="/etc/passwd")
    except JsonRpcException as error:
        return error.data["kind"]


def abandon(call, input):
    future = peer.request("sandbox.execute", {"language": "python", "code": "import time; time.sleep(60)"})
    [id] = [id for id, found in peer._server_request_futures.items() if found is future]
    peer.notify("$/cancelRequest", {"id": id})
    return future.exception().code


def wait(call):
    """Returns a future, which the library answers when it is settled."""
    future = Future()
    future.add_done_callback(lambda _: log("cancelled"))
    peer.notify("$/progress", {"token": call, "value": {"message": "waiting"}})
    return future


def count(call, input):
    for seq in range(input["n"]):
        with changed:
            changed.wait_for(lambda: seq - acknowledged.get(call, 0) < 64)
        peer.notify("$/stream", {"id": call, "seq": seq, "value": seq})
    return input["n"]


def acknowledge(params):
    with changed:
        acknowledged[params["id"]] = params["count"]
        changed.notify_all()


def call(params):
    if params["method"] == "wait":
        return wait(peer.id)
    return functools.partial(METHODS[params["method"]], peer.id, params["input"])


METHODS = {"echo": lambda call, input: input, "kv": kv, "denied": denied, "abandon": abandon, "count": count}
acknowledged, changed = {}, threading.Condition()
handlers = {
    "initialize": lambda _: {
        "protocolVersion": 1, "sdk": {"name": "python-lsp-jsonrpc", "version": "1"}, "methods": [*METHODS, "wait"],
    },
    "call": call,
    "ping": lambda _: log("ping"),
    "shutdown": lambda _: None,
    "exit": lambda _: os._exit(0),
    "$/streamAck": acknowledge,
}
peer = Peer(handlers, JsonRpcStreamWriter(sys.stdout.buffer).write)
JsonRpcStreamReader(sys.stdin.buffer).listen(peer.consume)
