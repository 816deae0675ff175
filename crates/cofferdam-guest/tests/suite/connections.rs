//! Tests of connections of guests, connections to guests, and queries to the resolver.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{ErrorKind, ExecRequest};
use cofferdam_guest::{Guest, Settings, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::enclosure::{Enclosure, LONG, connect};
use crate::execs::{shell, start, wait_for};

/// Functions of the guests' programs.
const PRELUDE: &str = "
import socket, sys, threading
def talk(address, port, data=b''):
    with socket.create_connection((address, port), 30) as connection:
        def send():
            # The other side may end first.
            try: connection.sendall(data), connection.shutdown(socket.SHUT_WR)
            except OSError: pass
        sender, answer = threading.Thread(target=send), b''
        sender.start()
        while more := connection.recv(65536): answer += more
        sender.join()
        return answer
";

/// Starts a guest with a policy for these ports.
async fn guest_with(ports: &[u16]) -> (Enclosure, Guest) {
    let settings = Settings { ports: Some(ports.to_vec()), ..Settings::default() };
    let (enclosure, guest, _) = connect(settings).await.unwrap();
    (enclosure, guest)
}

async fn python(guest: &Guest, code: &str) -> String {
    let code = format!("{PRELUDE}\n{code}");
    let request = ExecRequest::argv(["python3".to_owned(), "-c".to_owned(), code]).build().unwrap();
    let handle = start(guest, request).await;
    let done = tokio::time::timeout(LONG, cofferdam_contract::collect(handle)).await.expect("it ends").unwrap();
    String::from_utf8_lossy(&[&done.stdout[..], &done.stderr].concat()).into_owned()
}

async fn echo(stream: Stream) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
    let _ = writer.shutdown().await;
    // The guest closes its side last.
    let _ = reader.read(&mut [0]).await;
}

/// Serves every connection of a guest by `echo`. Returns the destinations of connections through a channel.
fn serve(guest: &Guest) -> tokio::sync::mpsc::UnboundedReceiver<SocketAddrV4> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..64 {
        let (guest, sender) = (guest.clone(), sender.clone());
        tokio::spawn(async move {
            while let Ok((stream, to)) = guest.accept().await {
                let _ = sender.send(to);
                echo(stream).await;
            }
        });
    }
    receiver
}

/// Promise (Network): Connections of a container or VM reach the gateway with their destination, and lose no byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_guests_arrive_with_their_destination() {
    let (enclosure, guest) = guest_with(&[7, 8080]).await;
    let mut destinations = serve(&guest);
    for (to, port, length) in
        [("127.64.1.0", 7, 3_000_000), ("127.64.1.9", 8080, 0), ("127.0.0.1", 7, 5), ("11.22.33.44", 7, 9)]
    {
        let code =
            format!("data = bytes(i * 7 % 251 for i in range({length}))\nprint(talk('{to}', {port}, data) == data)");
        assert_eq!(python(&guest, &code).await, "True\n", "{to}:{port}");
        let expected = SocketAddrV4::new(to.parse().unwrap(), port);
        assert_eq!(destinations.recv().await, Some(expected));
    }
    // Ports without a listener.
    for to in [("127.64.1.0", 9), ("11.22.33.44", 9)] {
        let code = format!("try: talk{to:?}\nexcept OSError as error: print(type(error).__name__)");
        assert_eq!(python(&guest, &code).await, "ConnectionRefusedError\n", "{to:?}");
    }
    guest.close().await;
    enclosure.ended().await;
}

/// Promise (Network): Hundreds of connections of a sandbox, 64 at once, leave nothing behind in its agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_are_served_and_forgotten() {
    let (_enclosure, guest) = guest_with(&[7]).await;
    let _destinations = serve(&guest);
    let code = "
def some(number):
    for round in range(6):
        text = b'%d %d' % (number, round)
        assert talk('127.64.1.1', 7, text * 999) == text * 999
