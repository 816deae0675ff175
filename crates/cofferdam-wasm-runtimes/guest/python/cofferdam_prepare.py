"""Starts Python once, so that scripts run in copies of its memory without a startup.

The host runs this file as a program. It preloads modules, writes the address of its entry to standard output and exits
the process without finalizing the interpreter. The host saves the memory. For each request it calls
`calliter_iternext` with that address, which is an iterator made by `iter(serve, 0)`. Each step of the iterator calls
`serve`, which reads one request from the host and serves it. This file is no isolation boundary: the host is.
"""

import atexit
import gc
import importlib
import importlib.util
import linecache
import os
import sys
import time
import traceback
import types
from functools import partial

# The module's own file layer accepts only descriptors that were opened through it. So the host returns the descriptor
# of requests when this path is opened during the preparation.
REQUEST_FD = os.open("/tmp/.cofferdam-request", os.O_RDWR | os.O_CREAT)
_PRELOADED = """
abc argparse array ast asyncio base64 binascii bisect calendar cmath codecs collections collections.abc colorsys
concurrent.futures configparser contextlib contextvars copy csv dataclasses datetime decimal difflib enum fnmatch
fractions functools getpass glob graphlib gzip hashlib heapq hmac html html.parser inspect io ipaddress itertools json
keyword locale logging math numbers operator pathlib pickle platform pprint queue random re reprlib sched secrets
selectors shlex shutil signal socket statistics string struct subprocess tempfile textwrap threading time timeit
tokenize tomllib traceback types typing unicodedata unittest urllib.parse uuid warnings weakref xml.etree.ElementTree
zipfile zlib zoneinfo _strptime encodings.ascii encodings.idna encodings.latin_1 encodings.utf_16 encodings.utf_8_sig
""".split()

_exit, _read, _write = os._exit, os.read, os.write
_flush, _flush_errors = sys.stdout.flush, sys.stderr.flush
_callback_count, _decode = atexit._ncallbacks, importlib.util.decode_source
_sources = linecache.cache
_main = types.ModuleType("__main__")
_globals, _modules = _main.__dict__, sys.modules
# Objects of these types need no finalization. Modules of the standard library need none either.
_PLAIN = {bool, bytes, complex, float, int, str, type, type(None), type(len), types.FunctionType, types.ModuleType}
_directory = b"/workspace"
# Scripts must not see the directory of this file, and most requests have no PYTHONPATH.
os.environ.pop("PYTHONPATH", None)
_variables = [b"%s=%s" % item for item in os.environb.items()]
_python_path = []


def serve():
    """Serves one request. A script ends the process. A piece of a session returns."""
    data = _read(REQUEST_FD, 4096)
    while chunk := _read(REQUEST_FD, 64 if len(data) < 4096 else len(data)):
        data += chunk
    parts = data.split(b"\0")
    first = 3 + int(parts[2])
    last = first + 1 + int(parts[first])
    variables = parts[first + 1 : last]
    directory = parts[1]
    source = parts[last] if len(parts) == last + 1 else b"\0".join(parts[last:])
    sys.argv = arguments = [argument.decode("utf-8", "surrogateescape") for argument in parts[3:first]]
    _globals["__file__"] = name = arguments[0]
    # Tracebacks need the source text. It is split into lines only on demand, because most scripts print no traceback.
    _sources[name] = (partial(_decode, source),)
    status = 0
    try:
        if directory != _directory or variables != _variables:
            _set_context(directory, variables)
        exec(compile(source, name, "exec", 0, True), _globals)
    except BaseException as error:
        status = _report_exception(error)
    if parts[0] == b"script":
        if len(_globals) > _GLOBAL_COUNT or len(_modules) > _MODULE_COUNT or _callback_count() > _CALLBACK_COUNT:
            _finalize()
        if _flush_all():
            status = 120
        _exit(status)
    _flush_all()
    _write(REQUEST_FD, b"%d" % status)
    return 1


def _set_context(directory, variables):
    """Sets the working directory and the environment of the request."""
    global _directory, _variables
    if variables != _variables:
        _variables = variables
        _set_environment(dict(variable.partition(b"=")[::2] for variable in variables))
    if directory != _directory:
        _directory = directory
        sys.path[0] = directory.decode("utf-8", "surrogateescape")
        os.chdir(directory)


def _set_environment(wanted):
    for name in [name for name in os.environb if name not in wanted]:
        del os.environb[name]
    for name, value in wanted.items():
        if name and os.environb.get(name) != value:
            os.environb[name] = value
    python_path = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    if python_path != _python_path:
        sys.path[1 : 1 + len(_python_path)] = python_path
        _python_path[:] = python_path


def _report_exception(error):
    """Prints an uncaught exception as Python does, and returns the exit status."""
    if isinstance(error, SystemExit):
        code = error.code
        if code is None:
            return 0
        if isinstance(code, int):
            return code & 255
        print(code, file=sys.stderr)
        return 1
    for name, lines in list(_sources.items()):
        # linecache does not resolve lazy entries with such names.
        if len(lines) == 1 and name[:1] == "<":
            linecache.cache[name] = _linecache_entry(name, lines[0])
    where = error.__traceback__
    while where is not None and where.tb_frame.f_globals is globals():
        where = where.tb_next
    error.__traceback__ = where
    if isinstance(error, SyntaxError) and error.text is None:
        error.text = linecache.getline(error.filename or "", error.lineno or 0) or None
    if type(error) is ModuleNotFoundError and type(error.name) is str:
        error.add_note(_missing_module_note(error.name))
    sys.last_exc, sys.last_type, sys.last_value, sys.last_traceback = error, type(error), error, where
    try:
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error, where)
        elif sys.stderr is not None:
            _print_exception(error)
    except BaseException as second:
        second.__traceback__ = None
        sys.__excepthook__(type(second), second, None)
        sys.__excepthook__(type(error), error, where)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _missing_module_note(name):
    if name.partition(".")[0] in sys.stdlib_module_names:
        return "Python for WebAssembly comes without it. The isolation level 'process' uses the Python of the host."
    return "Packages are not installed. Python for WebAssembly has its standard library and the workspace's files."


