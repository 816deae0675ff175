//! Help, errors, and commands that create no sandbox.

use insta::assert_snapshot;

use super::{cofferdam, json, outcome, run};

/// Returns standard error of a call that fails with this status and prints nothing on standard output.
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
        "--volume",
        "--diff",
        "--apply",
        "--apply-if-ok",
        "--save-changes",
        "--working-dir",
        "--root",
        "--env",
        "--net",
        "--publish",
        "--publish-beyond-loopback",
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
    Run untrusted code in a sandbox

    Usage: cofferdam [OPTIONS] <COMMAND>

    Commands:
      run          Run a file, a piece of code or a command in a new sandbox
      repl         Use an interpreter in a sandbox interactively
      changes      Show, apply and discard the changes of copy-on-write workspaces
      volume       Create, list, export, import and remove named volumes
      audit        Verify the audit log and query its lines
      mcp          Serve sandboxes to agents over the Model Context Protocol
      serve        Serve sandboxes to the runs of this user and to clients over HTTP
      keys         Create, list, rotate and revoke keys of a server
      create       Create a sandbox on a server
      ls           List the sandboxes of a server
      exec         Run a command in a sandbox of a server
      code         Run code of a language in a sandbox of a server
      kernel       Start, list, interrupt and stop interpreters in a sandbox of a server
      attach       Connect again to a command in a sandbox of a server
      logs         Print the output of a command in a sandbox of a server
      cp           Copy a file or directory into or out of a sandbox of a server
      diff         Show, apply or save the changes of the workspace of a sandbox of a server
      watch        Print changes of files in a sandbox of a server as they occur
      port         Forward a local address to a port of a sandbox of a server
      fork         Copy a sandbox of a server; the copy resumes from its state
      pause        Pause all programs in sandboxes of a server
      resume       Resume all programs in sandboxes of a server
      extend       Change the lifetime or the idle time of a sandbox of a server
      rename       Rename a sandbox of a server
      stats        Print the resource usage of sandboxes of a server
      rm           Close sandboxes of a server
      prune        Close the sandboxes of a server that are not in use
      doctor       Report what each backend can enforce on this host, and how to fix what is missing
      setup        Install WebAssembly interpreters for this user
      image        Pull, load, build, list and remove images
      vm           Build, list, export, import and prune VM images
      snapshot     Save a VM to a file and restore it; take, list and move snapshots of a server
      conformance  Run the conformance suite against a backend
      net          Explain network policies, and show and replace those of live sandboxes
      plugins      Create, check, package, install and list plugins
      backends     List the backends
      schema       Print the JSON Schema of specs, requests and results
      completions  Print a completion script for a shell
      help         Print this message or the help of the given subcommand(s)

    Options:
          --config <FILE>  Read this configuration file instead of the user's own
      -h, --help           Print help
      -V, --version        Print version

    Examples:
      cofferdam run script.py              run a Python program; the extension picks the interpreter
      cofferdam run --timeout 5s -- date   run a command
      cofferdam doctor                     report what this host can enforce and what is missing

    Options take precedence over the environment (SANDBOX_TYPE, SANDBOX_TIMEOUT_SEC,
    COFFERDAM_USE_SERVER), the environment over the configuration file (--config, COFFERDAM_CONFIG or
    ~/.config/cofferdam/config.toml), and the file over defaults. SANDBOX_TIMEOUT_SEC is a maximum:
    --timeout can only lower it.
    ");
}

