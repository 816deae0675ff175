"""The plugin {{name}}, which speaks the protocol of plugins without an SDK.

Standard output has frames only. Prints go to standard error, which is the plugin's log.
"""

import json
import sys


def hello(name="world"):
    """Returns a greeting."""
    return {"greeting": f"Hello, {name}!"}


METHODS = {"hello": hello}


class Failure(Exception):
    """An error with a code and a kind of the protocol."""

    def __init__(self, code, kind, message):
        super().__init__(message)
        self.json = {"code": code, "message": message, "data": {"kind": kind}}


def read(stream):
    """Returns the next message, or None at the end."""
    length = 0
    for line in iter(stream.readline, b""):
        if line == b"\r\n":
            return json.loads(stream.read(length))
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
    return None


def write(stream, message):
    """Writes a message."""
    body = json.dumps(message).encode()
    stream.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    stream.flush()


def call(method, arguments):
    """Calls a method of the plugin."""
    if method not in METHODS:
        raise Failure(-32601, "method-not-found", f"the plugin has no method {method}")
    try:
        return METHODS[method](**(arguments or {}))
    except Exception as error:
        raise Failure(-32003, "plugin-failed", str(error)) from error


def answer(method, params):
    """Returns the result of a request."""
    if method == "initialize":
        return {"protocolVersion": 1, "sdk": {"name": "none", "version": "0.1.0"}, "methods": sorted(METHODS)}
    if method in ("ping", "shutdown"):
        return None
    if method == "call":
        return call(params["method"], params.get("input"))
    raise Failure(-32601, "method-not-found", f"the method {method} is unknown")


def main():
    """Answers requests, one after the other, until the host ends the plugin."""
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    for message in iter(lambda: read(incoming), None):
        if message.get("method") == "exit":
            return
        if "method" not in message or "id" not in message:
            continue
        response = {"jsonrpc": "2.0", "id": message["id"], "correlationId": message.get("correlationId", "none")}
        try:
            response["result"] = answer(message["method"], message.get("params") or {})
        except Failure as failure:
            response["error"] = failure.json
        write(outgoing, response)


if __name__ == "__main__":
    main()
