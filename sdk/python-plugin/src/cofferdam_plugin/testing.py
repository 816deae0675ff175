"""A harness that runs a plugin's methods in the current process, without a host.

    with Harness(activate, permissions=["fs.read"], files={"data/city": "Oslo"}) as harness:
        assert harness.call("forecast", {"city": "Oslo"}) == {"sky": "clear"}

Messages pass through the same code as with a host. The services are in memory, and check permissions but no allowlists.
Quotas, times to live and delivery are those of a host, and are not simulated.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from concurrent import futures
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Union

from cofferdam_plugin import Conflict, InvalidParams, NotFound, Params, PermissionDenied, Plugin, Session
from cofferdam_plugin import Unavailable, _bytes, _content, decode, encode, error_from_json, error_to_json

Target = Union[Plugin, Callable[..., Any]]
Service = Callable[[Params], Any]

_PERMISSIONS = {
    "fs.read": "fs.read fs.stat fs.list",
    "fs.write": "fs.write fs.mkdir fs.remove",
    "net": "net.fetch",
    "secrets.read": "secrets.get",
    "secrets.write": "secrets.set secrets.delete",
    "events.publish": "events.publish",
    "events.subscribe": "events.subscribe events.unsubscribe",
    "scheduler.create": "scheduler.create scheduler.list",
    "scheduler.cancel": "scheduler.cancel",
    "calendar.read": "calendar.read calendar.query calendar.export",
    "calendar.write": "calendar.create calendar.delete calendar.import",
    "artifacts.read": "artifacts.read artifacts.list",
    "artifacts.write": "artifacts.write",
    "invoke": "invoke",
    "sandbox.execute": "sandbox.execute",
}
_REQUIRED = {method: permission for permission, methods in _PERMISSIONS.items() for method in methods.split()}


class RunningCall:
    """A call that was started: its result, and what it sent so far."""

    def __init__(self, harness: Harness, id: int) -> None:
        self.items: List[Any] = []
        self.progress: List[Any] = []
        self._harness, self._id = harness, id
        self._future: futures.Future[Any] = futures.Future()

    def result(self, timeout: Optional[float] = None) -> Any:
        """Waits for the result. Raises the error of the call."""
        return self._future.result(timeout)

    def cancel(self) -> None:
        """Cancels the call."""
        self._harness._deliver({"method": "$/cancelRequest", "params": {"id": self._id}})


class Harness:
    """A host in memory for one plugin.

    `plugin` is a `Plugin` or the function of its entry. `services` has functions that replace or add a service, such as
    `{"net.fetch": lambda params: {...}}`; they get the parameters and return the result of the protocol.
    """

    def __init__(
        self,
        plugin: Target,
        *,
        permissions: Iterable[str] = (),
        config: Optional[Params] = None,
        files: Optional[Mapping[str, Union[str, bytes]]] = None,
        secrets: Optional[Mapping[str, str]] = None,
        services: Optional[Mapping[str, Service]] = None,
    ) -> None:
        self.values: Dict[str, Any] = {}
        self.files = {path: data.encode() if isinstance(data, str) else data for path, data in (files or {}).items()}
        self.secrets = dict(secrets or {})
        self.published: List[Params] = []
        self.subscriptions: List[str] = []
        self.timers: Dict[str, Params] = {}
        self.artifacts: Dict[str, Params] = {}
        self.logs: List[Params] = []
        self._permissions = frozenset(permissions)
        self._config = config or {}
        self._services = {**_services(self), **(services or {})}
        self._calls: Dict[int, RunningCall] = {}
        self._versions = itertools.count(1)
        self._ids = itertools.count(1)
        self._tracked: List[str] = []
        self._session = Session(self._receive, plugin)
        self.methods: List[str] = self._initialize()

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, input: Any = None, **context: Any) -> Any:
        """Calls a method and returns its result. `context` has members such as `tenant` and `requestId`."""
        return self.start(method, input, **context).result()

    def stream(self, method: str, input: Any = None, **context: Any) -> List[Any]:
        """Calls a method and returns the items of its stream."""
        call = self.start(method, input, **context)
        call.result()
        return call.items

    def start(self, method: str, input: Any = None, **context: Any) -> RunningCall:
        """Starts a call of a method."""
        return self._request("call", {"method": method, "input": input, "context": context})

    def deliver(self, name: str, payload: Any = None, subscription: Optional[str] = None) -> None:
        """Delivers an event to the plugin's handler. Raises the handler's error."""
        params = {"id": "event", "name": name, "payload": payload, "publisher": "test", "attempt": 1}
        self._request("events.deliver", {**params, "subscription": subscription}).result()

    def fire(self, name: str, payload: Any = None) -> None:
        """Fires a timer. Raises the handler's error."""
        params = {"id": "timer", "name": name, "payload": payload, "scheduled": "2026-01-01T00:00:00Z", "missed": 0}
        self._request("scheduler.fire", params).result()

    def close(self) -> None:
        """Runs the shutdown handlers and removes temporary files. Raises the error of a handler."""
        try:
            self._request("shutdown", {}).result()
        finally:
            self._session.close()
            for path in self._tracked:
                if os.path.exists(path):
                    os.remove(path)

    def _initialize(self) -> List[str]:
        params = {"protocolVersion": 1, "plugin": {"name": "test", "version": "0.0.0"}, "mode": "development"}
        granted = {"permissions": sorted(self._permissions), "config": self._config}
        result = self._request("initialize", {**params, **granted}).result()
        return list(result["methods"])

    def _request(self, method: str, params: Params) -> RunningCall:
        id = next(self._ids)
        call = self._calls[id] = RunningCall(self, id)
        self._deliver({"id": id, "method": method, "params": params, "correlationId": f"test-{id}"})
        return call

    def _deliver(self, message: Params) -> None:
        """Sends a message to the plugin, through the text of JSON as on the wire."""
        self._session.receive(_unframe(encode({"jsonrpc": "2.0", **message})))

    def _receive(self, frame: bytes, last: bool) -> None:
        """Handles a message of the plugin."""
        message = _unframe(frame)
        params = message.get("params") or {}
        if "method" not in message:
            self._settle(self._calls.pop(message["id"])._future, message)
        elif "id" in message:
            self._deliver({"id": message["id"], **self._serve(message["method"], params)})
        elif message["method"] == "log":
            self.logs.append(params)
        elif message["method"] == "$/progress":
            self._calls[params["token"]].progress.append(params["value"])
        elif message["method"] == "$/stream":
            self._calls[params["id"]].items.append(params["value"])
            count = params["seq"] + 1
            self._deliver({"method": "$/streamAck", "params": {"id": params["id"], "count": count}})

    @staticmethod
    def _settle(future: futures.Future[Any], message: Params) -> None:
        if "error" in message:
            future.set_exception(error_from_json(message["error"]))
        else:
            future.set_result(message["result"])

    def _serve(self, method: str, params: Params) -> Params:
        """Runs a service and returns the result or error of the response."""
        try:
            needed = _REQUIRED.get(method)
            if needed is not None and needed not in self._permissions:
                target = str(next(iter(params.values()), method))
                raise PermissionDenied(needed, target, f"add '{needed}' to the permissions of the manifest")
            if method not in self._services:
                raise Unavailable(f"the harness has no {method}; pass services={{'{method}': function}}")
            return {"result": self._services[method](params)}
        except KeyError as error:
            return {"error": error_to_json(InvalidParams(f"{method} needs {error}"))}
        except Exception as error:
            return {"error": error_to_json(error)}


