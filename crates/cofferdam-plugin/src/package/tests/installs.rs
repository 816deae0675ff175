//! Packages that are installed, upgraded and removed.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use cofferdam_util::sha256;

use super::super::{Grant, KeyChange, Package, PackageError, find, installed};
use super::{Fixture, MANIFEST, opened};

#[test]
fn an_installed_plugin_is_read_only_and_found_until_it_is_uninstalled() {
    let fixture = Fixture::new();
    fixture.write("bin/tool", "#!/bin/sh\n");
    fs::set_permissions(fixture.plugin().join("bin/tool"), Permissions::from_mode(0o755)).unwrap();
    let package = fixture.package();
    assert!(matches!(fixture.install(&package), Err(PackageError::UnknownKey { .. })));
    assert_eq!(fixture.stored(), [""; 0]);
    fixture.store().trust(&package.signer()).unwrap();
    let found = fixture.install(&package).unwrap();
    assert_eq!((found.manifest.name.as_str(), found.record.digest.as_str()), ("hello", package.digest()));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&found.directory.join("main.py")), 0o444);
    assert_eq!(mode(&found.directory.join("bin/tool")), 0o555);
    assert_eq!(mode(&fixture.top.join("data/plugins")), 0o700);
    let data = fixture.top.join("data");
    assert_eq!(find(&data, "hello").unwrap().record, found.record);
    assert_eq!(installed(&data).unwrap().len(), 1);
    let outside = data.join("plugins/outside.json");
    fs::copy(data.join("plugins/installed/hello.json"), &outside).unwrap();
    for name in ["other", "../outside", "", "hello/../../outside"] {
        assert!(matches!(find(&data, name), Err(PackageError::NotInstalled { .. })), "{name}");
        assert!(matches!(fixture.store().uninstall(name), Err(PackageError::NotInstalled { .. })), "{name}");
    }
    assert!(outside.exists());
    drop(found);
    fixture.store().uninstall("hello").unwrap();
    assert!(matches!(find(&data, "hello"), Err(PackageError::NotInstalled { .. })));
    assert_eq!(fixture.stored(), [""; 0]);
}

/// Promise (Plugins): A package that another key signed does not replace an installed plugin unless that is accepted.
#[test]
fn another_key_for_an_installed_plugin_is_refused_unless_it_is_accepted() {
    let fixture = Fixture::new();
    let (package, other) = (fixture.package(), fixture.other_key());
    for key in [package.signer(), other.public()] {
        fixture.store().trust(&key).unwrap();
    }
    fixture.install(&package).unwrap();
    fixture.write("main.py", "other");
    let foreign = opened(&fixture.bytes(&other)).unwrap();
    assert!(matches!(fixture.install(&foreign), Err(PackageError::OtherKey { .. })));
    assert_eq!(find(&fixture.top.join("data"), "hello").unwrap().record.digest, package.digest());
    let store = fixture.store();
    let review = store.review(&foreign).unwrap();
    let found = store.install(&foreign, &review, KeyChange::Accept).unwrap();
    assert_eq!(found.record.key, other.public().fingerprint());
}

/// Promise (Plugins): An upgrade keeps the files of a running plugin until it ends.
#[test]
fn an_upgrade_shows_more_permissions_and_keeps_the_files_of_a_running_plugin() {
    let fixture = Fixture::new();
    let first = fixture.package();
    fixture.store().trust(&first.signer()).unwrap();
    let running = fixture.install(&first).unwrap();
    fixture.write("plugin.toml", &format!("{MANIFEST}permissions = [\"invoke\"]\n").replace("1.0.0", "1.1.0"));
    let second = fixture.package();
    let review = fixture.store().review(&second).unwrap();
    assert_eq!(review.previous.as_ref().unwrap().version, "1.0.0");
    assert_eq!(review.added, [Grant { name: "permissions", values: vec!["invoke".to_owned()] }]);
    let upgraded = fixture.store().install(&second, &review, KeyChange::Refuse).unwrap();
    assert_eq!(upgraded.record.version, "1.1.0");
    assert!(running.directory.join("main.py").exists());
    assert_eq!(fixture.stored().len(), 2);
    drop(running);
    fixture.store().trust(&first.signer()).unwrap();
    assert_eq!(fixture.stored(), [second.digest()]);
    // The review was of version 1.0.0.
    fixture.write("main.py", "third");
    let third = fixture.package();
    let outdated = fixture.store().install(&third, &review, KeyChange::Refuse);
    assert!(matches!(outdated, Err(PackageError::Changed { .. })));
}

/// Promise (Plugins): The next install removes what a killed one left. A changed index of an installed plugin is found.
#[test]
fn leftovers_of_killed_installs_are_removed_and_damage_is_found() {
    let fixture = Fixture::new();
    let package = fixture.package();
    fixture.store().trust(&package.signer()).unwrap();
    let store = fixture.top.join("data/plugins/store");
    let orphan = "0".repeat(64);
    for name in ["work.dead", &orphan] {
        fs::create_dir_all(store.join(name).join("files/sub")).unwrap();
    }
    let directory = fixture.install(&package).unwrap().directory;
    assert_eq!(fixture.stored(), [package.digest()]);
    let index = directory.with_file_name("index.json");
    fs::set_permissions(&index, Permissions::from_mode(0o600)).unwrap();
    let text = fs::read_to_string(&index).unwrap();
    let digest = sha256::of(fs::read(directory.join("main.py")).unwrap());
    assert!(text.contains(&digest));
    fs::write(&index, text.replace(&digest, &orphan)).unwrap();
    let data = fixture.top.join("data");
    assert!(matches!(find(&data, "hello"), Err(PackageError::Damaged { .. })));
    assert!(installed(&data).unwrap()[0].1.is_err());
    fixture.install(&package).unwrap();
    assert!(find(&data, "hello").is_ok());
    fs::write(data.join("plugins/installed/hello.json"), "{}").unwrap();
    assert!(matches!(find(&data, "hello"), Err(PackageError::Damaged { .. })));
    fixture.store().uninstall("hello").unwrap();
    assert_eq!(fixture.stored(), [""; 0]);
    fs::set_permissions(data.join("plugins"), Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(fixture.install(&package), Err(PackageError::Exposed { .. })));
}

/// Promise (Plugins): Installs at once leave one whole version.
#[test]
fn installs_at_once_leave_one_whole_version() {
    let fixture = Fixture::new();
    let packages: Vec<Package> = ["a", "b"]
        .map(|text| {
            fixture.write("main.py", text);
            fixture.package()
        })
        .into();
    fixture.store().trust(&packages[0].signer()).unwrap();
    std::thread::scope(|scope| {
        for at in 0..4 {
            let (fixture, package) = (&fixture, &packages[at % 2]);
            scope.spawn(move || {
                for _ in 0..10 {
                    match fixture.install(package) {
                        Ok(_) | Err(PackageError::Changed { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let found = find(&fixture.top.join("data"), "hello").unwrap();
    let text = fs::read_to_string(found.directory.join("main.py")).unwrap();
    assert_eq!(found.record.digest, packages[usize::from(text == "b")].digest());
    fixture.store().trust(&packages[0].signer()).unwrap();
    assert_eq!(fixture.stored(), [found.record.digest.as_str()]);
}
