//! Code with its full result, live interpreters and the audit log.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{WEAKER, cofferdam, json, outcome, read, repository, run, start};

/// Returns a command that finds the interpreters for WebAssembly.
fn in_webassembly(mut command: Command) -> Command {
    let named = std::env::var_os("COFFERDAM_TEST_WASM_CACHE").map(std::path::PathBuf::from);
    match named.as_deref().and_then(Path::parent).and_then(Path::parent) {
        Some(cache) => command.env("XDG_CACHE_HOME", cache),
        None => command.env("HOME", std::env::var_os("HOME").unwrap_or_default()),
    };
    command
}

/// Returns true if the interpreter for WebAssembly is installed. Otherwise it prints that the test is skipped.
fn installed(stderr: &str, test: &str) -> bool {
    let missing = stderr.contains("is not installed") || stderr.contains("not in this version");
    if missing {
        println!("SKIP without an interpreter for WebAssembly: {test}");
    }
    !missing
}

/// Promise (Code execution): `run --json` returns the complete result of code.
#[test]
fn a_document_has_the_whole_result_of_code() {
    let code = "print('hi')\nopen('a.txt', 'w').write('x')\n[6 * 7]";
    let (status, stdout, stderr) = outcome(&mut run(["--json", "--lang", "python", "--code", code]));
    assert_eq!((status, stderr.as_str()), (0, ""), "{stdout}");
    let document = json(&stdout);
    assert_eq!(document["stdout"]["text"], "hi\n");
    assert_eq!(document["exit"]["code"], 0);
    assert_eq!(document["exit_code"], 0);
    assert_eq!(document["results"][0]["data"]["text/plain"], "[42]");
    assert_eq!(document["files"]["changes"][0]["name"], "a.txt");
    assert_eq!(document["meta"]["runtime"]["interpreter"], "python3");
    assert_eq!(document["meta"]["posture"].as_str().map(str::len), Some(64));
    assert!(document["posture"].is_array() && document["session"].is_null());
    let words = [
        "--json",
        "--stdin",
        "--lang",
        "python",
        "--code",
        "import sys; print(sys.stdin.read(), sys.argv[1])",
        "--",
        "b",
    ];
    let mut child = start(&mut run(words));
    child.stdin.take().expect("a pipe").write_all(b"a").expect("written");
    let (_, stdout, _) = read(&child.wait_with_output().expect("it ends"));
    assert_eq!(json(&stdout)["stdout"]["text"], "a b\n");
    let (status, stdout, stderr) = outcome(&mut run(["--json", "--lang", "python", "--code", "def ("]));
    assert_eq!(status, 125);
    assert!(stderr.contains("syntax error in line 1"), "{stderr}");
    assert_eq!(json(&stdout)["error"]["kind"], "invalid-input");
    let (_, stdout, _) = outcome(&mut run(["--json", "examples/primes.py"]));
    assert_eq!(json(&stdout)["language"], "python");
}

#[test]
fn outdated_interpreter_is_reported_in_every_output_form() {
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("config.toml");
    let text = "[languages.new]\nextensions = [\"new\"]\ninterpreter = [\"sh\"]\nversion = [\"echo\", \"1.2.3\"]\n";
    for (least, status) in [("1.2", 7), ("1.10", 125)] {
        std::fs::write(&file, format!("{text}least_version = \"{least}\"\n")).expect("written");
        for form in [&[][..], &["--json"], &["--events"], &["--use-server", "start"]] {
            let mut command = run(["--lang", "new", "--code", "exit 7", "--config"]);
            command.arg(&file).args(form).env("XDG_RUNTIME_DIR", home.path()).env("XDG_STATE_HOME", home.path());
            let (code, _, stderr) = outcome(&mut command);
            assert_eq!(code, status, "{least} {form:?}: {stderr}");
            assert!(
                status == 7 || stderr.contains("new needs sh 1.10 or newer, and the sandbox has 1.2.3"),
                "{stderr}"
            );
        }
    }
    assert!(!home.path().join("cofferdam/server.sock").exists(), "no server is started that could not be used");
}

