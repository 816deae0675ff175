"""Servers outside of the sandboxes: HTTP, HTTPS, HTTP/2, WebSocket, TLS, DNS, a banner, an echo, and one that never
answers.

Usage: server.py DIRECTORY. Serves the files of DIRECTORY/served/HOST, and logs to DIRECTORY/requests,
DIRECTORY/queries and DIRECTORY/connections. Prints "ready" once all ports accept connections.
"""

import http.server
import itertools
import pathlib
import socket
import socketserver
import ssl
import struct
import sys
import threading

DIRECTORY = pathlib.Path(sys.argv[1])
# The address of the plain servers, of the servers of HTTPS and files, and of a private network.
ADDRESS, WEB, PRIVATE = "11.22.33.44", "11.22.33.45", "10.1.2.3"
CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
CONTEXT.load_cert_chain(DIRECTORY / "server.pem", DIRECTORY / "key.pem")
HTTP2_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
HTTP2_CONTEXT.load_cert_chain(DIRECTORY / "server.pem", DIRECTORY / "key.pem")
HTTP2_CONTEXT.set_alpn_protocols(["h2"])
# The addresses of names that only the DNS server knows, one list for each look-up in turn.
NAMES = {
    b"named.example": itertools.cycle([[ADDRESS]]),
    b"mixed.example": itertools.cycle([[PRIVATE, ADDRESS]]),
    b"turning.example": itertools.chain([[ADDRESS]], itertools.repeat([PRIVATE])),
    b"empty.example": itertools.repeat([]),
}


def log(name, line):
    """Appends a line to a log, in one write."""
    with open(DIRECTORY / name, "ab", buffering=0) as file:
        file.write(line + b"\n")


def read_body(file, length):
    """Reads a body of a length, or of chunks."""
    if length is not None:
        return file.read(length)
    body = b""
    while size := int(file.readline(64), 16):
        body += file.read(size)
        file.readline(16)
    while file.readline(4096) not in (b"\r\n", b""):
        pass
    return body


class Http(socketserver.StreamRequestHandler):
    """Answers each request with its line, Host and body. Echoes what follows an upgrade."""

    def handle(self):
        while line := self.rfile.readline(65536):
            log("requests", line.strip())
            headers, length = {}, 0
            while (header := self.rfile.readline(65536)) not in (b"\r\n", b""):
                name, _, value = header.partition(b":")
                headers[name.lower()] = value.strip()
            chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
            body = read_body(self.rfile, None if chunked else int(headers.get(b"content-length", b"0")))
            if headers.get(b"upgrade"):
                self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
                while data := self.connection.recv(4096):
                    self.wfile.write(b"echo " + data)
                return
            answer = b"%s %s %s" % (line.strip(), headers.get(b"host", b""), body)
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))


class Tls(socketserver.StreamRequestHandler):
    """Greets over TLS."""

    def handle(self):
        try:
            with CONTEXT.wrap_socket(self.connection, server_side=True) as connection:
                connection.sendall(b"secret greeting")
        except OSError:
            pass


