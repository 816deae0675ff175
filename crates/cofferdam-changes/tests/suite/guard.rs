//! Changes that are refused: guarded files, set-user-ID files, links to outside.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;

use cofferdam_changes::{ApplyOptions, Globs, OwnDirectories, Refusal, Workspace};

use crate::common::*;

/// Promise (Files): Applying a change set needs a permission by name for files that the host executes unasked.
#[test]
fn guarded_files_need_permission() {
    let f = Fixture::new(&[(".git/config", "host"), (".envrc", "host")]);
    let guarded =
        [".git/hooks/pre-commit", ".git/config", ".ENVRC", "sub/.vscode/tasks.json", ".claude/x", "CLAUDE.md"];
    for path in guarded {
        put(&f.guest, path, "guest");
    }
    fs::remove_file(f.guest.join(".envrc")).unwrap();
    put(&f.guest, "plain", "guest");
    link("plain", &f.guest, ".cargo");
    // A repository without a work tree.
    for path in ["bare/HEAD", "bare/objects/x", "bare/refs/x", "bare/config", "bare/hooks/update"] {
        put(&f.guest, path, "guest");
    }
    let set = f.set();
    let done = f.apply(&set, &ApplyOptions::default());
    let refused: Vec<_> = done.refused.iter().map(|refused| refused.path.to_str().unwrap()).collect();
    for path in guarded.into_iter().chain([".envrc", ".cargo", "bare/HEAD", "bare/config"]) {
        assert!(refused.contains(&path), "{path} {refused:?}");
        assert!(path == ".envrc" || path == ".git/config" || !f.base.join(path).exists(), "{path}");
    }
    assert!(done.refused.iter().all(|refused| matches!(refused.reason, Refusal::Guarded(_))));
    assert_eq!((read(&f.base, ".git/config"), read(&f.base, "plain")), ("host".into(), "guest".into()));
    let allow = Globs::new([".git/hooks", "CLAUDE.md"]);
    let done = f.apply(&set, &ApplyOptions { allow, ..ApplyOptions::default() });
    assert_eq!(read(&f.base, "CLAUDE.md"), "guest");
    assert!(done.applied.contains(&".git/hooks/pre-commit".into()), "{done:?}");
    assert_eq!(read(&f.base, ".git/config"), "host");
}

#[test]
fn set_id_files_and_links_to_outside_are_refused() {
    let f = Fixture::new(&[("d/e/file", "1"), ("up/x", "1")]);
    for root in [&f.base, &f.guest] {
        link("../up", root, "d/inside");
        link("/etc", root, "host");
    }
    let header = start(&f.base);
    let f = Fixture { header, ..f };
    put(&f.guest, "setuid", "x");
    mode(&f.guest.join("setuid"), 0o4755);
    put(&f.guest, "setgid", "x");
    mode(&f.guest.join("setgid"), 0o2755);
    let outside = ["/etc/passwd", "../x", "d/../../x", "d/inside/../../x", "host/passwd", "./..", "d/e/../.."];
    for (index, target) in outside.iter().enumerate() {
        link(target, &f.guest, &format!("outside{index}"));
    }
    for (index, target) in ["../../up", "e/file", "../missing", ".", "./e"].iter().enumerate() {
        let path = if index == 0 { "d/e/inside0".to_owned() } else { format!("d/inside{index}") };
        link(target, &f.guest, &path);
    }
    let done = f.apply(&f.set(), &ApplyOptions::default());
    let refused = |reason| done.refused.iter().filter(|refused| refused.reason == reason).count();
    assert_eq!((refused(Refusal::SetId), refused(Refusal::LinkOutside)), (2, outside.len()), "{done:?}");
    assert_eq!(done.applied.len(), 5);
    assert!(!f.base.join("setuid").exists() && fs::symlink_metadata(f.base.join("outside0")).is_err());
}

#[test]
fn links_and_settings_of_the_host_extend_the_guard() {
    let f = Fixture::new(&[
        ("scripts/hooks/x", "1"),
        ("config/vscode/tasks.json", "1"),
        ("docs/guide.md", "1"),
        ("git/y", "1"),
    ]);
    for root in [&f.base, &f.guest] {
        put(root, ".git/config", "[core]\n\tHooksPath = ./scripts/hooks\n");
        link("config/vscode", root, ".vscode");
        link("docs/guide.md", root, "CLAUDE.md");
        link("../git", root, ".git/hooks");
    }
    let header = start(&f.base);
    let f = Fixture { header, ..f };
    let guarded = ["config/vscode/tasks.json", "docs/guide.md", "git/y", "scripts/hooks/pre-commit"];
    for path in guarded.into_iter().chain(["config/other", "docs/other.md", "scripts/other"]) {
        put(&f.guest, path, "guest");
    }
    let done = f.apply(&f.set(), &ApplyOptions::default());
    let refused: Vec<_> = done.refused.iter().map(|refused| refused.path.to_str().unwrap()).collect();
    assert_eq!(refused, guarded);
    assert_eq!(done.applied, ["config/other", "docs/other.md", "scripts/other"].map(PathBuf::from));
    // A link in place of a directory above a guarded one.
    fs::remove_dir_all(f.guest.join("config")).unwrap();
    link("docs", &f.guest, "config");
    let done = f.apply(&f.set(), &ApplyOptions { only: Globs::new(["config"]), ..ApplyOptions::default() });
    assert_eq!(done.refused.len(), 1, "{done:?}");
}

