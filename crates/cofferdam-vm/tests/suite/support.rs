//! Images for the tests' VMs, and checks for leaks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cofferdam_image::{Cache, Image, Images, Recipe, RootSource, Source};
use cofferdam_vm::{Deadlines, VmBackend, VmConfig};

/// Anything longer is a hang: VMs are emulated, and other programs use the processors as well.
pub(crate) const NO_HANG: Duration = Duration::from_secs(240);

/// Returns the tests' directory of images and packages: they are large, and reused.
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

/// Returns true if VMs can run on this host.
pub(crate) fn has_vmm() -> bool {
    cfg!(target_arch = "x86_64") && has("qemu-system-x86_64")
}

/// Returns the image of the tests, built once, or the reason why there is none. If VM tests are enabled and possible, a
/// failed build is a test failure.
fn built() -> &'static Result<Image, String> {
    static IMAGE: OnceLock<Result<Image, String>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        if std::env::var_os("COFFERDAM_TEST_MACHINES").is_none() {
            return Err("tests of emulated VMs take minutes; enable them with COFFERDAM_TEST_MACHINES=1".to_owned());
        }
        if !has("qemu-system-x86_64") {
            return Err("no QEMU here (package qemu-system-x86)".to_owned());
        }
        if !cfg!(target_arch = "x86_64") {
            return Err("the driver runs VMs on x86_64 only".to_owned());
        }
        match images().find_or_make(&source(), &mut |_| ()) {
            Ok(image) => Ok(image),
            Err(error) => panic!("cannot build the image: {error}"),
        }
    })
}

/// Returns the image, or prints the reason for skipping.
pub(crate) fn image(test: &str) -> Option<Image> {
    match built() {
        Ok(image) => Some(image.clone()),
        Err(why) => {
            println!("SKIP {test}: {why}");
            None
        }
    }
}

/// Unpacks the root file system of that image into a directory.
pub(crate) fn root(into: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let plan = cofferdam_image::resolve(&Recipe::tiny(), &Cache::new(cache().join("debian")), &mut |_| ())?;
    let mut tar = tempfile::tempfile()?;
    plan.write_tar(&tar, &mut |_| ())?;
    std::io::Seek::rewind(&mut tar)?;
    Ok(tar::Archive::new(tar).unpack(into)?)
}

/// Returns child processes of this one, and its descriptors of sockets and files.
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
            // All pidfds have the same name; their process distinguishes them.
            let about = Path::new("/proc/self/fdinfo").join(entry.file_name());
            let about = std::fs::read_to_string(about).unwrap_or_default();
            all.insert(format!("{target} {}", about.lines().find(|line| line.starts_with("Pid:")).unwrap_or_default()));
        } else if target.starts_with("socket:") || target.contains("(deleted)") {
            all.insert(target);
        }
    }
    all
}

/// Returns the additional resources in every census of a period: those of concurrent tests come and go.
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

/// Returns a backend with that image, or prints the reason for skipping.
pub(crate) fn backend(test: &str) -> Option<VmBackend> {
    image(test).map(|_| VmBackend::new(config()).expect("the configuration is valid"))
}

/// Returns the configuration of that backend.
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

/// Returns the VMM of this process whose VM has this much memory: concurrent tests have VMs, too.
pub(crate) fn vmm_with(memory: &str) -> u32 {
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