#[test]
fn the_help_of_volume_export_and_import() {
    let (_, stdout, _) = outcome(cofferdam().args(["volume", "export", "--help"]));
    assert_snapshot!(stdout, @r"
    Write the files of a volume as a tar

    Usage: cofferdam volume export [OPTIONS] <NAME> [FILE]

    Arguments:
      <NAME>  Select the volume
      [FILE]  Write to this file, which appears complete or not at all [default: standard output]

    Options:
          --force            Replace the file if it exists
          --max-size <SIZE>  Limit the size of all files together, including holes [default: 64G]
          --json             Print one JSON document; needs a FILE
          --config <FILE>    Read this configuration file instead of the user's own
      -h, --help             Print help
    ");
    let (_, stdout, _) = outcome(cofferdam().args(["volume", "import", "--help"]));
    assert_snapshot!(stdout, @r"
    Create a volume with the files of a tar

    Usage: cofferdam volume import [OPTIONS] <NAME> <FILE>

    Arguments:
      <NAME>  Name the new volume
      <FILE>  Read this tar, or standard input (`-`)

    Options:
          --size <SIZE>      Limit the size of its file system, or `none` for a directory [default: 1G]
          --max-size <SIZE>  Limit the size of all files together, including holes [default: 64G]
          --json             Print one JSON document
          --config <FILE>    Read this configuration file instead of the user's own
      -h, --help             Print help
    ");
}

#[cfg(feature = "vm")]
#[test]
fn the_help_of_image_export_and_import() {
    let (_, stdout, _) = outcome(cofferdam().args(["vm", "export-image", "--help"]));
    assert_snapshot!(stdout, @r"
    Export a VM image to a file for another host

    Usage: cofferdam vm export-image [OPTIONS] --out <FILE> [NAME|KEY]

    Arguments:
      [NAME|KEY]  Export the image of this name, or with this full key of `vm images --json` [default:
                  the image that runs use]

    Options:
          --out <FILE>       Write to this file; it appears complete or not at all
          --force            Replace the file if it exists
          --key-file <FILE>  Encrypt with the key in this file: 32 bytes or 64 hexadecimal digits,
                             readable only by its owner
          --compression <N>  Set the compression level, from 1 (fast) to 19 (small) [default: 1]
          --json             Print a JSON document
          --config <FILE>    Read this configuration file instead of the user's own
      -h, --help             Print help
    ");
    let (_, stdout, _) = outcome(cofferdam().args(["vm", "import-image", "--help"]));
    assert_snapshot!(stdout, @r"
    Import a VM image from a file that `export-image` wrote

    Usage: cofferdam vm import-image [OPTIONS] <FILE>

    Arguments:
      <FILE>  Import this file of `cofferdam vm export-image`

    Options:
          --name <NAME>      Name the image [default: a name that the same image has, else `imported-`
                             and the beginning of its key]
          --force            Take the name from another image
          --key-file <FILE>  Decrypt with the key in this file
          --max-size <SIZE>  Limit the size of the disk [default: 8G]
          --json             Print a JSON document
          --config <FILE>    Read this configuration file instead of the user's own
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

/// Promise (Command line): Errors state what failed, the reason and the remedy.
#[cfg(all(feature = "container", feature = "vm", feature = "wasm"))]
#[test]
fn errors_state_failure_reason_and_remedy() {
    assert_snapshot!(complaint(&["run"], 125), @r"
    cofferdam: run failed: there is nothing to run
      try: pass a FILE, --code, '-' for code on standard input, or a command after --; see cofferdam run --help
    ");
    assert_snapshot!(complaint(&["run", "missing.py"], 127), @r"
    cofferdam: run failed: cannot read 'missing.py': No such file or directory
      try: check the path; to run a command, put it after --: cofferdam run -- COMMAND
    ");
    assert_snapshot!(complaint(&["run", "/etc"], 125), @r"
    cofferdam: run failed: '/etc' is a directory, not a program
      try: pass a file; --workspace DIR mounts a directory for the code
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
    cofferdam: configure failed: this user has no cache directory for VM images
      try: set HOME or XDG_CACHE_HOME, or `images` in [vms] of the configuration file
    ");
    assert_snapshot!(complaint(&["run", "--backend", "apple-vz", "--", "true"], 125), @r"
    cofferdam: select backend failed: the backend 'apple-vz' is not in this version [named by: --backend]
      try: use one of: simulated, remote, wasm, process, docker, vm, e2b
    ");
    assert_snapshot!(complaint(&["run", "--backend", "e2b", "--", "true"], 125), @r"
    cofferdam: select backend failed: E2B_API_KEY is not set
      try: set it to a key of the E2B dashboard
    ");
    assert_snapshot!(complaint(&["run", "--backend", "process:runsc", "--", "true"], 125), @r"
    cofferdam: select backend failed: there is no backend 'process:runsc' [named by: --backend]
      try: append a runtime to docker, such as docker:runsc, a VMM to vm: vm:qemu or vm:firecracker, the server's backend to remote, or a template to e2b
    ");
    assert_snapshot!(complaint(&["run", "--backend", "process", "--image", "x", "--", "true"], 127), @r"
    cofferdam: create failed: the image store has no image 'x' [image: x]
      try: see `cofferdam image ls`, or pull it: `cofferdam image pull x`
    ");
    assert_snapshot!(complaint(&["run", "--backend", "dokcer", "--", "true"], 125), @r"
    cofferdam: select backend failed: there is no backend 'dokcer' [named by: --backend]
      try: use one of: simulated, remote, wasm, process, docker, vm, e2b
    ");
    assert_snapshot!(complaint(&["run", "--workspace", "/no/such", "--", "true"], 125), @r"
    cofferdam: run failed: --workspace '/no/such' cannot be used: No such file or directory
      try: use a directory that exists
    ");
    assert_snapshot!(complaint(&["run", "--tty", "--", "true"], 125), @r"
    cofferdam: run failed: --tty needs a terminal, but standard input is not a terminal
      try: leave out --tty, or use --stdin to pass a file or pipe
    ");
    assert_snapshot!(complaint(&["run", "--memory", "1K", "--", "true"], 125), @r"
    cofferdam: create failed: the memory limit must be at least 1 MiB
      try: raise the memory limit, or set none
    ");
}

#[test]
fn errors_are_json_where_json_is_asked_for() {
    for (words, kind, status) in [
        (&["--json", "missing.py"][..], "not-found", 127),
        (&["--json", "--memory", "lots", "x.py"], "invalid-input", 125),
        (&["--json", "--backend", "apple-vz", "--", "true"], "unsupported", 125),
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
    simulated    simulated  available            no isolation, deterministic; for tests
    remote       simulated  available            another Cofferdam server, whose backend has the level
    wasm         wasm       available            WebAssembly inside Cofferdam's own process
    process      process    default              a process isolated by namespaces, filters and control groups
    docker       container  available            a container of the Docker or Podman engine
    vm           vm         available            a VM of QEMU or Firecracker with its own kernel
    apple-vz     vm         not in this version  a VM of macOS
    e2b          vm         available            a VM of the E2B cloud
    ");
    let (_, stdout, _) = outcome(cofferdam().args(["backends", "--json"]));
    assert_eq!(json(&stdout)["default"], "process");
}

/// Promise (Contract): The command line prints the JSON Schemas of the contract.
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
        assert!(stdout.contains("COFFERDAM_COMPLETE"), "the script of {shell} calls this program: {stdout}");
    }
    for (words, expected) in
        [(&[""][..], "doctor"), (&["run", "--allow-w"], "--allow-weaker"), (&["vm", "b"], "build-image")]
    {
        let mut command = cofferdam();
        command.env("COFFERDAM_COMPLETE", "bash").env("_CLAP_IFS", "\n").args(["--", "cofferdam"]).args(words);
        let (code, stdout, stderr) = outcome(command.env("_CLAP_COMPLETE_INDEX", words.len().to_string()));
        assert_eq!((code, stderr.as_str()), (0, ""), "{words:?}");
        assert!(stdout.lines().any(|line| line.trim_end() == expected), "{words:?}: {stdout}");
    }
}

/// Promise (Command line): `doctor` prints a report for users and JSON for programs.
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
    assert!(complaint(&["doctor", "--backend", "apple-vz"], 125).contains("not in this version"));
}
