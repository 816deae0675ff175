//! The network of components: connections to the hosts that the policy allows, and to no others. The test runs its own
//! servers.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::{
    Backend, Capability, Completed, ErrorKind, ExecHandle, Limits, NetworkPolicy, Protection, ProtectionState, Spec,
    Stdin,
};
use cofferdam_wasm::{Call, WasmBackend};

use crate::componentize::{component_with, texts};
use crate::support::{PROMPT, program, run, sandbox, script, text};

const PRELUDE: &str = include_str!("network.wat");

const ACCESS_DENIED: i32 = 101;
const NOT_SUPPORTED: i32 = 102;
const INVALID_ARGUMENT: i32 = 103;
const NEW_SOCKET_LIMIT: i32 = 110;
const CONNECTION_REFUSED: i32 = 114;
const TEMPORARY_FAILURE: i32 = 119;

fn allowing<T: ToString>(hosts: &[T]) -> Spec {
    let limits = Limits { wall_time: PROMPT, ..Limits::default() };
    Spec::builder()
        .limits(limits)
        .network(NetworkPolicy::Allow { hosts: hosts.iter().map(T::to_string).collect() })
        .build()
        .unwrap()
}

/// Returns a component with these declarations and this code as `run`.
fn networked(more: &str, code: &str) -> Vec<u8> {
    component_with(&format!("{PRELUDE}\n{more}"), code)
}

/// Starts a server on the loopback that handles this number of connections.
fn server<T: Send + 'static>(
    connections: usize,
    mut serve: impl FnMut(TcpStream) -> T + Send + 'static,
) -> (u16, JoinHandle<Vec<T>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let work = move || (0..connections).map(|_| serve(listener.accept().unwrap().0)).collect();
    (port, std::thread::spawn(work))
}

fn echo(mut stream: TcpStream) {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
}

/// Sends a text, closes that direction, and prints the answer.
fn round_trip(connect: &str, said: &str) -> String {
    format!(
        "(call $check {connect}) (call $say {said})
         (call $shutdown (global.get $socket) (i32.const 1) (i32.const 256)) (call $check (call $outcome (i32.const 1)))
         (i32.sub (call $print_all) (i32.const 1))"
    )
}

fn loopback(port: u16) -> String {
    format!("(call $connect4 (i32.const {port}) (i32.const 127) (i32.const 0) (i32.const 0) (i32.const 1))")
}

fn ended(done: &Completed) -> (i32, Option<i32>) {
    (done.exit.code, done.exit.signal)
}

/// Promise (WebAssembly): A component reaches the addresses that the network policy lists.
#[tokio::test]
async fn listed_addresses_are_reachable() {
    let (port, served) = server(2, echo);
    let (data, spans) = texts(&["across the wall", "localhost", "LocalHost."]);
    for (host, connect) in
        [("127.0.0.1", loopback(port)), ("localhost", format!("(call $connect_to {} (i32.const {port}))", spans[2]))]
    {
        let component = networked(&data, &round_trip(&connect, &spans[0]));
        let done = run(component, allowing(&[format!("{host}:{port}")])).await.unwrap();
        assert_eq!(
            (ended(&done), text(&done.stdout).as_str()),
            ((0, None), "across the wall"),
            "{}",
            text(&done.stderr)
        );
        assert_eq!(text(&done.stderr), "");
    }
    served.join().unwrap();
}

