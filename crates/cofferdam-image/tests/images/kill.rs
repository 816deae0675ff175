//! Processes that are killed at any time, and a full disk.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cofferdam_image::store::{ImageStore, Options, PruneOptions, RegistryOptions};

use super::server::{Server, pushed};
use super::support::*;

const STORE: &str = "COFFERDAM_TEST_STORE";
const IMAGE: &str = "COFFERDAM_TEST_IMAGE";
const ACTION: &str = "COFFERDAM_TEST_ACTION";

/// Runs an action on a store in a process of its own, if the variables ask for it.
#[test]
fn child() {
    let (Ok(root), Ok(image), Ok(action)) = (std::env::var(STORE), std::env::var(IMAGE), std::env::var(ACTION)) else {
        return;
    };
    let store = ImageStore::open(Path::new(&root), Options::default()).unwrap();
    match action.as_str() {
        "pull" => drop(store.pull(&image.parse().unwrap(), &RegistryOptions::default(), &mut |_| ()).unwrap()),
        "load" => drop(store.load(Path::new(&image), None, &mut |_| ()).unwrap()),
        "remove" => drop(store.remove(&image)),
        "prune" => drop(store.prune(PruneOptions { unused_for: Some(Duration::ZERO) }).unwrap()),
        other => panic!("{other}"),
    }
}

fn command(root: &Path, image: &str, action: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "kill::child", "--nocapture"]);
    command.env(STORE, root).env(IMAGE, image).env(ACTION, action).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Checks that each listed image is complete, and that no temporary file is left.
fn check(root: &Path, name: &str, contents: &[u8]) -> bool {
    let store = ImageStore::open(root, Options::default()).unwrap();
    assert_eq!(fs::read_dir(root.join("work")).unwrap().count(), 0);
    let exists = store.contains(name).unwrap();
    for image in store.list().unwrap() {
        let found = store.resolve(&image.manifest.to_string()).unwrap();
        assert_eq!(found.layers.len(), 2);
        for layer in &found.layers {
            assert_eq!(fs::read(layer.join("d/f")).unwrap(), contents);
            assert_eq!(fs::read_dir(layer.join("many")).unwrap().count(), 100);
        }
    }
    exists
}

fn large(name: &str, contents: &[u8]) -> Vec<u8> {
    let names: Vec<String> = (0..100).map(|at| format!("many/{at}")).collect();
    let mut items: Vec<Item<'_>> =
        vec![(DIRECTORY, "d/", "", 0o555, b""), (FILE, "d/f", "", 0o444, contents), (FILE, name, "", 0o644, b"x")];
    items.extend(names.iter().map(|name| (FILE, name.as_str(), "", 0o644, &b"x"[..])));
    layer(&items)
}

/// Kills a process at growing times until one ends by itself, and checks the store after each.
fn kill_at_each_step(root: &Path, image: &str, name: &str, action: &str, contents: &[u8]) -> usize {
    let mut killed = 0;
    for step in 0..400 {
        let mut child = command(root, image, action).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(5 * step));
        let ended = child.try_wait().unwrap();
        if ended.is_none() {
            child.kill().unwrap();
            child.wait().unwrap();
            killed += 1;
        }
        check(root, name, contents);
        if let Some(status) = ended {
            assert!(status.success(), "{action}: {status}");
            return killed;
        }
        if action == "pull" || action == "load" {
            // From the beginning, half of the time.
            let store = ImageStore::open(root, Options::default()).unwrap();
            if step % 2 == 0 {
                store.prune(PruneOptions { unused_for: Some(Duration::ZERO) }).unwrap();
                assert_eq!(store.size().unwrap(), 0);
            }
        }
    }
    panic!("{action} does not end");
}

/// Promise (Images): After kill -9 at any time, the store has an image completely or not at all.
#[test]
fn a_killed_process_leaves_an_image_or_none() {
    let contents = noise(256 << 10);
    let fixture = Fixture::new();
    let from = layout(&[(large("one", &contents), gzip), (large("two", &contents), gzip)]);
    let path = from.path().display().to_string();
    let killed = kill_at_each_step(&fixture.root(), &path, "test:1", "load", &contents);
    assert!(killed > 3, "{killed}");
    fixture.store.load(from.path(), None, &mut |_| ()).unwrap();
    kill_at_each_step(&fixture.root(), "test:1", "test:1", "remove", &contents);
    fixture.store.load(from.path(), None, &mut |_| ()).unwrap();
    kill_at_each_step(&fixture.root(), "test:1", "test:1", "prune", &contents);
    let Some(server) = Server::start("a_killed_process_leaves_an_image_or_none", false) else { return };
    pushed(&server, "killed", &[(large("one", &contents), gzip), (large("two", &contents), gzip)]);
    let name = server.name("killed:1");
    let fixture = Fixture::new();
    let killed = kill_at_each_step(&fixture.root(), &name, &name, "pull", &contents);
    assert!(killed > 3, "{killed}");
    assert!(check(&fixture.root(), &name, &contents));
}

/// Promise (Images): On a full disk nothing of an image is left, and the images before it stay.
#[test]
fn a_full_disk_leaves_nothing_behind() {
    let large = Layout::new();
    let digest = large.image(&serde_json::json!({}), &[larger_than_disk()]);
    large.index(&[(&digest, "docker.io/library/large:1")]);
    fill_disk("a_full_disk_leaves_nothing_behind", "load", &large.path().display().to_string());
}

/// Promise (Images): The same holds for a pull, whether the disk is full during the download or while the image is
/// unpacked.
#[test]
fn a_full_disk_during_a_pull_leaves_nothing_behind() {
    let test = "a_full_disk_during_a_pull_leaves_nothing_behind";
    let Some(server) = Server::start(test, false) else { return };
    pushed(&server, "large", &[larger_than_disk()]);
    fill_disk(test, "pull", &server.name("large:1"));
}

fn larger_than_disk() -> Packed {
    (layer(&[(FILE, "f", "", 0o644, &noise(3 << 20))]), gzip)
}

/// Adds a small image and a large one to a store on a small file system, and checks what is left.
fn fill_disk(test: &str, action: &str, image: &str) {
    let temp = tempfile::tempdir().unwrap();
    let small = layout(&[(layer(&[(FILE, "f", "", 0o644, b"x")]), gzip)]);
    let root = temp.path().join("disk");
    fs::create_dir(&root).unwrap();
    let exe = std::env::current_exe().unwrap();
    let run = |action: &str, image: &str| {
        format!("{ACTION}={action} {IMAGE}={image} {} --exact kill::child --nocapture", exe.display())
    };
    for megabytes in [1, 4, 5] {
        let script = format!(
            "mount -t tmpfs -o size={megabytes}m,mode=700 none {0}; export {STORE}={0}/images; {1} >{2}/small 2>&1; \
             {3} >{2}/large 2>&1 && exit 9; ls {0}/images/work; ls {0}/images/names | wc -l; ls {0}/images/layers | wc -l",
            root.display(),
            run("load", &small.path().display().to_string()),
            temp.path().display(),
            run(action, image),
        );
        let output = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
            .output()
            .unwrap();
        let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if error.contains("unshare") {
            println!("SKIP {test}: {error}");
            return;
        }
        let log = fs::read_to_string(temp.path().join("large")).unwrap();
        assert_eq!((text.as_ref(), output.status.code()), ("1\n1\n", Some(0)), "{megabytes}: {error} {log}");
        assert!(log.contains("No space left") || log.contains("StorageFull"), "{log}");
    }
}
