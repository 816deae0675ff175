"""Servers outside of the sandboxes: HTTP, WebSocket, TLS, a banner, an echo, and one that never answers.

Usage: server.py ADDRESS CERTIFICATE KEY. Prints "ready" once all ports accept connections.
"""

import socket
import socketserver
import ssl
import sys
import threading

ADDRESS, CERTIFICATE, KEY = sys.argv[1:]


class Http(socketserver.StreamRequestHandler):
    """Answers each request with its line, Host and body. Echoes what follows an upgrade."""

    def handle(self):
        while line := self.rfile.readline(65536):
            headers, length = {}, 0
            while (header := self.rfile.readline(65536)) not in (b"\r\n", b""):
                name, _, value = header.partition(b":")
                headers[name.lower()] = value.strip()
            if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
                body = b""
                while size := int(self.rfile.readline(64), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline(16)
                self.rfile.readline(16)
            else:
                body = self.rfile.read(int(headers.get(b"content-length", b"0")))
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
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE, KEY)
        try:
            with context.wrap_socket(self.connection, server_side=True) as connection:
                connection.sendall(b"secret greeting")
        except OSError:
            pass


class Banner(socketserver.StreamRequestHandler):
    """Speaks first, then echoes."""

    def handle(self):
        self.wfile.write(b"banner\n")
        self.wfile.write(b"echo " + self.rfile.readline(4096))


class Echo(socketserver.StreamRequestHandler):
    """Echoes until the client has ended its half."""

    def handle(self):
        data = b""
        while more := self.connection.recv(65536):
            data += more
        self.wfile.write(b"%d bytes" % len(data))


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """Ignores invalid requests of guests."""


for port, handler in ((80, Http), (8080, Http), (443, Tls), (22, Banner), (7, Echo)):
    server = Server((ADDRESS, port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
silent = socket.create_server((ADDRESS, 9))
print("ready", flush=True)
threading.Event().wait()
