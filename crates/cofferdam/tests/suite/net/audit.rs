//! Records of connections, requests and refusals: in the audit log, in results, and in the REPL.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{Fixture, USERS, outcome};
use crate::cli::WEAKER;

/// A value that a program has, and sends where the log would show it.
const SECRET: &str = "Secret-5F0b82c7D91e";

/// Promise (Network): Connections, requests and refusals are in the audit log, with sandbox, tenant, name, address, rule,
/// bytes and verdict. It has no secret of the run.
#[test]
fn connections_are_in_the_audit_log() {
    let Some(fixture) = Fixture::new("connections_are_in_the_audit_log") else { return };
    let code = format!(
        "print(fetch('http://web.example/a?b=c')[0])\nprint(fetch('http://web.example/{SECRET}')[0])\n\
         attempt(talk, 'web.example', 7, b'abc')\nattempt(talk, 'web.example', 7, b'abc')\n\
         attempt(talk, '198.18.200.200', 80)\n\
         attempt(talk, '{SECRET}.other.example', 80)\nprint(status('http://web.example/a', 'DELETE'))"
    );
    let policy = fixture.policy(
        "[[allow]]\nhost = \"web.example:80\"\nmethods = [\"GET\"]\n[[allow]]\nhost = \"web.example:7\"\n\
         max_requests = 1\n",
    );
    for user in USERS {
        let home = tempfile::tempdir().expect("a directory");
        let log = home.path().join("log");
        let config = home.path().join("config.toml");
        std::fs::write(&config, format!("[audit]\ndirectory = {log:?}\nsync = \"never\"\n")).expect("written");
        let chown = outcome(Command::new("chown").arg("-R").arg(format!("{user}:{user}")).arg(home.path()));
        assert_eq!(chown.0, 0, "{}", chown.2);
        let config = config.to_str().expect("text");
        let options = ["--config", config, "--tenant", "acme", "--net-policy", &policy, "--json", "--secret", "TOKEN"];
        let mut run = fixture.command(user, &options);
        run.env("TOKEN", SECRET).args(["--", "python3", "-c", &format!("{}\n{code}", super::PRELUDE)]);
        let (status, stdout, stderr) = outcome(&mut run);
        assert_eq!(status, 0, "{user}: {stdout} {stderr}");
        let result: Value = serde_json::from_str(&stdout).expect("JSON");
        let text = result["stdout"]["text"].as_str().unwrap_or_default();
        assert_eq!(text, "200\n200\nb'3 bytes'\nb''\nb''\nfailed: gaierror\n403\n", "{stdout}");
        let usage = &result["network"];
        // The look-up is for two kinds of addresses.
        assert_eq!((&usage["requests"], &usage["refused"]), (&json!(3), &json!(5)), "{usage}");
        assert!(usage["connections"].as_u64() >= Some(5) && usage["sent_bytes"].as_u64() > Some(100), "{usage}");
        let denials = result["network_denials"].to_string();
        assert!(denials.contains(&format!("the look-up of {}.other.example", SECRET.to_lowercase())), "{denials}");

        let audit = |words: &[&str]| {
            let mut audit = Command::new("setpriv");
            audit.args(["--reuid", user, "--regid", user, "--clear-groups", env!("CARGO_BIN_EXE_cofferdam"), "audit"]);
            outcome(audit.args(words).args(["--config", config]))
        };
        let (status, lines, stderr) = audit(&["query", "--tenant", "acme"]);
        assert_eq!(status, 0, "{stderr}");
        assert!(!lines.to_lowercase().contains(&SECRET.to_lowercase()), "{lines}");
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["record"].clone());
        let records: Vec<Value> = lines.collect();
        let end = records.iter().find(|record| record["kind"] == "end").expect("an end");
        let denials = end["denials"]["first"].as_array().expect("a list");
        let look_up =
            denials.iter().find(|denial| denial["what"].as_str().is_some_and(|what| what.contains("look-up")));
        assert_eq!(look_up.map(|denial| &denial["times"]), Some(&json!(2)), "{end}");
        assert_eq!(end["denials"]["count"], 4, "{end}");
        let events: Vec<&Value> = records.iter().filter(|record| record["kind"] == "network").collect();
        assert!(events.iter().all(|event| event["sandbox"] == end["sandbox"]), "{events:#?}");
        let find = |port: u64, allowed: bool, method: Value| {
            let found = events
                .iter()
                .find(|event| event["port"] == port && event["allowed"] == allowed && event["method"] == method);
            *found.unwrap_or_else(|| panic!("no event of port {port}: {events:#?}"))
        };
        let request = find(80, true, json!("GET"));
        assert_eq!((&request["path"], &request["host"]), (&json!("/a"), &json!("web.example")), "{request}");
        assert!(request["rule"].as_str().is_some_and(|rule| rule.contains("web.example")), "{request}");
        let refused = find(80, false, json!("DELETE"));
        assert!(refused["reason"].as_str().is_some_and(|reason| reason.contains("methods")), "{refused}");
        let connection = find(7, true, Value::Null);
        assert_eq!((&connection["sent_bytes"], &connection["received_bytes"]), (&json!(3), &json!(7)), "{connection}");
        assert_eq!(connection["address"], "11.22.33.44", "{connection}");
        let exhausted = find(7, false, Value::Null);
        assert_eq!(exhausted["reason"], "the budget of its rule is used up: web.example:7", "{exhausted}");
        let address = find(80, false, Value::Null);
        assert_eq!(address["host"], "198.18.200.200", "{address}");
        let verified = audit(&["verify"]);
        assert_eq!(verified.0, 0, "{}", verified.1);
    }
}

