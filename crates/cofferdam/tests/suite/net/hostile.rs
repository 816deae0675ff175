//! Attempts of guests to reach, by way of allowed hosts, what the policy does not allow.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::{Fixture, PRELUDE, USERS};

/// Sends bytes to an allowed host, without TLS or over TLS that is intercepted.
const SEND: &str = r"
def send(port, text, name='api.example', server='api.example'):
    with socket.create_connection((server, port), 15) as c:
        if port == 443: c = ssl.create_default_context().wrap_socket(c, server_hostname=name)
        answer = b''
        try:
            c.sendall(text if isinstance(text, bytes) else text.encode())
            while more := c.recv(65536): answer += more
        except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError): pass
        return answer
def statuses(answer):
    import re
    return [int(status) for status in re.findall(rb'HTTP/1\.1 (\d{3}) ', answer)]
";

/// Promise (Network): A request cannot hide another one, in any form that servers read differently.
#[test]
fn requests_cannot_be_smuggled() {
    let Some(fixture) = Fixture::new("requests_cannot_be_smuggled") else { return };
    let policy = fixture.policy(
        "[[allow]]\nhost = \"api.example:80\"\npaths = [\"/ok\"]\n[[allow]]\nhost = \
                               \"api.example:443\"\npaths = [\"/ok\"]\n",
    );
    let code = r"
hidden = 'GET /SMUGGLED HTTP/1.1\r\nHost: api.example\r\n\r\n'
chunk = f'{len(hidden):x}\r\n{hidden}\r\n0\r\n\r\n'
get = 'GET /ok HTTP/1.1\r\nHost: api.example\r\n'
post = 'POST /ok HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n'
requests = {
    'two lengths': f'{post}Content-Length: 1\r\nContent-Length: {len(hidden)}\r\n\r\n{hidden}',
    'a list of lengths': f'{post}Content-Length: 0, {len(hidden)}\r\n\r\n{hidden}',
    'a signed length': f'{post}Content-Length: +0\r\n\r\n{hidden}',
    'a length and chunks': f'{post}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}',
    'chunks and a length': f'{post}Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n{chunk}',
    'another encoding': f'{post}Transfer-Encoding: xchunked\r\nContent-Length: 0\r\n\r\n{hidden}',
    'chunks twice': f'{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n{chunk}',
    'a blank in the name': f'{post}Transfer-Encoding : chunked\r\nContent-Length: 0\r\n\r\n{chunk}',
    'a tab in the value': f'{post}Transfer-Encoding:\tchunked\r\n\r\n{chunk}',
    'a folded header': f'{post}X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n{hidden}',
    'a folded encoding': f'{post}Transfer-Encoding:\r\n chunked\r\n\r\n{chunk}',
    'bare line feeds': f'{post}X: y\n\nGET /SMUGGLED HTTP/1.1\nHost: api.example\n\n',
    'a bare return': f'{post}X: y\r\rGET /SMUGGLED HTTP/1.1\r\n\r\n',
    'a zero byte': f'{post}X: y\0\r\nContent-Length: 0\r\n\r\n{hidden}',
    'an extension of a chunk': f'{post}Transfer-Encoding: chunked\r\n\r\n0;\n{hidden}\r\n\r\n',
    'a line feed in a chunk': f'{post}Transfer-Encoding: chunked\r\n\r\n1\nx\n0\n\n{hidden}',
    'a large chunk': f'{post}Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\nx\r\n0\r\n\r\n{hidden}',
    'a negative chunk': f'{post}Transfer-Encoding: chunked\r\n\r\n-1\r\n{hidden}',
    'a trailer': f'{post}Transfer-Encoding: chunked\r\n\r\n0\r\nHost: other.example\r\n\r\n{hidden}',
    'another version': f'POST /ok HTTP/1.0\r\nHost: api.example\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}',
    'a body of a GET': f'{get}Connection: close\r\nContent-Length: {len(hidden)}\r\n\r\n{hidden}',
    'a second request': post.replace('Connection: close\r\n', '') + f'Content-Length: 0\r\n\r\n{hidden}',
    'an upgrade': f'{get}Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n{hidden}',
    'a connection header': f'{post}Connection: Transfer-Encoding, Host\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}',
}
for port in (80, 443):
    for name, request in requests.items():
        # The connection would stay open after an answer without close.
        found = statuses(send(port, request))
        print(port, name, found)
        # One answer of the server, for /ok, or refusals alone.
        assert found.count(200) <= 1, name";
    for user in USERS {
        let (status, stdout, stderr) = fixture.run(user, &["--net-policy", &policy], &format!("{SEND}{code}"));
        assert_eq!(status, 0, "{stdout} {stderr}");
        let refused = ["two lengths", "a list of lengths", "a signed length", "a folded header", "a zero byte"];
        for line in stdout.lines().filter(|line| refused.iter().any(|name| line.contains(name))) {
            assert!(line.ends_with("[400]"), "{line}");
        }
        let requests = fixture.log("requests");
        assert!(requests.contains("POST /ok HTTP/1.1"), "{requests}");
        assert!(!requests.lines().any(|line| line.contains("SMUGGLED")), "{stdout} {requests}");
    }
}