threads = [threading.Thread(target=some, args=(number,)) for number in range(64)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print('done')";
    assert_eq!(python(&guest, code).await, "done\n");
    assert!(guest.is_alive());
}

/// Promise (Network): A connection that is not read delays no command and no other connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_connection_delays_nothing() {
    let (_enclosure, guest) = guest_with(&[7, 8]).await;
    let floods = "connections = [socket.create_connection(('127.64.1.1', 8)) for _ in range(8)]
for connection in connections: connection.setblocking(False)
total = 0
for _ in range(2000):
    for connection in connections:
        try: total += connection.send(b'x' * 65536)
        except BlockingIOError: pass
print('sent', total, flush=True)
sys.stdin.read()";
    let request = ExecRequest::argv(["python3".to_owned(), "-c".to_owned(), format!("{PRELUDE}\n{floods}")]);
    let flooding = start(&guest, request.stdin(cofferdam_contract::Stdin::Stream).build().unwrap()).await;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(tokio::time::timeout(LONG, guest.accept()).await.unwrap().unwrap());
    }
    let _destinations = serve(&guest);
    assert_eq!(python(&guest, "print(len(talk('127.64.1.1', 7, b'y' * 1000000)))").await, "1000000\n");
    assert_eq!(shell(&guest, "echo on time").await.1, "on time\n");
    wait_for(&flooding, "sent ").await;
    // The other direction: the guest does not read.
    let (mut stream, _) = held.remove(0);
    let written = tokio::time::timeout(Duration::from_secs(2), stream.write_all(&vec![7; 64 << 20])).await;
    assert!(written.is_err(), "the guest's buffers have no bounds");
    assert_eq!(shell(&guest, "echo on time").await.1, "on time\n");
    drop((stream, held));
    flooding.cancel().await.unwrap();
    assert_eq!(python(&guest, "print(len(talk('127.64.1.1', 8, b'y' * 10)))").await, "10\n");
}

/// Promise (Network): The host connects to a server in a container or VM, and each direction ends on its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_connects_to_servers_of_guests() {
    let (_enclosure, guest, _) = connect(Settings::default()).await.unwrap();
    let error = guest.connect_to(8000).await.err().expect("nothing listens");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let server = "
server = socket.create_server(('127.0.0.1', 8000), backlog=16)
print('listening', flush=True)
def serve(connection):
    data = b''
    while more := connection.recv(65536): data += more
    connection.sendall(data[::-1])
    connection.close()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],)).start()";
    let request = ExecRequest::argv(["python3".to_owned(), "-c".to_owned(), format!("{PRELUDE}\n{server}")]);
    let handle = start(&guest, request.build().unwrap()).await;
    wait_for(&handle, "listening").await;
    let guest = Arc::new(guest);
    let mut talks = JoinSet::new();
    for number in 0..20u8 {
        let guest = Arc::clone(&guest);
        talks.spawn(async move {
            let mut connection = guest.connect_to(8000).await.unwrap();
            let mut data = vec![number; 300_000];
            data[0] = 255;
            connection.write_all(&data).await.unwrap();
            connection.shutdown().await.unwrap();
            let mut answer = Vec::new();
            connection.read_to_end(&mut answer).await.unwrap();
            data.reverse();
            assert_eq!(answer, data);
        });
    }
    tokio::time::timeout(LONG, talks.join_all()).await.unwrap();
    // The connections are bounded, and end with the server.
    let mut open = Vec::new();
    let error = loop {
        match guest.connect_to(8000).await {
            Ok(connection) => open.push(connection),
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), open.len()), (ErrorKind::ResourceExhausted, 64), "{error}");
    handle.cancel().await.unwrap();
    for connection in &mut open {
        let ended = tokio::time::timeout(LONG, connection.read_to_end(&mut Vec::new())).await;
        // A connection whose bytes were not read is reset.
        let _ = ended.expect("the connection ends with its server");
    }
}

