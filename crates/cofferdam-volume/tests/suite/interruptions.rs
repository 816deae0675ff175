//! Processes that are killed, and full disks: the store is as before or as after.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_volume::{Bounds, Store, VolumeError};

use crate::common::{Fixture, Forge, SMALL, has_mkfs, name};

const VICTIM: &str = "COFFERDAM_VOLUME_VICTIM";
const STEP: &str = "COFFERDAM_VOLUME_STEP";

/// A tar that stops after its first half, as long as its reader lives.
struct Halting<'a> {
    tar: &'a [u8],
    at: usize,
    ready: PathBuf,
}

impl Read for Halting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.at >= self.tar.len() / 2 {
            fs::write(&self.ready, "")?;
            std::thread::sleep(Duration::from_secs(60));
        }
        let length = buffer.len().min(512).min(self.tar.len() - self.at);
        buffer[..length].copy_from_slice(&self.tar[self.at..][..length]);
        self.at += length;
        Ok(length)
    }
}

fn tar() -> Vec<u8> {
    (0..100).fold(Forge::new(), |forge, number| forge.file(&format!("d/{number}"), &[7; 4000])).end()
}

/// Does what another process is killed at.
fn victim(path: &Path, step: &str) {
    let ready = path.with_file_name("ready");
    let store = Store::open(path).unwrap();
    match step {
        "import" | "import disk" => {
            let size = (step == "import disk").then_some(SMALL);
            let (tar, bounds) = (tar(), Bounds::default());
            let halting = Halting { tar: &tar, at: 0, ready };
            let _ = store.import(&name("v"), size, halting, &bounds, &mut |_| ());
        }
        "export" => {
            let mut halt = |_| {
                fs::write(&ready, "").unwrap();
                std::thread::sleep(Duration::from_secs(60));
            };
            let _ = store.export(&name("old"), std::io::sink(), &Bounds::default(), &mut halt);
        }
        // Created and removed until it is killed at any step.
        _ => {
            fs::write(&ready, "").unwrap();
            loop {
                store.import(&name("v"), None, &*tar(), &Bounds::default(), &mut |_| ()).unwrap();
                store.remove(&name("v")).unwrap();
                if has_mkfs("killed_processes_leave_nothing") {
                    store.create(&name("v"), Some(SMALL)).unwrap();
                    store.remove(&name("v")).unwrap();
                }
            }
        }
    }
}

/// Promise (Files): A process that is killed while it changes the store leaves it as before or as after, and the next
/// change removes the rest.
#[test]
fn killed_processes_leave_nothing() {
    if let (Some(path), Ok(step)) = (std::env::var_os(VICTIM), std::env::var(STEP)) {
        return victim(Path::new(&path), &step);
    }
    let mut steps = vec!["import", "export"];
    if has_mkfs("killed_processes_leave_nothing") {
        steps.push("import disk");
    }
    steps.extend(["any"; 20]);
    for (number, step) in steps.into_iter().enumerate() {
        let fixture = Fixture::new();
        fixture.import("old", None, &tar()).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["interruptions::killed_processes_leave_nothing", "--exact"])
            .envs([(VICTIM, fixture.path().as_os_str()), (STEP, step.as_ref())])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let ready = fixture.path().with_file_name("ready");
        let begun = Instant::now();
        while !ready.exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{step}: the process does not get there");
            std::thread::sleep(Duration::from_millis(5));
        }
        if step.starts_with("import") {
            // Its lock protects its files while it lives.
            fixture.store.create(&name("other"), None).unwrap();
            assert_eq!(fixture.entries().len(), 3, "{:?}", fixture.entries());
            fixture.store.remove(&name("other")).unwrap();
        }
        std::thread::sleep(Duration::from_millis(7 * number as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let complete = fixture.entries().contains(&"v".to_owned());
        fixture.store.create(&name("next"), None).unwrap();
        // A tool that the process had just started dies a moment later.
        let begun = Instant::now();
        while fixture.entries()[0].starts_with(".tmp-") && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
            fixture.store.remove(&name("next")).unwrap();
            fixture.store.create(&name("next"), None).unwrap();
        }
        let expected = if complete { &["next", "old", "v"][..] } else { &["next", "old"] };
        assert_eq!(fixture.entries(), expected, "{step}");
        if complete {
            let volume = fixture.store.inspect(&name("v")).unwrap();
            let files = fixture.export("v").unwrap().1.files;
            assert_eq!(files, if volume.size.is_some() { 0 } else { 101 });
            fixture.store.remove(&name("v")).unwrap();
        }
        assert_eq!(fixture.export("old").unwrap().1.files, 101);
    }
}

const FULL: &str = "COFFERDAM_VOLUME_FULL";

/// Promise (Files): A full disk leaves no part of a volume.
#[test]
fn a_full_disk_leaves_no_part_of_a_volume() {
    let test = "a_full_disk_leaves_no_part_of_a_volume";
    if let Some(path) = std::env::var_os(FULL).map(PathBuf::from) {
        let store = Store::open(&path.join("volumes")).unwrap();
        let large = Forge::new().file("large", &vec![7; 12 << 20]).end();
        let is_full = |error: VolumeError| error.to_string().to_lowercase().contains("no space left");
        for size in [None, Some(SMALL)] {
            if size.is_some() && !has_mkfs(test) {
                continue;
            }
            let imported = store.import(&name("v"), size, &*large, &Bounds::default(), &mut |_| ());
            assert!(is_full(imported.unwrap_err()), "{size:?}");
            assert_eq!(store.names().unwrap(), []);
            assert_eq!(fs::read_dir(path.join("volumes")).unwrap().count(), 1);
        }
        // The disk is full while the file system is made of the files.
        if has_mkfs(test) {
            let half = Forge::new().file("half", &vec![7; 5 << 20]).end();
            let imported = store.import(&name("v"), Some(SMALL), &*half, &Bounds::default(), &mut |_| ());
            assert!(imported.is_err());
            assert_eq!(fs::read_dir(path.join("volumes")).unwrap().count(), 1);
        }
        let rest = fs::File::create(path.join("rest")).unwrap();
        std::io::copy(&mut std::io::repeat(1), &mut &rest).unwrap_err();
        drop(rest);
        assert!(store.create(&name("v"), None).is_err());
        assert_eq!(fs::read_dir(path.join("volumes")).unwrap().count(), 1);
        fs::remove_file(path.join("rest")).unwrap();
        store.create(&name("v"), None).unwrap();
        println!("done");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: only root mounts a small file system");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    // The file system is private to this process and vanishes with it.
    let script = "mount -t tmpfs -o size=8m,mode=0700 none \"$0\" || exit 77; exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(temp.path())
        .arg(std::env::current_exe().unwrap())
        .args([&format!("interruptions::{test}"), "--exact", "--nocapture"])
        .env(FULL, temp.path())
        .output()
        .unwrap();
    if output.status.code() == Some(77) {
        println!("SKIP {test}: nothing can be mounted here");
        return;
    }
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("done"), "{output:?}");
}
