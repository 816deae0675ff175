//! The proxy of a sandbox: SOCKS5, CONNECT, and requests with the address of their server.

use super::{Fixture, USERS};

/// Functions that speak the protocols of proxies byte by byte.
const CLIENTS: &str = r"
PROXY = ('198.18.0.1', 3128)
def socks(host, port, data=None, command=1):
    'Returns the reply and, after data, what the server sends.'
    with socket.create_connection(PROXY, 15) as c:
        c.sendall(b'\x05\x01\x00'); assert c.recv(2) == b'\x05\x00'
        try: to = b'\x01' + socket.inet_aton(host)
        except OSError:
            if ':' in host: to = b'\x04' + socket.inet_pton(socket.AF_INET6, host)
            else: to = b'\x03%c' % len(host) + host.encode()
        c.sendall(b'\x05%c\x00' % command + to + port.to_bytes(2, 'big'))
        reply = c.recv(10)
        return (reply[1], *rest(c, data)) if reply else 'closed'
def connect(target, data=None, more=''):
    'Returns the status and, after data, what the server sends.'
    with socket.create_connection(PROXY, 15) as c:
        c.sendall(f'CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{more}\r\n'.encode())
        head = b''
        while not head.endswith(b'\r\n\r\n') and (byte := c.recv(1)): head += byte
        return (int(head.split()[1]), *rest(c, data)) if head else 'closed'
def rest(c, data):
    if data is None: return ()
    c.sendall(data)
    answer = b''
    try: c.shutdown(socket.SHUT_WR)
    except OSError: pass # It was reset: what came before can be read.
    try:
        while more := c.recv(65536): answer += more
    except ConnectionResetError: pass
    return (answer,)
def get(target, host='web.example', more=''):
    request = f'GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n{more}'
    with socket.create_connection(PROXY, 15) as c: return rest(c, request.encode())[0]
def greet(target, name):
    context = ssl.create_default_context(cafile='/workspace/certificate.pem')
    with socket.create_connection(PROXY, 15) as c:
        c.sendall(f'CONNECT {target} HTTP/1.1\r\n\r\n'.encode()); assert b' 200 ' in c.recv(4096)
        context.check_hostname = False
        with context.wrap_socket(c, server_hostname=name) as secure: return secure.recv(100)
";

/// Promise (Network): Through its proxy, a sandbox reaches what the policy allows, and nothing else.
#[test]
fn proxy_reaches_only_allowed_hosts() {
    let Some(fixture) = Fixture::new("proxy_reaches_only_allowed_hosts") else { return };
    let policy = "web.example:80,web.example:443,web.example:7,11.22.33.44:7,private.example:80";
    let request = |host: &str| format!("b'GET / HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n'");
    for user in USERS {
        for (code, printed, denied) in [
            // SOCKS5: names and addresses.
            ("print(socks('web.example', 7, b'abc'))", "(0, b'3 bytes')", ""),
            ("print(socks('WEB.example.', 7, b'abc'))", "(0, b'3 bytes')", ""),
            ("print(socks('11.22.33.44', 7, b'abc'))", "(0, b'3 bytes')", ""),
            ("print(socks(socket.gethostbyname('web.example'), 7, b'abc'))", "(0, b'3 bytes')", ""),
            ("print(socks('other.example', 80))", "(2,)", "other.example:80: the policy does not list it; --net"),
            ("print(socks('web.example', 22))", "(2,)", "web.example:22: the policy does not allow this port"),
            ("print(socks('11.22.33.44', 22))", "(2,)", "11.22.33.44:22: the policy does not allow this port"),
            ("print(socks('127.0.0.1', 80))", "(2,)", "the connection to 127.0.0.1:80"),
            ("print(socks('169.254.169.254', 80))", "(2,)", "the connection to 169.254.169.254:80"),
            ("print(socks('::ffff:11.22.33.44', 7))", "(2,)", "the connection to ::ffff:11.22.33.44:7"),
            ("print(socks('web example', 7))", "(2,)", "it is not a valid host name"),
            ("print(socks('private.example', 80, b''))", "(0, b'')", "the address is not public"),
            ("print(socks('198.18.0.1', 3128))", "(2,)", "the connection to 198.18.0.1:3128"),
            ("print(socks('web.example', 7, command=2), socks('web.example', 7, command=3))", "(7,) (7,)", ""),
            // CONNECT.
            ("print(connect('web.example:7', b'abc'))", "(200, b'3 bytes')", ""),
            ("print(connect('11.22.33.44:7', b'abc', 'Proxy-Authorization: x\\r\\n'))", "(200, b'3 bytes')", ""),
            ("print(connect('other.example:443'))", "(403,)", "--net other.example:443 would allow it"),
            ("print(connect('web.example:22'))", "(403,)", "web.example:22: the policy does not allow this port"),
            ("print(connect('[::1]:80'))", "(403,)", "the connection to ::1:80"),
            ("print(connect('u@web.example:80'), connect('web.example'))", "(400,) (400,)", ""),
            ("attempt(greet, 'web.example:443', 'web.example')", "b'secret greeting'", ""),
            ("attempt(greet, 'web.example:443', 'other.example')", "failed: ", "TLS asks for other.example"),
            ("attempt(greet, 'web.example:443', None)", "failed: ", "TLS asks for no name"),
            ("print(connect('web.example:443', b'GET / HTTP/1.0\\r\\n\\r\\n'))", "(200, b'')", "it is not TLS"),
            // Requests with the address of their server.
            ("print(get('http://web.example/x')[:15])", "b'HTTP/1.1 200 OK'", ""),
            ("print(get('http://web.example/x')[-28:])", "b'GET /x HTTP/1.1 web.example '", ""),
            ("print(get('http://other.example/')[:12])", "b'HTTP/1.1 403'", "--net other.example:80 would allow it"),
            ("print(get('http://web.example/', 'other.example')[:12])", "b'HTTP/1.1 403'", "is for other.example"),
            ("print(get('http://web.example:22/')[:12])", "b'HTTP/1.1 403'", "the policy does not allow this port"),
            ("print(get('https://web.example/')[:12], get('/')[:12])", "b'HTTP/1.1 400' b'HTTP/1.1 400'", ""),
        ] {
            fixture.check((user, policy), &format!("{CLIENTS}\n{code}"), printed, denied);
        }
        // A tunnel to port 80 carries requests for its name only. A connection without a tunnel carries one request.
        for (code, printed) in [
            (format!("print(connect('web.example:80', {})[1][:12])", request("web.example")), "b'HTTP/1.1 200'"),
            (format!("print(connect('web.example:80', {})[1][:12])", request("other.example")), "b'HTTP/1.1 403'"),
            (format!("print(socks('web.example', 80, {})[1][:12])", request("other.example")), "b'HTTP/1.1 403'"),
            (
                "first = b'GET http://web.example/ HTTP/1.1\\r\\nHost: web.example\\r\\n\\r\\n'\n\
                 second = b'GET http://other.example/ HTTP/1.1\\r\\nHost: other.example\\r\\n\\r\\n'\n\
                 with socket.create_connection(PROXY, 15) as c: print(rest(c, first + second)[0].count(b'200 OK'))"
                    .to_owned(),
                "1",
            ),
        ] {
            let denied = if printed.ends_with("403'") { "the request is for other.example" } else { "" };
            fixture.check((user, policy), &format!("{CLIENTS}\n{code}"), printed, denied);
        }
    }
}