/// Promise (WebAssembly): A component reaches no address that the network policy does not list.
#[tokio::test]
async fn unlisted_addresses_are_refused() {
    // No connection may arrive here.
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let other = if port == u16::MAX { port - 1 } else { port + 1 };
    let (data, spans) = texts(&["localhost", "example.org", "127.0.0.1", "2130706433", "0x7f.1", "\\00"]);
    let connect4 = |port: u16, ip: [u8; 4]| {
        let [a, b, c, d] = ip;
        format!("(call $connect4 (i32.const {port}) (i32.const {a}) (i32.const {b}) (i32.const {c}) (i32.const {d}))")
    };
    let connect6 = |f: u16, g: u16, h: u16| {
        format!("(call $connect6 (i32.const {port}) (i32.const 0) (i32.const {f}) (i32.const {g}) (i32.const {h}))")
    };
    let by_name = |index: usize| format!("(call $connect_to {} (i32.const {port}))", spans[index]);
    let allowed = format!("127.0.0.1:{port}");
    for (host, connect, expected) in [
        (format!("127.0.0.1:{other}"), connect4(port, [127, 0, 0, 1]), ACCESS_DENIED),
        (format!("localhost:{port}"), connect4(port, [127, 0, 0, 1]), ACCESS_DENIED),
        ("localhost:1".to_owned(), by_name(0), ACCESS_DENIED),
        (allowed.clone(), connect4(port, [127, 0, 0, 2]), ACCESS_DENIED),
        (allowed.clone(), connect4(port, [0, 0, 0, 0]), INVALID_ARGUMENT),
        (allowed.clone(), connect4(port, [255, 255, 255, 255]), INVALID_ARGUMENT),
        (allowed.clone(), connect4(port, [224, 0, 0, 1]), INVALID_ARGUMENT),
        (allowed.clone(), connect4(0, [127, 0, 0, 1]), INVALID_ARGUMENT),
        (allowed.clone(), connect4(80, [169, 254, 169, 254]), ACCESS_DENIED),
        (allowed.clone(), connect6(0xffff, 0x7f00, 1), INVALID_ARGUMENT),
        (allowed.clone(), connect6(0, 0x7f00, 1), ACCESS_DENIED),
        (allowed.clone(), connect6(0, 0, 1), ACCESS_DENIED),
        (allowed.clone(), by_name(0), ACCESS_DENIED),
        (allowed.clone(), by_name(1), ACCESS_DENIED),
        ("localhost".to_owned(), by_name(2), ACCESS_DENIED),
        (allowed.clone(), by_name(3), INVALID_ARGUMENT),
        (allowed.clone(), by_name(4), INVALID_ARGUMENT),
        (allowed.clone(), by_name(5), INVALID_ARGUMENT),
    ] {
        let component = networked(&data, &format!("(call $exit {connect}) (i32.const 0)"));
        let done = run(component, allowing(&[&host])).await.unwrap();
        // On a host without IPv6, its sockets cannot be created.
        let expected =
            if done.exit.code == NOT_SUPPORTED && connect.contains("connect6") { NOT_SUPPORTED } else { expected };
        assert_eq!(ended(&done), (expected, None), "{host} {connect} {}", text(&done.stderr));
        let reported = text(&done.stderr).starts_with("wasm network: refused ");
        assert_eq!(reported, expected == ACCESS_DENIED || connect.contains("connect_to"), "{host} {connect}");
    }
    assert!(listener.accept().is_err(), "a connection was not refused");
}

/// Promise (WebAssembly): A listed name never leads to this host or its network.
#[tokio::test]
async fn names_do_not_resolve_to_private_addresses() {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let resolved: Vec<IpAddr> =
        (name.as_str(), 0).to_socket_addrs().map_or(Vec::new(), |found| found.map(|a| a.ip()).collect());
    let close = |ip: &IpAddr| ip.is_loopback() || matches!(ip, IpAddr::V4(ip) if ip.is_private());
    if resolved.is_empty() || name == "localhost" || !resolved.iter().all(close) {
        println!("left out: the name of this machine leads to no address of its own network");
        return;
    }
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (data, spans) = texts(&[&name]);
    let lookup = format!("(call $exit (call $connect_to {} (i32.const {port}))) (i32.const 0)", spans[0]);
    let straight = format!(
        "(drop (call $connect_to {} (i32.const {port}))) (call $exit {}) (i32.const 0)",
        spans[0],
        loopback(port)
    );
    for code in [lookup, straight] {
        let done = run(networked(&data, &code), allowing(&[&name])).await.unwrap();
        assert_eq!(ended(&done), (ACCESS_DENIED, None), "{}", text(&done.stderr));
        assert!(text(&done.stderr).contains("the address is not public"), "{}", text(&done.stderr));
    }
    assert!(listener.accept().is_err());
}

