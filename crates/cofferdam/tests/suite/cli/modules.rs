//! WebAssembly modules on the command line.

use std::path::PathBuf;

use cofferdam::Command as GuestCommand;
use cofferdam_conformance::{GuestProgram, Programs};
use cofferdam_wasm::WasmPrograms;

use super::{cofferdam, json, outcome};

/// Creates a directory with the module of a program, `guest.wasm`.
fn module(program: &GuestProgram) -> (tempfile::TempDir, PathBuf) {
    let request = WasmPrograms.request(program).expect("a program of WASI").build().expect("a request");
    let GuestCommand::Script(script) = request.command() else { panic!("{request:?}") };
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("guest.wasm");
    std::fs::write(&path, &script.contents).expect("written");
    (directory, path)
}

fn run(words: &[&str]) -> (i32, String, String) {
    outcome(cofferdam().args(["run", "--use-server", "never"]).args(words))
}

/// Promise (WebAssembly): A module runs by its extension, its isolation level or its backend.
#[test]
fn a_module_runs_by_its_extension_and_by_every_other_way_to_name_it() {
    let program = GuestProgram::Sequence(vec![
        GuestProgram::Print { stdout: "out".into(), stderr: "err".into() },
        GuestProgram::Exit(7),
    ]);
    let (_kept, path) = module(&program);
    let path = path.to_str().expect("text");
    for words in [
        &[path][..],
        &["--level", "wasm", path],
        &["--level", "1", "--", path, "a"],
        &["--backend", "wasm", path],
        &["--backend", "wasm", "--", path],
    ] {
        assert_eq!(run(words), (7, "out".to_owned(), "err".to_owned()), "{words:?}");
    }
    let (code, stdout, _) = run(&["--json", path]);
    let document = json(&stdout);
    assert_eq!((code, document["backend"].as_str(), document["level"].as_str()), (7, Some("wasm"), Some("wasm")));
}

/// Promise (WebAssembly): A module never runs at a lower isolation level than the caller requires.
#[test]
fn module_never_runs_at_another_isolation_level() {
    let (_kept, path) = module(&GuestProgram::Print { stdout: "ran".into(), stderr: String::new() });
    let path = path.to_str().expect("text");
    for words in [&["--level", "process", path][..], &["--backend", "process", path], &["--level", "vm", path]] {
        let (code, stdout, stderr) = run(words);
        assert_eq!((code, stdout.as_str()), (125, ""), "{words:?}: {stderr}");
    }
}

#[test]
fn end_of_a_module_is_reported() {
    let endless = module(&GuestProgram::SpinCpu { processes: 1 });
    let (code, _, stderr) = run(&["--timeout", "1s", endless.1.to_str().expect("text")]);
    assert_eq!(code, 124, "{stderr}");
    let greedy = module(&GuestProgram::AllocateMemory { bytes: 64 << 20, processes: 1 });
    let (code, stdout, stderr) = run(&["--memory", "16M", greedy.1.to_str().expect("text")]);
    assert_eq!((code, stdout.as_str()), (12, "refused\n"), "{stderr}");
    let text = tempfile::Builder::new().suffix(".wasm").tempfile().expect("a file");
    let (code, _, stderr) = run(&[text.path().to_str().expect("text")]);
    assert_eq!(code, 126, "{stderr}");
    assert!(stderr.contains("not a WebAssembly module"), "{stderr}");
}

#[test]
fn fuel_is_set_by_option_environment_and_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("c.toml");
    std::fs::write(&file, "[wasm]\nfuel = 100_000\n").expect("written");
    let file = file.to_str().expect("text");
    let endless = module(&GuestProgram::SpinCpu { processes: 1 });
    let endless = endless.1.to_str().expect("text");
    let run = |words: &[&str], fuel: &str| {
        let mut command = cofferdam();
        command.args(["run", "--use-server", "never", "--timeout", "2s"]).args(words).arg(endless);
        outcome(command.env("COFFERDAM_WASM_FUEL", fuel))
    };
    for (words, fuel, expected) in [
        (&["--fuel", "100000"][..], "", 137),
        (&[], "100000", 137),
        (&["--config", file], "", 137),
        (&["--config", file, "--fuel", "none"], "100000", 124),
        (&[], "0", 125),
    ] {
        let (code, _, stderr) = run(words, fuel);
        assert_eq!(code, expected, "{words:?} {fuel}: {stderr}");
    }
}

