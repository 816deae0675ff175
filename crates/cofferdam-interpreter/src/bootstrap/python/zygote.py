# A zygote: keeps forks ready, each for one request. Started as
# `python3 FLAGS FILE TOKEN READY CPU_SECONDS TEMPORARY AFTER_FORK WARM_UP MODULE...`.
#
#   relay: this process. Carries bytes between the host and the forks; holds data of requests, and forks nobody.
#     zygote: has the modules. Told to fork, it does. It never has a byte of any request.
#       guard: one for each fork, in a Landlock domain of its own. Ends with everything below it.
#         fork: in a domain inside the guard's. Reads one request and runs it.
import _socket
import errno
import signal

ready, cpu_seconds, own_temporary = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "own"
after_fork, warm_up, modules = sys.argv[5], sys.argv[6], sys.argv[7:]
REAP_LIMIT = 5.0
REMOVE_LIMIT = 2.0
# What siblings may have taken, and will give back: processes, memory, room for files, descriptors.
SHORTAGES = errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE


def new_descriptors(number, descriptor):
    os.dup2(descriptor, number)
    os.close(descriptor)


def become_zygote():
    """Imports the modules, and forks a guard whenever it is told to. Returns in the fork alone."""
    global directory, known, generators
    preload(modules)
    directory = f"/tmp/code-{os.urandom(8).hex()}"
    try:
        os.mkdir(directory, 0o755)
        rehearse(b"print()\n")
        os.rmdir(directory)
    except BaseException as error:
        refuse("failed", "the warm-up failed", error)
    warm(warm_up)
    find_wall()
    import resource

    shared = what_forks_would_share()
    if shared is not None:
        refuse("failed", "the modules hold what forks must not have in common", RuntimeError(shared))
    known = now_known()
    generators = find_generators()
    # Nobody reads what this process would print from here on.
    for number in range(3):
        new_descriptors(number, os.open("/dev/null", os.O_RDWR))
    control(PR_SET_CHILD_SUBREAPER, 1)
    # A second wall in front of this process and the guards; forks take it down for themselves.
    control(PR_SET_DUMPABLE, 0)
    gc.collect()
    gc.freeze()
    guards = set()
    while True:
        order = channel.recv(1)
        if not order:
            os._exit(0)
        reap_guards(guards)
        if order == b"f":
            try:
                pid = os.fork()
            except OSError:
                channel.send(b"-")
                continue
            if pid == 0:
                return become_guard()
            guards.add(pid)


