//! Start and stop of a server, and the fate of its runs.

use std::io::{BufRead, Read};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Home, TEST_TIMEOUT, by_server, leaving_nothing, read, ready};
use crate::hostile;
use crate::supervisor::{SPINNERS_ALLOWED, spinners, wait_until_busy};

const ALONE: &[&str] = &["--python", "0", "--node", "0"];

/// Stops the server of `home`.
fn stop(home: &Home) -> (Option<i32>, String, String) {
    read(&home.cofferdam().args(["serve", "stop"]).output().unwrap())
}

/// Promise (Server): Without a server, a run is local, or an error with a remedy if it requires one.
#[test]
fn run_without_a_server_is_local_or_refused_with_a_remedy() {
    let home = Home::new();
    let (status, _, stderr) = read(&home.run(["-v", "--", "true"]).output().unwrap());
    assert_eq!((status, by_server(&stderr)), (Some(0), false));
    assert!(stderr.contains("without a server: no server is running"), "{stderr}");
    let (status, _, stderr) = read(&home.run(["--use-server", "require", "--", "true"]).output().unwrap());
    assert_eq!(status, Some(125));
    assert!(stderr.contains("no server is running") && stderr.contains("try: "), "{stderr}");
    assert_eq!(home.status(), None);
    assert_eq!(home.cofferdam().args(["serve", "status"]).status().unwrap().code(), Some(1));
    assert!(home.gone());
}

/// Promise (Server): A server starts in the background on request only.
#[test]
fn server_starts_on_demand_in_the_background_and_stops() {
    leaving_nothing(|| {
        let home = Home::new();
        let (status, stdout, stderr) =
            read(&home.run(["-v", "--use-server", "start", "--", "echo", "a"]).output().unwrap());
        assert_eq!((status, stdout.as_str(), by_server(&stderr)), (Some(0), "a\n", true), "{stderr}");
        let first = home.status().expect("it runs")["pid"].clone();
        let (_, _, stderr) = read(&home.run(["-v", "--use-server", "start", "--", "true"]).output().unwrap());
        assert!(stderr.contains(&format!("process {first}")), "{stderr}");
        assert_eq!(stop(&home).0, Some(0));
        assert!(home.gone() && home.status().is_none());
        assert_eq!(stop(&home).0, Some(0));
    });
}

/// Promise (Server): The documented example of the server runs.
#[test]
fn the_documented_example_runs() {
    leaving_nothing(|| {
        let home = Home::new();
        let page = include_str!("../../../../../docs/reference.md");
        let (before, after) = page.split_once("cofferdam serve --detach").expect("the page shows it");
        assert!(before.ends_with("```sh\n"));
        let block = format!("cofferdam serve --detach{}", after.split("```").next().expect("it ends"));
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_cofferdam"));
        let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let mut shell = home.program(std::path::Path::new("/bin/sh"));
        let output = shell.env("PATH", path).args(["-e", "-c", &block]).output().unwrap();
        let (status, stdout, stderr) = read(&output);
        assert_eq!((status, stdout.as_str()), (Some(0), "42\n"), "{stderr}");
        assert!(stderr.contains("serving unix:") && stderr.contains("has exited"), "{stderr}");
        assert!(home.gone());
    });
}

#[test]
fn wasm_server_prepares_no_interpreters() {
    let home = Home::new();
    let server = home.server(&["--backend", "wasm"]);
    assert_eq!(server.status()["interpreters"].as_array().map(Vec::len), Some(0));
    assert_eq!(server.end().0, Some(0));
    let served = home.cofferdam().args(["serve", "--backend", "wasm", "--node", "1"]).output().unwrap();
    let (status, _, stderr) = read(&served);
    assert!(status == Some(125) && stderr.contains("prepares no interpreters"), "{status:?}: {stderr}");
}

/// Promise (Server): A second server of a user is refused.
#[test]
fn the_second_server_is_refused() {
    let home = Home::new();
    let first = home.server(ALONE);
    for words in [&["serve"][..], &["serve", "--detach"]] {
        let (status, _, stderr) = read(&home.cofferdam().args(words).output().unwrap());
        assert_eq!(status, Some(125), "{stderr}");
        assert!(stderr.contains(&format!("is already running as process {}", first.child.id())), "{stderr}");
    }
    assert!(by_server(&read(&home.run(["-v", "--", "true"]).output().unwrap()).2));
}

