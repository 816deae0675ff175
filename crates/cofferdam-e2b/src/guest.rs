//! The scripts that run in a VM, and their results. They need `bash`, GNU coreutils, findutils and grep, which E2B's
//! templates have.

use std::collections::BTreeMap;

use cofferdam_contract::{DirEntry, EntryKind, Error, ErrorKind, Result};

use crate::wire::ProcessConfig;

/// Starts a program.
pub(crate) const EXEC: &str = include_str!("guest/exec.sh");
/// Ends the processes of an exec.
pub(crate) const END: &str = include_str!("guest/end.sh");
/// Makes the workspace.
pub(crate) const SETUP: &str = include_str!("guest/setup.sh");
/// Prints the measurements of a VM.
pub(crate) const PROBE: &str = include_str!("guest/probe.sh");
/// Operations on files.
pub(crate) const FILE: &str = include_str!("guest/file.sh");

/// The most entries of a directory.
pub(crate) const MAX_ENTRIES: usize = 100_000;
/// The number of texts of an entry in a list.
const FIELDS: usize = 6;
/// The most texts that a list has, if it has too many entries.
pub(crate) const MAX_FIELDS: usize = (MAX_ENTRIES + 1) * FIELDS;
/// The most bytes of `PATH` and of the home directory.
const MAX_VARIABLE: usize = 4096;

/// Returns the process that runs a script.
pub(crate) fn script(text: &str, arguments: Vec<String>, fixed: bool) -> ProcessConfig {
    let options = ["--noprofile", "--norc", "-c", text, "cofferdam"].map(str::to_owned);
    let system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let variables = [("PATH", system), ("LC_ALL", "C")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    ProcessConfig {
        cmd: "/bin/bash".to_owned(),
        args: options.into_iter().chain(arguments).collect(),
        envs: if fixed { BTreeMap::from(variables) } else { BTreeMap::new() },
        cwd: "/".to_owned(),
    }
}

/// The measurements of a VM, as the user of programs sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Probed {
    pub uid: Option<u32>,
    pub processors: Option<u32>,
    pub memory_kib: Option<u64>,
    pub disk_kib: Option<u64>,
    /// True if the workspace is a directory.
    pub workspace: bool,
    /// True if the user can write to the workspace.
    pub writable: bool,
    /// True if the user can become root.
    pub root: bool,
    pub path: String,
    pub home: String,
}

impl Probed {
    /// Reads the output of [`PROBE`]. A value that is missing or malformed is unknown.
    pub fn parse(text: &str) -> Self {
        let mut probed = Self::default();
        let variable = |value: &str| if value.len() <= MAX_VARIABLE { value.to_owned() } else { String::new() };
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            match name {
                "uid" => probed.uid = value.parse().ok(),
                "processors" => probed.processors = value.parse().ok(),
                "memory_kib" => probed.memory_kib = value.parse().ok(),
                // The heading of the table comes first.
                "disk_kib" => probed.disk_kib = value.parse().ok().or(probed.disk_kib),
                "workspace" => probed.workspace = true,
                "writable" => probed.writable = true,
                "root" => probed.root = true,
                "path" => probed.path = variable(value),
                "home" => probed.home = variable(value),
                _ => {}
            }
        }
        probed
    }
}

/// Returns the error for the exit code of [`FILE`].
pub(crate) fn refusal(code: i32, reason: &str, operation: &'static str, path: &str) -> Error {
    let kind = match code {
        40 => ErrorKind::NotFound,
        41 => ErrorKind::PathEscape,
        42 => ErrorKind::Conflict,
        43 => ErrorKind::Denied,
        _ => ErrorKind::Io,
    };
    let message = match reason {
        "" => format!("a script in the sandbox failed with code {code}"),
        reason => crate::error::shown(reason),
    };
    let error = Error::new(kind, operation, message).with_context("path", path.to_owned());
    match kind {
        ErrorKind::Io => error.with_remedy("use a template with bash, coreutils, findutils and grep"),
        _ => error,
    }
}

/// Reads a list of a directory, sorted by name.
pub(crate) fn entries(output: &[u8]) -> Result<Vec<DirEntry>> {
    let malformed = || Error::new(ErrorKind::Io, "list_dir", "the list of the sandbox is malformed");
    let mut fields: Vec<&[u8]> = output.split(|byte| *byte == 0).collect();
    // After the last end.
    if fields.pop().is_none_or(|rest| !rest.is_empty()) || !fields.len().is_multiple_of(FIELDS) {
        return Err(malformed());
    }
    if fields.len() / FIELDS > MAX_ENTRIES {
        let message = format!("the directory has more than {MAX_ENTRIES} entries");
        return Err(Error::new(ErrorKind::ResourceExhausted, "list_dir", message));
    }
    let entry = |fields: &[&[u8]]| -> Option<DirEntry> {
        let [name, kind, size, mode, modified, target] = fields else { return None };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let number = |bytes| std::str::from_utf8(bytes).ok();
        let kind = match *kind {
            b"f" => EntryKind::File,
            b"d" => EntryKind::Directory,
            b"l" => EntryKind::Symlink,
            _ => EntryKind::Other,
        };
        let seconds = number(modified)?.split('.').next()?;
        Some(DirEntry {
            name: text(name),
            kind,
            size: if kind == EntryKind::File { number(size)?.parse().ok()? } else { 0 },
            mode: if kind == EntryKind::Symlink { 0o777 } else { u32::from_str_radix(number(mode)?, 8).ok()? },
            modified: seconds.parse().ok()?,
            target: (kind == EntryKind::Symlink).then(|| text(target)),
        })
    };
    let mut entries: Vec<DirEntry> = fields.chunks(FIELDS).map(entry).collect::<Option<_>>().ok_or_else(malformed)?;
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn measurements_are_read_and_nonsense_is_unknown() {
        let probed = Probed::parse(
            "uid=1000\nprocessors=2\nmemory_kib=x\ndisk_kib=1024-blocks\ndisk_kib=77\nwritable=yes\npath=/bin\n",
        );
        let expected = Probed {
            uid: Some(1000),
            processors: Some(2),
            disk_kib: Some(77),
            writable: true,
            path: "/bin".to_owned(),
            ..Probed::default()
        };
        assert_eq!(probed, expected);
    }

    #[test]
    fn lists_are_read_and_sorted() {
        let list = b"b\x00f\x005\x00644\x001.5\x00\x00a\x00l\x003\x00777\x00-2.0\x00../t\x00";
        let seen = entries(list).unwrap();
        assert_eq!((seen[0].name.as_str(), seen[0].target.as_deref(), seen[0].modified), ("a", Some("../t"), -2));
        assert_eq!((seen[1].kind, seen[1].size, seen[1].mode), (EntryKind::File, 5, 0o644));
        for bad in [&b"a"[..], b"a\x00f\x00", b"a\x00f\x00x\x00644\x001\x00\x00", b"a\x00f\x001\x009\x001\x00\x00"] {
            assert!(entries(bad).is_err(), "{bad:?}");
        }
        assert_eq!(entries(b"").unwrap(), []);
    }

    proptest! {
        #[test]
        fn any_output_is_a_list_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = entries(&bytes);
            let _ = Probed::parse(&String::from_utf8_lossy(&bytes));
        }
    }
}
