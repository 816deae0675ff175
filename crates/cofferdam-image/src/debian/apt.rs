//! apt in private directories.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::cache::Lock;
use super::error::{DebianError, Result, io};
use super::host::AptSettings;
use super::package::Package;
use super::progress::Progress;
use super::run::{self, Finished};
use super::uris;

/// Maximum age of the package lists that are used when no archive can be reached.
const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The file written after a complete update.
const STAMP: &str = "updated";

/// The apt of one architecture. Everything is under a lock of the cache, which apt inherits. If this process is killed,
/// apt is killed with it, and no other process gets the lock before apt and its helpers have ended.
pub(crate) struct Apt<'a> {
    lock: &'a Lock,
    host: AptSettings,
    architecture: String,
    /// Contains `lists/`, `status` and `updated`.
    directory: PathBuf,
    /// Removed when this value is dropped.
    scratch: tempfile::TempDir,
}

/// The location of package lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lists {
    pub(crate) directory: PathBuf,
    /// The reason why the lists are not new, for display.
    pub(crate) note: Option<String>,
}

impl<'a> Apt<'a> {
    pub(crate) fn new(lock: &'a Lock, architecture: Option<&str>) -> Result<Self> {
        let host = AptSettings::read()?;
        let architecture = architecture.unwrap_or(host.architecture()).to_owned();
        let directory = lock.directory(&format!("apt-{architecture}"))?;
        for name in ["lists/partial", "state"] {
            let path = directory.join(name);
            fs::create_dir_all(&path).map_err(io("create", path))?;
        }
        let scratch = lock.scratch()?;
        let apt = Self { lock, host, architecture, directory, scratch };
        for name in ["archives/partial", "log"] {
            let path = apt.scratch.path().join(name);
            fs::create_dir_all(&path).map_err(io("create", path))?;
        }
        let status = apt.scratch.path().join("status");
        File::create(&status).map_err(io("create", status))?;
        Ok(apt)
    }

    pub(crate) fn architecture(&self) -> &str {
        &self.architecture
    }

    pub(crate) fn host(&self) -> &AptSettings {
        &self.host
    }

    /// Downloads new package lists. If no archive can be reached, uses the previous lists or the host's, unless they
    /// are too old.
    pub(crate) fn update(&self, progress: &mut dyn FnMut(Progress)) -> Result<Lists> {
        progress(Progress::Updating);
        let own = self.directory.join("lists");
        let partial = own.join("partial");
        let finished = self.get(&own, &["update".to_owned()], || sizes(&[&own, &partial]))?;
        if finished.status.success() && !finished.stderr.contains("W: Failed to fetch") {
            let stamp = self.directory.join(STAMP);
            fs::write(&stamp, "").map_err(io("write", stamp))?;
            return Ok(Lists { directory: own, note: None });
        }
        let failure = classify(&finished.stderr, |reason| match is_untrusted(&reason) {
            true => DebianError::UntrustedArchive { reason },
            false => DebianError::NoArchive { reason },
        });
        let DebianError::NoArchive { reason } = failure else { return Err(failure) };
        let host = self.host.lists();
        let age_of_own = age(&self.directory.join(STAMP));
        let age_of_hosts = (self.architecture == self.host.architecture()).then(|| age(&host)).flatten();
        let candidates = [(own, age_of_own, "the previous lists"), (host, age_of_hosts, "the host's lists")];
        let fresh = candidates.into_iter().filter_map(|(path, age, what)| Some((path, age?, what)));
        let Some((directory, age, what)) = fresh.filter(|(_, age, _)| *age < MAX_AGE).min_by_key(|(_, age, _)| *age)
        else {
            return Err(DebianError::NoArchive { reason });
        };
        let hours = age.as_secs() / 3600;
        let note = format!("cannot reach any archive ({reason}); using {what}, {hours} hours old");
        Ok(Lists { directory, note: Some(note) })
    }

    /// Returns the packages and all their dependencies.
    pub(crate) fn closure(&self, lists: &Path, packages: &[String]) -> Result<Vec<Package>> {
        let mut arguments: Vec<String> = ["install", "--print-uris", "-qq", "--"].map(str::to_owned).into();
        arguments.extend_from_slice(packages);
        let finished = self.get(lists, &arguments, || 0)?;
        if finished.status.success() {
            return uris::parse(&finished.stdout);
        }
        Err(classify(&finished.stderr, |reason| DebianError::Unresolvable { reason }))
    }

    /// Returns the directory that [`Self::download`] reads existing packages from and stores new ones in.
    pub(crate) fn archives(&self) -> PathBuf {
        self.scratch.path().join("archives")
    }

    /// Downloads the packages that are not in [`Self::archives`]. Calls `seen` with the bytes downloaded so far.
    pub(crate) fn download(&self, lists: &Path, packages: &[Package], mut seen: impl FnMut(u64)) -> Result<()> {
        let mut arguments: Vec<String> = ["install", "--download-only", "-q", "--"].map(str::to_owned).into();
        arguments.extend(packages.iter().map(|package| format!("{}={}", package.name, package.version)));
        let archives = self.archives();
        let partial = archives.join("partial");
        let before = sizes(&[&archives]);
        let finished = self.get(lists, &arguments, || {
            let now = sizes(&[&archives, &partial]).saturating_sub(before);
            seen(now);
            now
        })?;
        if finished.status.success() {
            return Ok(());
        }
        Err(classify(&finished.stderr, |reason| DebianError::FetchFailed { reason }))
    }