/// Promise (Server): The end of a killed client ends its guest.
#[test]
fn a_client_that_is_killed_takes_its_guest_along() {
    leaving_nothing(|| {
        let home = Home::new();
        let server = home.server(&[]);
        server.warm();
        let shell = "(setsid sleep 1000 &) ; sleep 1001 & echo ready; sleep 1002";
        let python = "import time; print('ready'); time.sleep(1000)";
        for words in [
            ["--timeout", "900s", "--", "sh", "-c", shell],
            ["--timeout", "900s", "--lang", "python", "--code", python],
        ] {
            let (mut child, _stdout) = ready(home.run(["--use-server", "require"]).args(words));
            assert_eq!(server.status()["running"], 1);
            child.kill().unwrap();
            child.wait().unwrap();
            server.until("the guest ended", |status| status["running"] == 0 && status["pool"]["closing"] == 0);
        }
        assert_eq!(server.status()["warm_runs"], 1);
    });
}

/// Promise (Server): A killed server leaves nothing, and later runs are local.
#[test]
fn a_killed_server_leaves_nothing_and_runs_are_local_again() {
    leaving_nothing(|| {
        let home = Home::new();
        let mut server = home.server(&[]);
        server.warm();
        let line = "(setsid sleep 1000 &) ; echo ready; sleep 1002";
        let (child, _stdout) =
            ready(&mut home.run(["--use-server", "require", "--timeout", "900s", "--", "sh", "-c", line]));
        server.signal(Signal::KILL);
        server.child.wait().unwrap();
        let (status, _, stderr) = read(&child.wait_with_output().unwrap());
        assert_eq!(status, Some(125));
        assert!(stderr.contains("the server ended, and the run with it"), "{stderr}");
        // Its socket still exists, but no process listens.
        assert!(home.socket().exists());
        let (status, stdout, stderr) = read(&home.run(["-v", "--", "echo", "local"]).output().unwrap());
        assert_eq!((status, stdout.as_str(), by_server(&stderr)), (Some(0), "local\n", false), "{stderr}");
        let again = home.server(ALONE);
        assert!(by_server(&read(&home.run(["-v", "--", "true"]).output().unwrap()).2));
        assert_eq!(again.end().0, Some(0));
        assert!(home.gone());
    });
}

#[test]
fn killed_client_and_killed_server_leave_none_of_five_hundred_spinners() {
    // The spinners would starve attacks of the hostile tests.
    let _turn = hostile::turn();
    leaving_nothing(|| {
        let home = Home::new();
        let mut server = home.server(ALONE);
        let spin = || {
            let mut command = home.run(["--use-server", "require"]);
            let started = ready(command.args(SPINNERS_ALLOWED).args(["--", "sh", "-c", &spinners()]));
            wait_until_busy();
            started
        };
        let (mut client, _stdout) = spin();
        client.kill().unwrap();
        client.wait().unwrap();
        server.until("the guest ended", |status| status["running"] == 0 && status["pool"]["closing"] == 0);
        let (client, _stdout) = spin();
        server.signal(Signal::KILL);
        server.child.wait().unwrap();
        let (status, _, stderr) = read(&client.wait_with_output().unwrap());
        assert_eq!(status, Some(125), "{stderr}");
    });
}

/// Promise (Server): `server stop` waits for runs, then ends the remaining ones.
#[test]
fn stop_lets_runs_end_and_cuts_off_those_that_do_not() {
    leaving_nothing(|| {
        for (drain, line, expected) in [
            ("30s", "echo ready; sleep 0.7; echo done", (Some(0), "done\n")),
            ("200ms", "echo ready; sleep 1000; echo done", (None, "")),
        ] {
            let home = Home::new();
            let server = home.server(&["--drain", drain]);
            let (mut child, mut stdout) = ready(&mut home.run(["--use-server", "require", "--", "sh", "-c", line]));
            let (status, _, printed) = stop(&home);
            assert_eq!(status, Some(0), "{printed}");
            let mut rest = String::new();
            stdout.read_to_string(&mut rest).unwrap();
            let status = child.wait().unwrap().code();
            assert_eq!(rest, expected.1);
            match expected.0 {
                Some(_) => assert_eq!(status, expected.0),
                None => assert!(status.is_some_and(|status| status != 0), "{status:?}"),
            }
            assert!(home.gone());
            drop(server);
        }
    });
}