/// Promise (Network): A path or host in another spelling is not another one for the server than for the policy.
#[test]
fn paths_and_hosts_have_one_meaning() {
    let Some(fixture) = Fixture::new("paths_and_hosts_have_one_meaning") else { return };
    let policy = fixture.policy(
        "[[allow]]\nhost = \"api.example:80\"\npaths = [\"/v1\"]\n[[allow]]\nhost = \
                               \"api.example:443\"\npaths = [\"/v1\"]\n[[allow]]\nhost = \"elsewhere.example:443\"\n",
    );
    let code = r"
for port in (80, 443):
    for path in ('/v1/../admin', '/v1/%2e%2e/admin', '/v1/%2E./admin', '/v1/..%2fadmin', '/v1/..%5cadmin',
                 '/v1/..\\admin', '//v1/x', '/v1//../admin', '/v1/./x', '/%76%31/../admin', '/v1;/../admin', '/v1/%',
                 '/v1/%zz', '/V1', '/v1x', '/v1/%00', '/v1/%252e%252e/admin', '/admin', '/admin?/v1', '*',
                 '/v1/.%2e/admin', '/%2e/v1',
                 'http://elsewhere.example/v1', 'https://api.example:1/v1', '/v1/\x7f', '/v1/%c0%ae%c0%ae/admin'):
        found = statuses(send(port, f'GET {path} HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n'))
        # An overlong encoding is no dot: the path stays below /v1, whose server decides.
        if found not in ([403], [400]): print(port, repr(path), found)
    for path in ('/v1', '/%761', '/v1/', '/v1/x?a=/../b', 'http://api.example/v1'):
        found = statuses(send(port, f'GET {path} HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n'))
        if found != [200]: print(port, repr(path), found)
    for host in ('elsewhere.example', 'api.example.', 'api.example:22', 'api.example@elsewhere.example',
                 'elsewhere.example:443', 'api.example, elsewhere.example', 'api.example\r\nHost: elsewhere.example',
                 '', 'xapi.example', '11.22.33.45'):
        found = statuses(send(port, f'GET /v1 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n'))
        if found not in ([403], [400]): print(port, repr(host), found)
# Names of TLS: another allowed one, another one, and none.
for name in ('elsewhere.example', 'web.example', 'xapi.example', None):
    def hello():
        context = ssl.create_default_context()
        context.check_hostname = False
        with socket.create_connection(('api.example', 443), 15) as c:
            return context.wrap_socket(c, server_hostname=name)
    try: hello(); print('accepted', name)
    except OSError: pass";
    let (status, stdout, stderr) = fixture.run("0", &["--net-policy", &policy], &format!("{SEND}{code}"));
    let expected: String =
        [80, 443].map(|port| format!("{port} '/v1/%c0%ae%c0%ae/admin' [200]\n{port} 'api.example.' [200]\n")).concat();
    assert_eq!((status, stdout.as_str()), (0, expected.as_str()), "{stderr}");
    let requests = fixture.log("requests");
    assert!(!requests.lines().any(|line| line.contains("admin") && !line.contains("%c0%ae")), "{requests}");
}

