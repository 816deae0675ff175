//! What tests start machines from, and what must not be left of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cofferdam_debian::{Cache, Recipe};
use cofferdam_vm::image::{Image, Images, RootSource, Source};
use cofferdam_vm::{Deadlines, MakePolicy, VmBackend, VmConfig};

/// Whatever takes longer is a hang: machines are translated, and others use the processors as well.
pub(crate) const NO_HANG: Duration = Duration::from_secs(240);

/// Where tests keep images and packages: they are large, and the same each time.
pub(crate) fn cache() -> PathBuf {
    if let Some(named) = std::env::var_os("COFFERDAM_TEST_CACHE") {
        return named.into();
    }
    let home = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    home.unwrap_or_else(std::env::temp_dir).join("cofferdam")
}

pub(crate) fn images() -> Images {
    Images::new(cache().join("vm"), Cache::new(cache().join("debian")))
}

pub(crate) fn source() -> Source {
    Source { root: RootSource::Debian(Recipe::tiny()), ..Source::default() }
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Whether machines can be made here at all.
pub(crate) fn has_monitor() -> bool {
    cfg!(target_arch = "x86_64") && has("qemu-system-x86_64")
}

/// The image that tests use, made once; the reason why there is none otherwise. Where machines are to be tested and can be, an
/// image that cannot be made is a failure.
fn made() -> &'static Result<Image, String> {
    static MADE: OnceLock<Result<Image, String>> = OnceLock::new();
    MADE.get_or_init(|| {
        if std::env::var_os("COFFERDAM_TEST_MACHINES").is_none() {
            return Err("translated machines take minutes; COFFERDAM_TEST_MACHINES=1 has them tested".to_owned());
        }
        if !has("qemu-system-x86_64") {
            return Err("no QEMU here (package qemu-system-x86)".to_owned());
        }
        if !cfg!(target_arch = "x86_64") {
            return Err("the driver makes machines of this kind on x86_64 only".to_owned());
        }
        match images().find(&source(), MakePolicy::Missing, &mut |_| ()) {
            Ok(image) => Ok(image),
            Err(error) => panic!("no image could be made: {error}"),
        }
    })
}

/// The image, or a line that says what is skipped.
pub(crate) fn image(test: &str) -> Option<Image> {
    match made() {
        Ok(image) => Some(image.clone()),
        Err(why) => {
            println!("SKIP {test}: {why}");
            None
        }
    }
}

/// A directory with the root file system of that image.
pub(crate) fn root(into: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let plan = cofferdam_debian::resolve(&Recipe::tiny(), &Cache::new(cache().join("debian")), &mut |_| ())?;
    let mut tar = tempfile::tempfile()?;
    plan.write_tar(&tar, &mut |_| ())?;
    std::io::Seek::rewind(&mut tar)?;
    Ok(tar::Archive::new(tar).unpack(into)?)
}

/// Processes below this one, and its descriptors of sockets and files.
pub(crate) fn census() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let own = std::process::id();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
        let parent = after.split(' ').nth(1).and_then(|parent| parent.parse::<u32>().ok());
        if parent == Some(own) {
            all.insert(format!("process {pid}: {}", stat.split(' ').nth(1).unwrap_or_default()));
        }
    }
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default().display().to_string();
        if target.contains("pidfd") {
            // They all have one name; whose it is tells them apart.
            let about = Path::new("/proc/self/fdinfo").join(entry.file_name());
            let about = std::fs::read_to_string(about).unwrap_or_default();
            all.insert(format!("{target} {}", about.lines().find(|line| line.starts_with("Pid:")).unwrap_or_default()));
        } else if target.starts_with("socket:") || target.contains("(deleted)") {
            all.insert(target);
        }
    }
    all
}

/// What is there that was not before, in every look for a while: what other tests make meanwhile comes and goes.
pub(crate) async fn left(before: &BTreeSet<String>) -> BTreeSet<String> {
    let begun = Instant::now();
    let mut left: Option<BTreeSet<String>> = None;
    loop {
        let now: BTreeSet<String> = census().difference(before).cloned().collect();
        let still = left.map_or_else(|| now.clone(), |left| left.intersection(&now).cloned().collect());
        if still.is_empty() || begun.elapsed() > NO_HANG {
            return still;
        }
        left = Some(still);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A backend with that image, or a line that says what is skipped.
pub(crate) fn backend(test: &str) -> Option<VmBackend> {
    image(test).map(|_| VmBackend::new(config()).expect("the configuration is valid"))
}

/// How that backend is set up.
pub(crate) fn config() -> VmConfig {
    VmConfig {
        images: cache().join("vm"),
        packages: cache().join("debian"),
        source: source(),
        boots: 2,
        disks: std::env::temp_dir(),
        deadlines: Deadlines { boot: NO_HANG, answer: NO_HANG },
        ..VmConfig::new(cache())
    }
}

/// The monitor of ours whose machine has this much memory: other tests of this process have machines, too.
pub(crate) fn monitor_with(memory: &str) -> u32 {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let own = std::process::id().to_string();
    let found: Vec<u32> = pids
        .filter(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let Some((name, rest)) = stat.rsplit_once(") ") else { return false };
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let is_asked_for = line.split(|&byte| byte == 0).any(|word| word == memory.as_bytes());
            name.contains("qemu-system") && rest.split(' ').nth(1) == Some(&*own) && is_asked_for
        })
        .collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}
