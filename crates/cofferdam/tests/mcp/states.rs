//! Snapshots and forks of sandboxes, and live interpreters, with every backend that the tests have.

use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::census::{census, left_behind};
use crate::client::{Client, Target, containers, processes, until, vms, webassembly};

/// Timeout for background teardown and for sandboxes of other tests.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(180);
/// Lock for tests whose long-lived sandboxes would look left behind to others.
static TURN: Mutex<()> = Mutex::new(());
/// A command that leaves a directory, a file, and a program that counts in another file.
const COUNTING: &str = "echo kept > f; mkdir d; cd d; \
    (i=0; while :; do i=$((i+1)); echo $i > /workspace/new; mv /workspace/new /workspace/n; sleep 0.1; done) \
    > /dev/null 2>&1 & sleep 1";

/// The fate of programs in restored and forked sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Programs {
    GoOn,
    End,
}

/// Returns the current count of the program.
fn count(client: &mut Client, sandbox: &Value) -> u64 {
    client.prints(sandbox, "cat /workspace/n").trim().parse().expect("a number")
}

fn counts(client: &mut Client, sandbox: &Value) -> bool {
    let first = count(client, sandbox);
    client.prints(sandbox, "sleep 1");
    count(client, sandbox) > first
}

fn states_carry_over(target: &Target, programs: Programs) {
    let _turn = TURN.lock();
    let before = census();
    let mut client = Client::new(target, &["--sandboxes-of-client", "8"]);
    let first = client.makes("create_sandbox", json!({"limits": {"timeout_seconds": 50}}));
    client.prints(&first, COUNTING);
    let snapshot = client.works("snapshot_sandbox", json!({"sandbox": first}))["snapshot"].clone();
    let frozen = count(&mut client, &first);
    assert!(counts(&mut client, &first), "it continues");
    let restored = client.works("restore_sandbox", json!({"snapshot": snapshot}));
    assert_eq!(restored["limits"]["timeout_seconds"], 50.0, "{restored}");
    let mut copies = vec![restored["sandbox"].clone()];
    copies.extend((0..6).map(|_| client.makes("fork_sandbox", json!({"sandbox": first}))));
    // Eight sandboxes exist, which is the limit for any source.
    for (tool, arguments) in [
        ("fork_sandbox", json!({"sandbox": first})),
        ("restore_sandbox", json!({"snapshot": snapshot})),
        ("create_sandbox", json!({})),
    ] {
        assert_eq!(client.fails(tool, arguments).1, "resource-exhausted", "{tool}");
    }
    for (number, copy) in copies.iter().enumerate() {
        assert_eq!(client.prints(copy, "pwd; cat ../f; echo mine > ../f"), "/workspace/d\nkept\n", "{number}");
        assert!(count(&mut client, copy) + 1 >= frozen, "{number}");
    }
    assert_eq!(client.prints(&first, "cat ../f"), "kept\n", "a copy's files are its own");
    assert_eq!(counts(&mut client, &copies[1]), programs == Programs::GoOn);
    client.works("close_sandbox", json!({"sandbox": first}));
    for copy in &copies[1..] {
        client.works("close_sandbox", json!({"sandbox": copy}));
    }
    // The original is closed, and the copy continues.
    assert_eq!(counts(&mut client, &copies[0]), programs == Programs::GoOn);
    let again = client.makes("restore_sandbox", json!({"snapshot": snapshot, "limits": {"timeout_seconds": 7}}));
    assert_eq!(client.prints(&again, "cat ../f"), "kept\n");
    client.works("close_sandbox", json!({"snapshot": snapshot}));
    assert_eq!(client.fails("restore_sandbox", json!({"snapshot": snapshot})).1, "not-found");
    for _ in 0..4 {
        client.works("snapshot_sandbox", json!({"sandbox": again}));
    }
    assert_eq!(client.fails("snapshot_sandbox", json!({"sandbox": again})).1, "resource-exhausted");
    client.end();
    let left = left_behind(&before, TEARDOWN_TIMEOUT);
    assert!(left.is_empty(), "{left:#?}");
}

