//! The compiled hostile programs: one static program per C file, so that they run in any root file system.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

/// Returns the directory of the C files.
pub fn source_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests")
}

/// Returns the names of all programs, without `.c`.
pub fn all_names() -> BTreeSet<String> {
    fs::read_dir(source_directory())
        .expect("tests/guests is part of the repository")
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".c")?.to_owned()))
        .collect()
}

/// Compiled programs in a world-readable directory, which is removed on drop.
pub struct Guests {
    directory: TempDir,
}

impl Guests {
    /// Compiles `names`, on as many threads as there are processors.
    pub fn compile(names: &BTreeSet<&str>) -> Self {
        let directory = open_temporary_directory(0o755);
        let names: Vec<&str> = names.iter().copied().collect();
        let next = AtomicUsize::new(0);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                        compile_one(name, &directory.path().join(name));
                    }
                });
            }
        });
        Self { directory }
    }

    /// Returns the directory of the programs.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the path of one program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Creates a temporary directory that guests with another user id may enter. Its name is not Cofferdam's, so the census
/// does not count it.
pub fn open_temporary_directory(mode: u32) -> TempDir {
    let directory = tempfile::Builder::new().prefix("hostile-").tempdir().expect("a temporary directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).expect("its mode can be set");
    directory
}

fn compile_one(name: &str, output: &Path) {
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-static", "-pthread", "-Wall", "-Wextra", "-o"])
        .arg(output)
        .arg(source_directory().join(format!("{name}.c")));
    let result = gcc.output().unwrap_or_else(|error| match error.kind() {
        ErrorKind::NotFound => {
            panic!("the hostile programs are written in C and gcc is missing: apt-get install gcc libc6-dev")
        }
        _ => panic!("gcc cannot be started: {error}"),
    });
    assert!(
        result.status.success(),
        "tests/guests/{name}.c does not compile (apt-get install gcc libc6-dev):\n{}",
        String::from_utf8_lossy(&result.stderr)
    );
    fs::set_permissions(output, fs::Permissions::from_mode(0o755)).expect("the mode of what gcc made can be set");
}