#[test]
fn the_result_of_webassembly_is_of_the_same_form() {
    for (lang, code) in [
        ("python", "print('hi')\nopen('a.txt', 'w').write('x')\n6 * 7"),
        ("javascript", "console.log('hi'); require('fs').writeFileSync('a.txt', 'x'); 6 * 7"),
    ] {
        let (status, stdout, stderr) =
            outcome(&mut in_webassembly(run(["--json", "--level", "wasm", "--lang", lang, "--code", code])));
        if !installed(&stderr, "the_result_of_webassembly_is_of_the_same_form") {
            return;
        }
        assert_eq!((status, stderr.as_str()), (0, ""), "{stdout}");
        let document = json(&stdout);
        assert_eq!(document["stdout"]["text"], "hi\n");
        assert_eq!(document["results"][0]["data"]["text/plain"], "42", "{document:#}");
        assert_eq!(document["files"]["changes"][0]["name"], "a.txt");
        assert_eq!(document["level"], "wasm");
    }
}

fn repl(words: &[&str]) -> Command {
    let mut command = cofferdam();
    command.args(["repl", "--no-history", "--allow-weaker", WEAKER]).args(words).current_dir(repository());
    command
}

pub(super) fn typed(command: &mut Command, lines: &str) -> (i32, String, String) {
    let mut child = start(command);
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("written");
    read(&child.wait_with_output().expect("it ends"))
}

/// Promise (Code execution): The lines of `repl` share their variables.
#[test]
fn lines_share_their_variables() {
    let lines =
        "x = 20\ndef f(y):\n    return x + y\n\nf(22)\nprint('out')\nnope\nimport os; os._exit(3)\n'x' in globals()\n";
    let (status, stdout, stderr) = typed(&mut repl(&[]), lines);
    assert_eq!((status, stdout.as_str()), (0, "42\nout\nFalse\n"), "{stderr}");
    assert!(stderr.contains("NameError: name 'nope' is not defined"), "{stderr}");
    assert!(stderr.contains("the interpreter ended, with exit code 3"), "{stderr}");
    let lines = "while True: pass\n1\n";
    let (status, stdout, stderr) = typed(&mut repl(&["--timeout", "1s"]), lines);
    assert_eq!((status, stdout.as_str()), (0, "1\n"), "{stderr}");
    assert!(stderr.contains("did not end within 1."), "{stderr}");
    let (status, stdout, stderr) =
        typed(&mut repl(&["--lang", "javascript", "--pids", "32"]), "const a = {\nb: 1 }\na.b + 1\n");
    assert_eq!((status, stdout.as_str()), (0, "2\n"), "{stderr}");
}

/// Promise (WebAssembly): The lines of `repl` share their variables in Python and JavaScript.
#[test]
fn lines_share_their_variables_in_webassembly() {
    let python = "x = 20\ndef f(y):\n    return x + y\n\nf(22)\nopen('a', 'w').write('kept')\nnope\n\
        import sys; sys.stdin.read()\nopen('a').read() + str(x)\nexit(3)\n";
    let javascript = "const a = {\nb: 1 }\na.b + 1\nconst c = await Promise.resolve(40)\nc + a.b\nnope\n\
        setTimeout(() => console.log('later'), 1); 5\nawait new Promise((done) => setTimeout(done, 20)); 6\nprocess.exit(3)\n";
    for (lang, lines, printed, failure) in [
        ("python", python, "42\n4\n''\n'kept20'\n", "NameError: name 'nope' is not defined"),
        ("javascript", javascript, "2\n41\nlater\n5\n6\n", "ReferenceError: nope is not defined"),
    ] {
        let mut command = cofferdam();
        command.args(["repl", "--no-history", "--level", "wasm", "--lang", lang]);
        let (status, stdout, stderr) = typed(&mut in_webassembly(command), lines);
        if !installed(&stderr, "lines_share_their_variables_in_webassembly") {
            return;
        }
        assert_eq!((status, stdout.as_str()), (3, printed), "{lang}: {stderr}");
        assert!(stderr.contains(failure) && !stderr.contains("cofferdam."), "{lang}: {stderr}");
    }
}

#[test]
fn a_session_of_webassembly_ends_at_its_time_limit_and_another_begins() {
    let mut command = cofferdam();
    command.args(["repl", "--no-history", "--level", "wasm", "--timeout", "2s"]);
    let lines = "x = 1\nwhile True: pass\n'x' in globals()\n";
    let (status, stdout, stderr) = typed(&mut in_webassembly(command), lines);
    if installed(&stderr, "a_session_of_webassembly_ends_at_its_time_limit_and_another_begins") {
        assert_eq!((status, stdout.as_str()), (0, "False\n"), "{stderr}");
        assert!(stderr.contains("did not end within 2."), "{stderr}");
    }
}

