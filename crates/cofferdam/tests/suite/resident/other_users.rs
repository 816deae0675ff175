//! Unauthorized access to the server's socket, and visibility of the server for guests.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam::{Access, ExecRequest, Spec, Workspace};

use super::{Home, by_server, leaving_nothing, read};
use crate::cli::WEAKER;
use crate::groups::CallerGroup;

const ALONE: &[&str] = &["--python", "0", "--node", "0"];
/// Environment variable with the socket for [`inner_client`].
const SOCKET_VARIABLE: &str = "COFFERDAM_TEST_SOCKET";
/// A user and group id that own nothing.
const NOBODY: &str = "65534";
/// The first bytes of a client of runs: its mark, and a greeting of this protocol version and no build.
const RUN: &[u8] = b"\0\x02\0\0\0\x03\0";
/// A request that a server answers without a key.
const HTTP: &[u8] = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Connects as a client of runs that has sent only its first byte.
fn connect(home: &Home) -> UnixStream {
    let mut stream = UnixStream::connect(home.socket()).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // The server may have closed the connection already.
    let _ = stream.write_all(&RUN[..1]);
    stream
}

fn frame(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_le_bytes()[..], body].concat()
}

/// Reads until the peer closes the connection. A reset connection counts as closed.
fn rest(mut stream: UnixStream) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => all,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => all,
        Err(error) => panic!("the server holds on to nonsense: {error}"),
    }
}

/// Promise (Server): Garbage closes its connection and harms no other run.
#[test]
fn garbage_closes_its_connection_only() {
    let home = Home::new();
    let server = home.server(ALONE);
    let greeting = {
        let mut stream = connect(&home);
        let mut head = [0; 4];
        stream.read_exact(&mut head).unwrap();
        u32::from_le_bytes(head) as usize + 4
    };
    let hello = RUN[1..].to_vec();
    for garbage in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 100_000],
        frame(&[]),
        frame(&[99, 0]),
        frame(&[1, 200]),
        [hello.clone(), frame(&[99])].concat(),
        [hello.clone(), frame(&[0, 5, 1])].concat(),
        [hello.clone(), frame(&[2])].concat(),
        // A request of another build, which is refused.
        [hello.clone(), frame(&[0, 1, 0, 1])].concat(),
        [hello, u32::MAX.to_le_bytes().to_vec()].concat(),
    ] {
        let mut stream = connect(&home);
        // The server may close the connection before everything is written.
        let _ = stream.write_all(&garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        assert!(rest(stream).len() <= greeting, "{:?} was answered", &garbage[..garbage.len().min(20)]);
    }
    assert_eq!(server.status()["runs"], 0);
    assert!(by_server(&read(&home.run(["-v", "--", "true"]).output().unwrap()).2));
}

/// Promise (Server): Connections beyond the limit are closed.
#[test]
fn connections_beyond_the_limit_are_closed() {
    let home = Home::new();
    let server = home.server(&["--max-runs", "1", "--python", "0", "--node", "0"]);
    let mut idle: Vec<_> = (0..64).map(|_| connect(&home)).collect();
    // One connection has room and sixteen wait; the others are not even greeted.
    let greeted = idle.iter_mut().filter_map(|stream| stream.read(&mut [0; 16]).ok()).filter(|count| *count > 0);
    assert_eq!(greeted.count(), 17);
    drop(idle);
    server.until("there is room", |status| status["running"] == 0);
    assert!(by_server(&read(&home.run(["-v", "--", "true"]).output().unwrap()).2));
}

/// Promise (Server): The server closes connections of other users without an answer.
#[test]
fn another_user_is_not_even_greeted() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP another_user_is_not_even_greeted: only root can become another user");
        return;
    }
    let home = Home::new();
    let server = home.server(ALONE);
    let own = std::env::current_exe().expect("this binary has a path");
    let other_user = || {
        // Copies the binary, because the build directory may be inaccessible for other users.
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let copy = directory.path().join("client");
        // A process of its own writes it: one that another test forks would keep it open for writing.
        assert!(Command::new("cp").arg(&own).arg(&copy).status().expect("coreutils are installed").success());
        let output = Command::new("setpriv")
            .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
            .arg(&copy)
            .args(["--exact", "resident::other_users::inner_client", "--ignored", "--nocapture"])
            .env(SOCKET_VARIABLE, home.socket())
            .stdin(Stdio::null())
            .output()
            .expect("util-linux is installed");
        let (status, stdout, stderr) = read(&output);
        assert_eq!(status, Some(0), "{stdout}{stderr}");
        stdout
    };
    assert!(other_user().contains("cannot reach it"));
    // The server refuses the user even if all directories on the path are accessible.
    for (path, mode) in [
        (home.directory.path().to_owned(), 0o755),
        (home.directory.path().join("cofferdam"), 0o755),
        (home.socket(), 0o666),
    ] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    assert!(other_user().contains("closed without an answer"));
    assert_eq!(server.end().0, Some(0));
}

