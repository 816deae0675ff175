"""The conformance plugin of the Python SDK."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Generator

from cofferdam_plugin import Context, Plugin, PluginError


def echo(ctx: Context, input: Any) -> Any:
    return input


def add(ctx: Context, a: float, b: float) -> float:
    return a + b


def fail(ctx: Context, message: str) -> None:
    raise ValueError(message)


async def sleep(ctx: Context, seconds: float) -> None:
    await asyncio.sleep(seconds)


def count(ctx: Context, n: int) -> Generator[int, None, int]:
    yield from range(n)
    return n


def print_text(ctx: Context, text: str) -> None:
    print(text)


async def kv(ctx: Context, key: str, value: Any) -> Any:
    await ctx.aio.kv.set(key, value)
    return ctx.kv.get(key)


def progress(ctx: Context) -> None:
    for percent in (0, 50, 100):
        ctx.progress("working", percent)


def denied(ctx: Context) -> str:
    try:
        ctx.fs.read("/etc/passwd")
    except PluginError as error:
        return error.kind
    return "permitted"


def correlate(ctx: Context) -> str:
    return ctx.correlation_id


def busy(ctx: Context, seconds: float) -> None:
    time.sleep(seconds)


def activate(plugin: Plugin) -> None:
    plugin.method("print")(print_text)
    for function in (echo, add, fail, sleep, count, kv, progress, denied, correlate, busy):
        plugin.method(function)
