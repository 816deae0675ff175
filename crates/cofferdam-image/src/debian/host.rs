//! The host's apt configuration: the settings that are used, and the directories of apt.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::error::{DebianError, Result};
use super::run;

/// Settings as `apt-config dump` prints them.
#[derive(Debug, Clone, Default)]
pub(crate) struct AptSettings {
    settings: Vec<(String, String)>,
}

/// Prefixes of the settings that are used: access to the archive, its sources and keyrings, and preferences.
const USED: &[&str] =
    &["Acquire::", "APT::Default-Release", "APT::Key::", "APT::Sandbox::", "Dir::Bin::", "Dir::Etc::"];
/// Prefixes of the settings that are not used: indexes that this crate does not read, weaker checks, and files whose
/// settings were read already.
const NOT_USED: &[&str] = &[
    "Acquire::IndexTargets",
    "Acquire::Languages",
    "Acquire::Allow",
    "Acquire::Changelogs",
    "Dir::Etc::main",
    "Dir::Etc::parts",
];

impl AptSettings {
    pub(crate) fn read() -> Result<Self> {
        let mut command = run::command("apt-config")?;
        command.arg("dump").env("LC_ALL", "C").stdin(Stdio::null());
        let finished = run::finish(&mut command, "apt-config")?;
        if !finished.status.success() {
            return Err(DebianError::StrangeAnswer { line: finished.stderr.trim().to_owned() });
        }
        Ok(Self::parse(&finished.stdout))
    }

    pub(crate) fn parse(dump: &str) -> Self {
        let setting = |line: &str| {
            let (key, value) = line.strip_suffix("\";")?.split_once(" \"")?;
            let plain = |text: &str| !text.contains(['"', '\\', '\n', '{', '}', ';']);
            (plain(key) && !key.contains(' ') && !value.contains('"')).then(|| (key.to_owned(), value.to_owned()))
        };
        Self { settings: dump.lines().filter_map(setting).collect() }
    }

    pub(crate) fn architecture(&self) -> &str {
        self.get("APT::Architecture").unwrap_or_default()
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.settings.iter().rev().find(|(found, _)| found.eq_ignore_ascii_case(key)).map(|(_, value)| &**value)
    }

    /// Returns the used settings as lines of a configuration.
    pub(crate) fn taken(&self) -> String {
        let starts = |key: &str, prefix: &&str| key.get(..prefix.len()).is_some_and(|s| s.eq_ignore_ascii_case(prefix));
        let taken = self.settings.iter().filter(|(key, value)| {
            !value.is_empty()
                && USED.iter().any(|prefix| starts(key, prefix))
                && !NOT_USED.iter().any(|prefix| starts(key, prefix))
        });
        taken.map(|(key, value)| format!("{key} \"{value}\";\n")).collect()
    }

    /// Returns the directory of the host apt's package lists.
    pub(crate) fn lists(&self) -> PathBuf {
        self.directory(&["Dir", "Dir::State", "Dir::State::lists"])
    }

    /// Returns the directory of the host apt's packages.
    pub(crate) fn archives(&self) -> PathBuf {
        self.directory(&["Dir", "Dir::Cache", "Dir::Cache::archives"])
    }

    fn directory(&self, keys: &[&str]) -> PathBuf {
        keys.iter().filter_map(|key| self.get(key)).fold(PathBuf::from("/"), |path, part| path.join(Path::new(part)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = r#"APT "";
APT::Architecture "arm64";
Dir "/";
Dir::State "var/lib/apt";
Dir::State::lists "lists/";
Dir::Cache "var/cache/apt";
Dir::Cache::archives "/srv/archives/";
Dir::Etc::main "apt.conf";
Dir::Etc::parts "apt.conf.d";
Dir::Etc::sourcelist "sources.list";
APT::Update::Post-Invoke:: "rm -f /var/cache/apt/archives/*.deb";
DPkg::Post-Invoke:: "touch /x";
Acquire::http::Proxy "http://proxy.example:3128";
Acquire::AllowInsecureRepositories "1";
acquire::indextargets::deb::DEP-11::MetaKey "x";
Acquire::Bad "a"; DPkg::Pre-Invoke "b";
"#;

    #[test]
    fn proxies_and_sources_are_taken_over_but_no_hooks_and_no_weaker_checks() {
        let host = AptSettings::parse(DUMP);
        let expected = "Dir::Etc::sourcelist \"sources.list\";\nAcquire::http::Proxy \"http://proxy.example:3128\";\n";
        assert_eq!(host.taken(), expected);
        assert_eq!(host.architecture(), "arm64");
        assert_eq!(host.lists(), Path::new("/var/lib/apt/lists/"));
        assert_eq!(host.archives(), Path::new("/srv/archives/"));
    }
}