#[test]
fn exit_and_quit_end_the_repl_with_their_status() {
    for (line, expected) in [("exit()", 0), ("quit()", 0), ("exit(3)", 3)] {
        let (status, stdout, stderr) = typed(&mut repl(&[]), &format!("x = 1\n{line}\nprint(x)\n"));
        assert_eq!((status, stdout.as_str()), (expected, ""), "{line}: {stderr}");
        assert!(!stderr.contains("new interpreter"), "{line}: {stderr}");
    }
}

#[test]
fn findings_of_code_that_runs_are_printed() {
    let home = tempfile::tempdir().expect("a directory");
    let config = configured_with(home.path(), "[screening]\nmode = \"warn\"\n");
    let warns = |stderr: &str| {
        let mut lines = stderr.lines();
        lines.any(|line| line.starts_with("cofferdam: screening: line 1, ") && line.ends_with("(import:os)"))
    };
    let code = ["--config", &config, "--lang", "python", "--code", "import os\nprint(6 * 7)"];
    for form in [&[][..], &["--json"], &["--events"], &["--quiet"], &["--json", "--quiet"]] {
        let (status, stdout, stderr) = outcome(run(code).args(form));
        assert!(status == 0 && stdout.contains("42"), "{form:?}: {stderr}");
        if form.contains(&"--quiet") {
            assert_eq!(stderr, "", "{form:?}: only errors are printed");
        } else {
            assert!(warns(&stderr), "{form:?}: {stderr}");
        }
        if form.contains(&"--json") {
            assert_eq!(json(&stdout)["screening"]["findings"][0]["rule"], "import:os", "{stdout}");
        }
    }
    let (status, stdout, stderr) = typed(&mut repl(&["--config", &config]), "import os\n6 * 7\n");
    assert_eq!((status, stdout.as_str()), (0, "42\n"), "{stderr}");
    assert!(warns(&stderr), "{stderr}");
}

fn configured(directory: &Path) -> String {
    configured_with(directory, "[screening]\nmode = \"block\"\n")
}

/// Writes a configuration with a separate audit log and further settings.
fn configured_with(directory: &Path, more: &str) -> String {
    let file = directory.join("config.toml");
    let log = directory.join("log");
    let text = format!("[audit]\ndirectory = {log:?}\nsync = \"never\"\n{more}");
    std::fs::write(&file, text).expect("written");
    file.display().to_string()
}

/// Returns the records of the log, oldest first.
fn records(config: &str) -> Vec<serde_json::Value> {
    let (_, stdout, stderr) = outcome(cofferdam().args(["audit", "query", "--config", config]));
    assert_eq!(stderr, "");
    let records = stdout.lines().map(|line| json(line)["record"].clone());
    records.filter(|record| record["kind"] != "segment").collect()
}

