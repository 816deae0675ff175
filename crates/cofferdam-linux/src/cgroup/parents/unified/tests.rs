//! Unit tests on directories that imitate groups.

use super::*;

const NONE: &str = "memory.max=max;pids.max=max;cpu.max=max 100000;cpuset.cpus=";

/// Creates a tree of groups as in version 2. Returns its mount.
fn unified(top: &Path, groups: &[(&str, &str)]) -> Mounted {
    for (group, bounds) in groups {
        let group = top.join(group);
        fs::create_dir_all(&group).unwrap();
        for (name, text) in [("cgroup.controllers", "cpu memory pids\n"), ("cgroup.procs", "")] {
            fs::write(group.join(name), text).unwrap();
        }
        fs::write(group.join("cgroup.subtree_control"), "").unwrap();
        for (name, text) in bounds.split(';').filter_map(|bound| bound.split_once('=')) {
            fs::write(group.join(name), text).unwrap();
        }
    }
    Mounted { point: top.to_owned(), root: "/".into(), unified: true, options: Vec::new() }
}

/// Returns the candidates for a process in `own`, in order: `!` if processes move, `=` if nothing is changed.
fn candidates(top: &Path, mount: &Mounted, own: &str) -> Vec<String> {
    let parents = v2_parents(std::slice::from_ref(mount), &format!("0::/{own}\n"));
    let shown = parents.iter().map(|parents| {
        let path = parents.dirs[0].1.strip_prefix(top).unwrap().display().to_string();
        match parents.change {
            Change::Nothing => format!("={path}"),
            Change::Controllers => path,
            Change::Processes => format!("!{path}"),
        }
    });
    shown.collect()
}

/// Marks a group as delegated, as systemd does. Returns false if the file system does not support user attributes.
fn delegate(group: &Path) -> bool {
    let set = rustix::fs::setxattr(group, "user.delegate", b"1", rustix::fs::XattrFlags::empty());
    if set.is_err() {
        println!("SKIP the file system of {} has no attributes of users", group.display());
    }
    set.is_ok()
}

#[test]
fn no_bound_of_version_2_is_left() {
    for (bounded, expected) in [
        ("", &["s/a", "s", "", "!s/a"][..]),
        ("s/a pids.max=9", &["s/a", "!s/a"]),
        ("s/a memory.high=1000", &["s/a", "!s/a"]),
        ("s/a cpu.max=50000 100000", &["s/a", "!s/a"]),
        ("s/a cpuset.cpus=0-1", &["s/a", "!s/a"]),
        ("s memory.max=1000", &["s/a", "s", "!s/a"]),
    ] {
        let temp = tempfile::tempdir().unwrap();
        let of = |group| bounded.strip_prefix(group).and_then(|rest| rest.strip_prefix(' ')).unwrap_or(NONE);
        let mount = unified(temp.path(), &[("", NONE), ("s", of("s")), ("s/a", of("s/a")), ("s/b", NONE)]);
        assert_eq!(candidates(temp.path(), &mount, "s/a"), expected, "{bounded}");
    }
}

#[test]
fn nothing_is_changed_in_groups_that_systemd_manages() {
    let temp = tempfile::tempdir().unwrap();
    let groups = ["", "init.scope", "s", "s/a"].map(|group| (group, NONE));
    let mount = unified(temp.path(), &groups);
    assert_eq!(candidates(temp.path(), &mount, "s/a"), [""; 0]);
    fs::write(temp.path().join("s/cgroup.subtree_control"), "cpu memory\n").unwrap();
    assert_eq!(candidates(temp.path(), &mount, "s/a"), [""; 0], "without pids");
    fs::write(temp.path().join("s/cgroup.subtree_control"), "memory pids\n").unwrap();
    assert_eq!(candidates(temp.path(), &mount, "s/a"), ["=s"]);
    let parents = v2_parents(&[mount], "0::/s/a\n");
    assert_eq!(parents[0].dirs[0].0, ["memory", "pids"], "the cpu controller is not enabled");
}

#[test]
fn a_delegated_group_comes_before_those_above_it() {
    let temp = tempfile::tempdir().unwrap();
    let groups = ["", "init.scope", "s", "s/a", "s/a/b"].map(|group| (group, NONE));
    let mount = unified(temp.path(), &groups);
    fs::write(temp.path().join("s/cgroup.subtree_control"), "cpu memory pids\n").unwrap();
    if !delegate(&temp.path().join("s/a")) {
        return;
    }
    assert_eq!(candidates(temp.path(), &mount, "s/a"), ["s/a", "!s/a", "=s"]);
    assert_eq!(candidates(temp.path(), &mount, "s/a/b"), ["s/a/b", "s/a", "!s/a/b", "=s"]);
    // It is delegated to another systemd, such as a user's.
    fs::create_dir(temp.path().join("s/a/init.scope")).unwrap();
    assert_eq!(candidates(temp.path(), &mount, "s/a/b"), ["=s"]);
}

#[test]
fn processes_of_the_own_family_move_into_a_leaf_once() {
    let temp = tempfile::tempdir().unwrap();
    let mount = unified(temp.path(), &[("a", "memory.max=1000"), ("a/cofferdam-callers", "")]);
    let own = std::process::id().to_string();
    fs::write(temp.path().join("a/cgroup.procs"), format!("{own}\n")).unwrap();
    move_processes(&temp.path().join("a"), &["memory".to_owned()], Family::Own).unwrap();
    let read = |name: &str| fs::read_to_string(temp.path().join("a").join(name)).unwrap();
    assert_eq!((read("cofferdam-callers/cgroup.procs"), read("cgroup.subtree_control")), (own, "+memory".into()));
    // For a process in the leaf, the parent of the leaf is used, any number of times.
    assert_eq!(candidates(temp.path(), &mount, "a/cofferdam-callers"), ["a"]);
}

#[test]
fn where_a_process_of_others_is_nothing_moves() {
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let (own, child_pid) = (u64::from(std::process::id()), u64::from(child.id()));
    let parent = life(own).unwrap().parent;
    let check = |pids: &[u64], head| {
        let temp = tempfile::tempdir().unwrap();
        unified(temp.path(), &[("a", "")]);
        let lines: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
        fs::write(temp.path().join("a/cgroup.procs"), lines).unwrap();
        let moved = members(&temp.path().join("a"), head).map_err(|error| error.to_string());
        assert!(!temp.path().join("a").join(LEAF).exists());
        moved
    };
    // The parent of the process, and its child.
    assert_eq!(check(&[parent, own, child_pid], own), Ok(vec![parent, own, child_pid]));
    // A process that has ended.
    assert_eq!(check(&[u64::from(u32::MAX), own], own), Ok(vec![own]));
    // Sibling processes, and processes that are not visible, are not of the family.
    let refused = check(&[0, own], own).unwrap_err();
    assert!(refused.contains("out of sight"), "{refused}");
    let mut brother = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let refused = check(&[own, child_pid, brother.id().into()], child_pid).unwrap_err();
    assert!(refused.contains(&format!("process {} is in this group", brother.id())), "{refused}");
    for child in [&mut child, &mut brother] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
