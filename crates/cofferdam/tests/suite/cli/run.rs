//! `cofferdam run`: commands, their view of the sandbox, and exit statuses.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Command;

use super::{json, outcome, repository, run, start};
use crate::groups::CallerGroup;

fn ended(words: &[&str]) -> (i32, String, String) {
    outcome(&mut run(words))
}

fn quietly(status: i32, stdout: &str) -> (i32, String, String) {
    (status, stdout.to_owned(), String::new())
}

/// Promise (Command line): The first example of the documentation runs without any setup.
#[test]
fn the_first_example_runs() {
    let (code, stdout, stderr) = ended(&["examples/primes.py"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[24]), (26, "2", "97"));
    assert_eq!(lines[25], "25 primes below 100, their sum is 1060");
}

/// Promise (Command line): The extension of a file selects its interpreter.
#[test]
fn files_run_with_the_interpreter_of_their_extension() {
    let (code, stdout, stderr) = ended(&["examples/hello.sh", "you"]);
    assert!(code == 0 && stdout.starts_with("hello, you, from /workspace\n"), "{stdout}{stderr}");
    let (code, stdout, stderr) = ended(&["examples/hello.js", "you"]);
    assert!(code == 0 && stdout.starts_with("hello, you, from Node v"), "{stdout}{stderr}");
}

#[test]
fn code_on_the_command_line_runs() {
    assert_eq!(
        ended(&["--lang", "python", "--code", "import sys; print(sys.argv[1:])", "a", "-b"]),
        quietly(0, "['a', '-b']\n")
    );
    assert_eq!(ended(&["--lang", "sh", "--code", "echo \"$1\"; exit 7", "x"]), quietly(7, "x\n"));
}

#[test]
fn code_on_standard_input_runs() {
    let piped = |words: &[&str], code: &str| {
        let mut child = start(&mut run(words));
        child.stdin.take().unwrap().write_all(code.as_bytes()).unwrap();
        super::read(&child.wait_with_output().unwrap())
    };
    for (words, code, stdout) in [
        (&["-"][..], "import sys; print(sys.argv[1:])", "[]\n"),
        (&["-", "a", "-b"], "import sys; print(sys.argv[1:])", "['a', '-b']\n"),
        (&["--lang", "python", "-"], "print(6 * 7)", "42\n"),
        (&["--lang", "sh"], "echo piped", "piped\n"),
        (&["--lang", "sh", "-", "x"], "echo $1; cat", "x\n"),
    ] {
        assert_eq!(piped(words, code), quietly(0, stdout), "{words:?}");
    }
    let (status, stdout, stderr) = piped(&["--json", "-"], "6 * 7");
    assert_eq!(
        (status, super::json(&stdout)["results"][0]["data"]["text/plain"].as_str()),
        (0, Some("42")),
        "{stderr}"
    );
    let (status, _, stderr) = piped(&["--stdin", "-"], "print(1)");
    assert!(status == 125 && stderr.contains("standard input contains the code"), "{stderr}");
    let (status, _, stderr) = piped(&["-"], &"#".repeat((16 << 20) + 1));
    assert!(status == 125 && stderr.contains("standard input is larger than the 16 MiB"), "{stderr}");
}

#[test]
fn a_script_has_its_own_name_with_and_without_its_whole_result() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.py");
    std::fs::write(&file, "import traceback\ntry: 1 / 0\nexcept Exception: print(traceback.format_exc())").unwrap();
    let file = file.to_str().unwrap();
    let (_, plain, _) = ended(&[file]);
    let (_, whole, _) = ended(&["--json", file]);
    for text in [plain, super::json(&whole)["stdout"]["text"].as_str().unwrap().to_owned()] {
        assert!(text.contains("t.py\", line 2") && !text.contains("main.py"), "{text}");
    }
}

#[test]
fn the_operators_time_out_caps_the_callers() {
    for (cap, requested, reported) in [("1", "9s", 1.0), ("9", "1s", 1.0)] {
        let mut command = run(["--json", "--timeout", requested, "--", "true"]);
        let (status, stdout, stderr) = outcome(command.env("SANDBOX_TIMEOUT_SEC", cap).env("SANDBOX_TYPE", "LOCAL"));
        assert_eq!((status, super::json(&stdout)["limits"]["wall_time"].as_f64()), (0, Some(reported)), "{stderr}");
    }
}