/// Tests a guest of an unprivileged user: it is a process of the same user, and only its user namespace distinguishes
/// it.
///
/// Promise (Server): The server closes connections from other user namespaces without an answer.
#[test]
fn client_in_another_user_namespace_gets_no_answer() {
    let unshare = ["--user", "--map-current-user"];
    if !Command::new("unshare").args(unshare).arg("true").status().is_ok_and(|status| status.success()) {
        println!("SKIP client_in_another_user_namespace_gets_no_answer: this user may make none");
        return;
    }
    let home = Home::new();
    let server = home.server(ALONE);
    let inner = |program: &[&str]| {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).arg(std::env::current_exe().expect("this binary has a path"));
        command.args(["--exact", "resident::other_users::inner_client", "--ignored", "--nocapture"]);
        read(&command.env(SOCKET_VARIABLE, home.socket()).output().expect("util-linux is installed"))
    };
    let (status, stdout, stderr) = inner(&["unshare", "--user", "--map-current-user"]);
    assert!(status == Some(0) && stdout.contains("closed without an answer"), "{stdout}{stderr}");
    // The same program outside is greeted, so the namespace makes the difference.
    let (status, stdout, _) = inner(&["env"]);
    assert!(status != Some(0) && !stdout.contains("hung up"), "{stdout}");
    // Runs do not use a server there either.
    let mut client = home.run(["-v", "--", "echo", "a"]);
    let mut inside = Command::new("unshare");
    inside.args(unshare).arg(client.get_program()).args(client.get_args());
    inside.env_clear().envs(client.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (_, _, stderr) = read(&inside.output().expect("util-linux is installed"));
    assert!(!by_server(&stderr) && stderr.contains("without a server"), "{stderr}");
    assert!(by_server(&read(&client.output().unwrap()).2));
    assert_eq!(server.end().0, Some(0));
}

/// Promise (Server): The server closes connections of a guest that has its socket mounted without an answer.
#[test]
fn guest_with_the_mounted_socket_gets_no_answer() {
    let home = Home::new();
    std::fs::set_permissions(home.directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let server = home.server(ALONE);
    if rustix::process::geteuid().is_root() {
        // Root's guests have another user id, so the directory's mode already excludes them.
        let opened = home.directory.path().join("cofferdam");
        std::fs::set_permissions(opened, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(home.socket(), std::fs::Permissions::from_mode(0o666)).unwrap();
    }
    let code = "import socket\ngot = b''\nfor first in (b'\\0\\x02\\0\\0\\0\\x03\\0', \
                b'GET /v1/health HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n'):\n  s = socket.socket(socket.AF_UNIX)\n  \
                s.connect('/workspace/cofferdam/server.sock')\n  try: s.sendall(first); got += s.recv(100)\n  \
                except (BrokenPipeError, ConnectionResetError): pass\nprint('greeted' if got else 'hung up on')";
    // The command line refuses to mount this directory; the library does not.
    let path = home.directory.path().canonicalize().unwrap();
    let mut spec = Spec::builder().workspace(Workspace::HostDir { path, access: Access::ReadWrite });
    for protection in WEAKER.split(',') {
        spec = spec.allow_weaker(protection.parse().unwrap());
    }
    let request = ExecRequest::argv(["python3", "-c", code]).build().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let run = cofferdam::run(spec.build().unwrap(), request);
    let bounded = async { tokio::time::timeout(Duration::from_secs(120), run).await };
    let (completed, _) = runtime.block_on(bounded).expect("a run ends at its time-out at the latest").unwrap();
    assert_eq!(completed.stdout, "hung up on\n", "{completed:?}");
    drop(server);
}

#[test]
#[ignore = "started by the tests of this file as another user"]
fn inner_client() {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE) else { return };
    for first in [RUN, HTTP] {
        match UnixStream::connect(&socket) {
            Err(_) => println!("cannot reach it"),
            Ok(mut stream) => {
                let mut all = Vec::new();
                let _ = stream.write_all(first).and_then(|()| stream.read_to_end(&mut all));
                assert!(all.is_empty(), "an untrusted client was answered");
                println!("closed without an answer");
            }
        }
    }
}

/// Promise (Server): A client does not connect to a socket in a directory of another user.
#[test]
fn socket_directory_of_another_user_is_not_trusted() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP socket_directory_of_another_user_is_not_trusted: only root can make one");
        return;
    }
    let home = Home::new();
    let directory = home.directory.path().join("cofferdam");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&directory, Some(65534), Some(65534)).unwrap();
    let (status, _, stderr) = read(&home.run(["-v", "--", "true"]).output().unwrap());
    assert_eq!((status, by_server(&stderr)), (Some(0), false));
    assert!(stderr.contains("belongs to another user"), "{stderr}");
    for words in [&["run", "--use-server", "require", "--", "true"][..], &["serve"]] {
        let (status, _, stderr) = read(&home.cofferdam().args(words).output().unwrap());
        assert!(status == Some(125) && stderr.contains("belongs to another user"), "{stderr}");
    }
}

