"""Adapts Python to a WebAssembly sandbox. Python imports this module at startup.

It makes asyncio work, whose event loop normally needs a socket pair, which the host does not have. Threads, sockets
and processes cannot work: they fail with an error that has the reason. This file is no isolation boundary: the host is.
"""

import _thread
import sys

_REASON = "WebAssembly sandboxes have no network, threads or processes"


class _PatchFinder:
    """A finder that patches a module when a script imports it."""

    def __init__(self):
        self.active = set()

    def find_spec(self, name, path=None, target=None):
        if name not in _PATCHES or name in self.active:
            return None
        import importlib.util

        self.active.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.active.discard(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        class Loader:
            def create_module(self, spec):
                return None

            def exec_module(self, module):
                load(module)
                _PATCHES[name](module)

            def __getattr__(self, attribute):
                return getattr(spec_loader, attribute)

        spec_loader = spec.loader
        spec.loader = Loader()
        return spec


def _patch_socket(module):
    def refuse(*_args, **_kwargs):
        raise OSError(58, f"sockets are not available: {_REASON}")

    def init(self, *_args, **_kwargs):
        refuse()

    module.socket.__init__ = init
    for name in ("getaddrinfo", "gethostbyname", "create_connection", "create_server", "socketpair"):
        setattr(module, name, refuse)


def _patch_subprocess(module):
    def init(self, *_args, **_kwargs):
        raise OSError(58, f"processes are not available: {_REASON}")

    module.Popen.__init__ = init
    module.Popen.__del__ = lambda self: None


def _refuse_thread(*_args, **_kwargs):
    raise RuntimeError(f"can't start new thread: {_REASON}")


def _patch_threading(module):
    module.Thread.start = _refuse_thread


def _patch_asyncio(module):
    import selectors
    import time

    class TimeoutSelector(selectors._BaseSelectorImpl):
        """A selector without events. It only waits until the timeout."""

        def select(self, timeout=None):
            if timeout is None:
                raise RuntimeError("asyncio would wait forever: no timer is scheduled, and the sandbox has no events")
            if timeout > 0:
                time.sleep(timeout)
            return []

    class Loop(module.SelectorEventLoop):
        def __init__(self):
            super().__init__(TimeoutSelector())

        def _make_self_pipe(self):
            self._ssock = self._csock = None

        def _close_self_pipe(self):
            pass

        def _write_to_self(self):
            pass

        def run_in_executor(self, executor, function, *values):
            future = self.create_future()
            try:
                future.set_result(function(*values))
            except BaseException as error:
                future.set_exception(error)
            return future

    class Policy(module.DefaultEventLoopPolicy):
        def new_event_loop(self):
            return Loop()

    module.set_event_loop_policy(Policy())


_PATCHES = {
    "socket": _patch_socket,
    "subprocess": _patch_subprocess,
    "threading": _patch_threading,
    "asyncio": _patch_asyncio,
}
_thread.start_new_thread = _thread.start_new = _refuse_thread
sys.meta_path.insert(0, _PatchFinder())
