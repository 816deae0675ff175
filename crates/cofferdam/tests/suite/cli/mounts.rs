//! `--mount` and `--tmpfs`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;

use super::{WEAKER, cofferdam, json, outcome};

/// A directory with a file `given`, which every user may change.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).expect("set");
    fs::write(directory.path().join("given"), "by the host\n").expect("written");
    fs::set_permissions(directory.path().join("given"), fs::Permissions::from_mode(0o666)).expect("set");
    directory
}

/// Returns a run of a shell command in a directory.
fn run(directory: &tempfile::TempDir, options: &[&str], script: &str) -> Command {
    let mut command = cofferdam();
    command.args(["run", "--allow-weaker", WEAKER]).args(options).args(["--", "sh", "-c", script]);
    command.current_dir(directory.path());
    command
}

/// Promise (Files): `--mount` shows a host directory read-only unless the command line says otherwise.
#[test]
fn a_mount_is_read_only_writable_or_copy_on_write() {
    let host = directory();
    let script = "cat /data/given; echo guest > /data/new && cat /data/new";
    for (mode, works, on_host) in
        [("", false, false), (":ro", false, false), (":cow", true, false), (":rw", true, true)]
    {
        let (status, stdout, stderr) =
            outcome(&mut run(&host, &["--disk", "none", "--mount", &format!(".:/data{mode}")], script));
        assert_eq!(status == 0, works, "{mode}: {stderr}");
        let expected = if works { "by the host\nguest\n" } else { "by the host\n" };
        assert_eq!(stdout, expected, "{mode}: {stderr}");
        assert_eq!(host.path().join("new").exists(), on_host, "{mode}");
    }
}

/// Promise (Limits): A mount at `/tmp` changes neither the disk limit nor its row of the posture.
#[test]
fn a_mount_at_tmp_leaves_the_disk_limit() {
    let host = directory();
    let script = "df -B1 --output=size /tmp | tail -1; df -B1 --output=size /workspace | tail -1";
    let options = ["--disk", "64M", "--tmpfs", "/tmp:2M"];
    let (status, stdout, stderr) = outcome(&mut run(&host, &options, script));
    let sizes: Vec<_> = stdout.split_whitespace().collect();
    assert_eq!((status, sizes), (0, vec!["2097152", "67108864"]), "{stderr}");
    let (status, stdout, stderr) = outcome(&mut run(&host, &["--tmpfs", "/tmp:2G"], "echo done"));
    assert_eq!((status, stdout.as_str()), (0, "done\n"), "{stderr}");
    let (status, stdout, stderr) = outcome(&mut run(&host, &["--mount", ".:/tmp:cow"], "cat /tmp/given"));
    assert_eq!((status, stdout.as_str()), (0, "by the host\n"), "{stderr}");
}

#[test]
fn files_and_directories_are_mounted_at_any_path_that_can_exist() {
    let host = directory();
    let options = ["--mount", "given:/etc/app/config", "--mount", ".:/srv/a/b", "--mount", "given:/workspace/x/given"];
    let script = "cat /etc/app/config /srv/a/b/given x/given && ls /srv/a";
    let (status, stdout, stderr) = outcome(&mut run(&host, &options, script));
    assert_eq!((status, stdout.as_str()), (0, "by the host\nby the host\nby the host\nb\n"), "{stderr}");
    for (target, message) in [
        ("/usr/no-such-directory", "does not exist there"),
        ("/etc/passwd", "a directory can be mounted on a directory only"),
        ("/proc/x", "nothing can be mounted there"),
        ("/data:cwo", "the access is ro, rw or cow"),
        ("/a/../b", "must not contain '..'"),
        ("/workspace", "the workspace is no target of a mount"),
    ] {
        let (status, _, stderr) = outcome(&mut run(&host, &["--mount", &format!(".:{target}")], "true"));
        assert!(status == 125 && stderr.contains(message), "{target}: {status} {stderr}");
    }
    for target in ["/etc", "/usr"] {
        let (status, _, stderr) = outcome(&mut run(&host, &["--tmpfs", &format!("{target}:1M")], "true"));
        assert!(status == 125 && stderr.contains("cannot replace a directory of the root"), "{status} {stderr}");
    }
}