    fn get(&self, lists: &Path, arguments: &[String], progress: impl FnMut() -> u64) -> Result<Finished> {
        let configuration = self.scratch.path().join("apt.conf");
        fs::write(&configuration, self.configuration(lists)?).map_err(io("write", &configuration))?;
        let lock = self.lock.file()?;
        let prepare = |command: &mut Command| {
            command.args(["-y", "--no-install-recommends"]).args(arguments).stdin(lock);
            command.env("APT_CONFIG", &configuration).env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        };
        run::finish_tied("apt-get", prepare, progress)
    }

    /// Returns apt's configuration. Later lines win, and the host's come first. Its files are not read again, so its
    /// hooks never run.
    fn configuration(&self, lists: &Path) -> Result<String> {
        let scratch = self.scratch.path();
        let mut text = self.host.taken();
        let paths = [
            ("Dir::State", self.directory.join("state")),
            ("Dir::State::status", scratch.join("status")),
            ("Dir::State::lists", lists.to_owned()),
            ("Dir::Cache", scratch.to_owned()),
            ("Dir::Cache::archives", scratch.join("archives")),
            ("Dir::Log", scratch.join("log")),
            ("Dir::Etc::main", "/dev/null".into()),
            ("Dir::Etc::parts", "/dev/null".into()),
        ];
        for (key, path) in paths {
            let shown = path.to_str().filter(|shown| !shown.contains(['"', '\\', '\n']));
            let reason = "apt does not support a path with quotes, backslashes, line ends or bytes that are not UTF-8";
            let shown = shown.ok_or_else(|| DebianError::BadCache { path: path.clone(), reason: reason.to_owned() })?;
            text.push_str(&format!("{key} \"{shown}\";\n"));
        }
        text.push_str(&format!(
            "APT::Architecture \"{0}\";\n#clear APT::Architectures;\nAPT::Architectures:: \"{0}\";\n",
            self.architecture
        ));
        text.push_str(FIXED);
        if !open_to_all(scratch) {
            // apt's own user cannot even enter the directory. This has an effect only for root.
            text.push_str("APT::Sandbox::User \"root\";\n");
        }
        Ok(text)
    }
}

/// Settings that are the same on every host. Weaker checks are off regardless of the host's configuration.
const FIXED: &str = "\
Acquire::AllowInsecureRepositories \"false\";
Acquire::AllowWeakRepositories \"false\";
Acquire::AllowDowngradeToInsecureRepositories \"false\";
APT::Get::AllowUnauthenticated \"false\";
APT::Update::Error-Mode \"any\";
Acquire::Languages \"none\";
Acquire::ForceHash \"SHA256\";
Acquire::Retries \"2\";
APT::Get::List-Cleanup \"false\";
APT::Install-Suggests \"false\";
";

/// Extracts apt's error messages and determines the kind of error.
fn classify(stderr: &str, otherwise: impl FnOnce(String) -> DebianError) -> DebianError {
    let messages = stderr.lines().filter(|line| line.starts_with("E: ") || line.starts_with("W: "));
    let mut lines: Vec<&str> = messages.filter(|line| !line.contains("Some index files failed to download")).collect();
    if lines.is_empty() {
        lines = stderr.lines().collect();
    }
    lines.truncate(8);
    // One line, because errors are printed on one line, where a line end would be escaped.
    let reason = lines.join("; ");
    if ["No space left on device", "enough free space", "Disk quota exceeded"].iter().any(|word| reason.contains(word))
    {
        return DebianError::NoSpace { path: "apt's download".into() };
    }
    otherwise(reason)
}

/// Returns true if package lists arrived, but are not correctly signed or have expired.
fn is_untrusted(reason: &str) -> bool {
    const WORDS: &[&str] =
        &["GPG error", "NO_PUBKEY", "not signed", "Hash Sum mismatch", "is not valid yet", "expired"];
    WORDS.iter().any(|word| reason.contains(word))
}

/// Returns the total size of the files directly in these directories.
fn sizes(directories: &[&Path]) -> u64 {
    let entries = directories.iter().filter_map(|path| fs::read_dir(path).ok()).flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(fs::Metadata::is_file).map(|found| found.len()).sum()
}

fn age(path: &Path) -> Option<Duration> {
    let changed = fs::metadata(path).and_then(|found| found.modified()).ok()?;
    // If the clock was set back, the age is zero.
    Some(SystemTime::now().duration_since(changed).unwrap_or_default())
}

/// Returns true if every user may enter this directory.
fn open_to_all(path: &Path) -> bool {
    path.ancestors().all(|path| fs::metadata(path).is_ok_and(|found| found.mode() & 0o001 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apt_failures_are_classified() {
        let kind = |text: &str| classify(text, |reason| DebianError::FetchFailed { reason });
        assert!(is_untrusted("W: GPG error: x InRelease: NO_PUBKEY 1") && !is_untrusted("E: Failed to fetch http://x"));
        assert!(matches!(kind("E: You don't have enough free space in /x."), DebianError::NoSpace { .. }));
        let failed = kind("W: noise\nE: Failed to fetch http://x  Connection failed\nplain\n");
        let DebianError::FetchFailed { reason } = failed else { panic!("{failed:?}") };
        assert_eq!(reason, "W: noise; E: Failed to fetch http://x  Connection failed");
        assert!(kind("something else").to_string().contains("something else"));
    }
}
