//! Protocols that begin as HTTP or resemble it, through published ports.

use std::io::{Read, Write};
use std::process::Command;

use super::published::{Serving, client, exchange};
use super::{outcome, run};

/// A server of WebSockets and of HTTP/2 without TLS. It sends a ping to each WebSocket, returns its other frames without
/// their mask, and answers each request of HTTP/2.
const SERVER: &str = r#"
import base64, hashlib, itertools, socket, threading
def websocket(connection, file):
    key = b""
    while line := file.readline().strip():
        name, _, value = line.partition(b": ")
        key = value if name.lower() == b"sec-websocket-key" else key
    digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                       b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n\x89\x04ping")
    first = 0
    while first != 0x88:
        first, second = file.read(2)
        size = file.read(2) if second & 127 == 126 else bytes([second & 127])
        mask, data = file.read(4), file.read(int.from_bytes(size, "big"))
        data = bytes(a ^ b for a, b in zip(data, itertools.cycle(mask)))
        if first == 0x8a: assert data == b"ping"
        else: connection.sendall(bytes([first, second & 127]) + size * (len(size) == 2) + data)
def frame(kind, flags, stream, data=b""):
    return len(data).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + data
def http2(connection, file):
    assert file.read(8) == b"\r\nSM\r\n\r\n"
    connection.sendall(frame(4, 0, 0))
    while head := file.read(9):
        data = file.read(int.from_bytes(head[:3], "big"))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        if kind in (4, 6) and not flags & 1: connection.sendall(frame(kind, 1, 0, data * (kind == 6)))
        if kind == 1: connection.sendall(frame(1, 4, stream, b"\x88") + frame(0, 1, stream, b"an answer over HTTP/2"))
def serve(connection):
    with connection, connection.makefile("rb") as file:
        (http2 if file.readline() == b"PRI * HTTP/2.0\r\n" else websocket)(connection, file)
listener = socket.create_server(("127.0.0.1", 8000))
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"#;

fn serving() -> Serving {
    Serving::start(&mut run(["--publish", "0:8000", "--timeout", "120s", "--", "python3", "-c", SERVER]), 1)
}

/// Promise (Network): WebSockets pass through a published port unchanged.
#[test]
fn websockets_pass_through_a_published_port() {
    let serving = serving();
    let mut client = client(&serving.addresses[0]).unwrap();
    let mut expect = |sent: &[u8], expected: &[u8]| {
        client.write_all(sent).unwrap();
        let mut received = vec![0; expected.len()];
        client.read_exact(&mut received).unwrap();
        assert_eq!(received, expected);
    };
    // The key and its answer are those of RFC 6455.
    let request = b"GET /chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                   Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n\x89\x04ping";
    expect(request, answer);
    let mask = [0x37, 0xfa, 0x21, 0x3d];
    let masked = |data: &[u8]| data.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect::<Vec<_>>();
    expect(&[&[0x8a, 0x84], &mask[..], &masked(b"ping")].concat(), b"");
    expect(&[&[0x81, 0x85], &mask[..], &masked(b"Hello")].concat(), b"\x81\x05Hello");
    let bytes: Vec<u8> = (0..=255).collect();
    let length = [0x82, 0xfe, 1, 0];
    expect(&[&length, &mask[..], &masked(&bytes)].concat(), &[&[0x82, 0x7e, 1, 0], &bytes[..]].concat());
    expect(&[&[0x88, 0x82], &mask[..], &masked(&[3, 232])].concat(), b"\x88\x02\x03\xe8");
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "the server ends the connection");
}

/// Promise (Network): HTTP/2 without TLS passes through a published port unchanged.
#[test]
fn http2_passes_through_a_published_port() {
    let test = "http2_passes_through_a_published_port";
    let serving = serving();
    let address = &serving.addresses[0];
    let sent = [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"\0\0\0\x04\0\0\0\0\0",
        b"\0\0\x08\x06\0\0\0\0\0\0\xff\r\n\r\n\x80\x01",
        // GET / of localhost: indexes of the static table, and a literal.
        b"\0\0\x0e\x01\x05\0\0\0\x01\x82\x86\x84\x41\x09localhost",
    ];
    let expected = [
        &b"\0\0\0\x04\0\0\0\0\0"[..],
        b"\0\0\0\x04\x01\0\0\0\0",
        b"\0\0\x08\x06\x01\0\0\0\0\0\xff\r\n\r\n\x80\x01",
        b"\0\0\x01\x01\x04\0\0\0\x01\x88",
        b"\0\0\x15\0\x01\0\0\0\x01an answer over HTTP/2",
    ];
    assert_eq!(exchange(address, &sent.concat()), expected.concat());
    let features = Command::new("curl").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    if !String::from_utf8_lossy(&features).contains("HTTP2") {
        return println!("SKIP {test}: this host has no curl with HTTP/2");
    }
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "30", "--http2-prior-knowledge"]);
    curl.args(["--write-out", " %{http_version} %{http_code}"]).arg(format!("http://{address}/"));
    assert_eq!(outcome(&mut curl), (0, "an answer over HTTP/2 2 200".to_owned(), String::new()));
}