#[tokio::test]
async fn much_goes_both_ways() {
    const SIZE: usize = 8 << 20;
    let pattern: Vec<u8> = (0..SIZE).map(|at| (at / 7) as u8).collect();
    let sent = pattern.clone();
    let (port, served) = server(1, move |mut stream| {
        stream.write_all(&sent).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut received = Vec::new();
        // Slower than the guest, so that the guest has to wait.
        stream.peek(&mut [0]).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        stream.read_to_end(&mut received).unwrap();
        received
    });
    // Prints all input, then sends a memory full of ones without blocking in a write.
    let code = format!(
        "(call $check {}) (if (i32.ne (call $print_all) (i32.const 1)) (then (call $exit (i32.const 7))))
         (memory.fill (i32.const 0x10000) (i32.const 1) (i32.const 0x8000))
         (local.set $i (i32.const 256))
         (block $done (loop $more
           (call $check_write (global.get $out) (i32.const 256))
           (if (i32.load8_u (i32.const 256)) (then (call $exit (i32.const 8))))
           (if (i64.lt_u (i64.load (i32.const 264)) (i64.const 0x8000)) (then
             (i32.store (i32.const 512) (i32.const 1))
             (call $block (call $subscribe_output (global.get $out))) (br $more)))
           (call $write_some (global.get $out) (i32.const 0x10000) (i32.const 0x8000) (i32.const 256))
           (if (i32.load8_u (i32.const 256)) (then (call $exit (i32.const 9))))
           (br_if $more (local.tee $i (i32.sub (local.get $i) (i32.const 1))))))
         (i32.sub (i32.const 1) (i32.load (i32.const 512)))",
        loopback(port)
    );
    let sandbox = sandbox(allowing(&[format!("127.0.0.1:{port}")])).await;
    let request =
        script(networked("", &code)).max_output(cofferdam_contract::ByteSize::from_mebibytes(16)).build().unwrap();
    let done = sandbox.exec(request).await.unwrap();
    assert_eq!(ended(&done), (0, None), "{}", text(&done.stderr));
    assert!(done.stdout == pattern, "{} bytes came", done.stdout.len());
    let received = served.join().unwrap().remove(0);
    assert!(received.len() == SIZE && received.iter().all(|byte| *byte == 1), "{} bytes went", received.len());
}

/// Starts a server that accepts connections and sends nothing.
fn silent() -> (u16, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (listener.local_addr().unwrap().port(), listener)
}

/// Starts a server whose kernel does not answer: its queue is full.
fn deaf() -> (u16, impl Sized) {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    rustix::net::bind(&socket, &any).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let address = TcpListener::from(socket);
    let to = address.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&to, Duration::from_millis(300)) {
        queued.push(stream);
        assert!(queued.len() < 100, "the queue does not fill up");
    }
    (to.port(), (address, queued))
}

