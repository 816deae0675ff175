# A prepared interpreter. Started as `python3 FLAGS FILE TOKEN KIND WARM_UP MODULE...`, it warms up and runs the one
# request that arrives on its standard input.
def anchor():
    """Starts an idle process that shares the memory of this one and nothing else.

    The kernel frees memory when its last process ends, before it reports that end. While the anchor exists, the end
    of this process is reported immediately. The anchor has none of our descriptors, so that it keeps none open.
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
    # Descriptors are in transit through a socket while the process is created, so that it gets no copy of them.
    ours.sendmsg([b"x"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, standard)])
    for number in range(3):
        os.close(number)
    # Signal handlers must not run in the new process: they would change this process's memory.
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    # CLONE_VM, and CLONE_PARENT so that the script never sees it as a child.
    clone(ctypes.cast(pause, ctypes.c_void_p), top, 0x100 | 0x8000, None)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
    _, (message,), _, _ = theirs.recvmsg(1, _socket.CMSG_LEN(len(standard)))
    if message[2] != standard:
        os._exit(1)
    ours.close()
    theirs.close()
    return stack


kind, warm_up = sys.argv[2], sys.argv[3]
preload(sys.argv[4:])
directory = f"/tmp/code-{os.urandom(8).hex()}"
try:
    os.mkdir(directory, 0o755)
    rehearse(b"print()\n")
except BaseException as error:
    refuse("failed", "the warm-up failed", error)
warm(warm_up)
held = anchor() if kind == "anchored" else None
known = now_known()
# Existing objects are permanent: garbage collections of the script skip them.
gc.freeze()
send(2, f"{token} ready\n")
send(1, f"{token} ready {int(time.process_time() * 1e6)}\n")
