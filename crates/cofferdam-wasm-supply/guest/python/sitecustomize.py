"""Makes Python at home in a WebAssembly sandbox. Imported by Python itself at its start.

What can work is made to work: asyncio, whose loop needs a socket pair here that the host does not have. What cannot
(threads, sockets, processes) fails with words that say why. Nothing here is a wall: the host is.
"""

import _thread
import sys

_WHY = "WebAssembly sandboxes have no network, threads or processes"


class _Hook:
    """Patches a module when, and only if, a script imports it."""

    def __init__(self):
        self.busy = set()

    def find_spec(self, name, path=None, target=None):
        if name not in _PATCHES or name in self.busy:
            return None
        import importlib.util

        self.busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.busy.discard(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        class Loader:
            def create_module(self, spec):
                return None

            def exec_module(self, module):
                load(module)
                _PATCHES[name](module)

            def __getattr__(self, what):
                return getattr(spec_loader, what)

        spec_loader = spec.loader
        spec.loader = Loader()
        return spec


def _socket(module):
    def refuse(*_args, **_named):
        raise OSError(58, f"sockets are not available: {_WHY}")

    def init(self, *_args, **_named):
        refuse()

    module.socket.__init__ = init
    for name in ("getaddrinfo", "gethostbyname", "create_connection", "create_server", "socketpair"):
        setattr(module, name, refuse)


def _subprocess(module):
    def init(self, *_args, **_named):
        raise OSError(58, f"processes are not available: {_WHY}")

    module.Popen.__init__ = init
    module.Popen.__del__ = lambda self: None


def _no_thread(*_args, **_named):
    raise RuntimeError(f"can't start new thread: {_WHY}")


def _threading(module):
    module.Thread.start = _no_thread


def _asyncio(module):
    import selectors
    import time

    class Clock(selectors._BaseSelectorImpl):
        """A selector with nothing to select: it only waits."""

        def select(self, timeout=None):
            if timeout is None:
                raise RuntimeError("asyncio waits for something that can never happen in this sandbox")
            if timeout > 0:
                time.sleep(timeout)
            return []

    class Loop(module.SelectorEventLoop):
        def __init__(self):
            super().__init__(Clock())

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


_PATCHES = {"socket": _socket, "subprocess": _subprocess, "threading": _threading, "asyncio": _asyncio}
_thread.start_new_thread = _thread.start_new = _no_thread
sys.meta_path.insert(0, _Hook())