/// Promise (WebAssembly): Without its interpreter, a script is refused with the command that installs it.
#[test]
fn scripts_without_their_interpreter_are_refused_with_the_step_to_take() {
    let nothing = tempfile::tempdir().expect("a directory");
    for (lang, code) in [("python", "print(1)"), ("javascript", "console.log(1)")] {
        let mut command = cofferdam();
        command.env("XDG_CACHE_HOME", nothing.path());
        command.args(["run", "--use-server", "never", "--level", "wasm", "--lang", lang, "--code", code]);
        let (code, stdout, stderr) = outcome(&mut command);
        assert_eq!((code, stdout.as_str()), (125, ""), "{stderr}");
        assert!(stderr.contains(&format!("cofferdam setup {lang}")), "{stderr}");
    }
    assert_eq!(std::fs::read_dir(nothing.path()).expect("a directory").count(), 0);
}

#[test]
fn other_programs_do_not_run_in_a_sandbox_of_webassembly() {
    for words in [
        &["--backend", "wasm", "--lang", "bash", "--code", "echo"][..],
        &["--backend", "wasm", "--lang", "typescript", "--code", "1"],
        &["--backend", "wasm", "--", "ls"],
    ] {
        let (code, _, stderr) = run(words);
        assert!((125..=127).contains(&code), "{words:?}: {code} {stderr}");
    }
    // The level is a minimum: programs without a module use a backend of a higher level.
    let (code, stdout, stderr) = run(&["--level", "wasm", "--lang", "sh", "--code", "echo floor"]);
    assert_eq!((code, stdout.as_str()), (0, "floor\n"), "{stderr}");
}

/// Promise (WebAssembly): The changes of a module stay in a copy of the host directory, and can be shown and applied.
#[test]
fn a_module_changes_a_copy_of_a_directory() {
    let (copied, state) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    std::fs::write(copied.path().join("f"), "from the host\n").expect("written");
    let (_kept, path) = module(&GuestProgram::WriteFile { path: "f".into(), contents: "by the guest\n".into() });
    let (path, directory) = (path.to_str().expect("text"), copied.path().to_str().expect("text"));
    for (option, after) in [("--diff", "from the host\n"), ("--apply", "by the guest\n")] {
        let mut command = cofferdam();
        command.args(["run", "--use-server", "never", "--backend", "wasm", "--workspace", directory, option, path]);
        let (code, stdout, stderr) = outcome(command.env("XDG_STATE_HOME", state.path()));
        assert_eq!(code, 0, "{stderr}");
        assert_eq!(stdout.contains("-from the host\n+by the guest\n"), option == "--diff", "{stdout}");
        assert_eq!(std::fs::read_to_string(copied.path().join("f")).expect("a file"), after);
    }
    let out = copied.path().join("out").display().to_string();
    let (code, _, stderr) = run(&["--backend", "wasm", "--copy-out", &format!("f:{out}"), path]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(std::fs::read_to_string(copied.path().join("out/f")).expect("a file"), "by the guest\n");
}

/// Promise (WebAssembly): A host directory is mounted read-only, and a writable mount is refused.
#[test]
fn a_directory_is_mounted_to_be_read_and_not_to_be_written() {
    let mounted = tempfile::tempdir().expect("a directory");
    std::fs::write(mounted.path().join("f"), "from the host").expect("written");
    let (_kept, path) = module(&GuestProgram::ReadFile { path: "f".into() });
    let (path, mounted) = (path.to_str().expect("text"), mounted.path().to_str().expect("text"));
    let (code, stdout, stderr) = run(&["--backend", "wasm", "--workspace", &format!("{mounted}:ro"), path]);
    assert_eq!((code, stdout.as_str()), (0, "from the host"), "{stderr}");
    let (code, _, stderr) = run(&["--backend", "wasm", "--workspace", &format!("{mounted}:rw"), path]);
    assert!(code == 125 && stderr.contains(":ro"), "{stderr}");
}