def reap_guards(guards):
    """A guard that did not end by itself, or a stranger, which one must have left, is the end of everything."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid not in guards or status != 0:
            os._exit(1)
        guards.remove(pid)


def become_guard():
    """Makes a fork and stays with it until nothing of it is left. Returns in the fork alone."""
    global directory, temporary
    name = os.urandom(8).hex()
    directory, temporary = f"/tmp/code-{name}", f"/tmp/fork-{name}"
    try:
        os.mkdir(directory, 0o755)
        os.mkdir(temporary, 0o700)
        pipes = [os.pipe() for _ in range(4)]
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        control(PR_SET_CHILD_SUBREAPER, 1)
        (input_end, to_input), (from_output, output), (from_errors, errors), (prepared, preparing) = pipes
        build_wall()
        pid = os.fork()
    except BaseException as error:
        end_early(error)
    if pid == 0:
        # Closed with the others; the objects must not close those numbers again.
        for socket in (ours, theirs, channel):
            socket.detach()
        become_fork(input_end, output, errors, preparing)
        return
    for descriptor in (input_end, output, errors, preparing):
        os.close(descriptor)
    used = os.read(prepared, 2000)
    if not used.isdigit():
        _, status = os.waitpid(pid, 0)
        # The kernel kills for want of memory so.
        if used == b"~" or not used and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            end_early(MemoryError())
        end_early(RuntimeError(used.decode("utf-8", "replace") or "it ended while it became ready"))
    rights = struct.pack("=4i", to_input, from_output, from_errors, theirs.fileno())
    channel.sendmsg([b"+"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    for descriptor in (to_input, from_output, from_errors, prepared):
        os.close(descriptor)
    theirs.close()
    channel.close()
    watch(ours, pid, int(used))


def build_wall(own=()):
    try:
        enter_domain(own)
        try_wall(own)
    except Exception as error:
        raise RuntimeError(f"no wall: {error}")


def end_early(error):
    """What siblings have used up for now is no reason to end them: a fork is made later. All else does not become better."""
    remove_directories()
    text = f"!{type(error).__name__}: {error}"[:1000].encode("utf-8", "replace")
    channel.send(b"-" if is_shortage(error) else text)
    os._exit(0)


def is_shortage(error):
    return isinstance(error, MemoryError) or isinstance(error, OSError) and error.errno in SHORTAGES


def watch(ours, pid, used):
    """Passes signals on until the fork ends, then ends what it left, and tells. One signal reaches the whole domain below,
    whatever session, group or parent a process has; none can be born meanwhile."""
    waker = wake_at_ends()
    poller = select.poll()
    for descriptor in (ours.fileno(), waker):
        poller.register(descriptor, select.POLLIN)
    count = Count(pid, -used)
    while not count.reap():
        for descriptor, _ in poller.poll(count.look()):
            if descriptor == waker:
                os.read(waker, 4096)
                continue
            order = ours.recv(1)
            signal_all(15 if order == b"t" else 9)
            if not order:
                poller.unregister(ours.fileno())
    until, pause = time.monotonic() + REAP_LIMIT, 0.0002
    while True:
        signal_all(9)
        count.reap()
        if count.nobody_left:
            break
        if time.monotonic() > until:
            ours.send(b"!")
            os._exit(1)
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    try:
        ours.send(REPORT.pack(count.status, max(count.micros, 0), count.most, count.over))
    except OSError:
        # The relay is gone, and soon everything.
        pass
    remove_directories()
    os._exit(0)


def wake_at_ends():
    """A descriptor that can be read when a child may have ended."""
    waker, wake = os.pipe()
    os.set_blocking(waker, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return waker


class Count:
    """What a fork's processes have used, and how its main one ended."""

    def __init__(self, pid, micros):
        self.pid, self.micros, self.most = pid, micros, 0
        self.status = None
        self.nobody_left = self.over = False

    def reap(self):
        """Takes in all that ended, orphans too; gives whether the main process is among them."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.nobody_left = True
                break
            if pid == 0:
                break
            self.micros += int((usage.ru_utime + usage.ru_stime) * 1e6)
            self.most = max(self.most, usage.ru_maxrss)
            if pid == self.pid:
                self.status = status
        return self.status is not None

    def look(self):
        """Kills the fork if it has used up its CPU time; gives when to look again, in milliseconds."""
        if not cpu_seconds or self.over:
            return None
        left = cpu_seconds - (self.micros / 1e6 + used_below(os.getpid()))
        if left <= 0:
            self.over = True
            signal_all(9)
            return None
        # It cannot be used up before, were all processors busy with it.
        return max(int(left / (os.cpu_count() or 1) * 1000), 5)


def used_below(top):
    """CPU seconds of all processes that come from `top`, and of those that they have waited for."""
    ticks = os.sysconf("SC_CLK_TCK")
    known = {}
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{int(name)}/stat") as file:
                words = file.read().rpartition(")")[2].split()
            known[int(name)] = int(words[1]), sum(map(int, words[11:15])) / ticks
        except (ValueError, OSError):
            continue
    below, before = {top}, 0
    while len(below) > before:
        before = len(below)
        below |= {pid for pid, (parent, _) in known.items() if parent in below}
    return sum(known[pid][1] for pid in below - {top} if pid in known)


def signal_all(number):
    try:
        os.kill(-1, number)
    except (ProcessLookupError, PermissionError):
        pass


def remove_directories():
    """What is too much or too deep to be removed stays, as long as the sandbox does."""
    until = time.monotonic() + REMOVE_LIMIT
    found, at = [directory, temporary], 0
    try:
        while at < len(found) and time.monotonic() < until:
            os.chmod(found[at], 0o700)
            with os.scandir(found[at]) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        found.append(entry.path)
                    else:
                        os.unlink(entry.path)
            at += 1
        for path in reversed(found):
            os.rmdir(path)
    except OSError:
        pass


def become_fork(input_end, output, errors, preparing):
    """Everything that can be done before the request is known. Until the end it prints to nobody."""
    import resource

    try:
        os.setsid()
        build_wall((directory, temporary) if own_temporary else ())
        control(PR_SET_DUMPABLE, 1)
        make_fresh()
        exec(*load(own_file, after_fork.encode()))
        # Most of what a script touches first is copied now, while nobody waits.
        rehearse(b"import sys\nsys.stdout.write('')")
        sys.stdout.flush()
        sys.stderr.flush()
        if cpu_seconds:
            soft = cpu_seconds + int(time.process_time()) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (soft, soft + 1))
        gc.freeze()
        for number, descriptor in enumerate((input_end, output, errors, preparing)):
            os.dup2(descriptor, number)
        os.closerange(4, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        open_ones = set(os.listdir("/proc/self/fd"))
        # The fourth is the one that this told, the fifth the list itself.
        if not {"0", "1", "2", "3"} <= open_ones or len(open_ones) != 5:
            raise RuntimeError(f"descriptors are open that should not be: {sorted(open_ones)}")
        os.write(3, str(int(time.process_time() * 1e6)).encode())
        os.close(3)
    except BaseException as error:
        text = "~" if is_shortage(error) else f"{type(error).__name__}: {error}"
        os.write(preparing, text[:1000].encode("utf-8", "replace"))
        os._exit(1)


find_wall()
channel, relayed = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
if os.fork():
    channel.close()
    relay(relayed)
relayed.close()
new_descriptors(0, os.open("/dev/null", os.O_RDONLY))
become_zygote()