/// Promise (Code execution): `audit` verifies the log of runs.
#[test]
fn runs_are_logged_and_the_log_is_verified() {
    let home = tempfile::tempdir().expect("a directory");
    let config = configured(home.path());
    let audit = |words: &[&str]| outcome(cofferdam().args(["audit"]).args(words).args(["--config", &config]));
    let rows: &[(&[&str], i32)] = &[
        (&["--lang", "python", "--code", "print(1)"], 0),
        (&["--json", "--lang", "python", "--code", "print(1)"], 0),
        (&["--lang", "python", "--code", "import socket"], 125),
        (&["--tenant", "acme", "--", "sh", "-c", "exit 4"], 4),
        (&["--", "no-such-program"], 127),
    ];
    for (words, status) in rows {
        let mut command = run(["--config", &config]);
        assert_eq!(outcome(command.args(*words)).0, *status, "{words:?}");
    }
    let (status, stdout, stderr) = audit(&["verify", "--json"]);
    assert_eq!((status, stderr.as_str()), (0, ""));
    let report = json(&stdout);
    assert_eq!(
        (&report["executions"]["ended"], &report["executions"]["cancelled"]),
        (&json("3"), &json("2")),
        "{report}"
    );
    let (_, stdout, _) = audit(&["query", "--tenant", "acme"]);
    let lines: Vec<_> = stdout.lines().map(json).collect();
    assert_eq!(lines.len(), 2, "{stdout}");
    assert_eq!(lines[1]["record"]["exit"]["code"], 4);
    assert_eq!(outcome(cofferdam().args(["audit", "query", "--last", "1", "--config", &config])).1.lines().count(), 1);
    let segment = home.path().join("log/audit-00000001.jsonl");
    let text = std::fs::read_to_string(&segment).expect("readable");
    std::fs::write(&segment, text.replacen("\"code\":4", "\"code\":0", 1)).expect("written");
    assert_eq!(audit(&["verify"]).0, 1, "a line was changed");
    std::fs::write(&segment, &text).expect("written");
    let head = home.path().join("log/head");
    std::fs::write(&head, "garbage").expect("written");
    assert_eq!(audit(&["verify"]).0, 1, "nothing says where the log ends");
    assert_eq!(outcome(run(["--config", &config]).args(["--", "true"])).0, 0);
    assert_eq!(audit(&["verify"]).0, 3, "the log says that its end had not been known");
    // A log with only a part of its first line is broken, not new.
    std::fs::write(&segment, text.split_inclusive('\n').next().expect("a line")).expect("written");
    std::fs::remove_file(&head).expect("removed");
    assert_eq!(audit(&["verify"]).0, 1, "all but the first line is gone");
    // Nothing runs if logging fails.
    std::fs::rename(home.path().join("log"), home.path().join("old")).expect("moved");
    std::fs::write(home.path().join("log"), "in the way").expect("written");
    let directory = home.path().join("workspace");
    std::fs::create_dir(&directory).expect("created");
    let workspace = format!("{}:rw", directory.display());
    let words = ["--config", &config, "--workspace", &workspace, "--", "touch", "ran"];
    let (status, _, stderr) = outcome(&mut run(words));
    assert!(status == 125 && stderr.contains("the audit log cannot be written"), "{stderr}");
    assert!(!directory.join("ran").exists());
}

/// Promise (Code execution): The limits that the audit log states hold also without `--json`.
#[test]
fn the_bounds_that_the_log_states_hold_without_a_document() {
    let home = tempfile::tempdir().expect("a directory");
    let config = configured_with(home.path(), "[code]\nmax_timeout = \"2s\"\nmax_output = \"2K\"\n");
    let code = "import sys, time; print('x' * 100000); sys.stdout.flush(); time.sleep(600)";
    let (status, stdout, stderr) = outcome(&mut run(["--config", &config, "--lang", "python", "--code", code]));
    assert_eq!((status, stdout.len()), (124, 2048), "{stderr}");
    assert!(stderr.contains("2 KiB of 97.7 KiB") && stderr.contains("time limit of 2 s"), "{stderr}");
    let records = records(&config);
    assert_eq!(
        (&records[0]["limits"]["wall_us"], &records[0]["limits"]["output_bytes"]),
        (&json("2000000"), &json("2048"))
    );
    assert_eq!(records[1]["exit"]["timed_out"], true, "{records:?}");
}

/// Promise (Code execution): The configured limits hold for `run` without `--json`.
#[test]
fn bounds_that_are_configured_hold_for_plain_runs() {
    let home = tempfile::tempdir().expect("a directory");
    let config = home.path().join("config.toml");
    std::fs::write(&config, "[code]\nmax_code = \"8K\"\nmax_output = \"2K\"\n").expect("written");
    let config = config.to_str().expect("a name");
    let (status, stdout, stderr) =
        outcome(&mut run(["--config", config, "--lang", "python", "--code", "print('x' * 100000)"]));
    assert_eq!((status, stdout.len()), (0, 2048), "{stderr}");
    let long = format!("# {}", "x".repeat(9000));
    let (status, _, stderr) = outcome(&mut run(["--config", config, "--lang", "python", "--code", &long]));
    assert!(status == 125 && stderr.contains("longer than the allowed 8 KiB"), "{stderr}");
    let (status, stdout, _) = outcome(&mut run(["--lang", "python", "--code", &format!("{long}\nprint(1)")]));
    assert_eq!((status, stdout.as_str()), (0, "1\n"));
}

/// Tests that a run forwards its output immediately and does not keep it in memory.
///
/// Promise (Code execution): `run` without `--json` accepts any output limit.
#[test]
fn the_output_of_a_plain_run_may_have_any_bound() {
    let code = ["--max-output", "1G", "--lang", "python", "--code", "print(1)"];
    assert_eq!(outcome(&mut run(code)), (0, "1\n".to_owned(), String::new()));
    // A result is kept in memory, so it is bounded.
    let (status, _, stderr) = outcome(run(["--json"]).args(code));
    assert!(status == 125 && stderr.contains("or with --max-output"), "{stderr}");
}