/// Promise (WebAssembly): A peer that never answers does not keep a component beyond its timeout or a cancel.
#[tokio::test]
async fn silent_peer_does_not_delay_timeout_or_cancel() {
    let (silent_port, _silent) = silent();
    let (deaf_port, _deaf) = deaf();
    let (data, spans) = texts(&["never heard"]);
    let fill =
        "(loop $more (call $write (global.get $out) (i32.const 0) (i32.const 65536) (i32.const 256)) (br $more))";
    for (port, code) in [
        (silent_port, format!("(call $check {}) (drop (call $print_all)) (i32.const 0)", loopback(silent_port))),
        (silent_port, format!("(call $check {}) (call $say {}) {fill} (i32.const 0)", loopback(silent_port), spans[0])),
        (deaf_port, format!("(call $exit {}) (i32.const 0)", loopback(deaf_port))),
    ] {
        let component = networked(&data, &code);
        let spec = allowing(&[format!("127.0.0.1:{port}")]);
        let limits = Limits { wall_time: Duration::from_secs(3), ..Limits::default() };
        let done = run(component.clone(), spec.to_builder().limits(limits).build().unwrap()).await.unwrap();
        assert!(done.exit.timed_out, "{code}: {:?}", done.exit);
        let sandbox = sandbox(spec).await;
        let handle = sandbox.start(script(component).stdin(Stdin::Stream).build().unwrap()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let exit = tokio::time::timeout(Duration::from_secs(10), handle.cancel()).await.expect("an end").unwrap();
        assert!(exit.cancelled, "{code}: {exit:?}");
    }
}

#[tokio::test]
async fn closed_and_reset_connections_are_reported() {
    // Each server waits for a byte, so that the guest is connected by then.
    let (closing, closed) = server(1, |mut stream| {
        stream.read_exact(&mut [0]).unwrap();
        stream.write_all(b"half a").unwrap();
    });
    let (resetting, reset) = server(1, |mut stream| {
        stream.read_exact(&mut [0]).unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    for (port, expected, said) in [(closing, 1, "half a"), (resetting, 0, "")] {
        let say = "(call $say (i32.const 0) (i32.const 1))";
        let code = format!("(call $check {}) {say} (call $exit (call $print_all)) (i32.const 0)", loopback(port));
        let done = run(networked("", &code), allowing(&[format!("127.0.0.1:{port}")])).await.unwrap();
        assert_eq!((ended(&done), text(&done.stdout).as_str()), ((expected, None), said));
    }
    closed.join().unwrap();
    reset.join().unwrap();
    // No server listens there any more.
    let code = format!("(call $exit {}) (i32.const 0)", loopback(closing));
    let done = run(networked("", &code), allowing(&["127.0.0.1".to_owned()])).await.unwrap();
    assert_eq!(ended(&done), (CONNECTION_REFUSED, None));
}

/// Promise (WebAssembly): The connections of an exec are limited, and its end closes them.
#[tokio::test]
async fn connections_are_counted_and_closed_at_the_end() {
    const MAX_CONNECTIONS: usize = 64;
    // Each thread ends when the guest's connection is closed.
    let (port, served) = server(2 * MAX_CONNECTIONS, |stream| {
        stream.set_read_timeout(Some(PROMPT)).unwrap();
        stream
    });
    let open = format!(
        "(local.set $i (i32.const {MAX_CONNECTIONS}))
         (loop $more (call $check {}) (br_if $more (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))",
        loopback(port)
    );
    let spec = allowing(&[format!("127.0.0.1:{port}")]);
    let done = run(networked("", &format!("{open} (call $exit {}) (i32.const 0)", loopback(port))), spec.clone())
        .await
        .unwrap();
    assert_eq!(ended(&done), (NEW_SOCKET_LIMIT, None));
    let done = run(networked("", &format!("{open} unreachable")), spec.clone()).await.unwrap();
    assert_eq!(done.exit.signal, Some(6), "{:?}", done.exit);
    for mut stream in served.join().unwrap() {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    // A dropped socket frees its slot, and an unused one costs nothing.
    let drops = "(local.set $i (i32.const 1000))
        (loop $more (call $tcp (i32.const 0) (i32.const 256)) (call $check (call $outcome (i32.const 4)))
          (call $drop_tcp (i32.load (i32.const 260)))
          (br_if $more (local.tee $i (i32.sub (local.get $i) (i32.const 1))))) (i32.const 0)";
    assert_eq!(ended(&run(networked("", drops), spec).await.unwrap()), (0, None));
}

fn resolvers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.map(name).filter(|name| name.starts_with("wasm-resolver")).count()
}

/// Promise (WebAssembly): A flood of name lookups uses a limited number of threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_lookups_has_few_threads() {
    let (data, spans) = texts(&["localhost"]);
    // Counts the started lookups, and stops at the first error that is not a temporary refusal.
    let code = format!(
        "(local.set $n (i64.const 0))
         (loop $more
           (call $resolve (call $network) {} (i32.const 256))
           (local.set $i (call $outcome (i32.const 4)))
           (if (i32.and (i32.ne (local.get $i) (i32.const 0)) (i32.ne (local.get $i) (i32.const {TEMPORARY_FAILURE})))
             (then (call $exit (local.get $i))))
           (local.set $n (i64.add (local.get $n) (i64.const 1)))
           (br_if $more (i64.lt_u (local.get $n) (i64.const 1500))))
         (i32.const 0)",
        spans[0]
    );
    let sandbox = sandbox(allowing(&["localhost".to_owned()])).await;
    let running = sandbox.start(script(networked(&data, &code)).build().unwrap()).await.unwrap();
    let mut max_threads = 0;
    let exit = loop {
        max_threads = max_threads.max(resolvers());
        if let Ok(exit) = tokio::time::timeout(Duration::from_millis(1), running.exit()).await {
            break exit.unwrap();
        }
    };
    assert!(exit.success(), "{exit:?}");
    // Other tests of this process may look up names at the same time.
    assert!(max_threads <= 32, "{max_threads} threads");
}

/// Promise (WebAssembly): A component can open TCP connections only: it cannot listen and has no UDP.
#[tokio::test]
async fn nothing_but_connections_is_to_be_had() {
    let spec = allowing(&["127.0.0.1".to_owned(), "localhost".to_owned()]);
    let any = "(i32.const 0) (i32.const 8080) (i32.const 127) (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 0)
        (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)";
    let create = "(call $tcp (i32.const 0) (i32.const 256)) (local.set $i (i32.load (i32.const 260)))";
    for (code, behind, expected) in [
        ("(call $udp (i32.const 0) (i32.const 256))".to_owned(), 4, ACCESS_DENIED),
        (format!("{create} (call $start_bind (local.get $i) (call $network) {any} (i32.const 256))"), 1, ACCESS_DENIED),
        (format!("{create} (call $start_listen (local.get $i) (i32.const 256))"), 1, ACCESS_DENIED),
        (format!("{create} (call $finish_connect (local.get $i) (i32.const 256))"), 4, 107),
        (format!("{create} (call $shutdown (local.get $i) (i32.const 2) (i32.const 256))"), 1, 109),
        (format!("{create} (call $remote_address (local.get $i) (i32.const 256))"), 4, 109),
        (format!("{create} (call $set_idle_time (local.get $i) (i64.const 0) (i32.const 256))"), 1, INVALID_ARGUMENT),
        (format!("{create} (call $set_idle_time (local.get $i) (i64.const -1) (i32.const 256))"), 1, 0),
        (format!("{create} (call $set_send_buffer (local.get $i) (i64.const -1) (i32.const 256))"), 1, 0),
    ] {
        let done = run(
            networked("", &format!("{code} (call $exit (call $outcome (i32.const {behind}))) (i32.const 0)")),
            spec.clone(),
        );
        assert_eq!(ended(&done.await.unwrap()), (expected, None), "{code}");
    }
    // Whatever size is requested, the kernel allocates at max_threads twice 256 KiB.
    let code = format!(
        "{create} (call $set_send_buffer (local.get $i) (i64.const -1) (i32.const 256))
         (call $send_buffer (local.get $i) (i32.const 256))
         (i64.gt_u (i64.load (i32.const 264)) (i64.const 524288))"
    );
    assert_eq!(ended(&run(networked("", &code), spec).await.unwrap()), (0, None));
}

#[tokio::test]
async fn write_beyond_the_permit_ends_the_guest() {
    let (port, _silent) = silent();
    for (size, expected) in [(0x8000, None), (0x8001, Some(6))] {
        let code = format!(
            "(call $check {}) (call $write_some (global.get $out) (i32.const 0) (i32.const {size}) (i32.const 256))
             (i32.load8_u (i32.const 256))",
            loopback(port)
        );
        let done = run(networked("", &code), allowing(&["127.0.0.1".to_owned()])).await.unwrap();
        assert_eq!(done.exit.signal, expected, "{size} {:?}", done.exit);
    }
}

#[tokio::test]
async fn a_wait_for_several_wakes_for_each() {
    let (port, served) = server(1, |mut stream| {
        std::thread::sleep(Duration::from_millis(100));
        stream.write_all(b"x").unwrap();
        stream.read(&mut [0]).unwrap()
    });
    // A connection, input that is available after the connection's data, and a long time.
    let code = format!(
        "(call $check {})
         (i32.store (i32.const 512) (call $subscribe (global.get $in)))
         (i32.store (i32.const 516) (call $subscribe (call $get_stdin)))
         (i32.store (i32.const 520) (call $after (i64.const 1000000000000)))
         (call $poll (i32.const 512) (i32.const 3) (i32.const 256))
         (if (i32.ne (i32.load (i32.const 260)) (i32.const 1)) (then (call $exit (i32.const 9))))
         (if (i32.load (i32.load (i32.const 256))) (then (call $exit (i32.const 8))))
         (call $blocking_read (global.get $in) (i64.const 10) (i32.const 256))
         (call $print (i32.load (i32.const 260)) (i32.load (i32.const 264)))
         (call $poll (i32.const 512) (i32.const 3) (i32.const 256))
         (if (i32.ne (i32.load (i32.load (i32.const 256))) (i32.const 1)) (then (call $exit (i32.const 7))))
         (i32.const 0)",
        loopback(port)
    );
    let sandbox = sandbox(allowing(&["127.0.0.1".to_owned()])).await;
    let request = script(networked("", &code)).stdin(Stdin::Stream).build().unwrap();
    let handle: ExecHandle = sandbox.start(request).await.unwrap();
    let mut writer = handle.stdin().unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    tokio::io::AsyncWriteExt::write_all(&mut writer, b"y").await.unwrap();
    let done = cofferdam_contract::collect(&handle).await.unwrap();
    assert_eq!((ended(&done), text(&done.stdout).as_str()), ((0, None), "x"), "{}", text(&done.stderr));
    served.join().unwrap();
}

#[tokio::test]
async fn direct_runs_have_the_same_rules() {
    let (port, served) = server(1, echo);
    let (data, spans) = texts(&["direct"]);
    let component = Bytes::from(networked(&data, &round_trip(&loopback(port), &spans[0])));
    for (host, expected) in [("127.0.0.1", 0), ("127.0.0.2", ACCESS_DENIED)] {
        let loaded = WasmBackend::default().load(component.clone(), allowing(&[host.to_owned()])).await.unwrap();
        let done = loaded.on_runner(|runner| runner.run(&Call::default())).unwrap().unwrap();
        assert_eq!(ended(&done), (expected, None), "{}", text(&done.stderr));
    }
    served.join().unwrap();
}

#[tokio::test]
async fn modules_run_under_a_policy_and_have_no_network() {
    let spec = allowing(&["*.example.org:443".to_owned()]);
    let done = run(program("", "nop"), spec.clone()).await.unwrap();
    assert!(done.exit.success());
    assert!(WasmBackend::default().capabilities().contains(&Capability::NetworkAllowlist));
    let sandbox = sandbox(spec).await;
    let row = sandbox.posture().get(Protection::Network).unwrap();
    assert!(
        row.state == ProtectionState::Enforced && row.mechanism.contains("against the policy (1 hosts)"),
        "{row:?}"
    );
}

#[tokio::test]
async fn a_policy_that_cannot_be_kept_is_refused() {
    let fixed = allowing(&["example.org".to_owned()]).to_builder().attribute("wasm.deterministic", 1).build().unwrap();
    let error = WasmBackend::default().create(fixed).await.unwrap_err();
    assert!(
        error.kind() == ErrorKind::Unsupported && error.remedy().unwrap().contains("wasm.deterministic"),
        "{error}"
    );
    for host in ["", "http://example.org", "example.org:0", "*", "127.1", "[::ffff:127.0.0.1]"] {
        let error = WasmBackend::default().create(allowing(&[host.to_owned()])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{host}");
    }
}