/// Promise (Files): No change is applied to a directory of Cofferdam's own, with whatever permission.
#[test]
fn own_directories_are_never_changed() {
    let f = Fixture::new(&[(".local/state/cofferdam/images/x", "1"), ("disk/config/file", "1"), ("project/a", "1")]);
    for root in [&f.base, &f.guest] {
        link("../disk/config", root, ".local/config");
    }
    let header = start(&f.base);
    let f = Fixture { header, ..f };
    let own = [".local/state/cofferdam", ".local/config/cofferdam", ".cache/cofferdam"].map(|path| f.base.join(path));
    let inside =
        [".cache/cofferdam/plugins/new", ".local/state/cofferdam/images/x", "disk/config/cofferdam/config.toml"];
    for path in inside.into_iter().chain([".cache/other", "project/a", "disk/config/file"]) {
        put(&f.guest, path, "guest");
    }
    // The way to another directory.
    fs::remove_file(f.guest.join(".local/config")).unwrap();
    link("../project", &f.guest, ".local/config");
    let apply = |only: &[&str]| {
        let (only, allow) = (Globs::new(only), Globs::new(["**"]));
        let own = OwnDirectories::new(own.clone());
        f.apply(&f.set(), &ApplyOptions { only, allow, own, ..ApplyOptions::default() })
    };
    let done = apply(&[]);
    let refused: Vec<_> = done.refused.iter().map(|refused| refused.path.to_str().unwrap()).collect();
    for path in inside.into_iter().chain([".cache/cofferdam", ".local/config"]) {
        assert!(refused.contains(&path), "{path}: {refused:?}");
    }
    assert!(done.refused.iter().all(|refused| refused.reason == Refusal::OwnDirectory), "{done:?}");
    assert_eq!(
        done.applied,
        [".cache", ".cache/other", "disk/config/file", "project/a"].map(PathBuf::from),
        "{done:?}"
    );
    assert_eq!(read(&f.base, ".local/state/cofferdam/images/x"), "1");
    assert!(!f.base.join(".cache/cofferdam").exists() && !f.base.join("disk/config/cofferdam").exists());
    // A directory that contains one is not deleted.
    fs::remove_dir_all(f.guest.join(".local/state")).unwrap();
    assert_eq!(apply(&[".local/state"]).refused.len(), 1);
    assert!(f.base.join(".local/state/cofferdam/images/x").exists());
}

#[test]
fn own_directories_are_known_by_their_identity() {
    let f = Fixture::new(&[("bound/x", "1"), ("plain/x", "1")]);
    for path in ["bound/new", "bound/sub/new", "plain/new"] {
        put(&f.guest, path, "guest");
    }
    mode(&f.guest.join("bound"), 0o700);
    // As after a bind mount, the path of the own directory is another one.
    let elsewhere = f.temp.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let bound = Command::new("mount").arg("--bind").args([&f.base.join("bound"), &elsewhere]).status();
    if !bound.is_ok_and(|status| status.success()) {
        println!("SKIP own_directories_are_known_by_their_identity: only root can mount");
        return;
    }
    let own = OwnDirectories::new([elsewhere.clone()]);
    let done = f.apply(&f.set(), &ApplyOptions { own: own.clone(), ..ApplyOptions::default() });
    let in_own = File::open(f.base.join("bound")).unwrap();
    let whole = cofferdam_changes::apply(
        &f.set(),
        in_own.as_fd(),
        &ApplyOptions { own, workspace: Workspace::Any, ..ApplyOptions::default() },
    );
    // Unmounted before anything can fail.
    assert!(Command::new("umount").arg(&elsewhere).status().unwrap().success());
    let refused: Vec<_> = done.refused.iter().map(|refused| refused.path.to_str().unwrap()).collect();
    assert_eq!(refused, ["bound", "bound/new", "bound/sub", "bound/sub/new"], "{done:?}");
    assert_eq!(done.applied, [PathBuf::from("plain/new")]);
    assert!(whole.unwrap().applied.is_empty());
}
