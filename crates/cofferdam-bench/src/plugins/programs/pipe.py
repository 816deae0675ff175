import os

rest = b""


def body():
    global rest
    while b"\r\n\r\n" not in rest:
        more = os.read(0, 1 << 16)
        if not more:
            raise SystemExit
        rest += more
    head, rest = rest.split(b"\r\n\r\n", 1)
    size = int(head.split(b":")[1])
    while len(rest) < size:
        rest += os.read(0, 1 << 16)
    found, rest = rest[:size], rest[size:]
    return found


def send(body):
    frame = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    while frame:
        frame = frame[os.write(1, frame):]


while True:
    found = body()
    if not found.startswith(b"stream "):
        send(found)
        continue
    count, size = map(int, found.split()[1:])
    item = b"x" * size
    for _ in range(count):
        send(item)
