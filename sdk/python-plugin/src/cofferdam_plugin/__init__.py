"""SDK for Cofferdam plugins in Python.

This file is the whole SDK. The host runs it as a script in the directory of the plugin's package. It speaks the
protocol of plugins on descriptors 0 and 1 and loads the plugin's entry. It enforces nothing: the host checks each
request of a plugin.

    from cofferdam_plugin import Context, Plugin

    def activate(plugin: Plugin) -> None:
        @plugin.method
        def add(ctx: Context, a: int, b: int) -> int:
            return a + b
"""

from __future__ import annotations

import base64
import contextlib
import contextvars
import functools
import importlib
import inspect
import itertools
import json
import logging
import math
import os
import queue
import random
import re
import select
import sys
import tempfile
import threading
import time
import traceback
from concurrent import futures
from datetime import datetime
from typing import Any, AsyncGenerator, Awaitable, Callable, Coroutine, Dict, FrozenSet, Generator, List, Mapping
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Optional, Protocol, Set, Tuple, Type, TypeVar, Union, cast
from typing import overload

# Functions that need it import it: a plugin without asynchronous functions starts faster and has 4 MiB less.
if TYPE_CHECKING:
    import asyncio

__version__ = "0.1.0"

PROTOCOL_VERSION = 1
MAX_MESSAGE = 8 * 1024 * 1024
MAX_HEADERS = 4096
MAX_DEPTH = 64
MAX_BATCH = 100
MAX_REQUESTS = 256
MAX_ID = 128
MAX_TEXT = 4096
MAX_STACK = 16 * 1024
FRAME_SECONDS = 30.0
STREAM_CREDIT = 64
MAX_THREADS = 16
MAX_BACKOFF = 30.0
BROKEN_FRAME_STATUS = 65
MAX_PROFILE_EVENTS = 100_000

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Params = Dict[str, Any]


# --- Errors ---