/// Promise (MCP server): A restored or forked container has the files of its source.
#[test]
fn states_of_containers_carry_over() {
    if let Some(target) = containers("states_of_containers_carry_over") {
        states_carry_over(&target, Programs::End);
    }
}

/// Promise (MCP server): A restored or forked VM has the files and the running programs of its source.
#[test]
fn vm_state_carries_over_with_running_programs() {
    if let Some(target) = vms("vm_state_carries_over_with_running_programs") {
        states_carry_over(&target, Programs::GoOn);
    }
}

/// Promise (MCP server): Process sandboxes cannot be forked, and the error names backends that can.
#[test]
fn fork_of_a_process_sandbox_names_backends_that_can() {
    let mut client = Client::new(&processes(), &[]);
    let sandbox = client.makes("create_sandbox", json!({}));
    for tool in ["snapshot_sandbox", "fork_sandbox"] {
        let (text, kind) = client.fails(tool, json!({"sandbox": sandbox}));
        assert!(kind == "unsupported" && text.contains("try: use level vm"), "{text}");
    }
    client.end();
}

/// Tests that variables survive, and that an error in one session is reported and affects no other.
fn sessions_live(target: &Target) {
    let _turn = TURN.lock();
    let before = census();
    let mut client = Client::new(target, &[]);
    let sandbox = client.makes("create_sandbox", json!({}));
    let call = |session: &str, language: &str, code: &str, time: u64| json!({"sandbox": sandbox, "session": session, "language": language, "code": code, "timeout_seconds": time});
    client.works("run_code", call("a", "python", "x = 41", 30));
    let value = client.works("run_code", call("a", "python", "x + 1", 30));
    assert_eq!(value["results"][0]["data"]["text/plain"], "42", "{value}");
    let endless = client.works("run_code", call("b", "python", "while True: pass", 2));
    assert!(endless["timed_out"] == true && endless["session"]["lost"].is_string(), "{endless}");
    assert_eq!(client.fails("run_code", call("b", "python", "1", 5)).1, "closed");
    client.works("run_code", call("c", "python", "1", 30));
    let cancelled =
        client.begin("run_code", call("c", "python", "open('busy', 'w'); import time; time.sleep(600)", 40));
    until("it runs", Duration::from_secs(30), || {
        client.works("list_files", json!({"sandbox": sandbox, "path": "."})).to_string().contains("busy")
    });
    client.cancel(cancelled);
    until("it is lost", Duration::from_secs(30), || {
        let (text, kind) = client.fails("run_code", call("c", "python", "1", 5));
        assert!(["closed", "conflict"].contains(&kind.as_str()), "{text}");
        kind == "closed"
    });
    // A fork, if supported beside a running interpreter, has the files, but separate interpreters.
    let fork = client.begin("fork_sandbox", json!({"sandbox": sandbox}));
    let fork = client.result(fork)["structuredContent"]["sandbox"].clone();
    assert_eq!(fork.is_null(), !target.forks_while_programs_run());
    if !fork.is_null() {
        let mut request = call("a", "python", "'x' in globals()", 30);
        request["sandbox"] = fork;
        let fresh = client.works("run_code", request);
        assert_eq!(
            (&fresh["results"][0]["data"]["text/plain"], &fresh["session"]["calls"]),
            (&json!("False"), &json!(1))
        );
    }
    let value = client.works("run_code", call("a", "python", "x + 2", 30));
    assert_eq!(value["results"][0]["data"]["text/plain"], "43", "{value}");
    client.works("close_sandbox", json!({"sandbox": sandbox}));
    client.end();
    let left = left_behind(&before, TEARDOWN_TIMEOUT);
    assert!(left.is_empty(), "{left:#?}");
}

/// Promise (MCP server): Code sessions work in process sandboxes.
#[test]
fn sessions_live_in_processes() {
    sessions_live(&processes());
}