def _print_exception(error):
    text = "".join(traceback.format_exception(error))
    if error.__traceback__ is None:
        # Python prints no empty traceback for a syntax error.
        text = text.removeprefix("Traceback (most recent call last):\n")
    sys.stderr.write(text)


def _linecache_entry(name, get):
    try:
        text = get()
    except (SyntaxError, UnicodeError):
        text = ""
    return len(text), None, text.splitlines(True), name


def _finalize():
    """Runs exit handlers and drops the script's objects, so that buffered files are written."""
    if _callback_count() > _CALLBACK_COUNT or "logging" in _modules:
        atexit.unregister(_exit)
        atexit._run_exitfuncs()
    own = [module for module in list(_modules.values())[_MODULE_COUNT:] if _is_own(module)]
    # Most scripts leave no object that needs finalization. The search for such objects takes longer than most scripts.
    if own or not _PLAIN.issuperset(map(type, list(_globals.values())[_GLOBAL_COUNT:])):
        for names in [_globals, *map(vars, own)]:
            _clear(names)
        gc.collect()


def _is_own(module):
    """Returns whether a module is the script's own, not one of the standard library."""
    return not (getattr(module, "__file__", None) or "/usr/").startswith("/usr/")


def _clear(names):
    for private in (True, False):
        for name in list(names):
            if name != "__builtins__" and private == (name[:1] == "_" and name[1:2] != "_"):
                names[name] = None


def _flush_all():
    """Flushes the standard streams. Returns whether a write failed."""
    try:
        _flush()
        _flush_errors()
        if sys.stdout is not sys.__stdout__ and sys.stdout is not None:
            sys.stdout.flush()
        if sys.stderr is not sys.__stderr__ and sys.stderr is not None:
            sys.stderr.flush()
    except ValueError:
        # The script closed the stream.
        return False
    except BaseException:
        return True
    return False


class _DeferredModule:
    """An importer of one preloaded module, whose state it resets at the script's first import."""

    def __init__(self, name, reset):
        self.name, self.reset, self.module = name, reset, sys.modules.pop(name)
        self.spec = self.module.__spec__

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def create_module(self, spec):
        return self.module

    def exec_module(self, module):
        module.__spec__ = self.spec
        self.reset(module)


class _DeferredRandom:
    """A placeholder for `random` in modules that imported it. The first use imports the real module."""

    def __init__(self, user):
        self.user = user

    def __getattr__(self, name):
        self.user.random = importlib.import_module("random")
        return getattr(self.user.random, name)


def _reseed(random):
    random._inst.seed()


def _reset_start_time(logging):
    logging._startTime = time.time()


def _preload():
    for name in _PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            # This build of Python does not contain the module.
            pass
    for module in list(sys.modules.values()):
        if getattr(module, "random", None) is sys.modules["random"]:
            module.random = _DeferredRandom(module)
    sys.meta_path[:0] = [_DeferredModule("random", _reseed), _DeferredModule("logging", _reset_start_time)]


def _set_up():
    """Sets up `__main__`, the working directory and the search path of scripts."""
    sys.stdout.reconfigure(line_buffering=True)
    # `python3 FILE` sets these names, in this order.
    _globals.update(__annotations__={}, __builtins__=sys.modules["builtins"], __file__="", __cached__=None)
    sys.modules["__main__"] = _main
    os.chdir(_directory)
    own = os.path.dirname(__file__)
    sys.path[:] = [_directory.decode(), *(path for path in sys.path[1:] if path != own)]
    # The contents of these directories change before a request.
    for path in list(sys.path_importer_cache):
        if not path.startswith("/usr/"):
            del sys.path_importer_cache[path]
    linecache.clearcache()
    # The exit handler at the end of this file stops the finalization. Without this line, `_shutdown` would mark the
    # main thread as stopped before that.
    sys.modules["threading"]._shutdown = lambda: None


def _warm_up():
    """Serves some requests, so that Python loads what they need and specialises its bytecode."""
    global REQUEST_FD
    request_fd, output, path = REQUEST_FD, sys.stdout, "/tmp/.cofferdam-warm-up"
    text = b"\0".join([b"session", _directory, b"1", b"main.py", b"%d" % len(_variables), *_variables, b"print(1)\n"])
    with open(path, "w") as sys.stdout:
        for _ in range(20):
            with open(path, "wb+", 0) as file:
                file.write(text)
                file.seek(0)
                REQUEST_FD = file.fileno()
                serve()
    os.unlink(path)
    REQUEST_FD, sys.stdout = request_fd, output
    _sources.clear()


_preload()
_set_up()
_GLOBAL_COUNT = _CALLBACK_COUNT = _MODULE_COUNT = sys.maxsize
_warm_up()
_GLOBAL_COUNT, _MODULE_COUNT = len(_globals), len(_modules)
_entry = iter(serve, 0)
# Exits when the stack holds no Python frame. So a script's stack contains no frame of this file except `serve`.
atexit.register(_exit, 0)
_CALLBACK_COUNT = _callback_count()
gc.collect()
gc.freeze()
_write(1, b"%d\n" % id(_entry))
