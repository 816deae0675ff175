"""Starts Python once, so that a copy of its memory can serve a script at once.

Run as a program. It loads what scripts use most, writes the address of what is to be called to standard output, and ends
the process while the interpreter is still whole. A host that keeps the memory as it then is calls `calliter_iternext`
with that address: an iterator made by `iter(serve, 0)`, whose step calls `serve`. Each step takes one request from the
host and serves it. Nothing here is a wall: the host is.
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

# The files inside the module are reached through a table of descriptors that knows only what was opened through it. So the
# host gives its descriptor for requests to whoever opens this name while the memory to be kept is made.
REQUEST = os.open("/tmp/.cofferdam-request", os.O_RDWR | os.O_CREAT)
_PRELOADED = """
abc argparse array ast asyncio base64 binascii bisect calendar cmath codecs collections collections.abc colorsys
concurrent.futures configparser contextlib contextvars copy csv dataclasses datetime decimal difflib enum fnmatch fractions
functools getpass glob graphlib gzip hashlib heapq hmac html html.parser inspect io ipaddress itertools json keyword locale
logging math numbers operator pathlib pickle platform pprint queue random re reprlib sched secrets selectors shlex shutil
signal socket statistics string struct subprocess tempfile textwrap threading time timeit tokenize tomllib traceback types
typing unicodedata unittest urllib.parse uuid warnings weakref xml.etree.ElementTree zipfile zlib zoneinfo _strptime
encodings.ascii encodings.idna encodings.latin_1 encodings.utf_16 encodings.utf_8_sig
""".split()

_exit, _read, _write = os._exit, os.read, os.write
_flush, _flush_errors = sys.stdout.flush, sys.stderr.flush
_callbacks, _decode = atexit._ncallbacks, importlib.util.decode_source
_sources = linecache.cache
_main = types.ModuleType("__main__")
_names, _modules = _main.__dict__, sys.modules
# Of these types, or modules of Python's own, nothing needs to be told that it ends.
_PLAIN = {bool, bytes, complex, float, int, str, type, type(None), type(len), types.FunctionType, types.ModuleType}
_directory = b"/workspace"
# Where this file lies is nothing to scripts, and a usual request does not name it.
os.environ.pop("PYTHONPATH", None)
_variables = [b"%s=%s" % item for item in os.environb.items()]
_search = []


def serve():
    """Serves one request. A script ends the process, a piece of a session returns."""
    data = _read(REQUEST, 4096)
    while piece := _read(REQUEST, 64 if len(data) < 4096 else len(data)):
        data += piece
    parts = data.split(b"\0")
    first = 3 + int(parts[2])
    last = first + 1 + int(parts[first])
    variables = parts[first + 1 : last]
    directory = parts[1]
    source = parts[last] if len(parts) == last + 1 else b"\0".join(parts[last:])
    sys.argv = arguments = [argument.decode("utf-8", "surrogateescape") for argument in parts[3:first]]
    _names["__file__"] = name = arguments[0]
    # For tracebacks, which are seldom: split into lines when somebody asks.
    _sources[name] = (partial(_decode, source),)
    status = 0
    try:
        if directory != _directory or variables != _variables:
            _move(directory, variables)
        exec(compile(source, name, "exec", 0, True), _names)
    except BaseException as error:
        status = _failed(error)
    if parts[0] == b"script":
        if len(_names) > _NAMES or len(_modules) > _MODULES or _callbacks() > _CALLBACKS:
            _finish()
        if _flush_all():
            status = 120
        _exit(status)
    _flush_all()
    _write(REQUEST, b"%d" % status)
    return 1


def _move(directory, variables):
    """Goes where the request wants, and gives it its environment."""
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
    search = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    if search != _search:
        sys.path[1 : 1 + len(_search)] = search
        _search[:] = search


def _failed(error):
    """Shows an exception as Python does at its end, and gives the exit status."""
    if isinstance(error, SystemExit):
        code = error.code
        if code is None:
            return 0
        if isinstance(code, int):
            return code & 255
        print(code, file=sys.stderr)
        return 1
    for name, lines in list(_sources.items()):
        # linecache asks nobody for what has such a name.
        if len(lines) == 1 and name[:1] == "<":
            linecache.cache[name] = _lines(name, lines[0])
    where = error.__traceback__
    while where is not None and where.tb_frame.f_globals is globals():
        where = where.tb_next
    error.__traceback__ = where
    if isinstance(error, SyntaxError) and error.text is None:
        error.text = linecache.getline(error.filename or "", error.lineno or 0) or None
    if type(error) is ModuleNotFoundError and type(error.name) is str:
        error.add_note(_why_missing(error.name))
    sys.last_exc, sys.last_type, sys.last_value, sys.last_traceback = error, type(error), error, where
    try:
        if sys.excepthook is not sys.__excepthook__:
            sys.excepthook(type(error), error, where)
        elif sys.stderr is not None:
            _show(error)
    except BaseException as second:
        second.__traceback__ = None
        sys.__excepthook__(type(second), second, None)
        sys.__excepthook__(type(error), error, where)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _why_missing(name):
    if name.partition(".")[0] in sys.stdlib_module_names:
        return "Python for WebAssembly comes without it. At level process there is the Python of the machine."
    return "Python for WebAssembly has its own library and what lies in the workspace. Packages are not installed."


def _show(error):
    text = "".join(traceback.format_exception(error))
    if error.__traceback__ is None:
        # Python shows no empty traceback for source text that it does not understand.
        text = text.removeprefix("Traceback (most recent call last):\n")
    sys.stderr.write(text)


def _lines(name, get):
    try:
        text = get()
    except (SyntaxError, UnicodeError):
        text = ""
    return len(text), None, text.splitlines(True), name


def _finish():
    """What Python does before it ends: handlers, then the script's own objects, so that files are written out."""
    if _callbacks() > _CALLBACKS or "logging" in _modules:
        atexit.unregister(_exit)
        atexit._run_exitfuncs()
    own = [module for module in list(_modules.values())[_MODULES:] if _is_own(module)]
    # Most scripts leave nothing that has an end of its own, and looking for it costs more than they do.
    if own or not _PLAIN.issuperset(map(type, list(_names.values())[_NAMES:])):
        for names in [_names, *map(vars, own)]:
            _clear(names)
        gc.collect()


