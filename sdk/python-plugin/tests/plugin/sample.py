"""A plugin with methods for the tests."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import subprocess
import sys
import threading

import cofferdam_plugin
from cofferdam_plugin import Cancelled, Retryable, permission, retry, timeout

attempts = []


def activate(plugin):
    plugin.host.kv  # The services exist during activation.
    for function in METHODS:
        plugin.method(function)

    @plugin.method("renamed.method")
    def other_name(ctx):
        return "renamed"

    @plugin.on_event("weather.*")
    def weather(ctx, event):
        if event.payload == "bad":
            raise ValueError("bad weather")
        ctx.log.info("event", name=event.name, attempt=event.attempt)

    @plugin.on_timer("tick")
    async def tick(ctx, timer):
        ctx.log.info("timer", scheduled=timer.scheduled)

    @plugin.on_shutdown
    async def stop():
        print("stopped")


def same_module(ctx):
    return sys.modules["cofferdam_plugin"] is cofferdam_plugin and isinstance(ctx, cofferdam_plugin.Context)


def whole(ctx, input):
    return input


def keywords(ctx, call, self=None, name=0):
    return [call, self, name]


def context(ctx):
    values = [ctx.request_id, ctx.tenant, ctx.traceparent, ctx.deadline, ctx.metadata, ctx.depth, ctx.dropped]
    return values + [ctx.config, ctx.correlation_id]


def noise(ctx):
    print("from print ü \ud800")
    os.write(1, b"from descriptor 1\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    return sys.stdin.read()


def wait(ctx):
    ctx.log.info("waiting")
    if ctx.cancelled.wait(60):
        raise Cancelled()


async def wait_async(ctx):
    ctx.log.info("waiting")
    await asyncio.sleep(60)


@timeout(0.05)
def slow(ctx):
    wait(ctx)


@timeout(0.05)
async def slow_async(ctx):
    await asyncio.sleep(60)


@timeout(0.05)
def late(ctx):
    ctx.cancelled.wait(60)
    try:
        ctx.progress("late")
    except Cancelled:
        cofferdam_plugin.plugin.log.info("ended")


def endless(ctx):
    try:
        while True:
            yield 1
    finally:
        ctx.log.info("closed")


@timeout(30)
def fast(ctx):
    return "fast"


@retry(attempts=3, backoff=0.001)
def flaky(ctx, failures):
    attempts.append(ctx.request_id)
    if attempts.count(ctx.request_id) <= failures:
        raise Retryable("try again")
    return attempts.count(ctx.request_id)


@retry(attempts=3, backoff=0.001)
async def flaky_async(ctx, failures):
    return flaky(ctx, failures)


@retry(attempts=9, backoff=1000)
def stubborn(ctx):
    ctx.log.info("trying")
    raise Retryable("try again")


@retry(attempts=3, backoff=0)
def flaky_items(ctx):
    yield 1
    raise Retryable("too late")


@permission("fs.read", "net")
def guarded(ctx):
    return "open"


async def items(ctx, n):
    for number in range(n):
        yield number


def broken_items(ctx):
    yield 1
    raise ValueError("broken")


def get(ctx, key):
    return ctx.kv.get(key)


async def get_async(ctx, keys):
    return await asyncio.gather(*(ctx.aio.kv.get(key) for key in keys))


def read(ctx, path):
    return ctx.fs.read_text(path)


def in_thread(ctx):
    result = []
    thread = threading.Thread(target=lambda: result.append(ctx.kv.get("k")))
    thread.start()
    thread.join()
    return result


def logs(ctx):
    logging.getLogger("weather").warning("hot: %d", 40)
    try:
        raise ValueError("cold")
    except ValueError:
        logging.exception("failed")
    ctx.log.debug("fine", degrees=20)
    ctx.log.error("odd", value=object(), text="x" * 100_000)


def temporary(ctx, fail=False):
    paths = [ctx.temporary_file(".txt"), ctx.temporary_file()]
    os.remove(paths[0])
    ctx.progress(paths[1] if os.path.exists(paths[1]) else "missing")
    if fail:
        raise ValueError(paths[1])
    return paths[1]


async def temporary_async(ctx):
    path = await ctx.aio.temporary_file()
    return [path, os.path.exists(path)]


def in_process(ctx):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=put_module, args=[queue])
    process.start()
    name = queue.get(timeout=60)
    process.join()
    return name


def put_module(queue):
    queue.put(cofferdam_plugin.Plugin.__qualname__)


def leave(ctx):
    sys.exit(3)


async def leave_async(ctx):
    sys.exit(3)


def recurse(ctx):
    return recurse(ctx)


def unprintable(ctx):
    class Unprintable(Exception):
        def __str__(self):
            raise ValueError

    raise Unprintable


def result(ctx, kind):
    deep = []
    for _ in range(70):
        deep = [deep]
    cycle = []
    cycle.append(cycle)
    values = {"object": object(), "nan": float("nan"), "deep": deep, "cycle": cycle, "surrogate": "\ud800"}
    return "x" * (9 << 20) if kind == "large" else values[kind]


METHODS = [same_module, whole, keywords, context, noise, wait, wait_async, slow, slow_async, fast, flaky, flaky_async]
METHODS += [guarded, items, broken_items, get, get_async, read, in_thread, logs, temporary, leave, leave_async, recurse]
METHODS += [unprintable, result, in_process, stubborn, flaky_items, late, endless, temporary_async]
