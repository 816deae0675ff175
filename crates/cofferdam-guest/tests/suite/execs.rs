//! Tests of execs: start, input and output, and end. The conformance suite covers the contract of all backends; these
//! tests cover the agent's own features.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{
    Command, ErrorKind, ExecHandle, ExecRequest, Exit, Limits, OutputEvent, SandboxPath, Script, Stdin, collect,
};
use cofferdam_guest::Guest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::enclosure::{LONG, guest};

pub async fn start(guest: &Guest, request: ExecRequest) -> ExecHandle {
    guest.start(&request, &Limits { wall_time: LONG, ..Limits::default() }).await.unwrap()
}

pub async fn shell(guest: &Guest, line: &str) -> (Exit, String) {
    let done = collect(start(guest, ExecRequest::shell(line).build().unwrap()).await).await.unwrap();
    (done.exit, String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Waits until the output has this text.
pub async fn wait_for(handle: &ExecHandle, text: &str) {
    let mut output = handle.output();
    let mut seen = String::new();
    while !seen.contains(text) {
        match tokio::time::timeout(LONG, output.next()).await.expect("output in time") {
            Some(OutputEvent::Chunk(chunk)) => seen.push_str(&String::from_utf8_lossy(&chunk.data)),
            other => panic!("{other:?} after {seen:?}"),
        }
    }
}

/// Returns the names of running processes, except the agent and the shell that lists them.
async fn others(guest: &Guest) -> String {
    let line = "for p in /proc/[0-9]*; do { read pid name state rest < $p/stat; } 2>/dev/null && [ $pid != 1 ] && \
                [ $pid != $$ ] && [ $state != Z ] && echo $name; done; true";
    shell(guest, line).await.1
}

/// Waits until only these other processes run. A killed process may be visible for a moment.
async fn gone(guest: &Guest, but: &str) {
    let gone = async {
        while others(guest).await != but {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("everything else is killed");
}

#[tokio::test]
async fn program_runs_and_its_exit_is_reported() {
    let (enclosure, guest) = guest().await;
    assert!(shell(&guest, "true").await.0.success());
    guest.close().await;
    enclosure.ended().await;
}

/// Promise (Containers): A guest program inherits nothing from the guest agent.
#[tokio::test]
async fn program_inherits_nothing_from_the_agent() {
    let (_enclosure, guest) = guest().await;
    let (_, fds) = shell(&guest, "cd /proc/self/fd; echo *").await;
    // The shell has a descriptor of its own while it reads the directory.
    let numbers: Vec<u32> = fds.split_whitespace().map(|fd| fd.parse().unwrap()).collect();
    assert!(numbers.starts_with(&[0, 1, 2]) && numbers.len() <= 4, "{fds}");
    let (_, hidden) =
        shell(&guest, "cat /proc/1/environ /proc/1/mem /proc/1/maps 2>/dev/null; ls /proc/1/fd 2>/dev/null").await;
    assert_eq!(hidden, "");
    let (_, alive) = shell(&guest, "kill -9 1; kill -STOP 1; kill -TERM 1; echo still here").await;
    assert_eq!(alive, "still here\n");
    let (_, env) = shell(&guest, "env | cut -d= -f1 | sort | tr '\\n' ' '").await;
    assert_eq!(env, "HOME LANG PATH PWD ");
}

#[tokio::test]
async fn a_hundred_programs_at_once_do_not_mix() {
    let (_enclosure, guest) = guest().await;
    let mut running = JoinSet::new();
    for number in 0..100u32 {
        let guest = guest.clone();
        running.spawn(async move {
            let line =
                format!("read line; echo $line {number}; head -c 100000 /dev/zero | tr '\\0' x; exit {}", number % 7);
            let stdin = Stdin::Bytes(format!("in{number}\n").into());
            let request = ExecRequest::shell(line).stdin(stdin).build().unwrap();
            let done = collect(start(&guest, request).await).await.unwrap();
            let text = String::from_utf8_lossy(&done.stdout).into_owned();
            assert!(text.starts_with(&format!("in{number} {number}\nxxx")), "{}", &text[..20]);
            assert_eq!(
                (done.stdout.len(), done.exit.code),
                (format!("in{number} {number}\n").len() + 100_000, (number % 7) as i32)
            );
        });
    }
    while let Some(result) = running.join_next().await {
        result.unwrap();
    }
    gone(&guest, "").await;
}

#[tokio::test]
async fn a_long_command_line_arrives_whole() {
    let (_enclosure, guest) = guest().await;
    let words: Vec<String> = (0..8).map(|number| number.to_string().repeat(100_000)).collect();
    let argv = ["sh".to_owned(), "-c".to_owned(), "printf %s \"$@\" | cksum".to_owned(), "sh".to_owned()];
    let request = ExecRequest::argv(argv.into_iter().chain(words.clone())).env("LONG", "y".repeat(120_000));
    let done = collect(start(&guest, request.build().unwrap()).await).await.unwrap();
    let file = SandboxPath::new("all").unwrap();
    guest.write_file(&file, Box::new(std::io::Cursor::new(words.concat()))).await.unwrap();
    let (_, expected) = shell(&guest, "cksum < all").await;
    assert_eq!(String::from_utf8_lossy(&done.stdout), expected);
}

#[tokio::test]
async fn a_flood_of_forks_is_killed_to_the_last() {
    let (_enclosure, guest) = guest().await;
    // Each child starts the next one in a new session and exits, so that no parent is known.
    let line = "f() { setsid sh -c \"$0\" \"$0\" & exit; }; for i in 1 2 3 4 5; do (setsid sh -c \"$FLOOD\" &) ; done; echo on; sleep 1000";
    let flood = "trap '' TERM HUP; (setsid sh -c \"$FLOOD\" &) ; sleep 0.02";
    let other = start(&guest, ExecRequest::argv(["sleep", "1000"]).build().unwrap()).await;
    let request = ExecRequest::shell(line).env("FLOOD", flood).build().unwrap();
    let handle = start(&guest, request).await;
    wait_for(&handle, "on").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(others(&guest).await.lines().count() > 3);
    let exit = handle.cancel_within(Duration::from_millis(100)).await.unwrap();
    assert!(exit.cancelled, "{exit:?}");
    // Processes of another exec keep running.
    gone(&guest, "(sleep)\n").await;
    assert!(other.try_exit().is_none());
    other.close().await.unwrap();
    gone(&guest, "").await;
}

#[tokio::test]
async fn a_dropped_handle_and_a_dropped_start_kill() {
    let (_enclosure, guest) = guest().await;
    let handle = start(&guest, ExecRequest::shell("(setsid sleep 1000 &); echo on; sleep 1000").build().unwrap()).await;
    wait_for(&handle, "on").await;
    drop(handle);
    for _ in 0..50 {
        let request = ExecRequest::argv(["sleep", "1000"]).build().unwrap();
        let limits = Limits::default();
        // Dropped at an arbitrary point.
        let _ = tokio::time::timeout(Duration::from_micros(300), guest.start(&request, &limits)).await;
    }
    gone(&guest, "").await;
}

#[tokio::test]
async fn a_stopped_guest_is_frozen_until_it_is_thawed() {
    let (_enclosure, guest) = guest().await;
    let line = "while :; do echo x >> beat; sleep 0.01; done";
    shell(&guest, "touch beat").await;
    let handle =
        start(&guest, ExecRequest::shell(format!("({line}) & ({line}) & echo on; wait")).build().unwrap()).await;
    wait_for(&handle, "on").await;
    let beat = SandboxPath::new("beat").unwrap();
    let length = || async {
        let mut data = Vec::new();
        guest.read_file(&beat).await.unwrap().read_to_end(&mut data).await.unwrap();
        data.len()
    };
    guest.freeze().await.unwrap();
    let before = length().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(length().await, before);
    let refused = guest.start(&ExecRequest::argv(["true"]).build().unwrap(), &Limits::default()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Conflict);
    guest.thaw().await.unwrap();
    let resumes = async {
        while length().await <= before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, resumes).await.expect("the guest resumes");
    // Frozen processes can still be killed.
    guest.freeze().await.unwrap();
    handle.close().await.unwrap();
    guest.thaw().await.unwrap();
    gone(&guest, "").await;
}

#[tokio::test]
async fn a_script_is_outside_of_the_workspace_and_gone_after_it() {
    let (_enclosure, guest) = guest().await;
    let script = Script {
        interpreter: vec!["sh".into()],
        name: "main.sh".into(),
        contents: "echo $0 $1; ls".into(),
        args: vec!["one".into()],
    };
    let request = ExecRequest::builder(Command::Script(script)).build().unwrap();
    let done = collect(start(&guest, request).await).await.unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let path = text.strip_suffix(" one\n").expect("nothing else in the workspace");
    assert!(path.starts_with("/tmp/.cofferdam-code/") && path.ends_with("/main.sh"), "{path}");
    assert_eq!(shell(&guest, "ls -A /tmp/.cofferdam-code").await.1, "");
}

#[tokio::test]
async fn input_stops_at_its_window_and_resumes() {
    let (_enclosure, guest) = guest().await;
    let request = ExecRequest::shell("read go; sleep 0.3; wc -c").stdin(Stdin::Stream).build().unwrap();
    let handle = Arc::new(start(&guest, request).await);
    let mut stdin = handle.stdin().unwrap();
    let data = vec![b'x'; 1 << 20];
    let written = tokio::time::timeout(Duration::from_millis(200), stdin.write_all(&data)).await;
    assert!(written.is_err(), "without a reader, the input exceeds the window");
    drop(stdin);
    let closing = Arc::clone(&handle);
    closing.close().await.unwrap();
    // A program that exits without reading does not block the writer.
    let request = ExecRequest::shell("exec 0<&-; sleep 0.2; echo done").stdin(Stdin::Stream).build().unwrap();
    let handle = start(&guest, request).await;
    let mut stdin = handle.stdin().unwrap();
    let _ = tokio::time::timeout(LONG, stdin.write_all(&data)).await.expect("the write succeeds or fails");
    assert_eq!(handle.exit().await.unwrap().code, 0);
}

#[tokio::test]
async fn cpu_time_is_limited_without_control_groups() {
    let (_enclosure, guest, _) = crate::enclosure::connect(cofferdam_guest::Settings {
        limits: Limits { cpu_time: Some(Duration::from_secs(1)), ..Limits::default() },
        ..Default::default()
    })
    .await
    .unwrap();
    let limits = Limits { cpu_time: Some(Duration::from_secs(1)), wall_time: LONG, ..Limits::default() };
    let request = ExecRequest::shell("while :; do :; done & while :; do :; done").build().unwrap();
    let done = collect(guest.start(&request, &limits).await.unwrap()).await.unwrap();
    assert_eq!(done.exit.killed_by, Some(cofferdam_contract::LimitKind::Cpu), "{done:?}");
}
