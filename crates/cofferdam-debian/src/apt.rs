//! apt in private directories.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::cache::Lock;
use crate::error::{DebianError, Result, io};
use crate::host::Host;
use crate::plan::Package;
use crate::progress::Progress;
use crate::run::{self, Finished};
use crate::uris;

/// How old package lists may be where no archive answers.
const FRESH: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Written after a whole update.
const STAMP: &str = "updated";

/// One architecture's apt. Everything is under a lock of the cache, which apt inherits: should this process be killed, apt is
/// killed with it, and nobody comes in between before it and its helpers have ended.
pub(crate) struct Apt<'a> {
    lock: &'a Lock,
    host: Host,
    architecture: String,
    /// `lists/`, `status`, `updated`.
    directory: PathBuf,
    /// Gone when this value is.
    scratch: tempfile::TempDir,
}

/// Where package lists are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lists {
    pub(crate) directory: PathBuf,
    /// Why they are not new, for people.
    pub(crate) note: Option<String>,
}

impl<'a> Apt<'a> {
    pub(crate) fn new(lock: &'a Lock, architecture: Option<&str>) -> Result<Self> {
        let host = Host::read()?;
        let architecture = architecture.unwrap_or(host.architecture()).to_owned();
        let directory = lock.directory(&format!("apt-{architecture}"))?;
        for name in ["lists/partial", "state"] {
            let path = directory.join(name);
            fs::create_dir_all(&path).map_err(io("make", path))?;
        }
        let scratch = lock.scratch()?;
        let apt = Self { lock, host, architecture, directory, scratch };
        for name in ["archives/partial", "log"] {
            let path = apt.scratch.path().join(name);
            fs::create_dir_all(&path).map_err(io("make", path))?;
        }
        let status = apt.scratch.path().join("status");
        File::create(&status).map_err(io("create", status))?;
        Ok(apt)
    }

    pub(crate) fn architecture(&self) -> &str {
        &self.architecture
    }

    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// New package lists; where no archive answers, those of before or the host's, if they are not too old.
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
        let candidates = [(own, age_of_own, "the lists of before"), (host, age_of_hosts, "the host's lists")];
        let fresh = candidates.into_iter().filter_map(|(path, age, what)| Some((path, age?, what)));
        let Some((directory, age, what)) = fresh.filter(|(_, age, _)| *age < FRESH).min_by_key(|(_, age, _)| *age)
        else {
            return Err(DebianError::NoArchive { reason });
        };
        let hours = age.as_secs() / 3600;
        let note = format!("no archive could be reached ({reason}); {what}, {hours} hours old, were used");
        Ok(Lists { directory, note: Some(note) })
    }

    /// The packages and all that they depend on.
    pub(crate) fn closure(&self, lists: &Path, packages: &[String]) -> Result<Vec<Package>> {
        let mut arguments: Vec<String> = ["install", "--print-uris", "-qq", "--"].map(str::to_owned).into();
        arguments.extend_from_slice(packages);
        let finished = self.get(lists, &arguments, || 0)?;
        if finished.status.success() {
            return uris::parse(&finished.stdout);
        }
        Err(classify(&finished.stderr, |reason| DebianError::Unresolvable { reason }))
    }

    /// Where [`Self::download`] finds what is there, and leaves what came.
    pub(crate) fn archives(&self) -> PathBuf {
        self.scratch.path().join("archives")
    }

    /// Fetches what is not in [`Self::archives`]. `missing` are the names of files whose growth is progress.
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

    fn get(&self, lists: &Path, arguments: &[String], glance: impl FnMut() -> u64) -> Result<Finished> {
        let configuration = self.scratch.path().join("apt.conf");
        fs::write(&configuration, self.configuration(lists)?).map_err(io("write", &configuration))?;
        let lock = self.lock.file()?;
        let prepare = |command: &mut Command| {
            command.args(["-y", "--no-install-recommends"]).args(arguments).stdin(lock);
            command.env("APT_CONFIG", &configuration).env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        };
        run::finish_tied("apt-get", prepare, glance)
    }

    /// Later lines win; the host's come first. Its own files are not read again, so its hooks are never run.
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
            let reason = "apt cannot be told a name with quotes, backslashes, line ends or bytes that are not UTF-8";
            let shown = shown.ok_or_else(|| DebianError::BadCache { path: path.clone(), reason: reason.to_owned() })?;
            text.push_str(&format!("{key} \"{shown}\";\n"));
        }
        text.push_str(&format!(
            "APT::Architecture \"{0}\";\n#clear APT::Architectures;\nAPT::Architectures:: \"{0}\";\n",
            self.architecture
        ));
        text.push_str(FIXED);
        if !open_to_all(scratch) {
            // apt's own user could not even enter; this has an effect only for root.
            text.push_str("APT::Sandbox::User \"root\";\n");
        }
        Ok(text)
    }
}

/// What is the same everywhere. Weaker checks are off whatever the host's configuration says.
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

/// apt's own words for a failure, and what kind it is.
fn classify(stderr: &str, otherwise: impl FnOnce(String) -> DebianError) -> DebianError {
    let told = stderr.lines().filter(|line| line.starts_with("E: ") || line.starts_with("W: "));
    let mut lines: Vec<&str> = told.filter(|line| !line.contains("Some index files failed to download")).collect();
    if lines.is_empty() {
        lines = stderr.lines().collect();
    }
    lines.truncate(8);
    // One line: errors are printed on one, where a line end would be escaped.
    let reason = lines.join("; ");
    if ["No space left on device", "enough free space", "Disk quota exceeded"].iter().any(|word| reason.contains(word))
    {
        return DebianError::NoSpace { path: "apt's download".into() };
    }
    otherwise(reason)
}

/// Whether package lists came, but are not what somebody signed, or are too old to be believed.
fn is_untrusted(reason: &str) -> bool {
    const WORDS: &[&str] =
        &["GPG error", "NO_PUBKEY", "not signed", "Hash Sum mismatch", "is not valid yet", "expired"];
    WORDS.iter().any(|word| reason.contains(word))
}

/// Bytes of the files directly in these directories.
fn sizes(directories: &[&Path]) -> u64 {
    let entries = directories.iter().filter_map(|path| fs::read_dir(path).ok()).flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).filter(fs::Metadata::is_file).map(|found| found.len()).sum()
}

fn age(path: &Path) -> Option<Duration> {
    let changed = fs::metadata(path).and_then(|found| found.modified()).ok()?;
    // A clock that was set back makes nothing older.
    Some(SystemTime::now().duration_since(changed).unwrap_or_default())
}

/// Whether any user may enter this directory.
fn open_to_all(path: &Path) -> bool {
    path.ancestors().all(|path| fs::metadata(path).is_ok_and(|found| found.mode() & 0o001 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_apt_are_told_apart() {
        let kind = |text: &str| classify(text, |reason| DebianError::FetchFailed { reason });
        assert!(is_untrusted("W: GPG error: x InRelease: NO_PUBKEY 1") && !is_untrusted("E: Failed to fetch http://x"));
        assert!(matches!(kind("E: You don't have enough free space in /x."), DebianError::NoSpace { .. }));
        let failed = kind("W: noise\nE: Failed to fetch http://x  Connection failed\nplain\n");
        let DebianError::FetchFailed { reason } = failed else { panic!("{failed:?}") };
        assert_eq!(reason, "W: noise; E: Failed to fetch http://x  Connection failed");
        assert!(kind("something else").to_string().contains("something else"));
    }
}
