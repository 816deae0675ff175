//! Unit tests.

use super::super::stats::field;
use super::*;

const V1_HOST: &str = "\
30 25 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
34 30 0:30 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
";

#[test]
fn v1_controllers_mounted_together_are_one_hierarchy() {
    let own = "3:cpu,cpuacct:/user\n2:memory:/user/x\n1:pids:/\n0::/\n";
    let dirs = v1_parents(&mounted(V1_HOST), own).remove(0).dirs;
    assert_eq!(dirs.len(), 3);
    assert_eq!(dirs[0].0, ["cpu", "cpuacct"]);
    assert_eq!(dirs[0].1, Path::new("/sys/fs/cgroup/cpu,cpuacct/user"));
    assert_eq!(dirs[1].1, Path::new("/sys/fs/cgroup/memory/user/x"));
    assert_eq!(dirs[2].1, Path::new("/sys/fs/cgroup/pids"));
}

#[test]
fn groups_are_found_below_the_group_that_is_mounted() {
    // A container without a cgroup namespace: it has the host's paths, and its own group is at the mount point.
    let inside = V1_HOST.replace(" / /sys/fs/cgroup/", " /docker/x /sys/fs/cgroup/");
    let paths = |own: &str| -> Vec<PathBuf> {
        let parents = v1_parents(&mounted(&inside), own);
        parents.into_iter().flat_map(|parents| parents.dirs).map(|(_, path)| path).collect()
    };
    let own = "3:cpu,cpuacct:/docker/x/y\n2:memory:/docker/x\n1:pids:/docker/x\n";
    let expected = ["cpu,cpuacct/y", "memory", "pids"].map(|name| Path::new("/sys/fs/cgroup").join(name));
    assert_eq!(paths(own), expected);
    // A group that is not visible is not replaced by another.
    for group in ["/", "/docker", "/docker/xy", "/docker/x/../y", "/../x"] {
        assert!(paths(&format!("1:pids:{group}\n")).is_empty(), "{group}");
    }
}

#[test]
fn processes_in_the_same_groups_are_bounded_alike() {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    assert!(is_bounded_no_more(&own, &own));
    assert!(!is_bounded_no_more("3:pids:/a\n", "3:pids:/b\n"));
    assert!(is_bounded_no_more("3:pids:/a\n1:name=systemd:/x\n", "3:pids:/a\n1:name=systemd:/y\n"));
}

#[test]
fn usual_mount_points_agree_with_the_mount_list() {
    let own = "4:freezer:/\n3:cpu,cpuacct:/user\n2:memory:/user/x\n1:pids:/\n0::/\n";
    let usual = usual_mounts(own, |path| (path != Path::new("/sys/fs/cgroup")).then_some(false)).unwrap();
    // A group that is not at its usual path is searched for in the list.
    assert_eq!(
        usual_mounts(own, |path| (!path.ends_with("x") && path != Path::new("/sys/fs/cgroup")).then_some(false)),
        None
    );
    let key = |mount: &Mounted| mount.point.clone();
    let (mut usual, mut listed) = (usual, mounted(V1_HOST));
    listed.retain(|mount| !mount.point.ends_with("freezer"));
    listed.iter_mut().for_each(|mount| mount.options.retain(|option| WANTED.contains(&option.as_str())));
    usual.sort_by_key(key);
    listed.sort_by_key(key);
    assert_eq!(usual, listed);
    assert_eq!(usual_mounts(own, |path| (!path.ends_with("memory")).then_some(false)), None);
    assert_eq!(usual_mounts("0::/x\n", |_| None), None);
    assert!(usual_mounts("0::/x\n", |_| Some(true)).unwrap()[0].unified);
}

#[test]
fn fields_of_flat_files_are_found() {
    assert_eq!(field("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill"), Some(3));
    assert_eq!(field("usage_usec 12\n", "oom_kill"), None);
}

#[test]
fn a_group_name_identifies_its_owner_process() {
    let name = owner_name().unwrap();
    assert_eq!(named_owner(&name).unwrap()[1], u64::from(std::process::id()));
    for other in ["cofferdam", "cofferdam-bench-1-2", "cofferdam-1-2", "cofferdam-1-2-3-4", "1-2-3"] {
        assert_eq!(named_owner(other), None, "{other}");
    }
    assert!(start_time(u32::MAX).is_err());
}

#[test]
fn a_killed_child_has_no_start_time_before_it_is_reaped() {
    let proc = rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = u64::from(child.id());
    let start = start_time(child.id()).unwrap();
    assert_eq!(started(proc.as_fd(), pid).unwrap(), Some(start));
    child.kill().unwrap();
    let begun = std::time::Instant::now();
    while started(proc.as_fd(), pid).unwrap().is_some() {
        assert!(begun.elapsed().as_secs() < 60, "an ended process counts as alive");
        std::thread::yield_now();
    }
    assert_eq!(start_time(child.id()).unwrap(), start, "its process id is not reused yet");
    child.wait().unwrap();
    assert_eq!(started(proc.as_fd(), pid).unwrap(), None);
}