class Web(http.server.BaseHTTPRequestHandler):
    """Serves files. Answers `/size/N` with N bytes, `/endless` with bytes without end, `/redirect?URL` with a redirect to
    this URL, and other requests with the request itself and with the values of its headers and its query backwards: the gateway does not recognise secrets in these."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self):
        log("requests", self.requestline.encode())
        chunked = self.headers.get("Transfer-Encoding") == "chunked"
        body = read_body(self.rfile, None if chunked else int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        path = path.strip("/")
        if path == "endless":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % 2**40)
            while True:
                self.wfile.write(bytes(65536))
        root = DIRECTORY / "served" / self.headers.get("Host", "").partition(":")[0]
        file = root / path
        if file.is_dir():
            file = file / "index.html"
        kind, status = "application/octet-stream", 200
        if path == "redirect":
            status, data = 302, b""
        elif file.is_file():
            kind, data = "text/html" if file.suffix == ".html" else kind, file.read_bytes()
        elif root.is_dir():
            status, data = 404, b""
        elif path.startswith("size/"):
            data = b"x" * int(path[5:])
        else:
            headers = "".join(f"{name}: {value}\n" for name, value in self.headers.items())
            backwards = " ".join(value[::-1] for value in [*self.headers.values(), self.path])
            data = f"{self.requestline}\n{headers}\n".encode() + body + f"\nbackwards: {backwards}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if status == 302:
            self.send_header("Location", query)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *rest):
        """Prints nothing."""


class Secure(Web):
    """The same over TLS."""

    def setup(self):
        self.request = CONTEXT.wrap_socket(self.request, server_side=True)
        super().setup()


def frame(kind, flags, stream, body=b""):
    """Returns a frame of HTTP/2."""
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


class Http2(socketserver.StreamRequestHandler):
    """Answers one request of HTTP/2 over TLS, and nothing else."""

    def handle(self):
        try:
            with HTTP2_CONTEXT.wrap_socket(self.connection, server_side=True) as connection:
                file = connection.makefile("rwb")
                if connection.selected_alpn_protocol() != "h2" or len(file.read(24)) < 24:
                    return
                file.write(frame(4, 0, 0))
                while head := file.read(9):
                    file.read(int.from_bytes(head[:3], "big"))
                    if head[3] == 1:
                        break
                log("requests", b"h2")
                # The head is `:status: 200` in the static table of HPACK.
                file.write(frame(4, 1, 0) + frame(1, 4, 1, b"\x88") + frame(0, 1, 1, b"over h2"))
                file.flush()
                connection.unwrap()
        except OSError:
            pass


class Dns(socketserver.BaseRequestHandler):
    """Answers look-ups of IPv4 addresses. Logs each query."""

    def handle(self):
        query, server = self.request
        labels, at = [], 12
        while length := query[at]:
            labels.append(query[at + 1 : at + 1 + length])
            at += 1 + length
        name, kind = b".".join(labels).lower(), struct.unpack(">H", query[at + 1 : at + 3])[0]
        log("queries", b"%s %d" % (name, kind))
        addresses = next(NAMES[name]) if name in NAMES and kind == 1 else []
        code = 0 if name in NAMES else 3
        head = query[:2] + struct.pack(">5H", 0x8180 | code, 1, len(addresses), 0, 0)
        answers = (struct.pack(">3HIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(address) for address in addresses)
        server.sendto(head + query[12 : at + 5] + b"".join(answers), self.client_address)


class Banner(socketserver.StreamRequestHandler):
    """Speaks first, then echoes."""

    def handle(self):
        self.wfile.write(b"banner\n")
        self.wfile.write(b"echo " + self.rfile.readline(4096))


class Echo(socketserver.StreamRequestHandler):
    """Counts until the client has ended its half. Logs each end."""

    def handle(self):
        length = 0
        try:
            while more := self.connection.recv(65536):
                length += len(more)
            self.wfile.write(b"%d bytes" % length)
        finally:
            log("ends", b"%d bytes" % length)


class Endless(socketserver.StreamRequestHandler):
    """Sends until the client is gone."""

    def handle(self):
        while True:
            self.wfile.write(bytes(65536))


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def verify_request(self, request, client_address):
        """Logs each connection."""
        log("connections", b"%s:%d" % (self.server_address[0].encode(), self.server_address[1]))
        return True

    def handle_error(self, request, client_address):
        """Ignores invalid requests of guests."""


for address, port, handler in (
    (ADDRESS, 80, Http),
    (ADDRESS, 8080, Http),
    (ADDRESS, 443, Tls),
    (ADDRESS, 22, Banner),
    (ADDRESS, 7, Echo),
    (ADDRESS, 19, Endless),
    (WEB, 80, Web),
    (WEB, 443, Secure),
    (WEB, 8443, Http2),
    (PRIVATE, 7, Echo),
    (PRIVATE, 80, Http),
):
    server = Server((address, port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
resolver = socketserver.UDPServer((WEB, 53), Dns)
threading.Thread(target=resolver.serve_forever, daemon=True).start()
silent = socket.create_server((ADDRESS, 9))
print("ready", flush=True)
threading.Event().wait()