class PluginError(Exception):
    """A failure of a plugin, and the base class of all errors of this module."""

    code = -32003
    kind = "plugin-failed"

    def __init__(self, message: str, data: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(message)
        self.data: Params = dict(data or {})


class Retryable(PluginError):
    """A failure that may pass. `retry` runs the method again."""

    def __init__(self, message: str, data: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(message, {"retryable": True, **(data or {})})


class Unavailable(Retryable):
    """The other side cannot be reached now."""

    code, kind = -32006, "unavailable"


class PermissionDenied(PluginError):
    """The manifest does not permit the request."""

    code, kind = -32001, "permission-denied"

    def __init__(self, permission: str, target: str, remedy: str, message: Optional[str] = None) -> None:
        data = {"permission": permission, "target": target, "remedy": remedy}
        super().__init__(message or f"permission {permission} is required for {target}; {remedy}", data)
        self.permission, self.target, self.remedy = permission, target, remedy


class Timeout(PluginError):
    """The request took too long."""

    code, kind = -32002, "timeout"


class Limit(PluginError):
    """A limit or quota is exhausted."""

    code, kind = -32004, "limit"


class NotFound(PluginError):
    """The object does not exist."""

    code, kind = -32005, "not-found"


class Conflict(PluginError):
    """Another request changed the object."""

    code, kind = -32007, "conflict"


class Cancelled(PluginError):
    """The request was cancelled."""

    code, kind = -32800, "cancelled"

    def __init__(self, message: str = "the request was cancelled", data: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(message, data)


class InvalidParams(PluginError):
    """The parameters do not fit the method."""

    code, kind = -32602, "invalid-params"


class MethodNotFound(PluginError):
    """The receiver has no such method."""

    code, kind = -32601, "method-not-found"


class InvalidRequest(PluginError):
    """The receiver does not accept the request now."""

    code, kind = -32600, "invalid-request"


class InternalError(PluginError):
    """The receiver failed."""

    code, kind = -32603, "internal"


_ERRORS: Dict[int, Type[PluginError]] = {
    error.code: error
    for error in (Unavailable, Timeout, Limit, NotFound, Conflict, Cancelled, InvalidParams, MethodNotFound)
    + (InvalidRequest, InternalError)
}


def error_from_json(error: Mapping[str, Any]) -> PluginError:
    """Returns the exception for the member `error` of a response."""
    message, data = _text(error.get("message"), MAX_TEXT), error.get("data")
    data = {key: value for key, value in data.items() if key != "kind"} if isinstance(data, dict) else {}
    if error.get("code") == PermissionDenied.code:
        permission, target, remedy = (_text(data.get(key, ""), MAX_TEXT) for key in ("permission", "target", "remedy"))
        return PermissionDenied(permission, target, remedy, message)
    kind = _ERRORS.get(cast(int, error.get("code")), Retryable if data.get("retryable") is True else PluginError)
    return kind(message, data)


def error_to_json(error: BaseException) -> Params:
    """Returns the member `error` of a response. An exception of the plugin's code has its type and a bounded stack."""
    if not isinstance(error, PluginError) or error.code == PluginError.code:
        stack = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-32))
        data = error.data if isinstance(error, PluginError) else {}
        details = {"type": type(error).__qualname__, "stack": _text(stack[-MAX_STACK:], MAX_STACK), **data}
        error = PluginError(_text(error, MAX_TEXT) or type(error).__name__, details)
    return {"code": error.code, "message": _text(error, MAX_TEXT), "data": {**error.data, "kind": error.kind}}


def _text(value: object, limit: int) -> str:
    """Returns the text of a value, cut to a number of bytes and without lone surrogates."""
    try:
        text = str(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text[:limit].encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")


# --- Frames ---


class BrokenFrame(Exception):
    """A violation of the protocol by the host, which ends the process."""


class FrameReader:
    """A reader of frames from a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()

    def read(self) -> Any:
        """Returns the next message, or None at the end of the file."""
        if not self._buffer and not self._fill():
            return None
        deadline = time.monotonic() + FRAME_SECONDS
        end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEADERS)
        while end < 0:
            if len(self._buffer) >= MAX_HEADERS:
                raise BrokenFrame(f"too-large: the headers have more than {MAX_HEADERS} bytes")
            self._wait(deadline)
            end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEADERS)
        length = _content_length(bytes(self._buffer[:end]))
        while len(self._buffer) < end + 4 + length:
            self._wait(deadline)
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        return decode(body)

    def _wait(self, deadline: float) -> None:
        if not select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise BrokenFrame(f"silence: the frame is incomplete after {FRAME_SECONDS:.0f} s")
        if not self._fill():
            raise BrokenFrame("bad-frame: the file ends within a frame")

    def _fill(self) -> bool:
        data = os.read(self._descriptor, 1 << 16)
        self._buffer += data
        return bool(data)


def _content_length(headers: bytes) -> int:
    lengths = []
    for line in headers.split(b"\r\n"):
        match = re.fullmatch(rb"([!-9;-~]+):[ \t]*([^\r\n]*?)[ \t]*", line)
        if match is None:
            raise BrokenFrame("bad-frame: a line of the headers has no name")
        name, value = match[1].lower(), match[2]
        if name == b"content-length":
            lengths.append(value)
        charset = re.search(rb"charset\s*=\s*\"?([^\s\";]+)", value.lower()) if name == b"content-type" else None
        if charset is not None and charset[1] != b"utf-8":
            raise BrokenFrame("bad-frame: the charset is not utf-8")
    if len(lengths) != 1 or not re.fullmatch(rb"[0-9]{1,16}", lengths[0]):
        raise BrokenFrame("bad-frame: Content-Length must be present once, in decimal digits")
    if int(lengths[0]) > MAX_MESSAGE:
        raise BrokenFrame(f"too-large: the body has more than {MAX_MESSAGE} bytes")
    return int(lengths[0])


def decode(body: bytes) -> Any:
    """Returns the value of a body. Raises `BrokenFrame` if it is not JSON or too deep."""
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except RecursionError:
        raise BrokenFrame(f"too-deep: the nesting exceeds {MAX_DEPTH}") from None
    except ValueError:
        raise BrokenFrame("not-json: the body is not JSON in UTF-8") from None
    if _is_too_deep(value, body):
        raise BrokenFrame(f"too-deep: the nesting exceeds {MAX_DEPTH}")
    return value


def encode(message: Any, limit: int = MAX_MESSAGE) -> bytes:
    """Returns the frame of a message. Raises an error if the message is not JSON, too large or too deep."""
    try:
        body = _ENCODER.encode(message).encode("utf-8")
    except Exception as error:
        raise PluginError(f"the value cannot be sent as JSON: {_text(error, 200)}") from None
    if len(body) > limit:
        raise Limit(f"the message has {len(body)} bytes, the maximum is {limit}; send it in parts")
    if _is_too_deep(message, body):
        raise Limit(f"the nesting of the message exceeds {MAX_DEPTH}; send a flatter value")
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def _portable(value: Any, pointer: str, dropped: List[str], ancestors: List[Any]) -> Any:
    """Returns a copy of a value that JSON represents. Adds pointers to the parts that cannot cross."""
    if value is None or isinstance(value, (str, bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    is_list = isinstance(value, (list, tuple))
    is_open = any(value is ancestor for ancestor in ancestors) or len(ancestors) >= 32
    if is_open or not (is_list or isinstance(value, Mapping)):
        if len(dropped) < 100:
            dropped.append(pointer[:200])
        return None
    ancestors.append(value)
    members = enumerate(value) if is_list else value.items()
    copied = []
    for key, member in members:
        before = len(dropped)
        name = str(key).replace("~", "~0").replace("/", "~1")
        copy = _portable(member, f"{pointer}/{name}", dropped, ancestors)
        if is_list or copy is not None or member is None or len(dropped) == before:
            copied.append((str(key), copy))
    ancestors.pop()
    return [copy for _, copy in copied] if is_list else dict(copied)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


# The functions of `json` create a new object for each call with options.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _is_too_deep(value: Any, body: bytes) -> bool:
    """Returns true if arrays and objects nest deeper than the limit. `body` has the value's text."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for item in level if isinstance(item, (dict, list, tuple))]
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return any(isinstance(item, (dict, list, tuple)) for item in level)


# --- Services of the host ---


class Page(NamedTuple):
    """A part of a list. `more` is true if items follow; pass the last item as `after`."""

    items: List[Any]
    more: bool


class Response(NamedTuple):
    """The response of `net.fetch`."""

    status: int
    headers: Dict[str, Any]
    body: bytes
    truncated: bool

    def json(self) -> Any:
        """Returns the body's JSON value."""
        return json.loads(self.body)


class Send(Protocol):
    """A function that sends a request and applies `pick` to the result."""

    def __call__(self, method: str, params: Params, pick: Callable[[Any], T]) -> T: ...


class _Service:
    def __init__(self, send: Send) -> None:
        self._send = send


def _present(**params: Any) -> Params:
    return {key: value for key, value in params.items() if value is not None}


def _none(_: Any) -> None:
    return None


def _content(data: Union[str, bytes]) -> Params:
    try:
        return {"text": data if isinstance(data, str) else data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(cast(bytes, data)).decode("ascii")}


def _bytes(content: Mapping[str, str]) -> bytes:
    return content["text"].encode("utf-8") if "text" in content else base64.b64decode(content["base64"])


def _time(value: Union[str, datetime, None]) -> Optional[str]:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError("a time needs an offset: use datetime with tzinfo")
    return value.isoformat() if isinstance(value, datetime) else value


def _duration(value: Union[str, float, None]) -> Optional[str]:
    return value if value is None or isinstance(value, str) else f"{round(value * 1000)}ms"


class KeyValues(_Service):
    """The plugin's key-value store."""

    def get(self, key: str) -> Any:
        """Returns the value of a key, or None."""
        return self._send("kv.get", {"key": key}, lambda result: result["value"])

    def get_with_version(self, key: str) -> Tuple[Any, Any]:
        """Returns the value of a key with its version, for `if_version` of `set`."""
        return self._send("kv.get", {"key": key}, lambda result: (result["value"], result["version"]))

    def set(self, key: str, value: Any, if_version: Any = None, ttl: Union[str, float, None] = None) -> Any:
        """Stores a value and returns its version. `ttl` is in seconds, or a text such as `5m`."""
        params = {"key": key, "value": value, **_present(ifVersion=if_version, ttl=_duration(ttl))}
        return self._send("kv.set", params, lambda result: result["version"])

    def delete(self, key: str, if_version: Any = None) -> bool:
        """Removes a key. Returns false if it did not exist."""
        return self._send("kv.delete", _present(key=key, ifVersion=if_version), lambda result: bool(result["deleted"]))

    def list(self, prefix: Optional[str] = None, after: Optional[str] = None, limit: Optional[int] = None) -> Page:
        """Returns keys in order."""
        params = _present(prefix=prefix, after=after, limit=limit)
        return self._send("kv.list", params, lambda result: Page(result["keys"], result["more"]))


class Files(_Service):
    """Files below the paths of the manifest's `sandbox.fsAccess`."""

    def read(self, path: str, offset: Optional[int] = None, length: Optional[int] = None) -> bytes:
        """Returns the contents of a file."""
        params = _present(path=path, offset=offset, length=length)
        return self._send("fs.read", params, lambda result: _bytes(result["content"]))

    def read_text(self, path: str) -> str:
        """Returns the contents of a file in UTF-8."""
        return self._send("fs.read", {"path": path}, lambda result: _bytes(result["content"]).decode("utf-8"))

    def stat(self, path: str) -> Params:
        """Returns `kind`, `size` and `modified` of a file or directory."""
        return self._send("fs.stat", {"path": path}, dict)

    def list(self, path: str) -> List[Params]:
        """Returns the entries of a directory, each with `name`, `kind` and `size`."""
        return self._send("fs.list", {"path": path}, lambda result: list(result["entries"]))

    def write(self, path: str, content: Union[str, bytes], append: bool = False) -> int:
        """Writes a file and returns its size."""
        params = {"path": path, "content": _content(content), "append": append}
        return self._send("fs.write", params, lambda result: int(result["size"]))

    def mkdir(self, path: str) -> None:
        """Creates a directory."""
        return self._send("fs.mkdir", {"path": path}, _none)

    def remove(self, path: str) -> None:
        """Removes a file or an empty directory."""
        return self._send("fs.remove", {"path": path}, _none)


class Network(_Service):
    """The network, limited to the hosts of the manifest's `sandbox.net`."""

    def fetch(
        self,
        url: str,
        method: Optional[str] = None,
        headers: Optional[Mapping[str, str]] = None,
        body: Union[str, bytes, None] = None,
        timeout: Union[str, float, None] = None,
    ) -> Response:
        """Sends an HTTP request and returns the response."""
        content = None if body is None else _content(body)
        params = _present(url=url, method=method, headers=headers, body=content, timeout=_duration(timeout))
        return self._send("net.fetch", params, _response)


def _response(result: Any) -> Response:
    return Response(result["status"], result["headers"], _bytes(result["body"]), bool(result["truncated"]))


class Secrets(_Service):
    """The secrets that the manifest names."""

    def get(self, name: str) -> str:
        """Returns the value of a secret."""
        return self._send("secrets.get", {"name": name}, lambda result: str(result["value"]))

    def set(self, name: str, value: str) -> None:
        """Stores a secret."""
        return self._send("secrets.set", {"name": name, "value": value}, _none)

    def delete(self, name: str) -> None:
        """Removes a secret."""
        return self._send("secrets.delete", {"name": name}, _none)


class Events(_Service):
    """Events between plugins."""

    def publish(self, name: str, payload: Any = None) -> Params:
        """Publishes an event. Returns its `id` and the number of `subscribers`."""
        return self._send("events.publish", _present(name=name, payload=payload), dict)

    def subscribe(self, pattern: str) -> str:
        """Subscribes to events. `on_event` does this for its pattern."""
        return self._send("events.subscribe", {"pattern": pattern}, lambda result: str(result["subscription"]))

    def unsubscribe(self, subscription: str) -> None:
        """Ends a subscription."""
        return self._send("events.unsubscribe", {"subscription": subscription}, _none)


class Scheduler(_Service):
    """Timers that survive a restart of the plugin and of the host."""

    def create(
        self,
        name: str,
        *,
        at: Union[str, datetime, None] = None,
        every: Union[str, float, None] = None,
        cron: Optional[str] = None,
        timezone: Optional[str] = None,
        payload: Any = None,
        missed: Optional[str] = None,
    ) -> Params:
        """Creates a timer with one of `at`, `every` and `cron`. Returns its `id` and the `next` time.

        `missed` is `skip`, `once` or `all`. The handler is that of `on_timer(name)`.
        """
        when = _present(at=_time(at), every=_duration(every), cron=cron)
        params = _present(name=name, timezone=timezone, payload=payload, missed=missed)
        return self._send("scheduler.create", {**params, **when}, dict)

    def list(self) -> List[Params]:
        """Returns the plugin's timers, each with `id`, `name` and `next`."""
        return self._send("scheduler.list", {}, lambda result: list(result["timers"]))

    def cancel(self, id: str) -> bool:
        """Cancels a timer. Returns false if it did not exist."""
        return self._send("scheduler.cancel", {"id": id}, lambda result: bool(result["cancelled"]))


class Calendar(_Service):
    """The calendar."""

    def create(
        self,
        summary: str,
        start: Union[str, datetime],
        end: Union[str, datetime, None] = None,
        *,
        timezone: Optional[str] = None,
        rrule: Optional[str] = None,
        description: Optional[str] = None,
        location: Optional[str] = None,
    ) -> str:
        """Creates an entry and returns its identifier."""
        params = _present(summary=summary, start=_time(start), end=_time(end), timezone=timezone, rrule=rrule)
        params.update(_present(description=description, location=location))
        return self._send("calendar.create", params, lambda result: str(result["id"]))

    def read(self, id: str) -> Params:
        """Returns an entry."""
        return self._send("calendar.read", {"id": id}, dict)

    def query(
        self, start: Union[str, datetime], end: Union[str, datetime], limit: Optional[int] = None
    ) -> List[Params]:
        """Returns the occurrences between two times, each with `id`, `summary`, `start` and `end`."""
        params = {"from": _time(start), "to": _time(end), **_present(limit=limit)}
        return self._send("calendar.query", params, lambda result: list(result["occurrences"]))

    def delete(self, id: str) -> bool:
        """Removes an entry. Returns false if it did not exist."""
        return self._send("calendar.delete", {"id": id}, lambda result: bool(result["deleted"]))

    def import_ics(self, ics: str) -> List[str]:
        """Creates the entries of an iCalendar text and returns their identifiers."""
        return self._send("calendar.import", {"ics": ics}, lambda result: list(result["ids"]))

    def export_ics(self, ids: Optional[List[str]] = None) -> str:
        """Returns entries as an iCalendar text. Without `ids`, it has all entries."""
        return self._send("calendar.export", _present(ids=ids), lambda result: str(result["ics"]))


class Artifacts(_Service):
    """Content-addressed artifacts."""

    def write(
        self,
        name: str,
        content: Union[str, bytes],
        media_type: Optional[str] = None,
        metadata: Optional[Mapping[str, Any]] = None,
    ) -> Params:
        """Stores an artifact. Returns its `digest` and `size`."""
        params = _present(name=name, content=_content(content), mediaType=media_type, metadata=metadata)
        return self._send("artifacts.write", params, dict)

    def read(self, *, name: Optional[str] = None, digest: Optional[str] = None) -> Params:
        """Returns an artifact. Its `content` is bytes."""
        params = _present(name=name, digest=digest)
        return self._send("artifacts.read", params, lambda result: {**result, "content": _bytes(result["content"])})

    def list(self, after: Optional[str] = None, limit: Optional[int] = None) -> Page:
        """Returns artifacts without their contents."""
        params = _present(after=after, limit=limit)
        return self._send("artifacts.list", params, lambda result: Page(result["artifacts"], result["more"]))


class Services:
    """The services of the host. Each request needs its permission in the manifest."""

    def __init__(self, send: Send, call: Optional[_Call]) -> None:
        self._send, self._call = send, call
        self.kv = KeyValues(send)
        self.fs = Files(send)
        self.net = Network(send)
        self.secrets = Secrets(send)
        self.events = Events(send)
        self.scheduler = Scheduler(send)
        self.calendar = Calendar(send)
        self.artifacts = Artifacts(send)

    def invoke(
        self,
        plugin: str,
        method: str,
        input: Any = None,
        timeout: Union[str, float, None] = None,
        metadata: Optional[Mapping[str, Any]] = None,
    ) -> Any:
        """Calls a method of another plugin and returns its output.

        Parts of the metadata that cannot cross are dropped, and the callee's context names them: functions, objects,
        cycles.
        """
        params = {"plugin": plugin, "method": method, "input": input, **_present(timeout=_duration(timeout))}
        if metadata is not None:
            dropped: List[str] = []
            params["metadata"] = _portable(metadata, "/metadata", dropped, [])
            params["dropped"] = dropped
        return self._send("invoke", params, lambda result: result)

    def execute(self, language: str, code: str, timeout: Union[str, float, None] = None) -> Params:
        """Runs code in a sandbox. Returns `stdout`, `stderr`, `exitCode`, `result` and `killedBy`."""
        params = _present(language=language, code=code, timeout=_duration(timeout))
        return self._send("sandbox.execute", params, dict)

    def get_config(self) -> Params:
        """Returns the current configuration."""
        return self._send("config.get", {}, lambda result: dict(result["config"]))

    def temporary_file(self, suffix: str = "") -> str:
        """Creates an empty file and returns its path. It is removed when the call ends, or with the process."""
        descriptor, path = tempfile.mkstemp(suffix)
        os.close(descriptor)
        call = self._call or _current.get()
        if call is not None:
            call.temporary.append(path)
        try:
            return self._send("resources.track", {"path": path}, lambda _: path)
        except PluginError:
            os.remove(path)
            raise


# --- Plugins ---


class Event(NamedTuple):
    """A delivery of an event. A delivery repeats until its handler returns without an error."""

    id: str
    name: str
    payload: Any
    publisher: Any
    attempt: Any
    subscription: Any


class Timer(NamedTuple):
    """A timer that fired. `missed` is the number of times that were missed before."""

    id: str
    name: str
    payload: Any
    scheduled: Any
    missed: Any


class _Options:
    timeout: Optional[float] = None
    attempts = 1
    backoff = 0.1
    permissions: Tuple[str, ...] = ()


def _options(function: Callable[..., Any]) -> _Options:
    return cast(_Options, function.__dict__.setdefault("_cofferdam_options", _Options()))


def timeout(seconds: float) -> Callable[[F], F]:
    """Answers a call of the method with `Timeout` after a time, and cancels it."""

    def decorate(function: F) -> F:
        _options(function).timeout = seconds
        return function

    return decorate


def retry(attempts: int = 3, backoff: float = 0.1) -> Callable[[F], F]:
    """Runs the method again when it raises `Retryable`, up to a number of attempts.

    The time before an attempt is random, up to `backoff` seconds, doubled for each further attempt. A stream that has
    sent an item is not repeated.
    """

    def decorate(function: F) -> F:
        options = _options(function)
        options.attempts, options.backoff = attempts, backoff
        return function

    return decorate


def permission(*names: str) -> Callable[[F], F]:
    """Raises `PermissionDenied` before the method runs if a permission is not granted.

    This reports a missing permission early. The host enforces permissions in any case.
    """

    def decorate(function: F) -> F:
        options = _options(function)
        options.permissions += names
        return function

    return decorate


class _Handler:
    """A function of the plugin."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.signature = inspect.signature(function)
        names = list(self.signature.parameters)
        self.takes_input = names[1:2] == ["input"]
        self.is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)

    def arguments(self, ctx: Context, input: Any) -> Params:
        """Returns the keyword parameters for an input. Raises `InvalidParams` if they do not fit."""
        keywords = {"input": input} if self.takes_input else {} if input is None else input
        if not isinstance(keywords, dict):
            raise InvalidParams("the input must be an object")
        try:
            self.signature.bind(ctx, **keywords)
        except TypeError as error:
            raise InvalidParams(f"the input does not fit: {error}") from None
        return keywords

    def check(self, granted: FrozenSet[str], target: str) -> None:
        """Raises `PermissionDenied` for the first permission that is not granted."""
        for name in _options(self.function).permissions:
            if name not in granted:
                raise PermissionDenied(name, target, f"add '{name}' to the permissions of the manifest")

    def run(self, call: _Call, /, *args: Any, **keywords: Any) -> Any:
        """Runs a synchronous function, again if it may be retried."""
        with call.current():
            for attempt in itertools.count(1):
                try:
                    result = self.function(*args, **keywords)
                    return call.stream(result) if inspect.isgenerator(result) else result
                except Retryable:
                    delay = self._delay(call, attempt)
                    if delay is None:
                        raise
                    if call.cancelled.wait(delay):
                        raise Cancelled() from None

    async def run_async(self, call: _Call, /, *args: Any, **keywords: Any) -> Any:
        """Runs an asynchronous function, again if it may be retried."""
        with call.current():
            for attempt in itertools.count(1):
                try:
                    result = self.function(*args, **keywords)
                    return await (call.stream_async(result) if inspect.isasyncgen(result) else result)
                except Retryable:
                    delay = self._delay(call, attempt)
                    if delay is None:
                        raise
                    import asyncio

                    await asyncio.sleep(delay)
                except (KeyboardInterrupt, SystemExit) as error:
                    raise PluginError(f"the method raised {type(error).__name__}") from error

    def _delay(self, call: _Call, attempt: int) -> Optional[float]:
        """Returns the time before the next attempt, or None if there is none."""
        options = _options(self.function)
        if attempt >= options.attempts or call.sent:
            return None
        return random.uniform(0, min(MAX_BACKOFF, options.backoff * 2 ** min(attempt - 1, 32)))


class Plugin:
    """The methods and handlers of a plugin. The module's `plugin` is the default instance."""

    def __init__(self) -> None:
        self._methods: Dict[str, _Handler] = {}
        self._events: Dict[str, _Handler] = {}
        self._timers: Dict[str, _Handler] = {}
        self._shutdown: List[Callable[[], Any]] = []
        self._session: Optional[Session] = None

    @overload
    def method(self, target: F) -> F: ...
    @overload
    def method(self, target: str) -> Callable[[F], F]: ...
    def method(self, target: Any) -> Any:
        """Registers a function as a method: `@plugin.method` with its own name, or `@plugin.method("name")`.

        The function gets a `Context` and the members of the input as keyword parameters. If its second parameter is
        named `input`, it gets the whole input there. A generator streams its items; its return value is the result.
        """
        if isinstance(target, str):
            return self._register(self._methods, target)
        return self._register(self._methods, target.__name__)(target)

    def on_event(self, pattern: str) -> Callable[[F], F]:
        """Registers `function(ctx, event)` for events, and subscribes to the pattern at the start."""
        return self._register(self._events, pattern)

    def on_timer(self, name: str) -> Callable[[F], F]:
        """Registers `function(ctx, timer)` for the timers of a name."""
        return self._register(self._timers, name)

    def on_shutdown(self, function: F) -> F:
        """Registers a function without parameters that runs before the process ends."""
        self._shutdown.append(function)
        return function

    @property
    def host(self) -> Host:
        """Returns the services for use outside of calls, such as during activation."""
        return Host(self._connected(), None)

    @property
    def log(self) -> Log:
        """Returns the log for use outside of calls."""
        return Log(self._connected(), None)

    @property
    def config(self) -> Params:
        """Returns the configuration."""
        return self._connected().config

    def _connected(self) -> Session:
        if self._session is None:
            raise Unavailable("the plugin has no host yet; use the services after activation begins")
        return self._session

    @staticmethod
    def _register(handlers: Dict[str, _Handler], name: str) -> Callable[[F], F]:
        def decorate(function: F) -> F:
            if name in handlers:
                raise ValueError(f"'{name}' is registered already")
            handlers[name] = _Handler(function)
            return function

        return decorate

    def _event_handler(self, event: Event) -> Optional[_Handler]:
        exact = self._events.get(event.subscription) if isinstance(event.subscription, str) else None
        matching = (handler for pattern, handler in self._events.items() if _matches(pattern, event.name))
        return exact or next(matching, None)


def _matches(pattern: str, name: str) -> bool:
    """Returns true if a pattern covers a name: `*` is one part, `**` at the end any number."""
    expression = re.escape(pattern).replace(r"\*\*", ".+").replace(r"\*", r"[^.]+")
    return re.fullmatch(expression, name) is not None


plugin = Plugin()
method = plugin.method
on_event = plugin.on_event
on_timer = plugin.on_timer
on_shutdown = plugin.on_shutdown


# --- Calls ---


class _Call:
    """A request of the host that has no answer yet."""

    def __init__(self, session: Session, id: Union[int, str], correlation: str) -> None:
        self.session, self.id, self.correlation = session, id, correlation
        self.cancelled = threading.Event()
        self.future: Optional[futures.Future[Any]] = None
        self.timer: Optional[threading.Timer] = None
        self.is_last = False
        self.is_method = False
        self.temporary: List[str] = []
        self.sent = 0
        self._acked = 0
        self._credit: Optional[futures.Future[None]] = None
        self._answered = False
        self._lock = threading.RLock()
        self._waits: Set[futures.Future[Any]] = set()

    def add(self, wait: futures.Future[Any]) -> None:
        """Adds a future that fails when the call is cancelled."""
        with self._lock:
            if self.cancelled.is_set():
                raise Cancelled()
            self._waits.add(wait)
        wait.add_done_callback(lambda done: self._waits.discard(done))

    def cancel(self) -> None:
        """Cancels the call: wakes its waits, and its task or its place in the queue."""
        with self._lock:
            self.cancelled.set()
            waits, self._waits = self._waits, set()
        for wait in waits:
            _settle(wait, error=Cancelled())
        if self.future is not None:
            self.future.cancel()

    def expire(self) -> None:
        """Answers with a timeout and cancels the call."""
        self.answer(error=Timeout("the method took longer than its timeout"))
        self.cancel()

    def answer(self, result: Any = None, error: Optional[BaseException] = None) -> None:
        """Sends the answer, unless the call has one."""
        with self._lock:
            if not self._answered:
                self._answered = True
                self.session.answer(self, result, error)
        if self.timer is not None:
            self.timer.cancel()

    @contextlib.contextmanager
    def current(self) -> Generator[None, None, None]:
        """Makes this the current call while its handler runs, and then removes its temporary files."""
        _current.set(self)
        try:
            yield
        finally:
            for path in self.temporary:
                with contextlib.suppress(OSError):
                    os.remove(path)

    def notify(self, method: str, params: Params) -> None:
        """Sends a notification about the call. After the answer it raises `Cancelled`."""
        with self._lock:
            if self._answered:
                raise Cancelled("the call has ended")
            self.session.notify(method, params, self)

    def acknowledge(self, count: int) -> None:
        """Records the number of items that the host consumed."""
        with self._lock:
            self._acked = max(self._acked, min(count, self.sent))
            credit, self._credit = self._credit, None
        if credit is not None:
            _settle(credit)

    def stream(self, items: Generator[Any, Any, Any]) -> Any:
        """Sends the items of a generator and returns its result."""
        try:
            while True:
                item = next(items)
                while (credit := self._next_credit()) is not None:
                    credit.result()
                self._emit(item)
        except StopIteration as end:
            return end.value
        finally:
            items.close()

    async def stream_async(self, items: AsyncGenerator[Any, Any]) -> None:
        """Sends the items of an asynchronous generator."""
        import asyncio

        try:
            async for item in items:
                while (credit := self._next_credit()) is not None:
                    await asyncio.wrap_future(credit)
                self._emit(item)
        finally:
            await items.aclose()

    def _next_credit(self) -> Optional[futures.Future[None]]:
        """Returns None if an item may be sent, else a future for the next acknowledgement."""
        with self._lock:
            if self.cancelled.is_set():
                raise Cancelled()
            if self.sent - self._acked < STREAM_CREDIT:
                return None
            credit: futures.Future[None] = futures.Future()
            self._credit = credit
        self.add(credit)
        return credit

    def _emit(self, item: Any) -> None:
        # An acknowledgement may arrive before `notify` returns.
        self.sent += 1
        self.notify("$/stream", {"id": self.id, "seq": self.sent - 1, "value": item})


_current: contextvars.ContextVar[Optional[_Call]] = contextvars.ContextVar("cofferdam_call", default=None)


def _settle(future: futures.Future[Any], result: Any = None, error: Optional[BaseException] = None) -> None:
    """Sets the result or exception of a future, unless it has one or was cancelled."""
    try:
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    except futures.InvalidStateError:
        pass


class Host(Services):
    """The services of the host, as methods that wait for the answer."""

    def __init__(self, session: Session, call: Optional[_Call]) -> None:
        self._session = session
        super().__init__(self._request, call)

    @property
    def aio(self) -> Any:
        """Returns the same services as coroutines: `await ctx.aio.kv.get("key")`."""
        return Services(cast(Send, self._request_async), self._call)

    def _request(self, method: str, params: Params, pick: Callable[[Any], T]) -> T:
        return pick(self._session.submit(method, params, self._call or _current.get()).result())

    async def _request_async(self, method: str, params: Params, pick: Callable[[Any], T]) -> T:
        import asyncio

        return pick(await asyncio.wrap_future(self._session.submit(method, params, self._call or _current.get())))


class Context(Host):
    """A call of a method, with the services of the host."""

    def __init__(self, session: Session, call: _Call, context: Mapping[str, Any]) -> None:
        super().__init__(session, call)
        self._running = call
        self.cancelled = call.cancelled
        self.correlation_id = call.correlation
        self.request_id: Optional[str] = context.get("requestId")
        self.tenant: Optional[str] = context.get("tenant")
        self.traceparent: Optional[str] = context.get("traceparent")
        self.deadline: Optional[str] = context.get("deadline")
        self.metadata: Params = context.get("metadata") or {}
        self.depth: int = context.get("depth") or 0
        self.dropped: List[str] = context.get("dropped") or []
        self.config = session.config
        self.log = Log(session, call)

    def progress(self, message: Optional[str] = None, percent: Optional[float] = None) -> None:
        """Reports the progress of the call."""
        value = _present(message=message, percent=percent)
        self._running.notify("$/progress", {"token": self._running.id, "value": value})


class Log:
    """The plugin's log at the host. Fields are JSON values; a line that cannot be sent is cut."""

    def __init__(self, session: Session, call: Optional[_Call]) -> None:
        self._session, self._call = session, call

    def debug(self, message: str, **fields: Any) -> None:
        """Writes a line of the level `debug`."""
        self.write("debug", message, fields)

    def info(self, message: str, **fields: Any) -> None:
        """Writes a line of the level `info`."""
        self.write("info", message, fields)

    def warn(self, message: str, **fields: Any) -> None:
        """Writes a line of the level `warn`."""
        self.write("warn", message, fields)

    def error(self, message: str, **fields: Any) -> None:
        """Writes a line of the level `error`."""
        self.write("error", message, fields)

    def write(self, level: str, message: str, fields: Params) -> None:
        """Writes a line. It never raises because of its contents."""
        params = {"level": level, "message": _text(message, MAX_TEXT), "fields": fields}
        call = self._call or _current.get()
        try:
            encode(params, MAX_TEXT * 4)
        except PluginError:
            params["fields"] = {_text(key, MAX_ID): _text(value, MAX_ID) for key, value in list(fields.items())[:16]}
        self._session.notify("log", params, call)


class LogHandler(logging.Handler):
    """A handler of the module `logging` that forwards records to the plugin's log."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Forwards a record."""
        names = ((logging.ERROR, "error"), (logging.WARNING, "warn"), (logging.INFO, "info"))
        level = next((name for number, name in names if record.levelno >= number), "debug")
        fields = {"logger": record.name}
        try:
            if record.exc_info:
                fields["exception"] = logging.Formatter().formatException(record.exc_info)
            self._log.write(level, record.getMessage(), fields)
        except Exception:
            self.handleError(record)


# --- The connection to the host ---


class Session:
    """The plugin's side of the protocol.

    `send` gets a frame, and true if it is the last. `target` is a plugin or its function, in place of the entry.
    """

    def __init__(self, send: Callable[[bytes, bool], None], target: Any = None) -> None:
        self.config: Params = {}
        self.exited = False
        self._send = send
        self._target = target
        self._plugin: Optional[Plugin] = None
        self._state = "new"
        self._max_message = MAX_MESSAGE
        self._permissions: FrozenSet[str] = frozenset()
        self._calls: Dict[Union[int, str], _Call] = {}
        self._requests: Dict[int, futures.Future[Any]] = {}
        self._next_id = itertools.count(1)
        self._next_correlation = itertools.count(1)
        self._correlation_prefix = os.urandom(4).hex()
        self._lock = threading.Lock()
        # One more call runs in the thread that read it.
        self._pool = futures.ThreadPoolExecutor(MAX_THREADS - 1, "cofferdam-call")
        self.spawn: Callable[[Callable[[], Any]], futures.Future[Any]] = self._pool.submit
        self._life = futures.ThreadPoolExecutor(1, "cofferdam-life")

    # Messages from the host

    def receive(self, message: Any) -> None:
        """Handles a message or batch. Raises `BrokenFrame` for a violation of the protocol."""
        if isinstance(message, list) and not 1 <= len(message) <= MAX_BATCH:
            raise BrokenFrame(f"bad-message: a batch must have 1 to {MAX_BATCH} messages")
        for item in message if isinstance(message, list) else [message]:
            self._receive(item)

    def _receive(self, message: Any) -> None:
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            raise BrokenFrame("bad-message: the message is not JSON-RPC 2.0")
        if "method" not in message:
            return self._on_response(message)
        params = message.get("params")
        if not isinstance(message["method"], str) or not isinstance(params, (dict, type(None))):
            raise BrokenFrame("bad-message: 'method' must be a text and 'params' an object")
        if "id" in message:
            return self._on_request(message, params or {})
        self._on_notification(message["method"], params or {})

    def _on_response(self, message: Params) -> None:
        id, error = message.get("id"), message.get("error")
        is_error = isinstance(error, dict) and type(error.get("code")) is int
        if ("error" in message) == ("result" in message) or is_error != ("error" in message):
            raise BrokenFrame("bad-message: a response needs a result or an error")
        with self._lock:
            future = self._requests.pop(id, None) if type(id) is int else None
        if future is None:
            raise BrokenFrame("unknown-id: no request of the plugin has the response's id")
        _settle(future, message.get("result"), error_from_json(error) if error is not None else None)

    def _on_notification(self, method: str, params: Params) -> None:
        call = self._calls.get(params["id"]) if isinstance(params.get("id"), (int, str)) else None
        if method == "exit":
            self.exited = True
        elif method == "$/cancelRequest" and call is not None:
            call.cancel()
        elif method == "$/streamAck" and call is not None and type(params.get("count")) is int:
            call.acknowledge(params["count"])

    def _on_request(self, message: Params, params: Params) -> None:
        call = self._admit(message)
        try:
            self._dispatch(call, message["method"], params)
        except PluginError as error:
            call.answer(error=error)

    def _admit(self, message: Params) -> _Call:
        id, correlation = message["id"], message.get("correlationId")
        valid = 0 <= id < 2**53 if type(id) is int else _is_short_text(id)
        if not valid:
            raise BrokenFrame("bad-message: the id must be an integer from 0 to 2^53-1 or a short text")
        if correlation is None:
            correlation = self._new_correlation()
        if not _is_short_text(correlation):
            raise BrokenFrame("bad-message: 'correlationId' must be a short text")
        call = _Call(self, id, correlation)
        with self._lock:
            if id in self._calls:
                raise BrokenFrame("bad-message: a running request has the same id")
            if len(self._calls) >= MAX_REQUESTS:
                raise BrokenFrame(f"flood: {MAX_REQUESTS} requests have no answer yet")
            self._calls[id] = call
        return call

    def _dispatch(self, call: _Call, method: str, params: Params) -> None:
        if method == "ping":
            return call.answer()
        if method == "initialize":
            return self._start(call, self._life.submit(self._initialize, call, params))
        if method == "shutdown":
            call.is_last = True
            return self._start(call, self._life.submit(self._shut_down, call))
        handlers = {"call": self._on_call, "events.deliver": self._on_event, "scheduler.fire": self._on_timer}
        if method not in handlers:
            raise MethodNotFound(f"the method '{_text(method, MAX_ID)}' is unknown")
        if self._plugin is None or self._state != "ready":
            error = Unavailable if self._state == "stopping" else InvalidRequest
            raise error(f"the plugin is not ready: {self._state}")
        handlers[method](call, self._plugin, params)

    # Calls

    def _on_call(self, call: _Call, plugin: Plugin, params: Params) -> None:
        name, context = params.get("method"), params.get("context") or {}
        if not isinstance(name, str) or not isinstance(context, dict):
            raise InvalidParams("'call' needs a text 'method' and an object 'context'")
        handler = plugin._methods.get(name)
        if handler is None:
            raise MethodNotFound(f"the plugin has no method '{_text(name, MAX_ID)}'")
        ctx = Context(self, call, context)
        keywords = handler.arguments(ctx, params.get("input"))
        self._run(call, handler, name, ctx, **keywords)

    def _on_event(self, call: _Call, plugin: Plugin, params: Params) -> None:
        event = Event._make(params.get(name) for name in Event._fields)
        handler = plugin._event_handler(event)
        if handler is None:
            raise NotFound(f"the plugin has no handler for the event '{_text(event.name, MAX_ID)}'")
        self._run(call, handler, "the event", Context(self, call, {}), event)

    def _on_timer(self, call: _Call, plugin: Plugin, params: Params) -> None:
        timer = Timer._make(params.get(name) for name in Timer._fields)
        handler = plugin._timers.get(timer.name) if isinstance(timer.name, str) else None
        if handler is None:
            raise NotFound(f"the plugin has no handler for the timer '{_text(timer.name, MAX_ID)}'")
        self._run(call, handler, "the timer", Context(self, call, {}), timer)

    def _run(self, call: _Call, handler: _Handler, target: str, /, *args: Any, **keywords: Any) -> None:
        handler.check(self._permissions, target)
        call.is_method = True
        seconds = _options(handler.function).timeout
        if seconds is not None:
            call.timer = threading.Timer(seconds, call.expire)
            call.timer.daemon = True
            call.timer.start()
        if handler.is_async:
            work = handler.run_async(call, *args, **keywords)
            self._start(call, self._begin(work))
        else:
            self._start(call, self.spawn(functools.partial(handler.run, call, *args, **keywords)))

    def _start(self, call: _Call, future: futures.Future[Any]) -> None:
        call.future = future
        future.add_done_callback(functools.partial(self._finish, call))

    @staticmethod
    def _finish(call: _Call, future: futures.Future[Any]) -> None:
        if future.cancelled():
            return call.answer(error=Cancelled())
        error = future.exception()
        if error is not None and call.cancelled.is_set() and type(error).__name__ == "CancelledError":
            error = Cancelled()
        call.answer(None if error else future.result(), error)

    @functools.cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """Returns the loop of all asynchronous functions, which runs in its own thread."""
        import asyncio

        loop = asyncio.new_event_loop()
        threading.Thread(target=_run_loop, args=[loop], name="cofferdam-loop", daemon=True).start()
        return loop

    # Life of the plugin

    def _initialize(self, call: _Call, params: Params) -> Params:
        _current.set(call)
        if self._state != "new":
            raise InvalidRequest("the plugin is initialized already")
        if params.get("protocolVersion") != PROTOCOL_VERSION:
            raise InvalidParams(f"the SDK speaks protocol version {PROTOCOL_VERSION}; update the SDK or the host")
        self._state = "starting"
        self._max_message = min(MAX_MESSAGE, params.get("maxMessage") or MAX_MESSAGE)
        self.config = params.get("config") or {}
        self._permissions = frozenset(params.get("permissions") or ())
        self._plugin = active = self._activate(str(params.get("entry") or ""))
        for pattern in active._events:
            active.host.events.subscribe(pattern)
        self._state = "ready"
        sdk = {"name": "cofferdam-plugin-python", "version": __version__}
        return {"protocolVersion": PROTOCOL_VERSION, "sdk": sdk, "methods": sorted(active._methods)}

    def _activate(self, entry: str) -> Plugin:
        """Loads the entry, calls its function and returns the plugin."""
        active = plugin if self._target is None else Plugin()
        active._session = self
        result = self._target or _load(entry)
        if callable(result):
            result = self._wait(result(active) if inspect.signature(result).parameters else result())
        active = result if isinstance(result, Plugin) else active
        active._session = self
        return active

    def _shut_down(self, call: _Call) -> None:
        """Runs the shutdown handlers. Raises the last error after all of them have run."""
        _current.set(call)
        self._state, failure = "stopping", None
        for handler in self._plugin._shutdown if self._plugin else []:
            try:
                self._wait(handler())
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure

    def _wait(self, result: Any) -> Any:
        """Returns a value, or the result of a coroutine."""
        return self._begin(result).result() if inspect.iscoroutine(result) else result

    def _begin(self, work: Coroutine[Any, Any, T]) -> futures.Future[T]:
        """Starts a coroutine in the loop."""
        import asyncio

        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Ends the idle threads."""
        self._pool.shutdown(wait=False)
        self._life.shutdown(wait=False)
        if "_loop" in self.__dict__:
            self._loop.call_soon_threadsafe(self._loop.stop)

    # Messages to the host

    def submit(self, method: str, params: Params, call: Optional[_Call]) -> futures.Future[Any]:
        """Sends a request and returns its result. Cancelling the future cancels the request."""
        future: futures.Future[Any] = futures.Future()
        if call is not None:
            call.add(future)
        with self._lock:
            if len(self._requests) >= MAX_REQUESTS:
                raise Limit(f"{MAX_REQUESTS} requests to the host have no answer yet; wait for some of them")
            id = next(self._next_id)
            self._requests[id] = future
        try:
            self._write({"id": id, "method": method, "params": params}, call)
        except PluginError:
            self._requests.pop(id, None)
            raise
        future.add_done_callback(lambda _: self._abandon(id, call))
        return future

    def _abandon(self, id: int, call: Optional[_Call]) -> None:
        """Cancels a request at the host if it has no answer yet."""
        if id in self._requests:
            self.notify("$/cancelRequest", {"id": id}, call)

    def notify(self, method: str, params: Params, call: Optional[_Call]) -> None:
        """Sends a notification."""
        self._write({"method": method, "params": params}, call)

    def answer(self, call: _Call, result: Any, error: Optional[BaseException]) -> None:
        """Sends the answer of a request."""
        with self._lock:
            del self._calls[call.id]
        outcome = {"result": result} if error is None else {"error": error_to_json(error)}
        try:
            self._write({"id": call.id, **outcome}, call, call.is_last)
        except PluginError as problem:
            self._write({"id": call.id, "error": error_to_json(problem)}, call, call.is_last)

    def _write(self, message: Params, call: Optional[_Call], last: bool = False) -> None:
        correlation = call.correlation if call else self._new_correlation()
        self._send(encode({"jsonrpc": "2.0", "correlationId": correlation, **message}, self._max_message), last)

    def _new_correlation(self) -> str:
        return f"{self._correlation_prefix}-{next(self._next_correlation)}"


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _is_short_text(value: Any) -> bool:
    return isinstance(value, str) and value == _text(value, MAX_ID)


def _load(entry: str) -> Any:
    """Returns the object of an entry such as `module:function`."""
    module, _, attribute = entry.partition(":")
    if not module or not attribute:
        raise InvalidParams("the entry must be 'module:function'")
    return functools.reduce(getattr, attribute.split("."), cast(Any, importlib.import_module(module)))


# --- Profiles ---


class Profile:
    """A profile of the plugin's calls, in the trace-event format of Chrome."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._events: List[Tuple[Any, ...]] = []
        self._dropped = 0
        self._local = threading.local()

    def start(self) -> None:
        """Records the calls in the threads that start from now on."""
        threading.setprofile(self._record)

    def _record(self, frame: Any, event: str, argument: Any) -> None:
        """Notes when a function of a method's call begins and ends. The SDK's own functions are left out."""
        stack, call = self._local.__dict__.setdefault("stack", []), _current.get()
        key = (frame, event.startswith("c_"))
        if event in ("call", "c_call"):
            if frame.f_code.co_filename != __file__ and call is not None and call.is_method:
                stack.append((key, time.perf_counter_ns()))
        elif stack and stack[-1][0] == key:
            self._add(frame.f_code, argument if event != "return" else None, stack.pop()[1])

    def _add(self, code: Any, builtin: Any, begun: int) -> None:
        if len(self._events) >= MAX_PROFILE_EVENTS:
            self._dropped += 1
            return
        name = getattr(code, "co_qualname", code.co_name) if builtin is None else getattr(builtin, "__qualname__", "?")
        place = {"file": code.co_filename, "line": code.co_firstlineno} if builtin is None else {}
        self._events.append((name, place, begun, time.perf_counter_ns() - begun, threading.get_ident()))

    def write(self) -> None:
        """Writes the file. A failure goes to the log."""
        threading.setprofile(None)
        same = {"ph": "X", "cat": "python", "pid": os.getpid()}
        events = [
            {"name": _text(name, MAX_TEXT), "ts": begun / 1000, "dur": duration / 1000, "tid": thread, "args": place, **same}
            for name, place, begun, duration, thread in self._events[:MAX_PROFILE_EVENTS]
        ]
        document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"dropped": self._dropped}}
        try:
            with open(self._path, "w", encoding="utf-8") as file:
                json.dump(document, file)
        except OSError as error:
            print(f"cannot write the profile: {error}", file=sys.stderr)