/// Promise (Network): The REPL prints what the policy refused.
#[test]
fn the_repl_prints_refusals() {
    let mut repl = Command::new(env!("CARGO_BIN_EXE_cofferdam"));
    repl.args(["repl", "--no-history", "--allow-weaker", WEAKER, "--net", "web.example:80"]);
    let mut child = repl.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let code = b"import socket\nsocket.getaddrinfo('other.example', 80)\nprint(1)\n";
    child.stdin.take().expect("piped").write_all(code).expect("written");
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let refused = "network: refused the look-up of other.example: the policy does not list it";
    assert_eq!(stderr.matches(refused).count(), 1, "{stderr}");
}

/// Promise (Network): If a mandatory audit log cannot be written, the sandbox loses its network.
#[test]
fn a_full_audit_log_cuts_the_network() {
    let Some(fixture) = Fixture::new("a_full_audit_log_cuts_the_network") else { return };
    let disk = fixture.directory.path().join("disk");
    std::fs::create_dir(&disk).expect("a directory");
    let mount = outcome(fixture.enter().args(["mount", "-t", "tmpfs", "-o", "size=3M", "tmpfs"]).arg(&disk));
    assert_eq!(mount.0, 0, "{}", mount.2);
    let config = fixture.directory.path().join("config.toml");
    let log = disk.join("log");
    std::fs::write(&config, format!("[audit]\ndirectory = {log:?}\nsync = \"never\"\n")).expect("written");
    // A policy with secrets cannot be replaced by one without them.
    let policy = fixture.policy(
        "[[allow]]\nhost = \"web.example:80\"\n[[allow]]\nhost = \"web.example:7\"\n\
         [[secret]]\nname = \"TOKEN\"\nfrom = \"env:SOURCE\"\nhosts = [\"web.example:80\"]\n",
    );
    let code = "import os, time\nattempt(talk, 'web.example', 7, b'abc')\n\
                while not os.path.exists('/workspace/full'): time.sleep(0.05)\n\
                for _ in range(400):\n    \
                try: cut = talk('web.example', 7, b'abc') != b'3 bytes'\n    \
                except OSError: cut = True\n    \
                if cut: break\n    \
                time.sleep(0.02)\n\
                print('cut', cut)";
    let mut run = fixture.command("0", &["--config", config.to_str().expect("text"), "--net-policy", &policy]);
    run.env("SOURCE", "a-secret-of-this-test").args(["--", "python3", "-c", &format!("{}\n{code}", super::PRELUDE)]);
    let child = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    // The disk as the run sees it.
    let inside = format!("/proc/{}/root{}", fixture.first, disk.display());
    let segment = format!("{inside}/log/audit-00000001.jsonl");
    let begun = std::time::Instant::now();
    while !std::fs::read_to_string(&segment).unwrap_or_default().contains("\"kind\":\"network\"") {
        assert!(begun.elapsed().as_secs() < 60, "the first connection is recorded");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let mut filler = std::fs::File::create(format!("{inside}/filler")).expect("a file");
    while filler.write_all(&[0; 4096]).is_ok() {}
    std::fs::write(fixture.files().join("full"), "").expect("written");
    let output = child.wait_with_output().expect("it ends");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(stdout, "b'3 bytes'\ncut True\n", "{stderr}");
    assert_eq!(
        stderr.matches("the audit log lacks connections of a sandbox, so that sandbox loses").count(),
        1,
        "{stderr}"
    );
}