#[test]
fn a_file_of_the_workspace_runs_in_its_place() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("lib")).unwrap();
    std::fs::write(directory.path().join("lib/helper.py"), "WORD = 'helped'").unwrap();
    std::fs::write(directory.path().join("lib/main.py"), "import helper; print(helper.WORD, __file__)").unwrap();
    let (workspace, file) = (directory.path().to_str().unwrap(), directory.path().join("lib/main.py"));
    let words = ["--workspace", &format!("{workspace}:ro"), file.to_str().unwrap()];
    assert_eq!(ended(&words), quietly(0, "helped /workspace/lib/main.py\n"));
}

#[test]
fn the_workspace_is_writable_only_as_asked() {
    let directory = tempfile::tempdir().unwrap();
    let workspace = directory.path().to_str().unwrap();
    assert_eq!(
        ended(&["--workspace", &format!("{workspace}:rw"), "--", "sh", "-c", "echo 1 > made; pwd"]),
        quietly(0, "/workspace\n")
    );
    assert_eq!(std::fs::read_to_string(directory.path().join("made")).unwrap(), "1\n");
    let (code, _, _) = ended(&["--workspace", &format!("{workspace}:ro"), "--", "sh", "-c", "echo 2 > made"]);
    assert_ne!(code, 0);
    assert_eq!(std::fs::read_to_string(directory.path().join("made")).unwrap(), "1\n");
}

/// Promise (Command line): The exit status is that of the command, or 124, 125, 126, 127, 128+n or 137 as documented.
#[test]
fn statuses_are_those_of_the_command() {
    for (words, status) in [
        (&["--", "true"][..], 0),
        (&["--", "sh", "-c", "exit 42"], 42),
        (&["--", "sh", "-c", "kill -TERM $$"], 143),
        (&["--", "no-such-program"], 127),
        (&["--", "/etc/passwd"], 126),
        (&["--timeout", "200ms", "--", "sleep", "60"], 124),
    ] {
        let (code, stdout, stderr) = ended(words);
        assert_eq!(code, status, "{words:?}: {stdout}{stderr}");
    }
}

#[test]
fn timeout_is_reported_unless_quiet() {
    let (_, _, stderr) = ended(&["--timeout", "200ms", "--", "sleep", "60"]);
    assert_eq!(stderr, "cofferdam: killed: time limit of 0.2 s reached (raise it with --timeout)\n");
    assert_eq!(ended(&["--quiet", "--timeout", "200ms", "--", "sleep", "60"]), quietly(124, ""));
}

/// Promise (Command line): Standard error names the limit that killed a command.
#[test]
fn a_limit_that_killed_is_named() {
    let (code, _, stderr) = ended(&["--cpu-time", "1s", "--", "sh", "-c", "while :; do :; done"]);
    assert_eq!(code, 137);
    assert_eq!(stderr, "cofferdam: killed: CPU time limit of 1 s reached (raise it with --cpu-time)\n");
}

/// Promise (Contract): A program inherits no variable of the caller's environment.
#[test]
fn nothing_is_inherited_from_the_environment() {
    let mut command = run(["--env", "GIVEN=1", "--", "env"]);
    let (code, stdout, _) = outcome(command.env("SECRET_TOKEN", "hunter2"));
    assert_eq!(code, 0);
    assert!(
        stdout.contains("GIVEN=1\n") && !stdout.contains("SECRET_TOKEN") && !stdout.contains("hunter2"),
        "{stdout}"
    );
}

/// Promise (Command line): Streams and bytes are passed on unchanged.
#[test]
fn output_keeps_its_streams_and_its_bytes() {
    let output = run(["--", "sh", "-c", "printf 'a\\000\\377\\033[2J'; printf b >&2"]).output().unwrap();
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"a\0\xff\x1b[2J"[..], &b"b"[..]));
}

#[test]
fn input_is_empty_unless_asked_for() {
    let mut child = start(&mut run(["--", "wc", "-c"]));
    child.stdin.take().unwrap().write_all(b"abc").unwrap();
    assert_eq!(super::read(&child.wait_with_output().unwrap()), quietly(0, "0\n"));
    let mut child = start(&mut run(["--stdin", "--", "wc", "-c"]));
    child.stdin.take().unwrap().write_all(b"abc").unwrap();
    assert_eq!(super::read(&child.wait_with_output().unwrap()), quietly(0, "3\n"));
}