# --- The process ---


class _FrameWriter:
    """A writer of frames to a file descriptor, for many threads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, frame: bytes, last: bool) -> None:
        rest = memoryview(frame)
        with self._lock:
            while rest and not self._closed:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BrokenPipeError:
                    self._closed = True
            self._closed = self._closed or last


def _take_descriptors() -> Tuple[int, int]:
    """Moves the protocol to new descriptors, so that prints go to the log and input is empty."""
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for stream in (sys.stdout, sys.stderr):
        cast(Any, stream).reconfigure(line_buffering=True, errors="backslashreplace")
    return incoming, outgoing


class _Readers:
    """Two threads that take turns to read. The one that reads a call runs it, and the other one reads on.

    So a call needs no wake of another thread. Further calls that run at the same time get threads of the pool.
    """

    def __init__(self, reader: FrameReader, session: Session) -> None:
        self._reader, self._session = reader, session
        self._in_pool = session.spawn
        session.spawn = self._spawn
        self._turn = threading.Lock()
        self._running = False
        self._work: Optional[Tuple[futures.Future[Any], Callable[[], Any]]] = None
        self._status: queue.SimpleQueue[int] = queue.SimpleQueue()

    def serve(self) -> int:
        """Handles messages until the host ends the plugin. Returns the status of the process."""
        for number in range(2):
            threading.Thread(target=self._read, name=f"cofferdam-reader_{number}", daemon=True).start()
        return self._status.get()

    def _read(self) -> None:
        while True:
            with self._turn:
                status = self._read_one()
                work, self._work = self._work, None
                if work is not None:
                    self._running = True
            if status is not None:
                return self._status.put(status)
            if work is not None:
                contextvars.copy_context().run(_settle_by, *work)
                self._running = False

    def _read_one(self) -> Optional[int]:
        """Handles one message. Returns the status of the process if it was the last."""
        try:
            message = None if self._session.exited else self._reader.read()
            if message is None:
                return 0
            self._session.receive(message)
            return 0 if self._session.exited else None
        except BrokenFrame as error:
            print(f"the host broke the protocol: {error}", file=sys.stderr)
            return BROKEN_FRAME_STATUS
        except Exception:
            traceback.print_exc()
            return 1

    def _spawn(self, work: Callable[[], Any]) -> futures.Future[Any]:
        """Takes work of the message that is handled. It runs in this thread if the other one can read on."""
        if self._running or self._work is not None:
            return self._in_pool(work)
        future: futures.Future[Any] = futures.Future()
        self._work = (future, work)
        return future


def _settle_by(future: futures.Future[Any], work: Callable[[], Any]) -> None:
    """Sets the outcome of some work, as a pool does."""
    if future.set_running_or_notify_cancel():
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)


def main() -> NoReturn:
    """Runs a plugin: takes descriptors 0 and 1 for the protocol and serves the host."""
    incoming, outgoing = _take_descriptors()
    script = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.getcwd()] + [path for path in sys.path if os.path.abspath(path) not in (script, os.getcwd())]
    profile = Profile(os.environ["COFFERDAM_PROFILE"]) if os.environ.get("COFFERDAM_PROFILE") else None
    if profile is not None:
        profile.start()
    session = Session(_FrameWriter(outgoing))
    logging.basicConfig(level=logging.INFO, handlers=[LogHandler(Log(session, None))])
    status = _Readers(FrameReader(incoming), session).serve()
    if profile is not None:
        profile.write()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of the plugin may still run.
    os._exit(status)


# Processes of the module `multiprocessing` run this file as `__mp_main__`.
if __name__ in ("__main__", "__mp_main__"):
    sys.modules["cofferdam_plugin"] = sys.modules[__name__]
if __name__ == "__main__":
    main()