def _unframe(frame: bytes) -> Any:
    return decode(frame.partition(b"\r\n\r\n")[2])


def _services(harness: Harness) -> Dict[str, Service]:
    """Returns the services in memory."""
    services: Dict[str, Service] = {"config.get": lambda params: {"config": harness._config}}
    services["resources.track"] = lambda params: harness._tracked.append(params["path"])
    for table in (_key_values(harness), _files(harness), _others(harness), _artifacts(harness)):
        services.update(table)
    return services


def _key_values(harness: Harness) -> Dict[str, Service]:
    versions: Dict[str, int] = {}

    def check(params: Params) -> None:
        if "ifVersion" in params and params["ifVersion"] != versions.get(params["key"]):
            raise Conflict(f"another request changed the key '{params['key']}'")

    def set(params: Params) -> Params:
        check(params)
        harness.values[params["key"]] = params["value"]
        versions[params["key"]] = next(harness._versions)
        return {"version": versions[params["key"]]}

    def delete(params: Params) -> Params:
        check(params)
        versions.pop(params["key"], None)
        return {"deleted": harness.values.pop(params["key"], harness) is not harness}

    def list(params: Params) -> Params:
        prefix, after, limit = params.get("prefix", ""), params.get("after", ""), params.get("limit", 100)
        keys = sorted(key for key in harness.values if key.startswith(prefix) and key > after)
        return {"keys": keys[:limit], "more": len(keys) > limit}

    def get(params: Params) -> Params:
        return {"value": harness.values.get(params["key"]), "version": versions.get(params["key"])}

    return {"kv.get": get, "kv.set": set, "kv.delete": delete, "kv.list": list}