/// Promise (Contract): The command line passes output and input on while the program runs.
#[test]
fn output_is_live_and_input_answers_it() {
    let mut child = start(&mut run(["--stdin", "--", "sh", "-c", "echo first; read word; echo \"second $word\""]));
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    child.stdin.as_mut().unwrap().write_all(b"answer\n").unwrap();
    line.clear();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "second answer\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn output_beyond_the_maximum_is_truncated_and_reported() {
    let (code, stdout, stderr) = ended(&["--max-output", "1K", "--", "head", "-c", "1M", "/dev/zero"]);
    assert_eq!((code, stdout.len()), (0, 1024));
    assert_eq!(stderr, "cofferdam: output truncated: 1 KiB of 1 MiB printed (raise the limit with --max-output)\n");
}

#[test]
fn a_reader_that_is_slow_loses_nothing() {
    let mut child = start(&mut run(["--max-output", "32M", "--", "head", "-c", "20M", "/dev/zero"]));
    let mut stdout = child.stdout.take().unwrap();
    let mut piece = vec![0; 100_000];
    let mut total = 0;
    while let Ok(count @ 1..) = stdout.read(&mut piece) {
        total += count;
    }
    assert_eq!((child.wait().unwrap().code(), total), (Some(0), 20 << 20));
}

#[test]
fn a_reader_that_goes_away_ends_the_run_quietly() {
    let mut child = start(&mut run(["--max-output", "1T", "--", "yes"]));
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    drop(stdout);
    let (code, _, stderr) = super::read(&child.wait_with_output().unwrap());
    assert_eq!((line.as_str(), code, stderr.as_str()), ("y\n", 141, ""));
}

#[test]
fn the_time_limit_holds_while_the_reader_holds_output_back() {
    let child = start(&mut run(["--quiet", "--max-output", "4M", "--timeout", "1s", "--", "yes"]));
    // The test reads the pipe only after the end of the run.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let (code, stdout, _) = super::read(&child.wait_with_output().unwrap());
    assert_eq!((code, stdout.len()), (124, 4 << 20));
}

#[test]
fn a_full_disk_behind_our_output_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let (code, _, stderr) = outcome_to(full);
    assert_eq!(code, 125);
    assert!(stderr.starts_with("cofferdam: run failed: cannot write the output: No space left on device"), "{stderr}");
}

fn outcome_to(stdout: std::fs::File) -> (i32, String, String) {
    let mut command = run(["--", "echo", "hello"]);
    command.stdout(stdout).stderr(std::process::Stdio::piped());
    super::read(&command.spawn().unwrap().wait_with_output().unwrap())
}

#[test]
fn a_network_other_than_none_is_answered_by_the_backend() {
    assert_eq!(ended(&["--net", "none", "--", "true"]), quietly(0, ""));
    let (code, stdout, stderr) = ended(&["--net", "example.com", "--", "true"]);
    assert_eq!((code, stdout.as_str()), (125, ""), "{stderr}");
}

#[test]
fn another_backend_is_chosen_by_name() {
    let program = r#"[{"print":{"stream":"stdout","text":"simulated\n"}},{"exit":3}]"#;
    assert_eq!(ended(&["--backend", "simulated", "--", "sim", program]), quietly(3, "simulated\n"));
    let mut command = run(["--", "sim", program]);
    assert_eq!(outcome(command.env("SANDBOX_TYPE", "simulated")), quietly(3, "simulated\n"));
}

