# What a fork is bound by and made fresh with. Nothing here falls back to less: what is missing is told, and ends it.
import stat
import struct

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
SIGNALS_AND_ABSTRACT_SOCKETS = 3
PATH_BENEATH = 1
# Links and moves between directories: the one right that every domain refuses unless it says otherwise.
REFER = 1 << 13
# Everything that can be done to files but listing directories: names are no secret.
FILE_RIGHTS = (1 << 15) - 1 & ~(1 << 3)
# Those that make sense for a plain file: execute, write, read, truncate.
PLAIN_FILE_RIGHTS = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14
NEEDED_ABI = 6
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_GET_NO_NEW_PRIVS = 4, 36, 39


def system_call(number, *words):
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return result


def control(option, value):
    if libc.prctl(option, *(ctypes.c_ulong(word) for word in (value, 0, 0, 0))) < 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def find_wall():
    """Finds what a wall between forks is made of."""
    global ctypes, libc
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        version = system_call(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except (ImportError, AttributeError) as error:
        refuse("unsupported", "forks need Python's ctypes to part themselves from each other", error)
    except OSError as error:
        refuse("unsupported", "forks need the kernel's Landlock to part themselves from each other", error)
    if version < NEEDED_ABI:
        found = RuntimeError(f"version {NEEDED_ABI} is needed, this kernel has {version}")
        refuse("unsupported", "forks need Landlock's scopes to part themselves from each other", found)
    if libc.prctl(PR_GET_NO_NEW_PRIVS, *[ctypes.c_ulong(0)] * 4) != 1:
        refuse("unsupported", "forks need no_new_privs to part themselves from each other", RuntimeError("it is not set"))


def enter_domain(own=()):
    """From here on this process reaches only what is made in it: no signal, no trace, no memory of others. With directories
    of its own, it has of all that is below /tmp only those."""
    rules = struct.pack("=QQQ", FILE_RIGHTS if own else REFER, 0, SIGNALS_AND_ABSTRACT_SOCKETS)
    size, none = ctypes.c_size_t(len(rules)), ctypes.c_uint(0)
    descriptor = system_call(LANDLOCK_CREATE_RULESET, rules, size, none)
    if own:
        for path in [*own, *("/" + name for name in os.listdir("/") if name != "tmp")]:
            allow_files(descriptor, path, FILE_RIGHTS)
    else:
        allow_files(descriptor, "/", REFER)
    system_call(LANDLOCK_RESTRICT_SELF, ctypes.c_int(descriptor), none)
    os.close(descriptor)


def allow_files(descriptor, path, rights):
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not stat.S_ISDIR(os.fstat(place).st_mode):
        rights &= PLAIN_FILE_RIGHTS
    rule = struct.pack("=Qi", rights, place)
    system_call(LANDLOCK_ADD_RULE, ctypes.c_int(descriptor), ctypes.c_int(PATH_BENEATH), rule, ctypes.c_uint(0))
    os.close(place)


def try_wall(own=()):
    """Measures the wall between this process and the one above it."""
    if own:
        try:
            os.close(os.open(f"/tmp/wall-{os.urandom(8).hex()}", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            raise RuntimeError("files can be made in /tmp")
        except PermissionError:
            pass
    if len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError("a thread is there that the wall does not bind")
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return
    raise RuntimeError("signals pass the wall")


def what_forks_would_share():
    """What the modules hold that several forks would use together: told by name, `None` if there is nothing."""
    import _thread

    if _thread._count() > 0:
        return "a thread, which a fork would not have"
    try:
        os.waitpid(-1, os.WNOHANG)
        return "a child process"
    except ChildProcessError:
        pass
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if int(number) > 2 and int(number) != channel.fileno() and name != f"/proc/{os.getpid()}/fd":
            return f"an open descriptor, {name}"
    with open("/proc/self/maps") as maps:
        for line in maps:
            where, access, *rest = line.split(maxsplit=5)
            if access[1] == "w" and access[3] == "s":
                return f"memory that is shared for writing, {rest[-1].strip() if len(rest) > 3 else where}"
    return None


def find_generators():
    """The random generators that live in the modules, to be seeded anew in each fork."""
    found = []
    kinds = [getattr(sys.modules.get("random"), "Random", None)]
    numpy = sys.modules.get("numpy.random")
    kinds += [getattr(numpy, name, None) for name in ("RandomState", "BitGenerator")]
    kinds = tuple(kind for kind in kinds if kind is not None)
    for one in gc.get_objects() if kinds else ():
        if isinstance(one, kinds):
            found.append(one)
    # Not every version of numpy tells the collector of this one.
    found += [one for one in [getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)] if one is not None]
    return found


def make_fresh():
    """Takes away what this fork has in common with its siblings and is expected to be its own."""
    for one in generators:
        if hasattr(one, "seed"):
            one.seed()
        else:
            one.state = type(one)().state
    ssl = sys.modules.get("_ssl")
    if ssl is not None:
        # OpenSSL sees a fork by itself; this does not rely on it.
        ssl.RAND_add(os.urandom(32), 0.0)
    uuid = sys.modules.get("uuid")
    if uuid is not None:
        # The C library's clock sequence and node may have been drawn already; Python's own are drawn here.
        uuid._generate_time_safe = uuid._last_timestamp = None
        uuid._node = int.from_bytes(os.urandom(6), "big") | 1 << 40
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
    os.environ["TMPDIR"] = temporary
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = tempfile._name_sequence = None
