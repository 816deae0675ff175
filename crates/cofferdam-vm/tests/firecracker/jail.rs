//! Jailed processes, with a program that creates directories and processes as the jailer does.

use std::path::PathBuf;

use cofferdam_contract::ErrorKind;
use cofferdam_vm::firecracker::{FileName, Jail, Launch};

use crate::fake::{Flaws, Programs, is_gone, process_of};
use crate::process::killed_supervisor;

/// Returns the programs; without root, prints the reason for skipping.
fn programs(test: &str) -> Option<Programs> {
    if rustix::process::geteuid().is_root() {
        return Some(Programs::new(&Flaws::default()));
    }
    println!("SKIP {test}: only root can jail");
    None
}

fn jail(programs: &Programs) -> Jail {
    let (jailer, base) = (programs.jailer(), programs.place());
    Jail { jailer, user: 65534, group: 65534, base, groups: None, file_size: None, open_files: 256 }
}

fn jails(programs: &Programs) -> PathBuf {
    programs.place().join("firecracker")
}

#[tokio::test]
async fn a_jailed_process_is_started_and_ended_and_leaves_nothing() {
    let Some(programs) = programs("a_jailed_process_is_started_and_ended_and_leaves_nothing") else { return };
    let machine = jail(&programs).start(&programs.launch()).await.unwrap();
    machine.client().describe("test").await.unwrap();
    assert_eq!(machine.directory_inside(), std::path::Path::new("/"));
    assert!(machine.directory().starts_with(jails(&programs)), "{:?}", machine.directory());
    let process = process_of(&machine);
    assert_eq!(jail(&programs).sweep(&programs.firecracker()).unwrap(), 0, "its owner is alive");
    machine.client().describe("test").await.expect("and so is it");
    machine.end().await.unwrap();
    assert!(is_gone(process));
    assert_eq!(std::fs::read_dir(jails(&programs)).unwrap().count(), 0);
}

#[tokio::test]
async fn a_dropped_jail_leaves_nothing() {
    let Some(programs) = programs("a_dropped_jail_leaves_nothing") else { return };
    let machine = jail(&programs).start(&programs.launch()).await.unwrap();
    let process = process_of(&machine);
    drop(machine);
    assert!(is_gone(process));
    assert_eq!(programs.left_in(&jails(&programs)), Vec::<PathBuf>::new());
}

/// The process that is killed in the next test.
#[tokio::test]
async fn jails_one_and_waits() {
    let Some(place) = std::env::var_os("COFFERDAM_TEST_KILLED") else { return };
    let base = PathBuf::from(place);
    let directory = base.parent().unwrap();
    let (jailer, launch) = (directory.join("jailer"), Launch::new(directory.join("firecracker")));
    let jail = Jail { jailer, user: 65534, group: 65534, base, groups: None, file_size: None, open_files: 256 };
    let machine = jail.start(&launch).await.unwrap();
    println!("STARTED {}", process_of(&machine));
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_supervisor_leaves_a_jail_without_process_that_is_swept() {
    let Some(programs) = programs("a_killed_supervisor_leaves_a_jail_without_process_that_is_swept") else { return };
    let process = killed_supervisor("jail::jails_one_and_waits", &programs);
    assert!(is_gone(process));
    let foreign = jails(&programs).join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    assert_eq!(std::fs::read_dir(jails(&programs)).unwrap().count(), 2);
    assert_eq!(jail(&programs).sweep(&programs.firecracker()).unwrap(), 1);
    assert_eq!(programs.left_in(&foreign), Vec::<PathBuf>::new());
    let left: Vec<_> = std::fs::read_dir(jails(&programs)).unwrap().flatten().map(|entry| entry.path()).collect();
    assert_eq!(left, [foreign], "foreign directories are not touched");
    assert_eq!(jail(&programs).sweep(&programs.firecracker()).unwrap(), 0);
}

#[tokio::test]
async fn a_jailer_of_another_version_is_refused() {
    let programs = Programs::new(&Flaws::default());
    programs.write_jailer("1.15.0");
    let error = jail(&programs).start(&programs.launch()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("1.15.0"), "{error}");
    assert_eq!(programs.left(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn nobody_jails_as_root() {
    let programs = Programs::new(&Flaws::default());
    let root = Jail { user: 0, ..jail(&programs) };
    assert_eq!(root.start(&programs.launch()).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(programs.left(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn files_are_given_to_a_jail_and_links_in_it_are_not_followed() {
    use std::io::{Read, Write};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    let test = "files_are_given_to_a_jail_and_links_in_it_are_not_followed";
    let Some(programs) = programs(test) else { return };
    let machine = jail(&programs).start(&programs.launch()).await.unwrap();
    let name = |name: &str| FileName::new(name).unwrap();
    let image = programs.place().join("image");
    std::fs::write(&image, "image").unwrap();
    std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o600)).unwrap();
    let error = machine.link(&image, &name("root.img")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(machine.link(&image, &name("root.img")).unwrap(), PathBuf::from("/root.img"));
    assert_eq!(std::fs::metadata(machine.directory().join("root.img")).unwrap().nlink(), 2);
    let error = machine.link(&image, &name("root.img")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");

    let (mut file, path) = machine.create(&name("data.img")).unwrap();
    file.write_all(b"data").unwrap();
    let about = file.metadata().unwrap();
    assert_eq!((about.uid(), about.gid(), about.mode() & 0o777), (65534, 65534, 0o600));
    assert_eq!(path, PathBuf::from("/data.img"));
    let mut text = String::new();
    machine.open(&name("data.img")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "data");

    // Links that a guest which broke out could create.
    let secret = programs.place().join("secret");
    symlink(&secret, machine.directory().join("trap")).unwrap();
    machine.create(&name("trap")).unwrap_err();
    machine.link(&image, &name("trap")).unwrap_err();
    assert!(!secret.exists(), "nothing is created through the link");
    std::fs::write(&secret, "secret").unwrap();
    machine.open(&name("trap")).unwrap_err();
    machine.open(&name("api.sock")).unwrap_err();
    std::fs::create_dir(machine.directory().join("directory")).unwrap();
    machine.open(&name("directory")).unwrap_err();
    machine.link(&machine.directory().join("trap"), &name("other")).unwrap_err();
    machine.end().await.unwrap();
    assert_eq!(std::fs::read_to_string(&image).unwrap(), "image", "the original is still there");
}
