# The relay of a zygote: between the host's frames on standard input and output, and the pipes of the forks.
#
#   u32 length of the payload | u8 kind | u32 fork | payload          numbers are big-endian; see `zygote/wire.rs`
#
# It waits for no fork: each has a window for its output, which the host opens again as it reads, and one for its input.
import select
import struct

HEAD = struct.Struct(">IBI")
REPORT = struct.Struct(">IQQB")
OPEN, INPUT, INPUT_END, SIGNAL, ROOM = range(1, 6)
OUTPUT, ERRORS, TAKEN, INPUT_CLOSED, ENDED, FAILED = range(1, 7)
WINDOW = 1 << 18
PIECE = 1 << 15
COST = 16
# More than two pipes can hold.
MOST_DRAINED = 1 << 22
REFILL_DELAY = 0.01
RETRY_DELAY = 0.05


class Fork:
    """One fork that was opened by the host, or waits to be."""

    def __init__(self):
        self.name = None
        self.input = self.control = None
        self.streams = {}
        self.inbox = bytearray()
        self.inbox_ends = False
        self.taken = 0
        self.room = WINDOW
        self.signals = b""
        self.report = None
        self.drained = 0


class Relay:
    def __init__(self, channel):
        self.channel = channel
        self.poller = select.epoll()
        self.handlers = {}
        self.forks = {}
        self.idle, self.pending = [], []
        self.asked, self.order_at, self.reap_at = 0, 0.0, None
        self.told_ready = False
        self.buffer = bytearray()
        self.watch(0, select.EPOLLIN, self.read_host)
        self.watch(channel.fileno(), select.EPOLLIN, self.read_zygote)

    def watch(self, descriptor, events, handler):
        self.poller.register(descriptor, events)
        self.handlers[descriptor] = handler

    def forget(self, descriptor):
        if self.handlers.pop(descriptor, None) is not None:
            self.poller.unregister(descriptor)

    def run(self):
        while True:
            for descriptor, _ in self.poller.poll(self.tend()):
                handler = self.handlers.get(descriptor)
                if handler is not None:
                    handler()

    def tend(self):
        """Keeps as many ready as wanted, and one more for each that waits; gives when to look again."""
        now = time.monotonic()
        until = []
        missing = ready + len(self.pending) - len(self.idle) - self.asked
        if missing > 0:
            if now >= self.order_at:
                for _ in range(missing):
                    self.channel.send(b"f")
                self.asked += missing
            else:
                until.append(self.order_at)
        if self.reap_at is not None:
            if now >= self.reap_at:
                self.channel.send(b"r")
                self.reap_at = None
            else:
                until.append(self.reap_at)
        return max(min(until) - now, 0) if until else -1

    def tell(self, kind, name, payload=b""):
        data = HEAD.pack(len(payload), kind, name) + payload
        while data:
            data = data[os.write(1, data) :]

    def fail(self, reason):
        """Nothing here can go on."""
        if self.told_ready:
            self.tell(FAILED, 0, reason.encode("utf-8", "replace")[:1000])
            os._exit(1)
        wall = "no wall" in reason
        refuse("unsupported" if wall else "failed", "no fork could be made", RuntimeError(reason))

    def read_zygote(self):
        message, rights, _, _ = self.channel.recvmsg(1024, _socket.CMSG_SPACE(16))
        if not message:
            # Before it was ready it has told why.
            if not self.told_ready:
                os._exit(1)
            self.fail("the zygote ended")
        if message[:1] == b"!":
            self.fail(message[1:].decode("utf-8", "replace"))
        self.asked -= 1
        if message != b"+":
            self.order_at = time.monotonic() + RETRY_DELAY
            return
        fork = Fork()
        fork.input, fork.output, fork.errors, fork.control = struct.unpack("=4i", rights[0][2])
        for descriptor in (fork.input, fork.output, fork.errors):
            os.set_blocking(descriptor, False)
        # An end before it is used is noticed, too.
        self.watch(fork.control, select.EPOLLIN, lambda: self.read_report(fork))
        self.idle.append(fork)
        if self.pending:
            self.attach(self.pending.pop(0))
        if not self.told_ready and len(self.idle) >= ready:
            self.told_ready = True
            send(2, f"{token} ready\n")
            send(1, f"{token} ready 0\n")

    def read_host(self):
        data = os.read(0, 1 << 16)
        if not data:
            os._exit(0)
        self.buffer += data
        at = 0
        while len(self.buffer) - at >= HEAD.size:
            size, kind, name = HEAD.unpack_from(self.buffer, at)
            end = at + HEAD.size + size
            if len(self.buffer) < end:
                break
            self.obey(kind, name, bytes(self.buffer[at + HEAD.size : end]))
            at = end
        del self.buffer[:at]

    def obey(self, kind, name, payload):
        if kind == OPEN:
            self.forks[name] = fork = Fork()
            fork.name = name
            self.order_at = max(self.order_at, time.monotonic() + REFILL_DELAY)
            if self.idle:
                self.attach(fork)
            else:
                self.order_at = 0.0
                self.pending.append(fork)
            return
        fork = self.forks.get(name)
        if fork is None:
            # It has ended, and the host will read that.
            return
        if kind == INPUT:
            fork.inbox += payload
            self.pass_input(fork)
        elif kind == INPUT_END:
            fork.inbox_ends = True
            self.pass_input(fork)
        elif kind == SIGNAL:
            fork.signals += payload
            if fork in self.pending and b"k" in fork.signals:
                # It has no process yet, and needs none.
                self.pending.remove(fork)
                del self.forks[name]
                self.tell(ENDED, name, REPORT.pack(9, 0, 0, False))
            self.pass_signals(fork)
        elif kind == ROOM:
            fork.room += int.from_bytes(payload, "big")
            for kind in list(fork.streams):
                self.listen(fork, kind)
            if fork.report is not None:
                self.settle(fork)

    def attach(self, fork):
        """Gives a fork that was opened the processes and pipes of one that is ready."""
        made = self.idle.pop(0)
        self.forget(made.control)
        fork.input, fork.control = made.input, made.control
        fork.streams = {OUTPUT: made.output, ERRORS: made.errors}
        self.watch(fork.control, select.EPOLLIN, lambda: self.read_report(fork))
        for kind in (OUTPUT, ERRORS):
            self.listen(fork, kind)
        self.pass_input(fork)
        self.pass_signals(fork)

    def pass_signals(self, fork):
        if fork.control is not None and fork.signals:
            for order in fork.signals:
                try:
                    os.write(fork.control, bytes([order]))
                except OSError:
                    # It ends already.
                    pass
            fork.signals = b""

    def pass_input(self, fork):
        if fork.input is None:
            return
        try:
            while fork.inbox:
                count = os.write(fork.input, fork.inbox[:PIECE])
                del fork.inbox[:count]
                fork.taken += count
        except BlockingIOError:
            if fork.input not in self.handlers:
                self.watch(fork.input, select.EPOLLOUT, lambda: self.pass_input(fork))
        except OSError:
            self.close_input(fork)
            self.tell(INPUT_CLOSED, fork.name)
            return
        if not fork.inbox:
            self.forget(fork.input)
            if fork.inbox_ends:
                self.close_input(fork)
        if fork.taken >= WINDOW // 4:
            self.tell(TAKEN, fork.name, fork.taken.to_bytes(4, "big"))
            fork.taken = 0

    def close_input(self, fork):
        if fork.input is not None:
            self.forget(fork.input)
            os.close(fork.input)
            fork.input = None
        fork.inbox.clear()

    def listen(self, fork, kind):
        """Reads a stream as long as the host has room for it."""
        descriptor = fork.streams[kind]
        if fork.room <= COST:
            self.forget(descriptor)
        elif descriptor not in self.handlers:
            self.watch(descriptor, select.EPOLLIN, lambda: self.pass_output(fork, kind))

    def pass_output(self, fork, kind):
        """Whether more may come at once."""
        if fork.room <= COST:
            return False
        descriptor = fork.streams[kind]
        try:
            data = os.read(descriptor, min(PIECE, fork.room - COST))
        except BlockingIOError:
            return False
        if not data:
            self.close_stream(fork, kind)
            return False
        fork.room -= len(data) + COST
        if fork.report is not None:
            fork.drained += len(data)
        self.tell(kind, fork.name, data)
        self.listen(fork, kind)
        return fork.room > COST

    def close_stream(self, fork, kind):
        descriptor = fork.streams.pop(kind)
        self.forget(descriptor)
        os.close(descriptor)

    def read_report(self, fork):
        report = b""
        for _ in range(2):
            try:
                report = os.read(fork.control, 64)
                break
            except ConnectionResetError:
                # It did not read an order any more; its report comes behind that.
                pass
        if len(report) != REPORT.size:
            self.fail("a fork could not be ended" if report else "a guard ended before its fork")
        self.forget(fork.control)
        os.close(fork.control)
        if fork in self.idle:
            # Killed for want of memory, say; nobody had it yet.
            self.idle.remove(fork)
            for descriptor in (fork.input, fork.output, fork.errors):
                os.close(descriptor)
            return
        fork.control = None
        fork.report = report
        self.reap_at = time.monotonic() + RETRY_DELAY
        self.settle(fork)

    def settle(self, fork):
        """Takes what an ended fork left in its pipes, and tells its end. Whoever else may hold a writing end is not waited
        for."""
        for kind in list(fork.streams):
            while fork.drained < MOST_DRAINED and self.pass_output(fork, kind):
                pass
            if kind in fork.streams:
                if fork.room <= COST and fork.drained < MOST_DRAINED:
                    return
                self.close_stream(fork, kind)
        self.close_input(fork)
        del self.forks[fork.name]
        self.tell(ENDED, fork.name, fork.report)


def relay(channel):
    """Never returns."""
    gc.disable()
    control(PR_SET_DUMPABLE, 0)
    try:
        Relay(channel).run()
    except OSError as error:
        # The host or the zygote is gone, or this process is short of something: the host sees the end and takes all down.
        send(2, f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(1)
