# Runs code the way `python3 FILE` does, and captures results besides the output: the value of the last expression,
# figures, data frames. This file is no isolation boundary: the code controls all of it, and the host trusts none of it.
# In a session it serves one piece of code after the other in the same namespace.
def __cofferdam__(source, name, results_path, most, session):
    import io
    import os
    import sys
    from binascii import b2a_base64

    scope = globals()
    del scope["__cofferdam__"]
    primary = scope.get("__name__") == "__main__"
    own = sys._getframe().f_code.co_filename
    directory = os.path.dirname(os.path.abspath(scope.get("__file__") or name))
    sources = {}
    state = {"results_path": results_path, "room": most, "records": []}
    process = getattr(os, "getpid", lambda: 0)
    begun = process()
    save, make, join = os.write, os.open, "".join

    try:
        from _json import encode_basestring_ascii as quote
    except ImportError:
        # A minimal Python may lack the json module.
        def quote(text):
            def one(c):
                if c in '"\\':
                    return "\\" + c
                if " " <= c <= "~":
                    return c
                high, low = divmod(ord(c) - 0x10000, 0x400)
                return f"\\u{ord(c):04x}" if high < 0 else f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"

            return '"' + join(map(one, text)) + '"'

    def add(kind, data, note=None):
        room = state["room"]
        kept = {key: f"{quote(key)}:{quote(text)}" for key, text in data.items() if len(text) <= room}
        # A form that is too large is omitted, so that the others are not lost with it.
        while len(kept) > 1 and sum(map(len, kept.values())) + 1000 > room:
            del kept[max(kept, key=lambda key: len(kept[key]))]
        left = [key for key in data if key not in kept]
        if left and kept:
            note = "; ".join(filter(None, [note, f"{', '.join(left)}: too large"]))
        fields = ",".join(kept.values())
        line = f'{{"kind":{quote(kind)},"data":{{{fields}}}{"," if note else ""}'
        line += f'"note":{quote(note)}}}\n' if note else "}\n"
        if len(line) > room or len(state["records"]) > 64 or not kept:
            line = '{"kind":"dropped","data":{}}\n'
        state["room"] -= len(line)
        if state["room"] >= 0:
            state["records"].append(line)

    def image(figure):
        data = io.BytesIO()
        figure.savefig(data, format="png")
        add("figure", {"image/png": b2a_base64(data.getvalue(), newline=False).decode()})

    def figures(*args, **keywords):
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and hasattr(pyplot, "get_fignums"):
            for at, number in enumerate(pyplot.get_fignums()):
                try:
                    if at >= 16:
                        raise OverflowError
                    image(pyplot.figure(number))
                except Exception:
                    # Figures that are too many or cannot be drawn are counted.
                    add("dropped", {})
            pyplot.close("all")

    def frame(value, data):
        """Adds a data frame as JSON, at most its first thousand rows."""
        note, kind = None, type(value)
        method = getattr(kind, "to_json", None) or getattr(kind, "write_json", None)
        if method is None:
            return None
        if callable(getattr(kind, "head", None)) and callable(getattr(kind, "__len__", None)) and len(value) > 1000:
            note = f"the first 1000 of {len(value)} rows"
            value = value.head(1000)
        pandas = kind.__module__.partition(".")[0] == "pandas"
        options = {"date_format": "iso"} if pandas else {}
        if pandas and kind.__name__ == "DataFrame":
            options["orient"] = "split"
        text = method(value, **options)
        if isinstance(text, str):
            data["application/json"] = text
        return note

    def text_of(value):
        more = 0
        if type(value) in (str, bytes, bytearray) and len(value) > 65536:
            # The full representation is even larger, and would not be shown.
            value, more = value[:65536], len(value) - 65536
        try:
            shown = repr(value)
        except Exception as error:
            shown = f"<repr failed: {type(error).__name__}>"
        if len(shown) > 65536:
            shown, more = shown[:65536], more + len(shown) - 65536
        return f"{shown}… ({more} characters more)" if more else shown

    def bundle(kind, value):
        shown = text_of(value)
        data, note = {"text/plain": shown}, None
        for attribute, mime in forms:
            method = getattr(type(value), attribute, None)
            try:
                got = method(value) if method is not None else None
                if isinstance(got, tuple):
                    got = got[0]
                if attribute == "_repr_json_" and got is not None:
                    import json

                    got = json.dumps(got)
                if isinstance(got, bytes):
                    got = b2a_base64(got, newline=False).decode()
                if isinstance(got, str):
                    data[mime] = got
            except Exception:
                pass
        try:
            note = frame(value, data)
        except Exception:
            pass
        add(kind, data, note)

    forms = (
        ("_repr_html_", "text/html"),
        ("_repr_markdown_", "text/markdown"),
        ("_repr_latex_", "text/latex"),
        ("_repr_svg_", "image/svg+xml"),
        ("_repr_png_", "image/png"),
        ("_repr_json_", "application/json"),
    )

    def display(*values):
        """Displays values as results, as a notebook does."""
        for value in values:
            bundle("display", value)

    def is_figure(value):
        figure = sys.modules.get("matplotlib.figure")
        return figure is not None and isinstance(value, getattr(figure, "Figure", ()))

    class Plots:
        """Makes `show` capture figures instead of opening a window, once matplotlib is imported."""

        @staticmethod
        def find_spec(wanted, path=None, target=None):
            if wanted != "matplotlib.pyplot":
                return None
            import importlib.util

            sys.meta_path.remove(Plots)
            spec = importlib.util.find_spec(wanted)
            if spec is not None and spec.loader is not None:
                real = spec.loader.exec_module

                def exec_module(module):
                    real(module)
                    module.show = figures

                spec.loader.exec_module = exec_module
            return spec

    class Sources:
        """A loader that provides tracebacks with the code, which is not in a file of its own."""

        @staticmethod
        def get_source(module=None):
            return source

    def fail(error):
        where = error.__traceback__
        while where is not None and where.tb_frame.f_code.co_filename == own:
            where = where.tb_next
        error.__traceback__ = where
        if session:
            import linecache

            linecache.cache.update(sources)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, where
        try:
            if sys.excepthook is not sys.__excepthook__:
                sys.excepthook(type(error), error, where)
            else:
                import traceback

                text = "".join(traceback.format_exception(type(error), error, where))
                if where is None:
                    text = text.removeprefix("Traceback (most recent call last):\n")
                sys.stderr.write(text)
        except Exception as second:
            print(f"{type(error).__name__}, and it could not be shown: {type(second).__name__}", file=sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else 1

    def plain(text):
        """Removes the byte order mark that some editors add."""
        return text[1:] if text[:1] == "\ufeff" else text

    def run(file):
        tree = compile(source, file, "exec", 1024, True)
        last = None
        if state["results_path"] and tree.body and type(tree.body[-1]).__name__ == "Expr":
            last = tree.body.pop().value
        exec(compile(tree, file, "exec", 0, True), scope)
        if last is not None:
            from _ast import Expression

            value = eval(compile(Expression(last), file, "eval", 0, True), scope)
            if value is not None and not is_figure(value):
                bundle("value", value)
            elif value is not None and value.number not in getattr(sys.modules.get("matplotlib.pyplot"), "get_fignums", list)():
                image(value)

    def finish():
        """Writes the captured results, once, in the process that was started."""
        if not state["results_path"] or process() != begun:
            return
        try:
            try:
                figures()
            except Exception:
                pass
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
            out = make(state["results_path"], flags, 0o644)
            data = memoryview(join(state["records"]).encode())
            while data:
                data = data[save(out, data) :]
            os.close(out)
        except Exception:
            pass

    def begin():
        state["records"].clear()
        state["room"] = most
        add("runtime", {"version": ".".join(map(str, sys.version_info[:3]))})

    def serve():
        """Serves pieces of code until the input ends."""
        nonlocal source
        try:
            asked, out, complaints = os.dup(0), os.dup(1), os.dup(2)
            nothing = os.open("/dev/null", os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
        except OSError:
            # WebAssembly cannot copy descriptors. Only `sys.stdin` is kept from the calls.
            asked, out, complaints = 0, 1, 2
            sys.stdin = io.StringIO()
        read, count = os.fdopen(asked, "rb"), 0
        running = [False]

        def interrupted(number, frame):
            # Between calls there is nothing to interrupt.
            if running[0]:
                raise KeyboardInterrupt

        try:
            import signal

            signal.signal(signal.SIGINT, interrupted)
        except Exception:
            pass
        del scope["__file__"]
        while True:
            head = read.readline(32)
            if not head.endswith(b"\n"):
                return
            body = read.read(int(head))
            marker, where, code = body.split(b"\0", 2)
            state["results_path"], source = where.decode() or None, plain(code.decode())
            count += 1
            file = f"{directory}/call-{count}.py"
            sources[file] = (len(source), None, source.splitlines(True), file)
            begin()
            word, code = b"ok", process() if count == 1 else None
            try:
                running[0] = True
                try:
                    run(file)
                finally:
                    running[0] = False
            except SystemExit as error:
                word, code = b"exit", error.code
                if not isinstance(code, int) and code is not None:
                    print(code, file=sys.stderr)
                code = 0 if code is None else code & 255 if isinstance(code, int) else 1
            except BaseException as error:
                word, code = b"error", fail(error)
            finish()
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except Exception:
                    pass
            save(complaints, b"\x1e%s\n" % marker)
            save(out, b"\x1e%s %s %d\n" % (marker, word, code or 0))
            if word == b"exit":
                sys.exit(code)

    source = plain(source)
    if primary:
        os.environ.setdefault("MPLBACKEND", "agg")
        sys.meta_path.insert(0, Plots)
        import builtins

        if not hasattr(builtins, "display"):
            builtins.display = display
    else:
        state["results_path"] = None
    if sys.path and os.path.abspath(sys.path[0] or ".") == directory:
        # Code of an agent imports from its workspace.
        sys.path[0] = os.getcwd()
    if session:
        serve()
        return
    scope["__loader__"] = Sources
    begin()
    status = 0
    try:
        run(f"{directory}/{name}")
    except SystemExit:
        finish()
        raise
    except BaseException as error:
        status = fail(error)
    finish()
    if status:
        sys.exit(status)