/// Promise (Server): A signal ends the server after its runs, and a second signal ends it at once.
#[test]
fn a_signal_ends_the_server_when_its_runs_have_and_a_second_one_at_once() {
    leaving_nothing(|| {
        let home = Home::new();
        let mut server = home.server(&["--drain", "1h"]);
        let (child, _stdout) =
            ready(&mut home.run(["--use-server", "require", "--", "sh", "-c", "echo ready; sleep 1000"]));
        server.signal(Signal::TERM);
        let mut line = String::new();
        server.stderr.read_line(&mut line).unwrap();
        assert!(line.contains("signal 15"), "{line}");
        // The server prints the message first, and then removes the socket.
        let deadline = Instant::now() + Duration::from_secs(10);
        while home.socket().exists() {
            assert!(Instant::now() < deadline, "the socket stays");
            std::thread::sleep(Duration::from_millis(1));
        }
        // New runs are local now.
        assert!(!by_server(&read(&home.run(["-v", "--", "true"]).output().unwrap()).2));
        server.signal(Signal::TERM);
        assert_eq!(server.child.wait().unwrap().code(), Some(143));
        assert_ne!(child.wait_with_output().unwrap().status.code(), Some(0));
    });
}

/// Promise (Server): An idle server ends.
#[test]
fn idle_server_ends() {
    leaving_nothing(|| {
        let home = Home::new();
        let mut server = home.server(&["--idle-exit", "1s", "--python", "0", "--node", "0"]);
        let begun = Instant::now();
        assert_eq!(home.run(["--use-server", "require", "--", "sleep", "1.2"]).status().unwrap().code(), Some(0));
        let status = server.child.wait().unwrap();
        assert_eq!(status.code(), Some(0));
        assert!(begun.elapsed() > Duration::from_secs(2) && begun.elapsed() < TEST_TIMEOUT);
        assert!(home.gone());
    });
}

/// Promise (Server): A run is local if the server has another build, `PATH` or backend.
#[test]
fn another_build_and_other_surroundings_are_not_used() {
    let home = Home::new();
    let _server = home.server(ALONE);
    let copy = home.directory.path().join("copy");
    std::fs::copy(env!("CARGO_BIN_EXE_cofferdam"), &copy).unwrap();
    let mut other_build = home.program(&copy);
    let mut other_path = home.cofferdam();
    other_path.env("PATH", "/usr/bin:/bin");
    let mut other_backend = home.cofferdam();
    other_backend.env("SANDBOX_TYPE", "simulated");
    let cases: [(&mut Command, &str); 3] = [
        (&mut other_build, "has another build"),
        (&mut other_path, "another PATH, HOME, container engine or VM image"),
        (&mut other_backend, "uses the backend 'process'"),
    ];
    for (command, why) in cases {
        command.args(["run", "-v", "--", "echo", "a"]);
        let (status, stdout, stderr) = read(&command.output().unwrap());
        assert!(stderr.contains(why), "{stderr}");
        assert!(why.contains("backend") || (status, stdout.as_str()) == (Some(0), "a\n"), "{status:?} {stderr}");
    }
    let (status, _, stderr) =
        read(&home.program(&copy).args(["run", "--use-server", "require", "--", "true"]).output().unwrap());
    assert!(status == Some(125) && stderr.contains("try: restart it from here"), "{stderr}");
    // A client of another build can still stop it.
    let (status, _, stderr) = read(&home.program(&copy).args(["serve", "stop"]).output().unwrap());
    assert_eq!(status, Some(0), "{stderr}");
}

/// Promise (Server): A run is local if the server is full.
#[test]
fn run_beyond_the_servers_limit_is_local() {
    let home = Home::new();
    let server = home.server(&["--max-runs", "1", "--python", "0", "--node", "0"]);
    let (child, _stdout) =
        ready(&mut home.run(["--use-server", "require", "--", "sh", "-c", "echo ready; sleep 1000"]));
    let (status, stdout, stderr) = read(&home.run(["-v", "--", "echo", "a"]).output().unwrap());
    assert_eq!((status, stdout.as_str(), by_server(&stderr)), (Some(0), "a\n", false));
    assert!(stderr.contains("is at its limit of runs"), "{stderr}");
    assert_eq!(home.run(["--use-server", "require", "--", "true"]).status().unwrap().code(), Some(125));
    assert_eq!(server.status()["running"], 1);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    child.wait_with_output().unwrap();
    server.until("there is room", |status| status["running"] == 0);
}