/// Promise (Code execution): `run` reports a syntax error before anything starts.
#[test]
fn syntax_error_is_reported_before_the_start() {
    let home = tempfile::tempdir().expect("a directory");
    let (config, file) = (home.path().join("config.toml"), home.path().join("a.mine"));
    let table = |more: &str| {
        format!(
            "[languages.mine]\nextensions = [\"mine\"]\ninterpreter = [\"echo\", \"started\"]\nresults = \"python\"\n{more}"
        )
    };
    std::fs::write(&config, table("")).expect("written");
    std::fs::write(&file, "fine = 1\nx =\n").expect("written");
    let (config, file) = (config.to_str().expect("a name"), file.to_str().expect("a name"));
    let code = ["--lang", "mine", "--code", "fine = 1\nx =\n"];
    for (form, words) in [(&[][..], &code[..]), (&["--events"], &code), (&[], &[file]), (&["--json"], &[file])] {
        let (status, stdout, stderr) = outcome(run(["--config", config]).args(form).args(words));
        assert_eq!(status, 125, "{stderr}");
        assert!(!stdout.contains("started"), "{stdout}");
        let output = stderr.lines().next().unwrap_or_default();
        assert!(output.contains("syntax error in line 2") && !output.contains("correct the code"), "{stderr}");
        assert!(form == ["--json"] || stderr.contains("try: correct the code"), "{stderr}");
    }
    std::fs::write(config, table("[screening]\nsyntax = \"warn\"\n")).expect("written");
    let (status, stdout, stderr) = outcome(run(["--config", config]).arg(file));
    assert!(status == 0 && stdout.starts_with("started"), "{stderr}");
}

#[test]
fn contents_of_files_come_with_the_document() {
    let code = ["--lang", "python", "--code", "open('a.txt', 'w').write('hi')"];
    for (words, contents) in [(&["--file-contents"][..], json("{\"text\": \"hi\"}")), (&[], json("null"))] {
        let (status, stdout, stderr) = outcome(run(["--json"]).args(words).args(code));
        assert_eq!(status, 0, "{stderr}");
        assert_eq!(json(&stdout)["files"]["changes"][0]["contents"], contents, "{stdout}");
    }
    for words in
        [&["--file-contents", "--lang", "sh", "--code", "true"][..], &["--json", "--file-contents", "--", "true"]]
    {
        let (status, _, stderr) = outcome(run::<&str>([]).args(words));
        assert!(status == 125 && stderr.contains("--json") | stderr.contains("needs code in a language"), "{stderr}");
    }
}

/// Promise (Code execution): A secret of `--secret` reaches the code, and appears in no log, artifact or error.
#[test]
fn secrets_reach_the_code_and_stand_nowhere_else() {
    const VALUE: &str = "hunter2-4711";
    let home = tempfile::tempdir().expect("a directory");
    let config = configured_with(home.path(), "artifact_bytes = 65536\n");
    let secret =
        |words: &[&str]| outcome(run(["--config", &config, "--secret", "TOKEN"]).args(words).env("TOKEN", VALUE));
    let code = "import os; print(os.environ['TOKEN']); open(os.environ['TOKEN'], 'w')";
    let (status, stdout, stderr) = secret(&["--json", "--lang", "python", "--code", code]);
    assert_eq!(status, 0, "{stderr}");
    assert_eq!(json(&stdout)["stdout"]["text"], format!("{VALUE}\n"));
    for words in [&["--lang", "sh", "--code", "echo $TOKEN"][..], &["--", "sh", "-c", "echo $TOKEN"]] {
        let (status, stdout, stderr) = secret(words);
        assert_eq!((status, stdout.trim_end()), (0, VALUE), "{stderr}");
    }
    // The code contains the value literally. The log redacts it.
    let line = format!("echo {VALUE}");
    assert_eq!(secret(&["--", "sh", "-c", &line]).0, 0);
    let mut seen = 0;
    for entry in walkdir(&home.path().join("log")) {
        let text = String::from_utf8_lossy(&std::fs::read(&entry).expect("readable")).into_owned();
        assert!(!text.contains(VALUE), "{}: {text}", entry.display());
        seen += text.matches("[redacted:TOKEN]").count();
    }
    assert!(seen > 0, "nothing was taken out");
    for (words, why) in [
        (&["--secret", "TOKEN=hunter2-4711", "--", "true"][..], "only the name"),
        (&["--secret", "NO_SUCH_VARIABLE", "--", "true"], "is not in the environment"),
        (&["--secret", "TOKEN", "--env", "TOKEN=b", "--", "true"], "also given with --env"),
    ] {
        let (status, _, stderr) = outcome(run::<&str>([]).args(words).env("TOKEN", VALUE));
        assert!(status == 125 && stderr.contains(why), "{words:?}: {stderr}");
    }
}

