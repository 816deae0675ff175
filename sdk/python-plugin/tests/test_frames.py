"""Tests of the limits of frames."""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import cofferdam_plugin  # noqa: E402
from cofferdam_plugin import BrokenFrame, FrameReader, Limit, PermissionDenied, decode, encode  # noqa: E402
from cofferdam_plugin import error_from_json, error_to_json  # noqa: E402


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


class Frames(unittest.TestCase):
    def setUp(self):
        self.incoming, self.outgoing = os.pipe()
        self.addCleanup(os.close, self.incoming)
        self.addCleanup(os.close, self.outgoing)
        self.reader = FrameReader(self.incoming)

    def test_frames_are_read_in_order(self):
        os.write(self.outgoing, encode([1]) + encode({"a": "é"}) + encode([2]))
        self.assertEqual([self.reader.read() for _ in range(3)], [[1], {"a": "é"}, [2]])

    def test_an_incomplete_frame_ends_in_silence(self):
        os.write(self.outgoing, encode([1]) + b"Content-Length: 5\r\n\r\n[1")
        self.assertEqual(self.reader.read(), [1])
        with mock.patch.object(cofferdam_plugin, "FRAME_SECONDS", 0.01), self.assertRaisesRegex(BrokenFrame, "silence"):
            self.reader.read()

    def test_headers_are_limited(self):
        padding = b"X-Padding: " + b"x" * (4096 - 11 - 2 - 21)
        os.write(self.outgoing, padding + b"\r\nContent-Length: 2\r\n\r\n[]")
        self.assertEqual(self.reader.read(), [])
        os.write(self.outgoing, padding + b"x\r\nContent-Length: 2\r\n\r\n[]")
        self.assertRaisesRegex(BrokenFrame, "too-large", self.reader.read)

    def test_broken_headers_are_refused(self):
        for headers in (b"", b"Content-Length", b"Content-Length: 0x2", b": 2", b"Content-Length: 2\nX: 1"):
            with self.subTest(headers):
                os.write(self.outgoing, headers + b"\r\n\r\n[]")
                self.assertRaisesRegex(BrokenFrame, "bad-frame", FrameReader(self.incoming).read)
        os.write(self.outgoing, b"Content-Type: a; charset=latin-1\r\nContent-Length: 2\r\n\r\n[]")
        self.assertRaisesRegex(BrokenFrame, "charset", FrameReader(self.incoming).read)

    def test_nesting_is_limited(self):
        self.assertEqual(encode(decode(nested(64))).partition(b"\r\n\r\n")[2], nested(64))
        self.assertRaisesRegex(BrokenFrame, "too-deep", decode, nested(65))
        self.assertRaisesRegex(BrokenFrame, "too-deep", decode, nested(1_000_000))
        self.assertRaises(Limit, encode, [decode(nested(64))])
        wide = b"[" + b",".join([b"[]"] * 1000) + b"]"
        self.assertEqual(len(decode(wide)), 1000)

    def test_text_that_is_not_json_is_refused(self):
        for body in (b"", b"{", b"NaN", b"[1] [2]", b'"\xff"', b"\xef\xbb\xbf[]"):
            with self.subTest(body):
                self.assertRaisesRegex(BrokenFrame, "not-json", decode, body)

    def test_messages_are_limited(self):
        self.assertEqual(len(encode("x" * 8, 10).partition(b"\r\n\r\n")[2]), 10)
        self.assertRaises(Limit, encode, "x" * 9, 10)


class Errors(unittest.TestCase):
    def test_errors_round_trip(self):
        error = error_from_json(error_to_json(PermissionDenied("net", "a:1", "add it")))
        self.assertEqual((error.permission, error.target, error.remedy), ("net", "a:1", "add it"))
        for kind in cofferdam_plugin._ERRORS.values():
            error = error_from_json(error_to_json(kind("no", {"self": 1})))
            self.assertIs(type(error), kind)
            self.assertEqual((str(error), error.data["self"]), ("no", 1))

    def test_foreign_errors_are_plugin_errors(self):
        error = error_from_json({"code": 7, "message": "x" * 100_000, "data": [1]})
        self.assertIs(type(error), cofferdam_plugin.PluginError)
        self.assertEqual(len(str(error)), 4096)


if __name__ == "__main__":
    unittest.main()
