//! Libraries that a distribution's QEMU is linked with, and that no machine of ours has a use for: those of user networks,
//! remote direct memory, persistent memory, exports, screens and their passwords, the disassembler.
//!
//! A loader brings all of them, and what they need, into each monitor, and writes to many of their pages: two mebibytes of
//! each machine, and part of the time that it takes to start. Here are files to be loaded in their place: of the same
//! name, with the same symbols in the same versions, and without a single instruction. Whoever calls one ends, because what
//! is there cannot be executed.
//!
//! What is needed is read from the program itself. Whatever is not as expected there leaves the library in its place, and a
//! monitor that does not load well with these files is started without them ([`super::Qemu`] tries that once).

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::elf::{self, Symbol};
use crate::sparse;

/// The beginnings of the libraries' names, and those of their symbols' names, where these have no versions that tell whose
/// they are.
const ABSENT: [(&str, &str); 13] = [
    ("libcapstone.so.", "cs_"),
    ("libpmem.so.", "pmem_"),
    ("librdmacm.so.", "rdma_"),
    ("libibverbs.so.", "ibv_"),
    ("libslirp.so.", "slirp_"),
    ("libvdeplug.so.", "vde_"),
    ("libbpf.so.", "bpf_"),
    ("libsasl2.so.", "sasl_"),
    ("libfuse3.so.", "fuse_"),
    ("libnuma.so.", "numa_"),
    ("libpng16.so.", "png_"),
    ("libjpeg.so.", "jpeg_"),
    ("libudev.so.", "udev_"),
];
/// Programs that are larger are not read.
const MOST: u64 = 256 << 20;
/// Where a program without a path is found by a process without an environment.
const PLACES: [&str; 2] = ["/bin", "/usr/bin"];

/// Sealed files to be loaded first. None is a good answer.
#[derive(Debug, Default)]
pub(crate) struct Absent(Vec<File>);

impl Absent {
    /// What goes in the place of what this program is linked with.
    pub(crate) fn of(program: &Path) -> Self {
        let made = read(program).and_then(|bytes| {
            let needed = elf::needed(&bytes)?;
            let files = ABSENT.iter().filter_map(|(library, symbols)| {
                let found = needed.iter().find(|needed| needed.name.starts_with(library))?;
                let owned: Vec<Symbol<'_>> = found.symbols(symbols)?;
                sealed(&elf::library(found.name, &owned)?).ok()
            });
            Some(Self(files.collect()))
        });
        made.unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Descriptors for a program, which keeps them under their numbers, and the variable that has its loader use them.
    pub(crate) fn hand_over(&self) -> std::io::Result<(Vec<OwnedFd>, OsString)> {
        let copies: std::io::Result<Vec<OwnedFd>> =
            self.0.iter().map(|file| file.try_clone().map(OwnedFd::from)).collect();
        let copies = copies?;
        let names: Vec<String> = copies.iter().map(|fd| format!("/proc/self/fd/{}", fd.as_raw_fd())).collect();
        Ok((copies, names.join(":").into()))
    }
}

/// The variable that names what is loaded first.
pub(crate) const VARIABLE: &str = "LD_PRELOAD";

fn read(program: &Path) -> Option<Vec<u8>> {
    let places = PLACES.iter().map(|place| Path::new(place).join(program));
    let named = program.components().count() > 1;
    let path: Option<PathBuf> = if named { Some(program.to_owned()) } else { places.into_iter().find(|p| p.is_file()) };
    let mut bytes = Vec::new();
    File::open(path?).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn sealed(bytes: &[u8]) -> std::io::Result<File> {
    let mut file = sparse::blank(0)?;
    file.write_all(bytes)?;
    sparse::seal(&file)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_program_of_the_kind_is_left_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let script = place.path().join("qemu");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        for program in [&*script, Path::new("/no/such/program"), Path::new("no-such-program")] {
            assert!(Absent::of(program).is_empty(), "{}", program.display());
        }
        // A program that needs none of them.
        assert!(Absent::of(&std::env::current_exe().unwrap()).is_empty());
    }

    /// What a loader brings in for a program, as it says itself.
    fn loaded(program: &Path, absent: &Absent) -> String {
        let (keep, loaded) = absent.hand_over().unwrap();
        let mut command = std::process::Command::new(program);
        command.env_clear().env(VARIABLE, loaded).env("LD_TRACE_LOADED_OBJECTS", "1").env("LD_WARN", "1");
        command.env("LD_BIND_NOW", "1");
        let finished = crate::run::finish_with(command, "ld.so", std::time::Duration::from_secs(60), keep).unwrap();
        let said = finished.said.clone();
        finished.ok().unwrap();
        said
    }

    #[test]
    fn a_monitor_is_loaded_without_what_is_absent_and_lacks_nothing() {
        let program = Path::new("/usr/bin").join(crate::qemu::PROGRAM);
        let absent = Absent::of(&program);
        let all = if program.is_file() { loaded(&program, &Absent::default()) } else { String::new() };
        let linked = |said: &str, name: &str| said.contains(&format!("/{name}"));
        let unused: Vec<&str> = ABSENT.iter().map(|(name, _)| *name).filter(|name| linked(&all, name)).collect();
        if unused.is_empty() {
            println!("SKIP a_monitor_is_loaded_without_what_is_absent: no QEMU with libraries that it does not need");
            return;
        }
        assert_eq!(absent.0.len(), unused.len(), "{unused:?}");
        let rest = loaded(&program, &absent);
        assert!(unused.iter().all(|name| !linked(&rest, name)), "{rest}");
        for complaint in ["undefined symbol", "not found", "no version information", "error"] {
            assert!(!rest.contains(complaint), "{rest}");
        }
        assert!(rest.lines().count() + unused.len() <= all.lines().count() + absent.0.len(), "{rest}");
        for file in &absent.0 {
            assert!(rustix::io::write(file, b"x").is_err(), "it could be changed");
        }
    }
}