#[test]
fn artifacts_of_plain_runs_hold_code_or_command_and_output() {
    let home = tempfile::tempdir().expect("a directory");
    let config = configured_with(home.path(), "artifact_bytes = 65536\n");
    let code = "import sys; print(6 * 7); print(7 * 9, file=sys.stderr)";
    let line = "echo $((6 * 7)); echo $((7 * 9)) >&2";
    let command = serde_json::json!(["sh", "-c", line]).to_string();
    for form in [&[][..], &["--events"]] {
        for (words, program) in
            [(&["--lang", "python", "--code", code], code), (&["--", "sh", "-c", line], command.as_str())]
        {
            let (status, _, stderr) = outcome(run(["--config", &config]).args(form).args(words));
            assert_eq!(status, 0, "{form:?} {words:?}: {stderr}");
            let end = records(&config).pop().expect("a record");
            assert_eq!(end["artifact"]["state"], "stored", "{form:?} {words:?}: {end}");
            let name = end["artifact"]["file"].as_str().expect("a name");
            let file = home.path().join("log/artifacts").join(name);
            let text = std::fs::read_to_string(file).expect("readable");
            let lines: Vec<_> = text.lines().map(json).collect();
            let section = |name: &str| -> String {
                let lines = lines.iter().filter(|line| line["section"] == name);
                lines.filter_map(|line| line["text"].as_str()).collect()
            };
            let sections = ["code", "stdout", "stderr"].map(section);
            assert_eq!(sections, [program, "42\n", "63\n"], "{form:?} {words:?}: {text}");
        }
    }
}

/// Promise (Code execution): A server that a run starts does not have the secrets of that run.
#[test]
fn a_server_that_a_run_starts_does_not_keep_its_secrets() {
    const VALUE: &str = "hunter2-4712";
    let home = tempfile::tempdir().expect("a directory");
    let others = ["LATER", "COFFERDAM_MCP_TOKEN", "AWS_SECRET_ACCESS_KEY", "http_proxy"];
    let secret = |how: &str, name: &str| {
        let line = format!("echo ${name}");
        let mut run = run(["--use-server", how, "--secret", name, "--", "sh", "-c", &line]);
        run.env(name, VALUE).envs(others.map(|name| (name, VALUE)));
        outcome(
            run.env("XDG_RUNTIME_DIR", home.path()).env("XDG_STATE_HOME", home.path()).env("SANDBOX_TIMEOUT_SEC", "77"),
        )
    };
    let (status, stdout, stderr) = secret("start", "TOKEN");
    let server = |word: &str| {
        outcome(
            cofferdam()
                .args(["serve", word, "--json"])
                .env("XDG_RUNTIME_DIR", home.path())
                .env("XDG_STATE_HOME", home.path()),
        )
        .1
    };
    let output = server("status");
    let pid = json(&output)["pid"].as_u64();
    let environment = pid.map(|pid| std::fs::read(format!("/proc/{pid}/environ")).expect("its environment"));
    // The client supplies variables that the server does not have.
    let later = secret("require", "LATER");
    outcome(cofferdam().args(["serve", "stop"]).env("XDG_RUNTIME_DIR", home.path()).env("XDG_STATE_HOME", home.path()));
    assert_eq!((status, stdout.trim_end()), (0, VALUE), "{stderr}");
    assert_eq!((later.0, later.1.trim_end()), (0, VALUE), "{}", later.2);
    let environment = environment.unwrap_or_else(|| panic!("no server: {output}"));
    let environment = String::from_utf8(environment).expect("text");
    assert!(!environment.contains(VALUE), "it is in the server's environment: {environment:?}");
    for name in ["PATH=", "XDG_RUNTIME_DIR=", "SANDBOX_TIMEOUT_SEC=77"] {
        assert!(
            environment.split('\0').any(|variable| variable.starts_with(name)),
            "{name} is missing: {environment:?}"
        );
    }
}

