# An interpreter that waits: started as `python3 FLAGS FILE TOKEN ENDING WARM_UP MODULE...`, warm from then on, and used for
# the one request that comes on its standard input.
def anchor():
    """Starts a process that shares this one's memory and nothing else, and does nothing.

    The kernel takes memory apart when its last process ends, before anybody is told of that end. With the anchor there,
    the end of this process is told at once. It has none of our descriptors, so that closing one closes it.
    """
    try:
        import ctypes

        clone, pause = (getattr(ctypes.CDLL(None), name) for name in ("clone", "pause"))
    except (ImportError, OSError, AttributeError):
        return None
    import _signal
    import _socket

    stack = ctypes.create_string_buffer(1 << 14)
    top = ctypes.c_void_p((ctypes.addressof(stack) + len(stack)) & ~15)
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    standard = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    # While the process is made, our descriptors are on their way through a socket, so that it gets no copy of them.
    ours.sendmsg([b"x"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, standard)])
    for number in range(3):
        os.close(number)
    # Our handlers must not run in it: they would change this process's memory.
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    # CLONE_VM, and CLONE_PARENT so that the script never meets it as a child.
    clone(ctypes.cast(pause, ctypes.c_void_p), top, 0x100 | 0x8000, None)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    _, (message,), _, _ = theirs.recvmsg(1, _socket.CMSG_LEN(len(standard)))
    if message[2] != standard:
        os._exit(1)
    ours.close()
    theirs.close()
    return stack


ending, warm_up = sys.argv[2], sys.argv[3]
preload(sys.argv[4:])
directory = f"/tmp/code-{os.urandom(8).hex()}"
try:
    os.mkdir(directory, 0o755)
    rehearse(b"print()\n")
except BaseException as error:
    refuse("failed", "the warm-up failed", error)
warm(warm_up)
held = anchor() if ending == "anchored" else None
known = now_known()
# What is here stays: no collection of the script's looks at it again.
gc.freeze()
send(2, f"{token} ready\n")
send(1, f"{token} ready {int(time.process_time() * 1e6)}\n")
