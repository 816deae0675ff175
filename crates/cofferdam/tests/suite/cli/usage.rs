//! Help, errors, and the commands that make no sandbox.

use insta::assert_snapshot;

use super::{cofferdam, json, outcome, run};

/// Standard error of a call that fails with this status and says nothing on standard output.
fn complaint(words: &[&str], status: i32) -> String {
    let (code, stdout, stderr) = outcome(cofferdam().args(words).current_dir("/"));
    assert_eq!((code, stdout.as_str()), (status, ""), "{words:?}: {stderr}");
    stderr
}

#[test]
fn help_shows_options_and_examples() {
    let (code, stdout, stderr) = outcome(cofferdam().args(["run", "--help"]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    for option in [
        "--level",
        "--backend",
        "--lang",
        "--code",
        "--timeout",
        "--memory",
        "--cpus",
        "--cpu-time",
        "--pids",
        "--disk",
        "--max-output",
        "--allow-weaker",
        "--cancel-grace",
        "--workspace",
        "--working-dir",
        "--root",
        "--env",
        "--net",
        "--tenant",
        "--label",
        "--stdin",
        "--tty",
        "--json",
        "--events",
        "--raw-output",
        "--quiet",
        "--config",
    ] {
        assert!(stdout.contains(&format!("{option} ")) || stdout.contains(&format!("{option}\n")), "{option}");
    }
    assert!(stdout.contains("cofferdam run examples/primes.py"));
    assert!(stdout.lines().all(|line| line.chars().count() <= 100));
}

#[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
#[test]
fn the_top_level_help() {
    let (_, stdout, _) = outcome(cofferdam().arg("--help"));
    assert_snapshot!(stdout, @r"
    Run code that nobody vouches for behind a real wall

    Usage: cofferdam [OPTIONS] <COMMAND>

    Commands:
      run          Run a file, a piece of code or a command in a new sandbox
      repl         Talk to an interpreter in a sandbox, a line at a time
      audit        Verify the audit log, and find lines in it
      daemon       Keep sandboxes and interpreters warm for the runs to come, until told to end
      mcp          Serve sandboxes to agents over the Model Context Protocol
      doctor       Tell what each backend can enforce on this host, what is missing and how to get it
      setup        Install interpreters for WebAssembly, once for this user
      image        Show the images of the container engine, and get more
      vm           Make images for virtual machines, show, move and remove them
      snapshot     Freeze a virtual machine to a file, and let it go on elsewhere
      conformance  Run the conformance kit against a backend
      backends     List the backends
      schema       Print the JSON Schema of what goes in and comes out
      completions  Print a completion script for a shell
      help         Print this message or the help of the given subcommand(s)

    Options:
          --config <FILE>  Configuration file to read instead of the user's own
      -h, --help           Print help
      -V, --version        Print version

    Examples:
      cofferdam run script.py              run a Python program; the extension picks the interpreter
      cofferdam run --timeout 5s -- date   run a command
      cofferdam doctor                     tell what this host can enforce and what is missing

    Settings come from options, then environment (SANDBOX_TYPE, SANDBOX_TIMEOUT_SEC, COFFERDAM_DAEMON),
    then the configuration file (--config, COFFERDAM_CONFIG or ~/.config/cofferdam/config.toml), then
    defaults.
    ");
}

#[cfg(feature = "vm")]
#[test]
fn the_help_of_images_that_travel() {
    let (_, stdout, _) = outcome(cofferdam().args(["vm", "export-image", "--help"]));
    assert_snapshot!(stdout, @r"
    Write an image to a file, for another machine

    Usage: cofferdam vm export-image [OPTIONS] --out <FILE> [NAME|KEY]

    Arguments:
      [NAME|KEY]  The image's name, or its whole key as `vm images --json` prints it [default: the image
                  that runs use]

    Options:
          --out <FILE>       The file to write; it is there whole or not at all
          --force            Replace the file if it is there
          --key-file <FILE>  Encrypt with the key in this file: 32 bytes or 64 hexadecimal digits,
                             readable by its owner only
          --compression <N>  How hard to compress, from 1 (fast) to 19 (small) [default: 1]
          --json             Answer as JSON
          --config <FILE>    Configuration file to read instead of the user's own
      -h, --help             Print help
    ");
    let (_, stdout, _) = outcome(cofferdam().args(["vm", "import-image", "--help"]));
    assert_snapshot!(stdout, @r"
    Read an image from a file that `export-image` wrote

    Usage: cofferdam vm import-image [OPTIONS] <FILE>

    Arguments:
      <FILE>  What `cofferdam vm export-image` wrote

    Options:
          --name <NAME>      The image's name here [default: one that the same image has, else
                             `imported-` and the beginning of its key]
          --force            Take the name from another image
          --key-file <FILE>  The key that it was encrypted with
          --max-size <SIZE>  The largest disk that is taken [default: 8G]
          --json             Answer as JSON
          --config <FILE>    Configuration file to read instead of the user's own
      -h, --help             Print help
    ");
}

#[test]
fn words_that_do_not_parse_fail_with_125_and_the_way_to_help() {
    assert_snapshot!(complaint(&["run", "--memroy", "1M", "x.py"], 125), @r"
    cofferdam: unexpected argument '--memroy' found
      tip: a similar argument exists: '--memory'
      tip: to pass '--memroy' as a value, use '-- --memroy'
    Usage: cofferdam run [OPTIONS] FILE [ARGS]...
           cofferdam run [OPTIONS] [--lang LANG] --code TEXT [ARGS]...
           cofferdam run [OPTIONS] [--lang LANG] - [ARGS]...
           cofferdam run [OPTIONS] -- COMMAND [ARGS]...
      try: cofferdam run --help
    ");
    assert_snapshot!(complaint(&["run", "--memory", "lots", "x.py"], 125), @r"
    cofferdam: invalid value 'lots' for '--memory <SIZE>': 'lots' is not a size; use a number of bytes, or a number with K, M, G or T, such as 512M
      try: cofferdam run --help
    ");
    assert_snapshot!(complaint(&["run", "--env", "HOME", "x.py"], 125), @r"
    cofferdam: invalid value 'HOME' for '--env <KEY=VALUE>': nothing is inherited from the environment; write HOME=VALUE
      try: cofferdam run --help
    ");
    assert!(complaint(&[], 125).contains("Usage: cofferdam"));
    assert!(complaint(&["run", "\x1b]0;x\x07.py"], 127).contains("cannot read '\\x1b]0;x\\x07.py'"));
    assert!(!complaint(&["run", "--\x1b]0;x\x07"], 125).contains('\x1b'));
}

#[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
#[test]
fn errors_say_what_failed_why_and_what_to_do() {
    assert_snapshot!(complaint(&["run"], 125), @r"
    cofferdam: run failed: there is nothing to run
      try: name a FILE, give --code, pipe code in with '-', or put a command after --; see cofferdam run --help
    ");
    assert_snapshot!(complaint(&["run", "missing.py"], 127), @r"
    cofferdam: run failed: cannot read 'missing.py': No such file or directory
      try: check the path; to run a command, put it after --: cofferdam run -- COMMAND
    ");
    assert_snapshot!(complaint(&["run", "/etc"], 125), @r"
    cofferdam: run failed: '/etc' is a directory, not a program
      try: name a file; --workspace DIR gives the code a directory to work in
    ");
    assert_snapshot!(complaint(&["run", "/etc/passwd"], 125), @r"
    cofferdam: run failed: '/etc/passwd' has no file extension, so its language is unknown [file: /etc/passwd]
      try: name the language with --lang (bash, javascript, python, sh, typescript, wasm), use one of the extensions .bash .js .mjs .cjs .py .sh .ts .mts .cts .wasm, or run it as a command: cofferdam run -- COMMAND
    ");
    assert_snapshot!(complaint(&["run", "--lang", "cobol", "--code", "x"], 125), @r"
    cofferdam: run failed: the language 'cobol' is not among those that may run
      try: use one of: bash, javascript, python, sh, typescript, wasm
    ");
    assert_snapshot!(complaint(&["run", "--level", "vm", "--", "true"], 125), @r"
    cofferdam: configure failed: this user has no cache directory for images of machines
      try: set HOME or XDG_CACHE_HOME, or `images` in [machines] of the configuration file
    ");
    assert_snapshot!(complaint(&["run", "--backend", "remote", "--", "true"], 125), @r"
    cofferdam: select backend failed: the backend 'remote' is not in this version [named by: --backend]
      try: use one of: simulated, wasm, process, docker, vm
    ");
    assert_snapshot!(complaint(&["run", "--backend", "process:runsc", "--", "true"], 125), @r"
    cofferdam: select backend failed: there is no backend 'process:runsc' [named by: --backend]
      try: only docker has runtimes: docker:NAME, such as docker:runsc; and vm is vm:qemu or vm:firecracker
    ");
    assert_snapshot!(complaint(&["run", "--backend", "process", "--image", "x", "--", "true"], 125), @r"
    cofferdam: create failed: the process backend does not support images
      try: use a backend of level container, or name a directory with a root file system
    ");
    assert_snapshot!(complaint(&["run", "--backend", "dokcer", "--", "true"], 125), @r"
    cofferdam: select backend failed: there is no backend 'dokcer' [named by: --backend]
      try: use one of: simulated, wasm, process, docker, vm
    ");
    assert_snapshot!(complaint(&["run", "--workspace", "/no/such", "--", "true"], 125), @r"
    cofferdam: run failed: --workspace '/no/such' cannot be used: No such file or directory
      try: name a directory that exists
    ");
    assert_snapshot!(complaint(&["run", "--tty", "--", "true"], 125), @r"
    cofferdam: run failed: --tty needs a terminal, but standard input is none
      try: leave out --tty, or use --stdin to pass a file or pipe on
    ");
    assert_snapshot!(complaint(&["run", "--memory", "1K", "--", "true"], 125), @r"
    cofferdam: create failed: the memory limit must be at least 1 MiB
    ");
}

#[test]
fn errors_are_json_where_json_is_asked_for() {
    for (words, kind, status) in [
        (&["--json", "missing.py"][..], "not-found", 127),
        (&["--json", "--memory", "lots", "x.py"], "invalid-input", 125),
        (&["--json", "--backend", "remote", "--", "true"], "unsupported", 125),
        (&["--json", "/etc/passwd"], "denied", 125),
    ] {
        let (code, stdout, stderr) = outcome(&mut run(words));
        let error = &json(&stdout)["error"];
        assert_eq!((code, error["kind"].as_str()), (status, Some(kind)), "{stdout}");
        assert_eq!(error["status"], status);
        assert!(error["message"].is_string() && error["remedy"].is_string(), "{stdout}");
        assert!(stderr.starts_with("cofferdam: "), "{stderr}");
    }
    let (_, stdout, _) = outcome(&mut run(["--events", "missing.py"]));
    assert_eq!(stdout.lines().count(), 1);
    let line = json(&stdout);
    assert_eq!((line["type"].as_str(), line["error"]["kind"].as_str()), (Some("error"), Some("not-found")));
}

#[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
#[test]
fn backends_are_listed() {
    let (code, stdout, _) = outcome(cofferdam().arg("backends"));
    assert_eq!(code, 0);
    assert_snapshot!(stdout, @r"
    simulated    simulated  available            no wall at all, deterministic; for tests
    wasm         wasm       available            WebAssembly inside Cofferdam's own process
    process      process    default              a process behind namespaces, filters and control groups
    docker       container  available            a container of the Docker or Podman engine
    vm           vm         available            a virtual machine of QEMU or Firecracker, with a kernel of its own
    apple-vz     vm         not in this version  a virtual machine of macOS
    remote       vm         not in this version  another Cofferdam server
    e2b          vm         not in this version  the E2B cloud
    ");
    let (_, stdout, _) = outcome(cofferdam().args(["backends", "--json"]));
    assert_eq!(json(&stdout)["default"], "process");
}

#[test]
fn schemas_describe_the_contract() {
    for (name, member) in [("spec", "limits"), ("exec", "command"), ("exit", "killed_by")] {
        let (code, stdout, _) = outcome(cofferdam().args(["schema", name]));
        assert_eq!(code, 0);
        assert!(json(&stdout)["properties"].get(member).is_some(), "{name}");
    }
    let (_, stdout, _) = outcome(cofferdam().arg("schema"));
    let all = json(&stdout);
    for name in ["spec", "exec", "exit", "posture"] {
        assert!(all[name].is_object(), "{name}");
    }
}

#[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, stdout, _) = outcome(cofferdam().args(["completions", shell]));
        assert_eq!(code, 0);
        assert!(stdout.contains("doctor") && stdout.contains("allow-weaker"), "{shell}");
        assert!(stdout.contains("build-image") && stdout.contains("kernel-package"), "{shell}");
    }
}

#[test]
fn doctor_answers_for_people_and_programs() {
    let (code, stdout, stderr) = outcome(cofferdam().arg("doctor"));
    assert_eq!(stderr, "");
    assert!(stdout.starts_with("process (level process): can"), "{stdout}");
    let (json_code, stdout, _) = outcome(cofferdam().args(["doctor", "--json"]));
    let report = json(&stdout);
    assert_eq!(code, json_code);
    assert_eq!(report["usable"], code == 0);
    assert_eq!(report["backends"][0]["backend"], "process");
    assert!(report["backends"][0]["items"].as_array().is_some_and(|items| !items.is_empty()), "{stdout}");
    assert!(complaint(&["doctor", "--backend", "remote"], 125).contains("not in this version"));
}