/// Returns the files below a directory.
fn walkdir(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { walkdir(&path) } else { vec![path] }).collect()
}

#[test]
fn events_omit_uncollected_data() {
    let home = tempfile::tempdir().expect("a directory");
    let config = configured(home.path());
    let code = "print('hi'); open('a.txt', 'w').write('x')";
    let (status, stdout, stderr) =
        outcome(&mut run(["--config", &config, "--events", "--lang", "python", "--code", code]));
    assert_eq!((status, stderr.as_str()), (0, ""), "{stdout}");
    let last = json(stdout.lines().last().expect("a line"));
    assert_eq!((&last["type"], &last["language"]), (&json("\"exit\""), &json("\"python\"")), "{last}");
    for member in ["stdout", "stderr", "results", "files"] {
        assert!(last.get(member).is_none(), "{member}: {last}");
    }
}

/// Promise (Code execution): An interrupted start has its final line in the audit log.
#[test]
fn an_interrupted_start_has_its_last_line_in_the_log() {
    let home = tempfile::tempdir().expect("a directory");
    let slow = "[languages.slow]\nextensions = [\"slow\"]\ninterpreter = [\"sh\"]\nversion = [\"sleep\", \"600\"]\n";
    let config = configured_with(home.path(), slow);
    let mut child = start(&mut run(["--config", &config, "--json", "--lang", "slow", "--code", "true"]));
    let segment = home.path().join("log/audit-00000001.jsonl");
    let begun = Instant::now();
    while !std::fs::read_to_string(&segment).is_ok_and(|text| text.contains("\"begin\"") && text.ends_with('\n')) {
        assert!(begun.elapsed() < Duration::from_secs(60), "no line is written");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The interpreter takes seconds to report its version.
    std::thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_child(&child), Signal::INT).expect("it exists");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    let records = records(&config);
    assert_eq!((records.len(), &records[1]["exit"]["failed"]), (2, &json("\"closed\"")), "{records:?}");
}

#[test]
fn no_server_starts_for_options_that_need_the_sandbox() {
    let home = tempfile::tempdir().expect("a directory");
    let here = |mut command: Command| {
        command.env("XDG_RUNTIME_DIR", home.path()).env("XDG_STATE_HOME", home.path());
        outcome(&mut command)
    };
    let (status, stdout, stderr) =
        here(run(["--use-server", "start", "--json", "--verbose", "--lang", "python", "--code", "print(1)"]));
    let mut stop = cofferdam();
    stop.args(["serve", "stop"]);
    let exists = home.path().join("cofferdam/server.sock").exists();
    here(stop);
    assert!(status == 0 && stderr.contains("run without a server"), "{stdout}{stderr}");
    assert!(!exists, "a server was started");
}

#[test]
fn ignored_options_are_refused() {
    for command in ["mcp", "repl"] {
        for words in [["--env", "A=b"], ["--working-dir", "sub"], ["--cancel-grace", "1s"]] {
            let (status, _, stderr) = outcome(cofferdam().arg(command).args(words));
            assert!(status == 125 && stderr.contains(&format!("'{}'", words[0])), "{command} {words:?}: {stderr}");
        }
    }
}

#[test]
fn an_mcp_server_that_cannot_create_sandboxes_does_not_start() {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).expect("ours");
    let (writable, unnamed) = (format!("{}:rw", directory.path().display()), directory.path().display().to_string());
    for (words, reason) in [
        (&["--backend", "docker"][..], "/nowhere/docker.sock"),
        // A writable host directory has no disk limit, and there is a default one.
        (&["--allow-weaker", "memory,cpu,cpus,pids", "--workspace", &writable], "--disk none"),
        (&["--workspace", &unnamed], "needs a mode"),
    ] {
        let mut server = cofferdam();
        server.arg("mcp").args(words).env("DOCKER_HOST", "unix:///nowhere/docker.sock");
        let (status, stdout, stderr) = outcome(&mut server);
        assert_eq!((status, stdout.as_str()), (125, ""), "{words:?}: {stderr}");
        assert!(stderr.contains(reason) && stderr.contains("  try: "), "{words:?}: {stderr}");
    }
}
