"""Runs the SDK: `python -m cofferdam_plugin`."""

from cofferdam_plugin import main

main()