/// Promise (Limits): A mounted tmpfs has its own size, and a writable mount of the host is refused with a disk limit.
#[test]
fn writable_mounts_have_a_size_or_none_is_asked_for() {
    let host = directory();
    let script = "head -c 3000000 /dev/zero > /scratch/x; stat -c %s /scratch/x";
    let (_, stdout, stderr) = outcome(&mut run(&host, &["--tmpfs", "/scratch:1M"], script));
    assert_eq!(stdout, "1048576\n", "{stderr}");
    let mut command = run(&host, &["--json", "--tmpfs", "/scratch:1M", "--tmpfs", "/other:2M"], "true");
    let (status, stdout, stderr) = outcome(&mut command);
    assert!(status == 0 && stdout.contains("mounts in memory of 3 MiB in total, "), "{stdout}{stderr}");
    let mut command = cofferdam();
    command.args(["run", "--mount", ".:/data:rw", "--", "true"]).current_dir(host.path());
    let (status, _, stderr) = outcome(&mut command);
    assert!(status == 125 && stderr.contains("--disk none") && stderr.contains(":ro or :cow"), "{status} {stderr}");
    let mut command = cofferdam();
    let weaker = format!("{WEAKER},disk");
    command.args(["run", "--json", "--mount", ".:/data:rw", "--allow-weaker", &weaker, "--disk", "64M", "--", "true"]);
    let (status, stdout, stderr) = outcome(command.current_dir(host.path()));
    assert_eq!(status, 0, "{stderr}");
    let posture = json(&stdout)["posture"].as_array().expect("rows").clone();
    let disk = posture.iter().find(|row| row["protection"] == "disk").expect("a row");
    assert_eq!(disk["state"], "weaker-than-asked", "{disk}");
}

/// Promise (Files): Sockets, devices, links and the directories of Cofferdam's own are not mounted.
#[test]
fn special_files_and_own_directories_are_not_mounted() {
    let host = directory();
    let _listener = UnixListener::bind(host.path().join("socket")).expect("a socket");
    std::os::unix::fs::symlink("/", host.path().join("link")).expect("a link");
    fs::create_dir_all(host.path().join("state/cofferdam/changes")).expect("created");
    let own = ["state/cofferdam", "state/cofferdam/changes"];
    for source in
        ["socket", "/dev/null", "/proc", "/proc/self/fd", "/", "link", "link/etc", "no-such-file"].iter().chain(&own)
    {
        let mut command = run(&host, &["--mount", &format!("{source}:/data")], "true");
        command.env("XDG_STATE_HOME", host.path().join("state"));
        let (status, _, stderr) = outcome(&mut command);
        assert!(status == 125 && stderr.lines().count() <= 3, "{source}: {status} {stderr}");
        if own.contains(source) {
            assert!(stderr.contains("a directory of Cofferdam's own"), "{stderr}");
        }
    }
}

/// Promise (Files): Code in a sandbox cannot write to the directories of Cofferdam's own, whatever contains them.
#[test]
fn parents_of_own_directories_are_not_writable() {
    let host = directory();
    fs::create_dir_all(host.path().join(".local/state/cofferdam/changes")).expect("created");
    fs::create_dir(host.path().join("project")).expect("created");
    let home = host.path().display();
    let refusal = |option: &str, value: &str| {
        let mut command = run(&host, &["--disk", "none", option, value], "echo evil > evil");
        let (status, _, stderr) = outcome(command.env("HOME", host.path()));
        assert!(status == 125 && stderr.lines().count() <= 3, "{option} {value}: {status} {stderr}");
        stderr
    };
    for (option, value) in [
        ("--workspace", format!("{home}:rw")),
        ("--workspace", format!("{home}/.local:rw")),
        ("--mount", format!("{home}:/x:rw")),
        ("--mount", format!("{home}/project/../.local/state:/x:rw")),
    ] {
        let stderr = refusal(option, &value);
        let own = "/.local/state/cofferdam', a directory of Cofferdam's own";
        assert!(stderr.contains("cannot be writable: it contains '") && stderr.contains(own), "{stderr}");
        assert!(stderr.contains("  try: use a directory below it, mount it with :ro or :cow"), "{stderr}");
    }
    for mode in ["", ":ro", ":rw", ":cow"] {
        let stderr = refusal("--workspace", &format!("{home}/.local/state/cofferdam/changes{mode}"));
        assert!(stderr.contains("is in '") && stderr.contains("a directory of Cofferdam's own"), "{mode}: {stderr}");
    }
    for value in [format!("{home}:ro"), format!("{home}/project:rw")] {
        let mut command = run(&host, &["--disk", "none", "--workspace", &value], "true");
        let (status, _, stderr) = outcome(command.env("HOME", host.path()));
        assert_eq!(status, 0, "{value}: {stderr}");
    }
    assert_eq!(fs::read_dir(host.path().join(".local/state/cofferdam/changes")).expect("there").count(), 0);
}