#[test]
fn of_a_project_with_an_environment_only_the_interpreter_is_seen() {
    use std::os::unix::fs::symlink;
    let version = ["-c", "import sys; print('%d.%d' % sys.version_info[:2])"];
    let Ok(version) = std::process::Command::new("/usr/bin/python3").args(version).output() else {
        println!("SKIP of_a_project_with_an_environment_only_the_interpreter_is_seen: no /usr/bin/python3");
        return;
    };
    let version = String::from_utf8(version.stdout).unwrap().trim().to_owned();
    // A directory below the host's /tmp, over which a sandbox mounts its own.
    let directory = tempfile::tempdir_in("/tmp").unwrap();
    let project = directory.path().canonicalize().unwrap().join("project");
    let packages = project.join(format!("lib/python{version}/site-packages"));
    for path in [&packages, &project.join("bin"), &project.join(".git"), &project.join("share/keyrings")] {
        std::fs::create_dir_all(path).unwrap();
    }
    symlink("/usr/bin/python3", project.join("bin/python3")).unwrap();
    symlink("lib", project.join("lib64")).unwrap();
    for (name, text) in [
        ("pyvenv.cfg", "home = /usr/bin\n"),
        (".env", "SECRET=1\n"),
        (".git/config", "[x]\n"),
        ("share/keyrings/login", "secret\n"),
        ("main.py", "print()\n"),
    ] {
        std::fs::write(project.join(name), text).unwrap();
    }
    std::fs::write(packages.join("only_here.py"), "value = 'found'\n").unwrap();
    let mut command = run(["--json", "--", "python3", "-c"]);
    command.arg("import only_here, os, sys; print(only_here.value, sys.prefix, *sorted(os.listdir(sys.prefix)))");
    let path = std::env::var("PATH").unwrap_or_default();
    let (code, stdout, stderr) = outcome(command.env("PATH", format!("{}/bin:{path}", project.display())));
    assert_eq!(code, 0, "{stdout} {stderr}");
    let document = json(&stdout);
    let printed = format!("found {} bin lib lib64 pyvenv.cfg\n", project.display());
    assert_eq!(document["stdout"]["text"], printed.as_str(), "{stdout}");
    // The posture reports the visible files.
    let shown = stdout.contains(&format!("{}/pyvenv.cfg", project.display()));
    assert!(shown && !stdout.contains("no host directory visible"), "{stdout}");
}

#[test]
fn sandboxes_stay_below_the_callers_control_group() {
    const TEST: &str = "sandboxes_stay_below_the_callers_control_group";
    let Some(group) = CallerGroup::new(TEST) else { return };
    group.limit(70);
    let forks = "import os, time\ncount = 0\ntry:\n  for _ in range(200):\n    if os.fork() == 0:\n      time.sleep(30); \
                 os._exit(0)\n    count += 1\nexcept OSError: pass\nprint(count)";
    let inner = run(["--pids", "256", "--", "python3", "-c", forks]);
    let mut command = group.enter();
    command.arg(inner.get_program()).args(inner.get_args());
    let (code, stdout, stderr) = outcome(&mut command);
    let gone = group.remove();
    let count: u32 = stdout.trim().parse().unwrap_or(0);
    assert!(code == 0 && (1..70).contains(&count), "{code} {stdout} {stderr}");
    assert!(gone, "something is left in the caller's group");
}

/// Promise (Process isolation): A sandbox inherits neither real-time scheduling and a raised priority of its caller, nor
/// the right to obtain them.
#[test]
fn real_time_scheduling_and_raised_priority_are_not_inherited() {
    const TEST: &str = "real_time_scheduling_and_raised_priority_are_not_inherited";
    const REPORT: &str = "import os, resource as r; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), \
                          *r.getrlimit(r.RLIMIT_RTPRIO), *r.getrlimit(r.RLIMIT_NICE))";
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {TEST}: only root can raise these");
        return;
    }
    // The last row needs CAP_SYS_RESOURCE. The guest of `v2` has it.
    for (words, outside) in [
        (&["nice", "-n", "-5"][..], "0 -5 "),
        (&["chrt", "--fifo", "10"], "1 0 "),
        (&["chrt", "--rr", "10"], "2 0 "),
        (&["prlimit", "--rtprio=50:50", "--nice=40:40", "chrt", "--fifo", "10"], "1 0 50 50 40 40\n"),
    ] {
        let raised = |program: &Command| {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).arg(program.get_program()).args(program.get_args());
            outcome(command.current_dir(repository()))
        };
        let (_, control, stderr) = raised(Command::new("python3").args(["-c", REPORT]));
        if !control.starts_with(outside) {
            println!("SKIP {TEST}: {}: {control} {stderr}", words.join(" "));
            continue;
        }
        assert_eq!(raised(&run(["--", "python3", "-c", REPORT])), quietly(0, "0 0 0 0 0 0\n"), "{words:?}");
    }
}