def _files(harness: Harness) -> Dict[str, Service]:
    files = harness.files

    def find(path: str) -> bytes:
        if path not in files:
            raise NotFound(f"the file '{path}' does not exist")
        return files[path]

    def read(params: Params) -> Params:
        data, start = find(params["path"]), params.get("offset", 0)
        return {"content": _content(data[start : start + params.get("length", len(data))]), "size": len(data)}

    def write(params: Params) -> Params:
        before = files.get(params["path"], b"") if params.get("append") else b""
        files[params["path"]] = before + _bytes(params["content"])
        return {"size": len(files[params["path"]])}

    def list(params: Params) -> Params:
        parent = params["path"].rstrip("/") + "/"
        names = sorted(path[len(parent) :] for path in files if path.startswith(parent))
        leaves = [name for name in names if "/" not in name]
        entries = [{"name": name, "kind": "file", "size": len(files[parent + name])} for name in leaves]
        return {"entries": entries + [{"name": name, "kind": "directory", "size": 0} for name in _directories(names)]}

    def stat(params: Params) -> Params:
        return {"kind": "file", "size": len(find(params["path"])), "modified": "2026-01-01T00:00:00Z"}

    def remove(params: Params) -> None:
        find(params["path"])
        del files[params["path"]]

    table: Dict[str, Service] = {"fs.read": read, "fs.write": write, "fs.list": list, "fs.stat": stat}
    return {**table, "fs.remove": remove, "fs.mkdir": lambda params: None}


def _directories(names: List[str]) -> List[str]:
    return sorted({name.partition("/")[0] for name in names if "/" in name})


def _others(harness: Harness) -> Dict[str, Service]:
    def get_secret(params: Params) -> Params:
        if params["name"] not in harness.secrets:
            raise NotFound(f"the secret '{params['name']}' does not exist")
        return {"value": harness.secrets[params["name"]]}

    def delete_secret(params: Params) -> None:
        harness.secrets.pop(params["name"], None)

    def publish(params: Params) -> Params:
        harness.published.append({"name": params["name"], "payload": params.get("payload")})
        return {"id": str(len(harness.published)), "subscribers": 0}

    def subscribe(params: Params) -> Params:
        harness.subscriptions.append(params["pattern"])
        return {"subscription": params["pattern"]}

    def create_timer(params: Params) -> Params:
        id = str(next(harness._versions))
        harness.timers[id] = {"id": id, "next": params.get("at"), **params}
        return {"id": id, "next": params.get("at")}

    return {
        "secrets.get": get_secret,
        "secrets.set": lambda params: harness.secrets.update({params["name"]: params["value"]}),
        "secrets.delete": delete_secret,
        "events.publish": publish,
        "events.subscribe": subscribe,
        "events.unsubscribe": lambda params: harness.subscriptions.remove(params["subscription"]),
        "scheduler.create": create_timer,
        "scheduler.list": lambda params: {"timers": list(harness.timers.values())},
        "scheduler.cancel": lambda params: {"cancelled": harness.timers.pop(params["id"], None) is not None},
    }


def _artifacts(harness: Harness) -> Dict[str, Service]:
    def write(params: Params) -> Params:
        data = _bytes(params["content"])
        found = {"digest": "sha256:" + hashlib.sha256(data).hexdigest(), "size": len(data)}
        details = {"mediaType": params.get("mediaType"), "metadata": params.get("metadata") or {}}
        harness.artifacts[params["name"]] = {"name": params["name"], **found, **details, "content": params["content"]}
        return found

    def read(params: Params) -> Params:
        for artifact in harness.artifacts.values():
            if params.get("name") == artifact["name"] or params.get("digest") == artifact["digest"]:
                return artifact
        raise NotFound("the artifact does not exist")

    def list(params: Params) -> Params:
        names = sorted(name for name in harness.artifacts if name > params.get("after", ""))
        found = [{**harness.artifacts[name], "content": None} for name in names]
        limit = params.get("limit", 100)
        return {"artifacts": found[:limit], "more": len(found) > limit}

    return {"artifacts.write": write, "artifacts.read": read, "artifacts.list": list}
