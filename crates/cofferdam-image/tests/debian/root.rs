//! An unpacked root file system, and programs in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cofferdam_image::{DebianError, Plan};

/// Returns the tar of a plan.
pub fn tar_of(plan: &Plan) -> Vec<u8> {
    let mut tar = Vec::new();
    plan.write_tar(&mut tar, &mut |_| ()).unwrap_or_else(|error| panic!("{error}"));
    tar
}

/// Returns true if the failure only means that no archive can be reached. Prints that the test is skipped.
pub fn is_no_archive(test: &str, error: &DebianError) -> bool {
    let none = matches!(error, DebianError::NoArchive { .. } | DebianError::MissingTool { .. });
    if none {
        println!("SKIP {test}: {}", error.to_string().replace('\n', " "));
    }
    none
}

/// An unpacked root file system, removed when dropped.
pub struct Root {
    temp: tempfile::TempDir,
}

impl Root {
    pub fn unpack(tar: &[u8]) -> Self {
        let temp = tempfile::tempdir().expect("a directory");
        let file = temp.path().join("root.tar");
        std::fs::write(&file, tar).expect("the tar");
        std::fs::create_dir(temp.path().join("root")).expect("the root");
        let status = Command::new("tar").arg("-xpf").arg(&file).arg("-C").arg(temp.path().join("root")).status();
        assert!(status.expect("tar").success(), "tar cannot unpack it");
        Self { temp }
    }

    pub fn path(&self) -> PathBuf {
        self.temp.path().join("root")
    }

    /// Runs a program in a user namespace of its own. Returns `None` if the host does not allow that.
    pub fn run(&self, argv: &[&str]) -> Option<Output> {
        let run = |argv: &[&str]| {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--"]).args(["chroot"]).arg(self.path());
            command.args(["/usr/bin/env", "-i", "PATH=/usr/bin:/bin", "LANG=C.UTF-8"]).args(argv);
            command.output().ok()
        };
        // A program that cannot fail shows whether user namespaces work at all.
        let tried = Command::new("unshare").args(["--user", "--map-root-user", "--", "chroot", "/", "true"]).status();
        tried.is_ok_and(|status| status.success()).then(|| run(argv)).flatten()
    }

    /// Runs a program and fails the test if the program fails. Does nothing if user namespaces are not allowed.
    pub fn expect(&self, test: &str, argv: &[&str], printed: impl FnOnce(&str) -> bool) {
        let Some(output) = self.run(argv) else {
            println!("SKIP {test}: this user cannot create a user namespace, so {} was not run", argv[0]);
            return;
        };
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed(stdout.trim()), "{argv:?}: {output:?}");
    }
}

/// Returns every file below a directory.
pub fn files_in(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_directory {
            files.extend(files_in(&entry.path()));
        }
        files.push(entry.path());
    }
    files
}