/// Promise (Network): Programs that know proxies reach allowed hosts through the sandbox's.
#[test]
fn usual_clients_use_the_proxy() {
    let test = "usual_clients_use_the_proxy";
    let Some(fixture) = Fixture::new(test) else { return };
    let code = r"
import os, shutil, subprocess, urllib.request
proxies = {'http': 'http://198.18.0.1:3128', 'https': 'http://198.18.0.1:3128'}
opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
for url in ('http://web.example/', 'https://api.example/v1', 'https://api.example/v2', 'http://other.example/'):
    try: print(opener.open(url, timeout=15).status)
    except urllib.error.HTTPError as error: print('HTTP', error.code)
    except OSError as error: print(error)
if not shutil.which('curl'): print('no curl'); sys.exit()
for proxy in ('socks5h', 'http'):
    for url in ('http://web.example/', 'https://api.example/v1', 'https://api.example/v2', 'http://other.example/'):
        curl = ['curl', '-sS', '-o', '/dev/null', '-w', '%{http_code} ', '--proxy', f'{proxy}://198.18.0.1:3128', url]
        run = subprocess.run(curl, capture_output=True, text=True)
        print(run.returncode, run.stdout)
# One connection to the proxy for two hosts.
curl = ['curl', '-sS', '-o', '/dev/null', '-o', '/dev/null', '-w', '%{http_code} ', '--proxy', 'http://198.18.0.1:3128']
print(subprocess.run([*curl, 'http://web.example/', 'http://api.example/'], capture_output=True, text=True).stdout)";
    let policy = fixture.policy(
        "[[allow]]\nhost = \"web.example:80\"\n[[allow]]\nhost = \"api.example:80\"\n[[allow]]\nhost = \
         \"api.example:443\"\nmethods = [\"GET\"]\npaths = \
         [\"/v1\"]\n",
    );
    let (status, stdout, stderr) = fixture.run("0", &["--net-policy", &policy], code);
    let urllib = "200\n200\nHTTP 403\nHTTP 403\n";
    let curl = "0 200 \n0 200 \n0 403 \n97 000 \n0 200 \n0 200 \n0 403 \n0 403 \n200 200 \n";
    match stdout.strip_suffix("no curl\n") {
        Some(stdout) => {
            println!("SKIP {test}: no curl in the sandbox");
            assert_eq!((status, stdout), (0, urllib), "{stderr}");
        }
        None => assert_eq!((status, stdout), (0, [urllib, curl].concat()), "{stderr}"),
    }
}
