"""Tests of the plugin {{name}}, without a host."""

import unittest

from cofferdam_plugin.testing import Harness

from main import activate


class HelloTest(unittest.TestCase):
    def test_hello_greets_by_name(self):
        with Harness(activate) as host:
            self.assertEqual(host.call("hello", {"name": "Ada"}), {"greeting": "Hello, Ada!"})

    def test_hello_greets_the_world_by_default(self):
        with Harness(activate) as host:
            self.assertEqual(host.call("hello"), {"greeting": "Hello, world!"})


if __name__ == "__main__":
    unittest.main()
