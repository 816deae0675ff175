"""Tests of the plugin {{name}}, on a real process."""

import subprocess
import sys
import unittest
from pathlib import Path

from main import hello, read, write


class HelloTest(unittest.TestCase):
    def test_hello_greets_the_world_by_default(self):
        self.assertEqual(hello(), {"greeting": "Hello, world!"})

    def test_the_process_answers_the_host(self):
        command = [sys.executable, Path(__file__).with_name("main.py")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as plugin:
            self.assertEqual(request(plugin, 1, "initialize", {})["result"]["methods"], ["hello"])
            call = {"method": "hello", "input": {"name": "Ada"}, "context": {}}
            self.assertEqual(request(plugin, 2, "call", call)["result"], {"greeting": "Hello, Ada!"})
            unknown = request(plugin, 3, "call", {"method": "other"})
            self.assertEqual(unknown["error"]["data"]["kind"], "method-not-found")
            write(plugin.stdin, {"jsonrpc": "2.0", "method": "exit", "correlationId": "test"})
            self.assertEqual(plugin.wait(), 0)


def request(plugin, id, method, params):
    """Sends a request and returns the response."""
    write(plugin.stdin, {"jsonrpc": "2.0", "id": id, "method": method, "params": params, "correlationId": "test"})
    response = read(plugin.stdout)
    assert (response["id"], response["correlationId"]) == (id, "test")
    return response


if __name__ == "__main__":
    unittest.main()