/// Promise (Server): No environment variable of the server reaches a guest.
#[test]
fn servers_environment_does_not_reach_guests() {
    leaving_nothing(|| {
        let mut home = Home::new();
        home.server_variables = vec![("SECRET_OF_THE_SERVER".to_owned(), "s3cr3t-of-the-server".to_owned())];
        let server = home.server(&[]);
        server.warm();
        let shell = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; ls -l /proc/*/fd 2>/dev/null; true";
        let python = "import os\nprint(os.environ)\nfor pid in filter(str.isdigit, os.listdir('/proc')):\n  \
                      try: print(open(f'/proc/{pid}/environ').read())\n  except OSError: pass";
        for words in [["--", "sh", "-c", shell], ["--lang", "python", "--code", python]] {
            let (status, stdout, stderr) = read(&home.run(["--use-server", "require"]).args(words).output().unwrap());
            assert!(status == Some(0) && stdout.contains("PATH"), "{stderr}");
            assert!(!stdout.contains("SECRET_OF") && !stdout.contains("s3cr3t") && !stdout.contains("server.sock"));
        }
        assert_eq!(server.status()["warm_runs"], 1);
    });
}

#[test]
fn a_caller_that_is_confined_differently_runs_locally_and_is_refused_by_the_server() {
    let test = "a_caller_that_is_confined_differently_runs_locally";
    let home = Home::new();
    let server = home.server(ALONE);
    for (name, words) in [
        ("limits", &["prlimit", "--fsize=1000000000"][..]),
        ("mounts", &["unshare", "--mount"]),
        ("network", &["unshare", "--net"]),
        ("rights", &["setpriv", "--no-new-privs"]),
    ] {
        let wrapper = || {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            command
        };
        if !wrapper().arg("true").status().is_ok_and(|status| status.success()) {
            println!("SKIP {test} {name}: this user may not");
            continue;
        }
        runs_without_the_server(&home, name, wrapper);
    }
    if let Some(group) = CallerGroup::new(test) {
        runs_without_the_server(&home, "control group", || group.enter());
        assert!(group.remove(), "something is left in the caller's group");
    }
    assert_eq!(server.status()["runs"], 0);
    assert!(by_server(&read(&home.run(["-v", "--", "true"]).output().unwrap()).2));
}

/// Checks that runs under a wrapper, which confines its arguments, do not use the server.
fn runs_without_the_server(home: &Home, name: &str, wrapper: impl Fn() -> Command) {
    let confined = |arguments: &[&str]| {
        let own = home.run(arguments);
        let mut command = wrapper();
        command.arg(own.get_program()).args(own.get_args()).env_clear();
        command.envs(own.get_envs().filter_map(|(key, value)| Some((key, value?)))).stdin(Stdio::null());
        read(&command.output().unwrap())
    };
    let (status, _, stderr) = confined(&["-v", "--", "true"]);
    assert!(!by_server(&stderr) && stderr.contains("confined differently"), "{name}: {status:?} {stderr}");
    let (status, _, stderr) = confined(&["--use-server", "require", "--", "true"]);
    assert!(status == Some(125) && stderr.contains("confined differently"), "{name}: {stderr}");
}

#[test]
fn the_directory_of_the_socket_is_mounted_into_no_sandbox() {
    let home = Home::new();
    let _server = home.server(ALONE);
    let runtime = home.directory.path();
    for path in [runtime.join("cofferdam"), runtime.to_owned()] {
        let (status, _, stderr) =
            read(&home.run(["--disk", "none", "--workspace"]).arg(&path).args(["--", "true"]).output().unwrap());
        assert!(status == Some(125) && stderr.contains("the directory of Cofferdam's server"), "{path:?} {stderr}");
    }
}