/// Promise (Files): A bind mount is no way to the directories of Cofferdam's own.
#[test]
fn own_directories_are_refused_through_bind_mounts() {
    let host = directory();
    for name in ["disk/state/cofferdam/changes/1", "state", "bound"] {
        fs::create_dir_all(host.path().join(name)).expect("created");
    }
    let program = env!("CARGO_BIN_EXE_cofferdam");
    let script = format!(
        "mount --bind disk/state state && mount --bind disk/state/cofferdam/changes/1 bound || exit 9
         {program} run --disk none --mount ./disk:/x:rw -- true; echo $?
         {program} run --mount ./bound:/x:ro -- true; echo $?"
    );
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]).current_dir(host.path());
    command.env("HOME", host.path());
    let (status, stdout, stderr) = outcome(command.env("XDG_STATE_HOME", host.path().join("state")));
    if stderr.contains("unshare") || status == 9 {
        println!("SKIP own_directories_are_refused_through_bind_mounts: {stderr}");
        return;
    }
    assert_eq!(stdout, "125\n125\n", "{stderr}");
    assert_eq!(stderr.matches("a directory of Cofferdam's own").count(), 2, "{stderr}");
}

/// Promise (Files): A user without a home keeps changes in the directory for temporary files. They are as safe there.
#[test]
fn changes_of_a_user_without_a_home_are_not_mounted() {
    if rustix::process::geteuid().is_root() {
        println!("SKIP changes_of_a_user_without_a_home_are_not_mounted: root has a directory of its own");
        return;
    }
    let host = directory();
    let name = format!("cofferdam-changes-{}", rustix::process::geteuid().as_raw());
    fs::create_dir(host.path().join(&name)).expect("created");
    for (options, message) in [
        (["--mount", &format!("{name}:/x")], "is in '"),
        (["--mount", ".:/x:rw"], "it contains '"),
        (["--workspace", ".:rw"], "it contains '"),
    ] {
        let mut command = run(&host, &[options[0], options[1], "--disk", "none"], "true");
        command.env("TMPDIR", host.path());
        let (status, _, stderr) = outcome(&mut command);
        assert!(status == 125 && stderr.contains(message) && stderr.contains(&name), "{options:?}: {status} {stderr}");
    }
}

#[test]
fn mounts_and_a_copy_on_write_workspace_work_together() {
    let host = directory();
    let state = tempfile::tempdir().expect("state");
    fs::create_dir(host.path().join("cache")).expect("created");
    let options = ["--workspace", ".", "--tmpfs", "/workspace/cache:1M", "--apply"];
    let mut command = run(&host, &options, "echo a > cache/a && echo b > b && ls cache");
    let (status, stdout, stderr) = outcome(command.env("XDG_STATE_HOME", state.path()));
    assert_eq!((status, stdout.as_str()), (0, "a\n"), "{stderr}");
    assert_eq!(fs::read_to_string(host.path().join("b")).expect("applied"), "b\n");
    assert!(!host.path().join("cache/a").exists(), "a mount is no part of the changes");
}
