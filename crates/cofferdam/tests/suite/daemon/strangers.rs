//! Unauthorized access to the daemon's socket, and visibility of the daemon for guests.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam::{Access, ExecRequest, Spec, Workspace};

use super::{Home, by_daemon, leaving_nothing, read};
use crate::cli::WEAKER;
use crate::groups::CallerGroup;

const ALONE: &[&str] = &["--python", "0", "--node", "0"];
/// Environment variable with the socket for [`inner_stranger`].
const SOCKET_VARIABLE: &str = "COFFERDAM_TEST_SOCKET";
/// A user and group id that own nothing.
const NOBODY: &str = "65534";

fn connect(home: &Home) -> UnixStream {
    let stream = UnixStream::connect(home.socket()).expect("the daemon listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
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
        Err(error) => panic!("the daemon holds on to nonsense: {error}"),
    }
}

/// Promise (Daemon): Garbage closes its connection and harms no other run.
#[test]
fn garbage_is_hung_up_on_and_harms_nobody() {
    let home = Home::new();
    let daemon = home.daemon(ALONE);
    let greeting = {
        let mut stream = connect(&home);
        let mut head = [0; 4];
        stream.read_exact(&mut head).unwrap();
        u32::from_le_bytes(head) as usize + 4
    };
    // A greeting of this protocol version and any build.
    let hello = frame(&[1, 0]);
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
        // The daemon may close the connection before everything is written.
        let _ = stream.write_all(&garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        assert!(rest(stream).len() <= greeting, "{:?} was answered", &garbage[..garbage.len().min(20)]);
    }
    assert_eq!(daemon.status()["runs"], 0);
    assert!(by_daemon(&read(&home.run(["-v", "--", "true"]).output().unwrap()).2));
}

/// Promise (Daemon): Connections beyond the limit are closed.
#[test]
fn more_visitors_than_there_is_room_for_are_let_go() {
    let home = Home::new();
    let daemon = home.daemon(&["--connections", "1", "--python", "0", "--node", "0"]);
    let idle: Vec<_> = (0..64).map(|_| connect(&home)).collect();
    // One connection has room and sixteen wait; the others were not even greeted.
    let mut last = idle.last().unwrap();
    assert_eq!(last.read(&mut [0; 16]).unwrap_or(0), 0);
    drop(idle);
    daemon.until("there is room", |status| status["running"] == 0);
    assert!(by_daemon(&read(&home.run(["-v", "--", "true"]).output().unwrap()).2));
}

/// Promise (Daemon): The daemon closes connections of other users without an answer.
#[test]
fn another_user_is_not_even_greeted() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP another_user_is_not_even_greeted: only root can become another user");
        return;
    }
    let home = Home::new();
    let daemon = home.daemon(ALONE);
    let own = std::env::current_exe().expect("this binary has a path");
    let stranger = || {
        // Copies the binary, because the build directory may be inaccessible for other users.
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let copy = directory.path().join("stranger");
        std::fs::copy(&own, &copy).unwrap();
        let output = Command::new("setpriv")
            .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
            .arg(&copy)
            .args(["--exact", "daemon::strangers::inner_stranger", "--ignored", "--nocapture"])
            .env(SOCKET_VARIABLE, home.socket())
            .stdin(Stdio::null())
            .output()
            .expect("util-linux is installed");
        let (status, stdout, stderr) = read(&output);
        assert_eq!(status, Some(0), "{stdout}{stderr}");
        stdout
    };
    assert!(stranger().contains("cannot reach it"));
    // The daemon refuses the user even if all directories on the path are accessible.
    for (path, mode) in [
        (home.directory.path().to_owned(), 0o755),
        (home.directory.path().join("cofferdam"), 0o755),
        (home.socket(), 0o666),
    ] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    assert!(stranger().contains("hung up without a word"));
    assert_eq!(daemon.end().0, Some(0));
}

/// Tests a guest of an unprivileged user: it is a process of the same user, and only its user namespace distinguishes
/// it.
///
/// Promise (Daemon): The daemon closes connections from other user namespaces without an answer.
#[test]
fn who_is_in_another_user_namespace_is_not_even_greeted() {
    let unshare = ["--user", "--map-current-user"];
    if !Command::new("unshare").args(unshare).arg("true").status().is_ok_and(|status| status.success()) {
        println!("SKIP who_is_in_another_user_namespace_is_not_even_greeted: this user may make none");
        return;
    }
    let home = Home::new();
    let daemon = home.daemon(ALONE);
    let inner = |program: &[&str]| {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).arg(std::env::current_exe().expect("this binary has a path"));
        command.args(["--exact", "daemon::strangers::inner_stranger", "--ignored", "--nocapture"]);
        read(&command.env(SOCKET_VARIABLE, home.socket()).output().expect("util-linux is installed"))
    };
    let (status, stdout, stderr) = inner(&["unshare", "--user", "--map-current-user"]);
    assert!(status == Some(0) && stdout.contains("hung up without a word"), "{stdout}{stderr}");
    // The same program outside is greeted, so the namespace makes the difference.
    let (status, stdout, _) = inner(&["env"]);
    assert!(status != Some(0) && !stdout.contains("hung up"), "{stdout}");
    // Runs do not use a daemon there either.
    let mut client = home.run(["-v", "--", "echo", "a"]);
    let mut inside = Command::new("unshare");
    inside.args(unshare).arg(client.get_program()).args(client.get_args());
    inside.env_clear().envs(client.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (_, _, stderr) = read(&inside.output().expect("util-linux is installed"));
    assert!(!by_daemon(&stderr) && stderr.contains("without a daemon"), "{stderr}");
    assert!(by_daemon(&read(&client.output().unwrap()).2));
    assert_eq!(daemon.end().0, Some(0));
}

