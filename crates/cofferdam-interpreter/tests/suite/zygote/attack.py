# Tries what one process can do to another: `attack.py PID...`; prints a line for each try. The last target is a child of
# its own, the control: what is refused there, too, is refused by something else than the wall between forks.
import ctypes, errno, fcntl, os, platform, signal, struct, sys, time

libc = ctypes.CDLL(None, use_errno=True)


NUMBERS = {
    "x86_64": {"tgkill": 234, "rt_sigqueueinfo": 129, "process_vm_readv": 310, "ptrace": 101, "prlimit": 302, "kcmp": 312},
    "aarch64": {"tgkill": 131, "rt_sigqueueinfo": 138, "process_vm_readv": 270, "ptrace": 117, "prlimit": 261, "kcmp": 272},
}[platform.machine()]
NUMBERS["pidfd_getfd"] = 438


def call(name, *words):
    if libc.syscall(NUMBERS[name], *words) < 0:
        raise OSError(ctypes.get_errno(), "")


def read(pid, name):
    with open(f"/proc/{pid}/{name}", "rb") as file:
        file.read(10)


def memory(pid):
    with open(f"/proc/{pid}/mem", "rb", 0) as file:
        file.seek(id(os) & ~0xFFF)
        file.read(10)


def owned(pid):
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, pid)
    fcntl.fcntl(reader, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(writer, b"x")
    time.sleep(0.02)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return
    except PermissionError:
        pass
    if pid == children[-1]:
        _, status = os.waitpid(pid, os.WNOHANG)
        if os.WIFSIGNALED(status):
            return
    raise OSError(errno.EPERM, "the signal did not come")


def pidfd(pid, then):
    descriptor = os.pidfd_open(pid)
    try:
        return then(descriptor)
    finally:
        os.close(descriptor)


def process_vm_readv(pid):
    buffer = ctypes.create_string_buffer(8)
    own = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)
    other = (ctypes.c_ulong * 2)(id(os), 8)
    call("process_vm_readv", pid, own, ctypes.c_ulong(1), other, ctypes.c_ulong(1), ctypes.c_ulong(0))


def write(pid, name, text):
    with open(f"/proc/{pid}/{name}", "w") as file:
        file.write(text)


TRIES = {
    "null-signal": lambda pid: os.kill(pid, 0),
    "stop": lambda pid: os.kill(pid, signal.SIGSTOP),
    "continue": lambda pid: os.kill(pid, signal.SIGCONT),
    "thread-signal": lambda pid: call("tgkill", pid, pid, 0),
    "pidfd-signal": lambda pid: pidfd(pid, lambda fd: signal.pidfd_send_signal(fd, 0)),
    "queued-signal": lambda pid: call("rt_sigqueueinfo", pid, 0, struct.pack("=iii29i", 0, 0, -1, *[0] * 29)),
    "memory": memory,
    "environ": lambda pid: read(pid, "environ"),
    "maps": lambda pid: read(pid, "maps"),
    "auxv": lambda pid: read(pid, "auxv"),
    "link": lambda pid: os.readlink(f"/proc/{pid}/fd/1"),
    "descriptor": lambda pid: os.open(f"/proc/{pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK),
    "input": lambda pid: os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK),
    "cwd": lambda pid: os.readlink(f"/proc/{pid}/cwd"),
    "root": lambda pid: os.listdir(f"/proc/{pid}/root/"),
    "exe": lambda pid: os.readlink(f"/proc/{pid}/exe"),
    "io": lambda pid: read(pid, "io"),
    "ptrace": lambda pid: call("ptrace", 16, pid, 0, 0),
    "seize": lambda pid: call("ptrace", 0x4206, pid, 0, 0),
    "process_vm_readv": process_vm_readv,
    "pidfd_getfd": lambda pid: pidfd(pid, lambda fd: call("pidfd_getfd", fd, 1, 0)),
    "prlimit": lambda pid: call("prlimit", pid, 7, struct.pack("=QQ", 3, 3), None),
    "kcmp": lambda pid: call("kcmp", os.getpid(), pid, 0, 0, 0),
    "write-comm": lambda pid: write(pid, "comm", "hacked"),
    "write-oom": lambda pid: write(pid, "oom_score_adj", "1000"),
    "set-group": lambda pid: os.setpgid(pid, 0),
    # What no wall between forks stops, and is said so.
    "numbers": lambda pid: os.listdir(f"/proc/{pid}/fd"),
    "affinity": lambda pid: os.sched_setaffinity(pid, os.sched_getaffinity(pid)),
    "priority": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)),
    "status": lambda pid: read(pid, "status"),
    "cmdline": lambda pid: read(pid, "cmdline"),
    "comm": lambda pid: read(pid, "comm"),
    # The last ones, because they end the control.
    "async-signal": owned,
    "kill": lambda pid: os.kill(pid, signal.SIGKILL),
}

children = []
for name, attack in TRIES.items():
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(told, b"x")
        time.sleep(1000)
    os.read(ready, 1)
    children.append(child)
    for word in [*sys.argv[1:], "own"]:
        pid = child if word == "own" else int(word)
        try:
            attack(pid)
            result = "done"
        except OSError as error:
            result = errno.errorcode.get(error.errno, str(error))
        print(name, word, result)
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    os.close(ready)
    os.close(told)
# Everybody at once: what it may reach is its own.
os.kill(-1, signal.SIGKILL)
print("everybody own done")
