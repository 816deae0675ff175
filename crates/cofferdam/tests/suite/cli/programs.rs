//! Programs that the command finds in `PATH` and starts as root.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{cofferdam, outcome};

/// Creates a program in a world-writable directory. The program leaves a file when it is started.
fn planted(top: &Path, name: &str) -> (String, PathBuf) {
    let (directory, marker) = (top.join("open"), top.join("started"));
    fs::create_dir(&directory).expect("created");
    let program = directory.join(name);
    fs::write(&program, format!("#!/bin/sh\necho > {}\nexit 1\n", marker.display())).expect("written");
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("its mode");
    fs::set_permissions(&directory, Permissions::from_mode(0o777)).expect("its mode");
    let path = std::env::var("PATH").unwrap_or_default();
    (format!("{}:{path}", directory.display()), marker)
}

#[test]
fn root_starts_no_program_that_another_user_can_change() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP root_starts_no_program_that_another_user_can_change: an ordinary user's PATH is not checked");
        return;
    }
    let commands: &[(&str, &[&str])] = &[
        #[cfg(feature = "vm")]
        ("qemu-system-x86_64", &["doctor", "--backend", "vm"]),
        #[cfg(feature = "wasm")]
        ("npm", &["setup", "python"]),
        #[cfg(feature = "wasm")]
        ("cargo", &["setup", "javascript"]),
        #[cfg(feature = "vm")]
        ("apt-config", &["vm", "build-image", "--tiny", "--name", "planted"]),
    ];
    for &(program, words) in commands {
        let temp = tempfile::tempdir().expect("a directory");
        let base = temp.path().canonicalize().expect("a path");
        let (path, marker) = planted(&base, program);
        let mut command = cofferdam();
        command.args(words).env("PATH", path).env("XDG_CACHE_HOME", base.join("cache")).env("HOME", &base);
        let (_, stdout, stderr) = outcome(&mut command);
        let printed = format!("{stdout}{stderr}");
        let named = base.join("open");
        assert!(printed.contains(&format!("'{}' has mode 0777", named.display())), "{program}: {printed}");
        assert!(printed.contains(&format!("chmod go-w {}", named.display())), "{program}: {printed}");
        assert!(!marker.exists(), "{program} was started: {printed}");
    }
}