/// Promise (Daemon): The daemon closes connections of a guest that has its socket mounted without an answer.
#[test]
fn a_guest_that_the_socket_is_lent_to_is_not_even_greeted() {
    let home = Home::new();
    std::fs::set_permissions(home.directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let daemon = home.daemon(ALONE);
    if rustix::process::geteuid().is_root() {
        // Root's guests have another user id, so the directory's mode already excludes them.
        let opened = home.directory.path().join("cofferdam");
        std::fs::set_permissions(opened, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(home.socket(), std::fs::Permissions::from_mode(0o666)).unwrap();
    }
    let code = "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('/workspace/cofferdam/daemon.sock')\n\
                try: got = s.recv(100)\nexcept ConnectionResetError: got = b''\nprint('greeted' if got else 'hung up on')";
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
    drop(daemon);
}

#[test]
#[ignore = "started by the tests of this file as another user"]
fn inner_stranger() {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE) else { return };
    match UnixStream::connect(socket) {
        Err(_) => println!("cannot reach it"),
        Ok(mut stream) => {
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all);
            assert!(all.is_empty(), "a stranger was greeted");
            println!("hung up without a word");
        }
    }
}

/// Promise (Daemon): A client does not connect to a socket in a directory of another user.
#[test]
fn a_directory_of_somebody_else_is_not_trusted() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP a_directory_of_somebody_else_is_not_trusted: only root can make one");
        return;
    }
    let home = Home::new();
    let directory = home.directory.path().join("cofferdam");
    std::fs::create_dir(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&directory, Some(65534), Some(65534)).unwrap();
    let (status, _, stderr) = read(&home.run(["-v", "--", "true"]).output().unwrap());
    assert_eq!((status, by_daemon(&stderr)), (Some(0), false));
    assert!(stderr.contains("belongs to another user"), "{stderr}");
    for words in [&["run", "--daemon", "require", "--", "true"][..], &["daemon"]] {
        let (status, _, stderr) = read(&home.cofferdam().args(words).output().unwrap());
        assert!(status == Some(125) && stderr.contains("belongs to another user"), "{stderr}");
    }
}

/// Promise (Daemon): No environment variable of the daemon reaches a guest.
#[test]
fn nothing_of_the_daemons_environment_reaches_a_guest() {
    leaving_nothing(|| {
        let mut home = Home::new();
        home.daemon_variables = vec![("SECRET_OF_THE_DAEMON".to_owned(), "s3cr3t-of-the-daemon".to_owned())];
        let daemon = home.daemon(&[]);
        daemon.warm();
        let shell = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; ls -l /proc/*/fd 2>/dev/null; true";
        let python = "import os\nprint(os.environ)\nfor pid in filter(str.isdigit, os.listdir('/proc')):\n  \
                      try: print(open(f'/proc/{pid}/environ').read())\n  except OSError: pass";
        for words in [["--", "sh", "-c", shell], ["--lang", "python", "--code", python]] {
            let (status, stdout, stderr) = read(&home.run(["--daemon", "require"]).args(words).output().unwrap());
            assert!(status == Some(0) && stdout.contains("PATH"), "{stderr}");
            assert!(!stdout.contains("SECRET_OF") && !stdout.contains("s3cr3t") && !stdout.contains("daemon.sock"));
        }
        assert_eq!(daemon.status()["warm_runs"], 1);
    });
}

#[test]
fn a_caller_that_is_confined_differently_runs_locally_and_is_refused_by_the_daemon() {
    let test = "a_caller_that_is_confined_differently_runs_locally";
    let home = Home::new();
    let daemon = home.daemon(ALONE);
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
        runs_without_the_daemon(&home, name, wrapper);
    }
    if let Some(group) = CallerGroup::new(test) {
        runs_without_the_daemon(&home, "control group", || group.enter());
        assert!(group.remove(), "something is left in the caller's group");
    }
    assert_eq!(daemon.status()["runs"], 0);
    assert!(by_daemon(&read(&home.run(["-v", "--", "true"]).output().unwrap()).2));
}

/// Checks that runs under a wrapper, which confines its arguments, do not use the daemon.
fn runs_without_the_daemon(home: &Home, name: &str, wrapper: impl Fn() -> Command) {
    let confined = |arguments: &[&str]| {
        let own = home.run(arguments);
        let mut command = wrapper();
        command.arg(own.get_program()).args(own.get_args()).env_clear();
        command.envs(own.get_envs().filter_map(|(key, value)| Some((key, value?)))).stdin(Stdio::null());
        read(&command.output().unwrap())
    };
    let (status, _, stderr) = confined(&["-v", "--", "true"]);
    assert!(!by_daemon(&stderr) && stderr.contains("confined differently"), "{name}: {status:?} {stderr}");
    let (status, _, stderr) = confined(&["--daemon", "require", "--", "true"]);
    assert!(status == Some(125) && stderr.contains("confined differently"), "{name}: {stderr}");
}

#[test]
fn the_directory_of_the_socket_is_mounted_into_no_sandbox() {
    let home = Home::new();
    let _daemon = home.daemon(ALONE);
    let runtime = home.directory.path();
    for path in [runtime.join("cofferdam"), runtime.to_owned()] {
        let (status, _, stderr) =
            read(&home.run(["--disk", "none", "--workspace"]).arg(&path).args(["--", "true"]).output().unwrap());
        assert!(status == Some(125) && stderr.contains("the directory of Cofferdam's daemon"), "{path:?} {stderr}");
    }
}
