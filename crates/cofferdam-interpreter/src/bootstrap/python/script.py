# Warms up and runs one request as Python runs a script in a cold start. It is started as one file, followed by
# `warm.py` and `serve.py`. docs/interpreters.md lists the properties of a cold start that it preserves.
#
# The first line stores the namespace that Python gives a script, before this file adds to it.
pristine = dict(globals())
import _weakref
import atexit
import gc
import os
import sys
import time

own_file = __file__
interpreter = sys.orig_argv[: -len(sys.argv)]
token = sys.argv[1]
# With options such as -I, a script's directory is not searched. The flags have the same effect on this file.
searched = bool(sys.path) and sys.path[0] == os.path.dirname(own_file)


def send(descriptor, text):
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(descriptor, data) :]


def refuse(word, what, error):
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    send(1, f"{token} {word} {what}: {reason}"[:2000] + "\n")
    os._exit(1)


def receive(count):
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            # The input has ended without a request.
            os._exit(0)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def next_request():
    lengths = receive(8)
    head, code = int.from_bytes(lengths[:4], "big"), int.from_bytes(lengths[4:], "big")
    body = receive(head + code)
    words = [os.fsdecode(word) for word in body[:head].split(b"\0")]
    kind, name, cwd, count = words[:4]
    count = int(count)
    return kind, name, cwd, words[4 : 4 + count], words[4 + count :], body[head:]


def store(path, data):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def change_environment(changes):
    for change in changes:
        key, sets, value = change.partition("=")
        if sets:
            os.environ[key] = value
        else:
            os.environ.pop(key, None)
        if key == "TZ":
            time.tzset()


def prepare(request):
    """Applies directory and environment. Returns the script's path. Failures are reported before any code runs."""
    kind, name, cwd, args, changes, code = request
    if cwd:
        os.chdir(cwd)
    path = name
    if kind == "code":
        path = f"{directory}/{name}"
        store(path, code)
        os.chmod(directory, 0o555)
    change_environment(changes)
    sys.argv[:] = [path, *args]
    sys.orig_argv[:] = [*interpreter, path, *args]
    if searched:
        sys.path[0] = directory if kind == "code" else os.path.dirname(os.path.realpath(path))
    return path


def namespace_for(path):
    """Creates a new `__main__`, as Python does for a script."""
    main = type(sys)("__main__")
    names = main.__dict__
    names.clear()
    names.update(pristine)
    if "__annotations__" in names:
        names["__annotations__"] = {}
    names["__file__"] = path
    names["__loader__"] = type(pristine["__loader__"])("__main__", path)
    sys.modules["__main__"] = main
    return names


def load(path, data):
    """Returns code and namespace of a script."""
    if data is None:
        path = os.path.join(os.getcwd(), path)
    names = namespace_for(path)
    if data is None:
        try:
            with open(path, "rb") as file:
                data = file.read()
        except IsADirectoryError:
            return packed(path, names)
        except OSError as error:
            sys.stderr.write(f"{interpreter[0]}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
            raise SystemExit(2)
        if b"PK\x05\x06" in data[-65557:]:
            return packed(path, names)
    return compile(data, path, "exec", dont_inherit=True), names


def packed(path, names):
    """Loads a directory or an archive with a `__main__` of its own."""
    import runpy

    if searched:
        sys.path[0] = path
    else:
        sys.path.insert(0, path)
    return compile("import runpy\nrunpy._run_module_as_main('__main__', False)", own_file, "exec"), {}


def outside(trace):
    """Returns the part of a traceback outside of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == own_file:
        trace = trace.tb_next
    return trace


def explain(error):
    """Prints an exception that ended the script, as Python does. Returns the exit status."""
    if isinstance(error, SystemExit):
        return exit_status(error)
    error.__traceback__ = trace = outside(error.__traceback__)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as second:
        return exit_status(second)
    except BaseException as second:
        sys.stderr.write("Error in sys.excepthook:\n")
        second.__context__ = None
        second.__traceback__ = outside(second.__traceback__)
        sys.__excepthook__(type(second), second, second.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, trace)
    return "interrupt" if isinstance(error, KeyboardInterrupt) else 1


def exit_status(error):
    code = error.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    try:
        sys.stderr.write(f"{code}\n")
    except Exception:
        pass
    return 1


def flush(stream):
    try:
        if stream is not None and not stream.closed:
            stream.flush()
    except BaseException as error:
        if stream is sys.stdout:
            send(2, f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}\n")
        return False
    return True


def discard():
    """Releases objects of the script, so that files are flushed and finalizers run in the order of a normal exit."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    made = [name for name in sys.modules if name not in known]
    modules = []
    for name in made:
        module = sys.modules.pop(name)
        if isinstance(module, type(sys)):
            modules.append(_weakref.ref(module))
        del module
    gc.collect()
    modules = [module for module in (alive() for alive in reversed(modules)) if module is not None]
    for module in modules:
        names = module.__dict__
        # Python's order: names with one underscore first, then the others.
        for private in (True, False):
            for name in [name for name in names if isinstance(name, str) and name != "__builtins__"]:
                if private == (name[:1] == "_" and name[1:2] != "_"):
                    names[name] = None
    if modules:
        gc.collect()


def finish(status):
    """Ends the process in Python's order, without finalizing the interpreter itself: the kernel does that faster."""
    threading = sys.modules.get("threading")
    try:
        if threading is not None:
            threading._shutdown()
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
    try:
        atexit._run_exitfuncs()
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
    good = flush(sys.stdout)
    flush(sys.stderr)
    try:
        discard()
    except BaseException:
        pass
    good = flush(sys.stdout) and good
    flush(sys.stderr)
    if status == "interrupt":
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status if good else 120)


def preload(modules):
    if sys.version_info < (3, 10):
        refuse("failed", "this Python cannot wait", RuntimeError("it is older than 3.10"))
    for module in modules:
        try:
            __import__(module)
        except BaseException as error:
            refuse("missing", f"the module {module!r} cannot be imported", error)


def rehearse(code):
    """Exercises all steps of a request once, so that none of them happens for the first time in a request."""
    path = f"{directory}/warm.py"
    store(path, code)
    exec(*load(path, code))
    os.unlink(path)


def warm(code):
    """Runs the configured code in a namespace that is then discarded."""
    try:
        exec(*load(own_file, code.encode()))
        sys.stdout.flush()
        sys.stderr.flush()
        gc.collect()
    except BaseException as error:
        refuse("failed", "the warm-up failed", error)


def now_known():
    """Returns the modules loaded before the request, which outlive it."""
    names = set(sys.modules)
    names.discard("__main__")
    return names