/// Promise (Network): Queries of a container or VM reach its resolver at two addresses, and get their own responses.
#[tokio::test]
async fn queries_reach_the_resolver() {
    let (_enclosure, guest) = guest_with(&[7]).await;
    let mut queries = guest.take_queries().unwrap();
    assert!(guest.take_queries().is_none());
    tokio::spawn(async move {
        while let Some(query) = queries.next().await {
            let response: Vec<u8> = query.data.iter().rev().copied().collect();
            let silent = query.data.starts_with(b"silent");
            queries.respond(query.from, if silent { b"" } else { &response }).await.unwrap();
        }
    });
    let code = "
def ask(address, data):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(0.05 if data[:6] in (b'silent', b'longer') else 30)
        asking.connect((address, 53))
        asking.send(data)
        try: return asking.recv(1000)
        except TimeoutError: return b'nothing'
for address in ('127.64.0.1', '127.0.0.1'):
    print(ask(address, b'abc'), ask(address, b'x' * 512) == b'x' * 512, ask(address, b'longer' + b'x' * 507))
print([ask('127.0.0.1', b'silent') for _ in range(40)] == [b'nothing'] * 40, ask('127.0.0.1', b'xy'))";
    let line = "b'cba' True b'nothing'\n";
    assert_eq!(python(&guest, code).await, format!("{line}{line}True b'yx'\n"));
}

/// Promise (Network): The quota of listening sockets of a container does not count those of its policy.
#[tokio::test]
async fn a_policy_and_quotas_go_together() {
    let ports: Vec<u16> = (7..23).collect();
    let settings = Settings { ports: Some(ports), quotas: true, ..Settings::default() };
    let (_enclosure, guest, _) = connect(settings).await.unwrap();
    let _destinations = serve(&guest);
    let code = "
held = []
try:
    for _ in range(100): held.append(socket.create_server(('127.0.0.1', 0), backlog=8))
except OSError: pass
print(len(held), talk('127.64.1.1', 22, b'abc'))";
    assert_eq!(python(&guest, code).await, "24 b'abc'\n");
}

/// Promise (Network): Open connections wait while a guest is quiesced, and continue after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_wait_while_the_guest_is_quiesced() {
    let (_enclosure, guest) = guest_with(&[7]).await;
    let code = "
connection = socket.create_connection(('127.64.1.1', 7))
for number in range(300):
    connection.sendall(b'%06d' % number)
    assert connection.recv(6, socket.MSG_WAITALL) == b'%06d' % number
print('done')";
    let talking = python(&guest, code);
    let quiescing = async {
        let (stream, to) = guest.accept().await.unwrap();
        assert_eq!(to, SocketAddrV4::new(Ipv4Addr::new(127, 64, 1, 1), 7));
        let echoing = tokio::spawn(echo(stream));
        for _ in 0..5 {
            tokio::time::timeout(LONG, guest.quiesce()).await.unwrap().unwrap();
            let error = guest.connect_to(9).await.err().expect("it is quiesced");
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
            tokio::time::timeout(LONG, guest.release()).await.unwrap().unwrap();
        }
        echoing.await.unwrap();
    };
    let (text, ()) = tokio::join!(talking, quiescing);
    assert_eq!(text, "done\n");
}

/// Promise (Network): The names of a policy lead to addresses of the loopback network, others do not exist.
#[cfg(feature = "net")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_answers_for_its_names_only() {
    use cofferdam_contract::NetworkPolicy;
    use cofferdam_guest::network::{self, Network};

    let hosts = vec!["allowed.invalid:80".to_owned()];
    let policy = NetworkPolicy::Allow { hosts };
    let plan = network::plan(&policy, "test").unwrap();
    let opening = network::Opening::of(&policy, plan).await.unwrap().unwrap();
    let (_enclosure, guest) = guest_with(&[80]).await;
    let network = Network::start(&guest, opening).await.unwrap();
    // The query is sent by UDP, and by TCP.
    let code = r#"