/// Promise (Network): A client that hides a name by Encrypted Client Hello reaches the server of its outer name only, and
/// that name must be allowed.
#[test]
fn encrypted_client_hello_reaches_the_outer_name_only() {
    let Some(fixture) = Fixture::new("encrypted_client_hello_reaches_the_outer_name_only") else { return };
    let code = r"
import struct
def hello(name):
    'Returns a ClientHello for an outer name, with an encrypted inner one.'
    context, ours = ssl.create_default_context(), ssl.MemoryBIO()
    context.check_hostname = False
    try: context.wrap_bio(ssl.MemoryBIO(), ours, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError: pass
    body = ours.read()[9:]
    at = 35 + body[34]
    at += 2 + int.from_bytes(body[at:at + 2], 'big')
    at += 1 + body[at]
    # Type outer, HKDF-SHA256 and AES-128-GCM, a configuration, a key, and the encrypted inner ClientHello.
    inner = struct.pack('>BHHBH32sH239s', 0, 1, 1, 7, 32, bytes(32), 239, bytes(239))
    extensions = body[at + 2:] + struct.pack('>HH', 0xfe0d, len(inner)) + inner
    body = body[:at] + struct.pack('>H', len(extensions)) + extensions
    message = b'\x01' + len(body).to_bytes(3, 'big') + body
    return b'\x16\x03\x01' + struct.pack('>H', len(message)) + message
def answer(server, name):
    with socket.create_connection((server, 443), 15) as c:
        c.sendall(hello(name))
        try: found = c.recv(6)
        except ConnectionResetError: found = b''
    return 'ServerHello' if found[:1] == b'\x16' and found[5:] == b'\x02' else found
for name in ('web.example', 'WEB.example', 'other.example', 'evil.test', None): print(name, answer('web.example', name))
for name in ('api.example', 'elsewhere.example'): print(name, answer('api.example', name))";
    let policy = fixture
        .policy("[[allow]]\nhost = \"web.example:443\"\n[[allow]]\nhost = \"api.example:443\"\nprotocol = \"https\"\n");
    let (status, stdout, stderr) = fixture.run("0", &["--net-policy", &policy], code);
    let expected = "web.example ServerHello\nWEB.example ServerHello\nother.example b''\nevil.test b''\nNone b''\n\
                    api.example ServerHello\nelsewhere.example b''\n";
    assert_eq!((status, stdout.as_str()), (0, expected), "{stderr}");
    for name in ["other.example", "evil.test", "no name", "elsewhere.example"] {
        assert!(stderr.contains(&format!("TLS asks for {name}")), "{name}: {stderr}");
    }
    let connections = fixture.log("connections");
    let allowed = ["11.22.33.44:443", "11.22.33.45:443"];
    assert!(connections.lines().all(|line| allowed.contains(&line)), "{connections}");
}

/// Promise (Network): Messages that never end, and many connections, delay no other connection of the sandbox.
#[test]
fn incomplete_messages_delay_no_other_connection() {
    let Some(fixture) = Fixture::new("incomplete_messages_delay_no_other_connection") else { return };
    let policy = fixture.policy(
        "[[allow]]\nhost = \"api.example:80\"\npaths = [\"/\"]\n[[allow]]\nhost = \
                               \"api.example:443\"\npaths = [\"/\"]\n",
    );
    let code = r"
def partial(port, text, server='api.example'):
    c = socket.create_connection((server, port), 15); c.sendall(text); held.append(c)
held = []
for n in range(10):
    partial(80, b'GET / HTTP/1.1\r\nHost: api.example\r\nX: ')
    partial(443, b'\x16\x03\x01\x02\x00\x01')
    partial(3128, b'CONNECT api.example:80 HT', '198.18.0.1')
    partial(3128, b'\x05\x02\x00', '198.18.0.1')
    partial(53, b'\x01\x00', '198.18.0.1')
print(status('http://api.example/'), status('https://api.example/'))
# The bound: further connections are closed, on each port.
for n in range(300):
    try: held.append(socket.create_connection(('198.18.0.1', 3128), 15))
    except OSError: break
try: print(status('http://api.example/'))
except OSError as error: print(type(error).__name__)
for c in held: c.close()
import time; time.sleep(0.2)
print(status('http://api.example/'))
for c in [socket.create_connection(('198.18.0.1', 3128), 15) for n in range(60)]: c.close()";
    let (status, stdout, stderr) = fixture.run("0", &["--net-policy", &policy], &format!("{SEND}{code}"));
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!((status, lines[0], lines[2]), (0, "200 200", "200"), "{stdout} {stderr}");
    assert!(lines[1] != "200" && stderr.contains("too many are open"), "{stdout} {stderr}");
}

/// Promise (Network): No socket of another kind leaves a sandbox, and no look-up carries data out.
#[test]
fn other_sockets_and_look_ups_lead_nowhere() {
    let Some(fixture) = Fixture::new("other_sockets_and_look_ups_lead_nowhere") else { return };
    let code = r"
import array, os, struct
def datagram(address, port, data=b'x', family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as c:
        c.settimeout(0.3); c.connect((address, port)); c.send(data)
        return c.recv(512)
for address, port in (('11.22.33.44', 7), ('8.8.8.8', 53), ('198.18.0.1', 443), ('198.18.1.0', 443), ('10.1.2.3', 53),
                      ('255.255.255.255', 67), ('224.0.0.251', 5353), ('127.0.0.53', 53)):
    try: print('datagram', address, datagram(address, port))
    except OSError: pass
for family, kind, protocol in ((socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_INET, socket.SOCK_RAW, 255),
                               (socket.AF_INET, socket.SOCK_RAW, 6),
                               (socket.AF_PACKET, socket.SOCK_RAW, 768), (socket.AF_INET6, socket.SOCK_RAW, 58)):
    try: socket.socket(family, kind, protocol); print('raw socket', family)
    except OSError: pass
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1) as ping:
        ping.settimeout(0.3); ping.connect(('11.22.33.44', 1)); ping.send(b'\x08\0\0\0\0\0\0\0')
        print('ping', ping.recv(64))
except OSError: pass
for address in ('::ffff:11.22.33.44', '::ffff:127.0.0.1', '2001:db8::1', '64:ff9b::b16:212c', '2002:b16:212c::1',
                'fe80::1%lo', '::'):
    try:
        if answer := talk(address, 80, b'GET / HTTP/1.1\r\nHost: web.example\r\n\r\n'): print('IPv6', address, answer)
    except OSError: pass
for cid in (0, 1, 2):
    try:
        with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as c:
            c.settimeout(0.3); c.connect((cid, 1024)); print('vsock', cid)
    except OSError: pass
try:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as c:
        c.settimeout(1); c.connect(('11.22.33.44', 80)); print('MPTCP')
except OSError: pass
# Look-ups: other types and names have no answer, in any transport and of any class.
def question(name, kind, kind_class=1):
    labels = b''.join(b'%c' % len(label) + label for label in name.encode().split(b'.'))
    return struct.pack('>6H', 7, 0x100, 1, 0, 0, 0) + labels + b'\0' + struct.pack('>2H', kind, kind_class)
for name in ('web.example', 'c2VjcmV0.web.example', 'c2VjcmV0.other.example', 'evil.test'):
    for kind in (1, 2, 5, 10, 15, 16, 28, 33, 65, 252, 255):
        answer = datagram('198.18.0.1', 53, question(name, kind))
        if struct.unpack('>H', answer[6:8])[0]: print('answer', name, kind)
print('text in chaos', struct.unpack('>H', datagram('198.18.0.1', 53, question('version.bind', 16, 3))[6:8])[0])
# A connection may be passed on within the sandbox. It stays the same connection.
ours, theirs = socket.socketpair()
if os.fork() == 0:
    connection = socket.create_connection(('web.example', 7))
    socket.send_fds(theirs, [b'x'], [connection.fileno()]); os._exit(0)
_, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
with socket.socket(fileno=descriptors[0]) as c:
    peer = c.getpeername()[0]; c.sendall(b'abc'); c.shutdown(socket.SHUT_WR); print(c.recv(10), peer)";
    for user in USERS {
        let (status, stdout, stderr) = fixture.run(user, &["--net", "web.example:80,web.example:7"], code);
        assert_eq!(
            (status, stdout.as_str()),
            (0, "answer web.example 1\ntext in chaos 0\nb'3 bytes' 198.18.1.0\n"),
            "{stderr}"
        );
        assert!(stderr.contains("refused the look-up of c2vjcmv0.web.example"), "{stderr}");
    }
    let connections = fixture.log("connections");
    assert!(connections.lines().all(|line| line == "11.22.33.44:7"), "{connections}");
}

/// Promise (Network): An abstract socket of the host is out of reach of a sandbox with a policy.
#[test]
fn abstract_sockets_of_the_host_are_out_of_reach() {
    let Some(fixture) = Fixture::new("abstract_sockets_of_the_host_are_out_of_reach") else { return };
    let connect = r"
def reach():
    with socket.socket(socket.AF_UNIX) as c: c.settimeout(5); c.connect('\0cofferdam-place')
attempt(reach)
print(len([line for line in open('/proc/net/unix') if '@cofferdam-place' in line]))";
    // The control is in the network in which runs start.
    let listen = "listener = socket.socket(socket.AF_UNIX); listener.bind('\\0cofferdam-place'); listener.listen()";
    let code = format!("{PRELUDE}\n{listen}\n{connect}\nsys.stdout.flush(); sys.stdin.read()");
    let mut host = Command::new("nsenter");
    host.args(["--mount", "--net", "--pid", "--target", &fixture.first.to_string(), "python3", "-c", &code]);
    let mut host = host.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut control = BufReader::new(host.stdout.take().expect("piped")).lines();
    let mut line = || control.next().and_then(Result::ok).unwrap_or_default();
    assert_eq!((line().as_str(), line() != "0"), ("None", true), "the control reaches it");
    for user in USERS {
        fixture.check((user, "web.example:80"), connect, "failed: ConnectionRefusedError\n0\n", "");
    }
    drop(host.stdin.take());
    host.wait().expect("it ends");
}