def _is_own(module):
    return not (getattr(module, "__file__", None) or "/usr/").startswith("/usr/")


def _clear(names):
    for private in (True, False):
        for name in list(names):
            if name != "__builtins__" and private == (name[:1] == "_" and name[1:2] != "_"):
                names[name] = None


def _flush_all():
    """Whether something could not be written."""
    try:
        _flush()
        _flush_errors()
        if sys.stdout is not sys.__stdout__ and sys.stdout is not None:
            sys.stdout.flush()
        if sys.stderr is not sys.__stderr__ and sys.stderr is not None:
            sys.stderr.flush()
    except ValueError:
        # Closed by the script.
        return False
    except BaseException:
        return True
    return False


class _Late:
    """Brings a module that was loaded before, made fresh when a script imports it first."""

    def __init__(self, name, freshen):
        self.name, self.freshen, self.module = name, freshen, sys.modules.pop(name)
        self.spec = self.module.__spec__

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def create_module(self, spec):
        return self.module

    def exec_module(self, module):
        module.__spec__ = self.spec
        self.freshen(module)


class _LateRandom:
    """Stands for `random` in modules that imported it, until one of them uses it."""

    def __init__(self, user):
        self.user = user

    def __getattr__(self, name):
        self.user.random = importlib.import_module("random")
        return getattr(self.user.random, name)


def _seed(random):
    random._inst.seed()


def _restart(logging):
    logging._startTime = time.time()


def _preload():
    for name in _PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            # Not part of this Python.
            pass
    for module in list(sys.modules.values()):
        if getattr(module, "random", None) is sys.modules["random"]:
            module.random = _LateRandom(module)
    sys.meta_path[:0] = [_Late("random", _seed), _Late("logging", _restart)]


def _arrange():
    """The world that a script finds."""
    sys.stdout.reconfigure(line_buffering=True)
    # `import a` in `python3 FILE` leaves these, in this order.
    _names.update(__annotations__={}, __builtins__=sys.modules["builtins"], __file__="", __cached__=None)
    sys.modules["__main__"] = _main
    os.chdir(_directory)
    own = os.path.dirname(__file__)
    sys.path[:] = [_directory.decode(), *(path for path in sys.path[1:] if path != own)]
    # What is in these directories is not what will be.
    for path in list(sys.path_importer_cache):
        if not path.startswith("/usr/"):
            del sys.path_importer_cache[path]
    linecache.clearcache()
    # Python is not told to end, so it must not believe that it was.
    sys.modules["threading"]._shutdown = lambda: None


def _rehearse():
    """Serves some requests, so that what they need is there and Python has specialised its code."""
    global REQUEST
    request, output, place = REQUEST, sys.stdout, "/tmp/.rehearsal"
    text = b"\0".join([b"session", _directory, b"1", b"main.py", b"%d" % len(_variables), *_variables, b"print(1)\n"])
    with open(place, "w") as sys.stdout:
        for _ in range(20):
            with open(place, "wb+", 0) as file:
                file.write(text)
                file.seek(0)
                REQUEST = file.fileno()
                serve()
    os.unlink(place)
    REQUEST, sys.stdout = request, output
    _sources.clear()


_preload()
_arrange()
_NAMES = _CALLBACKS = _MODULES = sys.maxsize
_rehearse()
_NAMES, _MODULES = len(_names), len(_modules)
_entry = iter(serve, 0)
# Called when no frame of Python is left: scripts find none of ours below them but `serve`.
atexit.register(_exit, 0)
_CALLBACKS = _callbacks()
gc.collect()
gc.freeze()
_write(1, b"%d\n" % id(_entry))