def query(name):
    labels = b''.join(bytes([len(label)]) + label.encode() for label in name.split('.'))
    return b'\0\7\1\0\0\1\0\0\0\0\0\0' + labels + b'\0\0\1\0\1'
for name in ('allowed.invalid', 'secret.evil.invalid'):
    message = query(name)
    asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asking.settimeout(30)
    asking.connect(('127.64.0.1', 53))
    asking.send(message)
    answer = asking.recv(1000)
    framed = talk('127.64.0.1', 53, len(message).to_bytes(2, 'big') + message)
    print(answer[3] & 15, framed[5] & 15, socket.inet_ntoa(answer[-4:]) if answer[7] else 'none')
# The name leads nowhere, and no rule names the other addresses.
print([talk(address, 80) for address in ('127.64.1.0', '127.64.9.9', '127.0.0.1')])"#;
    assert_eq!(python(&guest, code).await, "0 0 127.64.1.0\n3 3 none\n[b'', b'', b'']\n");
    let denials = network.denials().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for text in ["the look-up of secret.evil.invalid", "127.64.9.9:80", "127.0.0.1:80"] {
        assert!(denials.contains(text), "{text}: {denials}");
    }
    // A guest that floods its own kernel adds a bounded number of denials and events.
    let mut events = network.events();
    let (before, begun) = (network.usage().refused, std::time::Instant::now());
    let code = "
for at in range(30_000):
    with socket.socket() as it: it.connect_ex(('127.64.1.0' if at < 3 else '11.22.33.44', 1000 + at))";
    assert_eq!(python(&guest, code).await, "");
    let (denials, refused) = (network.denials(), network.usage().refused - before);
    let (first, max) =
        (denials.iter().map(ToString::to_string), 129 + 200 * begun.elapsed().as_secs_f64().ceil() as u64);
    let expected = "the connection to allowed.invalid:1000: the policy does not allow this port; --net \
                    allowed.invalid:1000 would allow it";
    assert!(first.into_iter().any(|denial| denial.contains(expected)), "{denials:?}");
    assert!((100..=max).contains(&refused) && denials.len() <= 65, "{refused} of at most {max}, {}", denials.len());
    let mut found = 0;
    while let Ok(event) = events.try_recv() {
        found += u64::from(event.port >= 1000);
    }
    assert!((100..=max).contains(&found), "{found} events");
    tokio::time::timeout(LONG, network.close()).await.unwrap();
    assert!(guest.is_alive());
    assert_eq!(shell(&guest, "echo alive").await.1, "alive\n");
}

/// Promise (Network): A VM's agent reports connections to ports that it does not serve, and none to the sandbox itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_other_ports_are_reported_before_the_exec_ends() {
    let (enclosure, guest) = guest_with(&[7]).await;
    let (sender, mut requested) = tokio::sync::mpsc::unbounded_channel();
    let queries = guest.take_queries().unwrap();
    queries.on_request(move |to| drop(sender.send(to.to_string())));
    let code = "
for at in range(30):
    for to in ('127.0.0.1', 81), ('127.64.1.0', 81), ('11.22.33.44', 6667):
        try: socket.create_connection(to)
        except ConnectionRefusedError: continue
        print('connected to', to)";
    assert_eq!(python(&guest, code).await, "");
    let mut all = Vec::new();
    while let Ok(to) = requested.try_recv() {
        all.push(to);
    }
    assert_eq!(all, ["127.64.1.0:81", "11.22.33.44:6667"].repeat(30));
    // More than the outbox holds. What does not fit into the socket is lost, and the agent keeps serving.
    let code = "
for at in range(20_000):
    with socket.socket() as it: it.connect_ex(('127.64.1.0', 81))";
    assert_eq!(python(&guest, code).await, "");
    assert_eq!(requested.recv().await.as_deref(), Some("127.64.1.0:81"));
    assert_eq!(python(&guest, "print('served')").await, "served\n");
    guest.close().await;
    enclosure.ended().await;
}