/// Promise (MCP server): Code sessions work in WebAssembly.
#[test]
fn sessions_live_in_webassembly() {
    if let Some(target) = webassembly("sessions_live_in_webassembly") {
        sessions_live(&target);
    }
}

/// Promise (MCP server): Code sessions work in containers.
#[test]
fn sessions_live_in_containers() {
    if let Some(target) = containers("sessions_live_in_containers") {
        sessions_live(&target);
    }
}

/// Promise (MCP server): Code sessions work in VMs.
#[test]
fn sessions_work_in_vms() {
    if let Some(target) = vms("sessions_work_in_vms") {
        sessions_live(&target);
    }
}

/// Tests that calls wait during a snapshot, and that cancelled calls and a killed server leave nothing.
fn hostile_clients_leave_nothing(target: &Target) {
    let _turn = TURN.lock();
    let before = census();
    let mut client = Client::new(target, &[]);
    let sandbox = client.makes("create_sandbox", json!({}));
    client.prints(&sandbox, "echo x > f");
    for round in 0..3_u64 {
        for tool in ["snapshot_sandbox", "fork_sandbox", "create_sandbox"] {
            let arguments = if tool == "create_sandbox" { json!({}) } else { json!({"sandbox": sandbox}) };
            let id = client.begin(tool, arguments);
            std::thread::sleep(Duration::from_millis(30 * round));
            client.cancel(id);
            assert_eq!(client.prints(&sandbox, "cat f"), "x\n", "{tool} {round}");
        }
    }
    // All reservations are released in the end, except those of completed calls.
    until("slots are free", Duration::from_secs(60), || {
        let id = client.begin("fork_sandbox", json!({"sandbox": sandbox}));
        let result = client.result(id);
        let Some(fork) = result["structuredContent"]["sandbox"].as_str() else { return false };
        client.works("close_sandbox", json!({"sandbox": fork}));
        true
    });
    // Two concurrent calls of each kind.
    let both: Vec<u64> = ["snapshot_sandbox", "fork_sandbox", "snapshot_sandbox"]
        .iter()
        .map(|tool| client.begin(tool, json!({"sandbox": sandbox})))
        .collect();
    let line = client.begin("run_command", json!({"sandbox": sandbox, "command": "cat f"}));
    let result = client.result(line);
    assert_eq!(result["structuredContent"]["stdout"], "x\n", "{result}");
    for id in both {
        let result = client.result(id);
        let full = result["_meta"]["cofferdam/error"]["kind"] == "resource-exhausted";
        assert!(result["isError"] == false || full, "{result}");
    }
    client.begin("run_command", json!({"sandbox": sandbox, "command": "sleep 600"}));
    client.begin("snapshot_sandbox", json!({"sandbox": sandbox}));
    client.begin("fork_sandbox", json!({"sandbox": sandbox}));
    client.begin("create_sandbox", json!({}));
    std::thread::sleep(Duration::from_millis(200));
    client.kill();
    // The next server removes the rest of a killed one.
    let mut next = Client::new(target, &[]);
    next.makes("create_sandbox", json!({}));
    next.end();
    let left = left_behind(&before, TEARDOWN_TIMEOUT);
    assert!(left.is_empty(), "{left:#?}");
}

/// Promise (MCP server): Calls during the copy of a container wait, and a cancel or a killed server leaves nothing.
#[test]
fn a_hostile_client_of_containers_leaves_nothing() {
    if let Some(target) = containers("a_hostile_client_of_containers_leaves_nothing") {
        hostile_clients_leave_nothing(&target);
    }
}

/// Promise (MCP server): Calls during the copy of a VM wait, and a cancel or a killed server leaves nothing.
#[test]
fn hostile_client_of_vms_leaves_nothing() {
    if let Some(target) = vms("hostile_client_of_vms_leaves_nothing") {
        hostile_clients_leave_nothing(&target);
    }
}
