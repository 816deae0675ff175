//! Copy-on-write workspaces and `cofferdam changes`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{WEAKER, cofferdam, json, outcome};

/// A project on the host, and the state of its user.
struct Project {
    directory: tempfile::TempDir,
    state: tempfile::TempDir,
}

impl Project {
    fn new(files: &[(&str, &str)]) -> Self {
        let project =
            Self { directory: tempfile::tempdir().expect("a directory"), state: tempfile::tempdir().expect("state") };
        for (name, text) in files {
            let path = project.path(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("created");
            fs::write(path, text).expect("written");
        }
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    /// Returns a run of a shell command on a copy of the project.
    fn run(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.command(&["run", "--allow-weaker", WEAKER, "--workspace", "."]);
        command.args(options).args(["--", "sh", "-c", script]);
        command
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = cofferdam();
        command.args(words).current_dir(self.directory.path()).env("XDG_STATE_HOME", self.state.path());
        command
    }

    /// Runs `cofferdam changes`.
    fn changes(&self, words: &[&str]) -> (i32, String, String) {
        outcome(self.command(&["changes"]).args(words))
    }

    /// Returns the ids of the kept changes.
    fn stored(&self) -> Vec<String> {
        let (status, stdout, stderr) = self.changes(&["ls", "--json"]);
        assert_eq!(status, 0, "{stderr}");
        let rows = json(&stdout)["changes"].as_array().expect("a list").clone();
        rows.iter().map(|row| row["id"].as_str().expect("an id").to_owned()).collect()
    }
}

/// Promise (Files): The changes of a copy-on-write workspace are kept until they are applied or discarded, and the
/// directory is unchanged until then (K4).
#[test]
fn changes_are_kept_shown_applied_and_discarded() {
    let project = Project::new(&[("a.txt", "one\ntwo\n"), ("old/b.txt", "b\n"), ("c.txt", "c\n")]);
    let script =
        "sed -i s/two/TWO/ a.txt; rm c.txt; mv old new; mkdir d; printf 'n\\033[2J' > d/n; chmod +x a.txt; pwd";
    let (status, stdout, stderr) = outcome(&mut project.run(&[], script));
    assert_eq!((status, stdout.as_str()), (0, "/workspace\n"), "{stderr}");
    assert!(stderr.contains("changed in a copy: `cofferdam changes show "), "{stderr}");
    assert_eq!(project.read("a.txt").as_deref(), Some("one\ntwo\n"));
    assert!(project.path("c.txt").exists() && !project.path("d").exists() && project.path("old/b.txt").exists());
    let [id] = &project.stored()[..] else { panic!("one change set") };
    let (status, shown, stderr) = project.changes(&["show", &id[..6]]);
    assert_eq!((status, stderr.as_str()), (0, ""));
    for part in ["-two\n+TWO\n", "deleted file mode", "rename from old/b.txt\nrename to new/b.txt\n", "\\u{1b}[2J"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains('\u{1b}'), "no control characters of the guest: {shown}");
    let (status, document, _) = project.changes(&["show", "--json", id]);
    assert_eq!((status, &json(&document)["summary"]["files"]), (0, &Value::from(7)), "{document}");
    let (status, _, stderr) = project.changes(&["apply", "--dry-run", id]);
    assert_eq!((status, project.read("a.txt").as_deref()), (0, Some("one\ntwo\n")), "{stderr}");
    let (status, _, stderr) = project.changes(&["apply", "--only", "a.*", id]);
    assert_eq!((status, project.read("a.txt").as_deref()), (0, Some("one\nTWO\n")), "{stderr}");
    assert!(project.path("c.txt").exists() && project.stored().len() == 1);
    let (status, _, stderr) = project.changes(&["apply", id]);
    assert_eq!(status, 0, "{stderr}");
    assert!(!project.path("c.txt").exists() && !project.path("old").exists());
    assert_eq!(project.read("new/b.txt").as_deref(), Some("b\n"));
    assert_eq!(fs::metadata(project.path("a.txt")).expect("a file").permissions().mode() & 0o777, 0o755);
    assert_eq!(project.stored(), Vec::<String>::new());
    outcome(&mut project.run(&["--quiet"], "echo > x"));
    let id = project.stored().remove(0);
    assert_eq!(project.changes(&["discard", &id]).0, 0);
    assert_eq!(project.changes(&["discard", &id]).0, 127);
    // A run that changes nothing keeps nothing.
    assert_eq!(outcome(&mut project.run(&[], "cat a.txt")), (0, "one\nTWO\n".into(), String::new()));
    assert_eq!(project.stored(), Vec::<String>::new());
}

/// Promise (Files): `--apply-if-ok` writes changes after a success only, and `--json` has the changes (K4).
#[test]
fn a_run_shows_saves_and_applies_its_changes() {
    let project = Project::new(&[("a", "1\n")]);
    let (status, stdout, _) = outcome(&mut project.run(&["--diff"], "echo 2 >> a; echo out; exit 3"));
    assert_eq!(status, 3);
    assert!(
        stdout.starts_with("out\ndiff a/a b/a\n") && stdout.ends_with("1 file changed, 1 insertion(+)\n"),
        "{stdout}"
    );
    let (status, _, stderr) = outcome(&mut project.run(&["--apply-if-ok"], "echo 2 >> a; exit 3"));
    assert_eq!((status, project.read("a").as_deref()), (3, Some("1\n")), "{stderr}");
    assert_eq!(project.stored().len(), 2);
    let (status, _, stderr) = outcome(&mut project.run(&["--apply-if-ok"], "echo 2 >> a"));
    assert_eq!((status, project.read("a").as_deref()), (0, Some("1\n2\n")), "{stderr}");
    let (status, stdout, _) = outcome(&mut project.run(&["--json", "--apply"], "echo 3 >> a; mkfifo f"));
    let document = json(&stdout);
    let changes = &document["changes"];
    assert_eq!((status, &changes["changes"][0]["path"]), (0, &Value::from("a")), "{changes}");
    assert_eq!(changes["applied"]["applied"][0], "a");
    assert!(changes["skipped"][0].as_str().is_some_and(|skipped| skipped.starts_with("f: ")), "{changes}");
    let layer = project.state.path().join("layer.tar");
    let options = ["--save-changes", layer.to_str().expect("text")];
    assert_eq!(outcome(&mut project.run(&options, "echo 4 >> a")).0, 0);
    let (status, _, stderr) = outcome(&mut project.run(&options, "echo 5 >> a"));
    assert!(status == 125 && stderr.contains("exists") && stderr.contains("changed in a copy"), "{stderr}");
    assert_eq!(project.stored().len(), 3);
    assert_eq!(project.changes(&["apply", layer.to_str().expect("text")]).0, 0);
    assert_eq!(project.read("a").as_deref(), Some("1\n2\n3\n4\n"));
    for options in [&["--diff"][..], &["--apply", "--apply-if-ok"]] {
        let mut command = project.command(&["run", "--workspace", ".:ro"]);
        assert_eq!(outcome(command.args(options).args(["--", "true"])).0, 125, "{options:?}");
    }
}

/// Promise (Files): A file that the host changed meanwhile is not overwritten, and both versions are kept (K4).
#[test]
fn a_conflict_keeps_both_versions() {
    let project = Project::new(&[("a", "1\n"), ("b", "1\n")]);
    let script = "echo guest >> a; echo guest >> b; echo ready; read x; true";
    let mut child = project.run(&["--apply", "--stdin"], script).spawn_ready();
    fs::write(project.path("a"), "host\n").expect("written");
    drop(child.stdin.take());
    let status = child.wait().expect("ended");
    assert_eq!(status.code(), Some(125));
    assert_eq!(project.read("a").as_deref(), Some("host\n"));
    assert_eq!(project.read("a.cofferdam-new").as_deref(), Some("1\nguest\n"));
    assert_eq!(project.read("b").as_deref(), Some("1\nguest\n"));
    assert_eq!(project.stored().len(), 1);
}

/// Promise (Files): Changes that would run on the host unasked, or lead out of the directory, are not applied (K4).
#[test]
fn traps_are_not_applied() {
    let outside = tempfile::tempdir().expect("a directory");
    let project = Project::new(&[("sub/a", "1\n")]);
    let script = "mkdir -p .git/hooks .vscode; echo evil | tee .git/hooks/post-commit .envrc .vscode/tasks.json; \
        ln -s /etc/passwd link; ln -s ../../.. up; echo fine > fine; rm -r sub; ln -s /tmp sub; echo > plain";
    let (status, _, stderr) = outcome(&mut project.run(&["--apply"], script));
    assert_eq!(status, 125, "{stderr}");
    for name in [".git/hooks/post-commit", ".envrc", ".vscode/tasks.json", "link", "up"] {
        assert!(fs::symlink_metadata(project.path(name)).is_err(), "{name}: {stderr}");
        assert!(stderr.contains(&format!("not applied: {name}: ")), "{name}: {stderr}");
    }
    assert_eq!(project.read("fine").as_deref(), Some("fine\n"));
    assert!(!fs::symlink_metadata(project.path("sub")).is_ok_and(|found| found.is_symlink()));
    let id = project.stored().remove(0);
    assert_eq!(project.changes(&["apply", &id, "--only", ".envrc", "--allow", ".envrc"]).0, 0);
    assert_eq!(project.read(".envrc").as_deref(), Some("evil\n"));
    // A link of the host in the place of a directory is not followed.
    let project = Project::new(&[("d/a", "1\n")]);
    outcome(&mut project.run(&[], "echo 2 > d/new"));
    fs::rename(project.path("d"), project.path("moved")).expect("renamed");
    std::os::unix::fs::symlink(outside.path(), project.path("d")).expect("linked");
    let id = project.stored().remove(0);
    assert_eq!(project.changes(&["apply", &id]).0, 1);
    assert_eq!(fs::read_dir(outside.path()).expect("a directory").count(), 0);
}

/// Promise (Files): A supervisor that is killed leaves the directory unchanged (K4).
#[test]
fn a_killed_run_changes_nothing() {
    let project = Project::new(&[("a", "1\n")]);
    let mut child = project.run(&["--apply", "--stdin"], "echo 2 > a; echo ready; read x; true").spawn_ready();
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert_eq!(project.read("a").as_deref(), Some("1\n"));
    assert_eq!(project.stored(), Vec::<String>::new());
}

/// Promise (Limits): The changes of a copy-on-write workspace are within the disk limit, for a large directory as well.
#[test]
fn changes_are_within_the_disk_limit() {
    let project = Project::new(&[]);
    fs::write(project.path("large"), vec![7; 24 << 20]).expect("written");
    let script =
        "cat large | wc -c; echo more >> large || echo full; dd if=/dev/zero of=new bs=1M count=64 2>&1 | tail -1";
    let (status, stdout, stderr) = outcome(&mut project.run(&["--disk", "16M"], script));
    assert_eq!(status, 0, "{stderr}");
    assert!(stdout.starts_with("25165824\n") && stdout.contains("full\n"), "{stdout}");
    assert_eq!(fs::metadata(project.path("large")).expect("a file").len(), 24 << 20);
    assert!(!project.path("new").exists());
}

/// Promise (Files): A dry run prints what would happen to each path, and writes and discards nothing (K4).
#[test]
fn dry_runs_print_each_path() {
    let project = Project::new(&[("a", "1\n"), ("b", "1\n"), ("old/c", "contents\n")]);
    let (status, _, stderr) =
        outcome(&mut project.run(&[], "echo 2 >> a; rm b; mv old new; echo x > .envrc; echo 1 > d"));
    assert_eq!(status, 0, "{stderr}");
    let id = project.stored().remove(0);
    fs::write(project.path("d"), "host\n").expect("written");
    let (status, stdout, stderr) = project.changes(&["apply", "--dry-run", &id]);
    let expected = "replace         a\nadd             new\nadd             new/c\ndelete          old\n\
        delete          b\nconflict        d: the host has a new file at this path\n\
        not applied     .envrc: direnv runs it; allow the path by name if you trust its contents\n";
    assert_eq!((status, stdout.as_str()), (1, expected), "{stderr}");
    assert!(stderr.contains("would apply 5 changes to ") && stderr.contains("; nothing was written"), "{stderr}");
    assert_eq!((project.read("a").as_deref(), project.read("b").as_deref()), (Some("1\n"), Some("1\n")));
    let (status, stdout, _) = project.changes(&["show", "--stat", "--only", "new", "--only", "a", &id]);
    assert_eq!(status, 0);
    assert!(stdout.contains("new/c") && stdout.ends_with("3 files changed, 2 insertions(+)\n"), "{stdout}");
    assert!(!stdout.contains(".envrc") && !stdout.contains("old"), "{stdout}");
    let (status, stdout, stderr) = project.changes(&["discard", "--dry-run", &id[..6]]);
    assert_eq!(status, 0, "{stderr}");
    let directory = project.directory.path().canonicalize().expect("a path");
    assert_eq!(stdout, format!("would discard {id}: 6 files of {}\n", directory.display()));
    assert_eq!(project.stored(), [id]);
}

/// Promise (Files): `changes show` and `changes apply` without an id take the only kept changes of the current directory,
/// and list the candidates if there are several (K4).
#[test]
fn changes_of_the_current_directory_need_no_id() {
    let project = Project::new(&[("a", "1\n")]);
    let directory = project.directory.path().canonicalize().expect("a path");
    for words in [["show"], ["apply"]] {
        let (status, _, stderr) = project.changes(&words);
        assert_eq!(status, 127, "{stderr}");
        assert!(stderr.contains(&format!("no changes of '{}' are kept", directory.display())), "{stderr}");
        assert!(stderr.contains("  try: "), "{stderr}");
    }
    assert_eq!(outcome(&mut project.run(&["--quiet"], "echo 2 >> a")).0, 0);
    let other = Project { directory: tempfile::tempdir().expect("a directory"), state: project.state };
    assert_eq!(outcome(&mut other.run(&["--quiet"], "echo 3 > b")).0, 0);
    let project = Project { state: other.state, ..project };
    let ids = project.stored();
    let [id, of_other] = &ids[..] else { panic!("two change sets: {ids:?}") };
    let (status, stdout, stderr) = project.changes(&["show"]);
    assert!(status == 0 && stdout.contains("+2\n") && !stdout.contains("+3\n"), "{stdout} {stderr}");
    assert!(stderr.starts_with(&format!("cofferdam: changes {id} of {}, kept ", directory.display())), "{stderr}");
    let (status, stdout, stderr) = project.changes(&["apply", "--dry-run"]);
    assert!(status == 0 && stdout == "replace         a\n" && stderr.contains(id), "{stdout} {stderr}");
    assert_eq!(project.read("a").as_deref(), Some("1\n"));
    // With several, none is taken.
    assert_eq!(outcome(&mut project.run(&["--quiet"], "echo 4 >> a")).0, 0);
    let newest = project.stored().pop().expect("an id");
    for words in [&["show"][..], &["apply"], &["apply", "--json"]] {
        let (status, stdout, stderr) = project.changes(words);
        assert_eq!(status, 125, "{stdout} {stderr}");
        assert!([id, &newest].iter().all(|id| stderr.contains(id.as_str())) && !stderr.contains(of_other), "{stderr}");
        assert!(stderr.contains(&format!("the newest is {newest}")), "{stderr}");
    }
    assert_eq!(project.changes(&["discard", &newest]).0, 0);
    let (status, _, stderr) = project.changes(&["apply"]);
    assert!(status == 0 && stderr.contains(id), "{stderr}");
    assert_eq!((project.read("a").as_deref(), project.stored()), (Some("1\n2\n"), vec![of_other.clone()]));
}

/// Promise (Files): Kept changes lose what was applied, and the set goes with its last change (K4).
#[test]
fn kept_changes_shrink_when_they_are_applied() {
    let project = Project::new(&[("a", "1\n"), ("b", "1\n"), ("old", "contents\n")]);
    let script = "echo 2 >> a; echo 2 >> b; mv old new; mkdir d; echo x > d/one; echo x > d/two; echo x > .envrc";
    assert_eq!(outcome(&mut project.run(&["--quiet"], script)).0, 0);
    let id = project.stored().remove(0);
    let listed = || project.changes(&["show", "--stat", &id]).1;
    for words in [&["apply", "--dry-run", "--only", "a"][..], &["apply", "--only", "a", "--to", "."]] {
        assert_eq!(project.changes(&[words, &[&id]].concat()).0, 0);
        assert!(listed().contains("  a\n"), "{words:?}: neither a dry run nor a named directory counts");
    }
    let (status, _, stderr) = project.changes(&["apply", "--only", "a", "--only", "d/one", &id]);
    assert!(status == 0 && stderr.contains(&format!("5 changes remain in {id}")), "{status} {stderr}");
    let left = listed();
    assert!(!left.contains("  a\n") && !left.contains("d/one") && left.contains("d/two"), "{left}");
    let (status, _, stderr) = project.changes(&["apply", &id]);
    assert!(status == 1 && stderr.contains(&format!("1 change remains in {id}")), "{status} {stderr}");
    let left = listed();
    assert!(left.contains(".envrc\n1 file changed"), "{left}");
    assert_eq!((project.read("new").as_deref(), project.path("old").exists()), (Some("contents\n"), false));
    assert_eq!(project.changes(&["apply", "--allow", ".envrc", &id]).0, 0);
    assert_eq!((project.stored(), project.read(".envrc").as_deref()), (Vec::<String>::new(), Some("x\n")));
}

/// Promise (Files): The list of changes has the number of files that the run printed.
#[test]
fn lists_and_runs_count_the_same_files() {
    let project = Project::new(&[("old", "contents\n"), ("b", "1\n")]);
    let count = |script: &str, expected: &str| {
        let (status, _, stderr) = outcome(&mut project.run(&[], script));
        assert!(status == 0 && stderr.contains(&format!("{expected} of ")), "{stderr}");
        let (_, stdout, _) = project.changes(&["ls"]);
        assert!(stdout.contains(&format!(" {expected} ")), "{stdout}");
        assert_eq!(project.changes(&["discard", &project.stored().remove(0)]).0, 0);
    };
    count("mv old new", "1 file");
    count("mv old new; echo 2 >> b", "2 files");
}

/// Promise (Files): A file of saved changes is discarded by its path, and a file that is no change set stays.
#[test]
fn files_of_changes_are_discarded() {
    let project = Project::new(&[("a", "1\n")]);
    let layer = project.state.path().join("layer.tar");
    let path = layer.to_str().expect("text");
    assert_eq!(outcome(&mut project.run(&["--save-changes", path], "echo 2 >> a")).0, 0);
    let (status, stdout, _) = project.changes(&["discard", "--dry-run", path]);
    assert!(status == 0 && stdout.starts_with(&format!("would discard {path}: 1 file of ")), "{stdout}");
    let (status, _, stderr) = project.changes(&["discard", "./a"]);
    assert!(status == 125 && stderr.contains("it is not a change set"), "{status} {stderr}");
    assert!(layer.exists() && project.path("a").exists());
    let (status, _, stderr) = project.changes(&["discard", path]);
    assert!(status == 0 && !layer.exists(), "{stderr}");
}

/// Promise (Files): `changes discard --only` removes these changes and no others, from the store and from a file (K4).
#[test]
fn selected_changes_are_discarded() {
    let project = Project::new(&[("a", "1\n"), ("b", "1\n"), ("old", "contents\n")]);
    let script = "echo 2 >> a; rm b; mv old new; mkdir logs; echo x > logs/l.log";
    assert_eq!(outcome(&mut project.run(&[], script)).0, 0);
    let id = project.stored().remove(0);
    for words in
        [&["discard", "--only", "none"][..], &["discard", "--dry-run", "--only", "none"], &["apply", "--only", "none"]]
    {
        let (status, stdout, stderr) = project.changes(&[words, &[&id]].concat());
        assert!(
            status == 127 && stdout.is_empty() && stderr.contains("no change matches the patterns"),
            "{words:?} {stderr}"
        );
    }
    let (status, stdout, stderr) = project.changes(&["discard", "--dry-run", "--only", "logs", &id[..6]]);
    assert_eq!((status, stdout.as_str()), (0, "discard         logs\ndiscard         logs/l.log\n"), "{stderr}");
    assert!(stderr.contains(&format!("would discard 2 changes of {id}; 3 of its changes remain")), "{stderr}");
    let (status, _, stderr) = project.changes(&["discard", "--only", "*.log", "--only", "logs", &id]);
    assert!(status == 0 && stderr.contains(&format!("discarded 2 changes of {id}; 3 of its")), "{status} {stderr}");
    let (_, stdout, _) = project.changes(&["show", "--stat", &id]);
    assert!(stdout.contains("old => new\n") && stdout.contains("\n3 files changed, "), "{stdout}");
    // The deletion of the old name goes with the new one.
    let (status, _, stderr) = project.changes(&["discard", "--only", "new", &id]);
    assert!(status == 0 && stderr.contains("discarded 1 change of "), "{status} {stderr}");
    assert_eq!(project.changes(&["apply", &id]).0, 0);
    assert_eq!((project.read("a").as_deref(), project.read("old").as_deref()), (Some("1\n2\n"), Some("contents\n")));
    assert!(["b", "new", "logs"].iter().all(|name| !project.path(name).exists()));
    assert_eq!(project.stored(), Vec::<String>::new());
    let layer = project.state.path().join("layer.tar");
    let path = layer.to_str().expect("text");
    assert_eq!(outcome(&mut project.run(&["--save-changes", path], "echo 3 > c; echo 3 > d")).0, 0);
    let (status, _, stderr) = project.changes(&["discard", "--only", "c", path]);
    assert!(
        status == 0 && stderr.contains(&format!("discarded 1 change of {path}; 1 of its changes remain")),
        "{stderr}"
    );
    let (status, _, stderr) = project.changes(&["discard", "--only", "d", path]);
    assert!(status == 0 && stderr.contains("nothing is left, and it is deleted") && !layer.exists(), "{stderr}");
}

/// Promise (Files): Changes of a home directory are not applied to Cofferdam's own directories in it (K4).
#[test]
fn settings_of_cofferdam_are_not_applied() {
    let project = Project::new(&[("a", "1\n")]);
    let script = "mkdir -p .config/cofferdam .local/share/cofferdam/plugins; echo > .config/cofferdam/config.toml; \
        echo > .local/share/cofferdam/plugins/x; echo fine > fine";
    let at_home = |mut command: Command| outcome(command.env("HOME", project.directory.path()));
    let (status, _, stderr) = at_home(project.run(&["--apply"], script));
    assert_eq!(status, 125, "{stderr}");
    for name in [".config/cofferdam/config.toml", ".local/share/cofferdam/plugins/x"] {
        assert!(stderr.contains(&format!("not applied: {name}: a directory of Cofferdam's own")), "{name}: {stderr}");
    }
    let id = project.stored().remove(0);
    let (status, _, stderr) = at_home(project.command(&["changes", "apply", "--allow", "**", &id]));
    assert_eq!((status, project.read("fine").as_deref()), (1, Some("fine\n")), "{stderr}");
    assert!([".config/cofferdam", ".local/share/cofferdam"].iter().all(|name| !project.path(name).exists()));
}

/// Writes a project, and keeps changes of it that take a while to apply.
fn large_changes() -> (Project, String) {
    let project = Project::new(&[("edit", "1\n"), ("gone/a", "1\n"), ("gone/b", "1\n"), ("tofile/x", "1\n")]);
    let script = "i=0; while [ $i -lt 60 ]; do head -c 100000 /dev/zero > new$i; mkdir d$i; echo $i > d$i/f; \
        i=$((i+1)); done; echo 2 > edit; rm -r gone tofile; echo 3 > tofile; ln -s edit link";
    let (status, _, stderr) = outcome(&mut project.run(&["--quiet"], script));
    assert_eq!(status, 0, "{stderr}");
    let id = project.stored().remove(0);
    (project, id)
}

/// Returns true if the project has each change of [`large_changes`], and nothing else.
fn has_large_changes(project: &Project) -> bool {
    let names = fs::read_dir(project.directory.path()).expect("a directory").count();
    let is_new = |number: u32| {
        let size = fs::metadata(project.path(&format!("new{number}"))).map(|found| found.len()).unwrap_or(0);
        size == 100_000 && project.read(&format!("d{number}/f")) == Some(format!("{number}\n"))
    };
    let edited = project.read("edit").as_deref() == Some("2\n") && project.read("tofile").as_deref() == Some("3\n");
    names == 2 * 60 + 3 && edited && !project.path("gone").exists() && (0..60).all(is_new)
}

/// Promise (Files): Two applications of the same changes at the same time are no conflict (K4).
#[test]
fn applications_at_the_same_time_are_no_conflict() {
    let (project, id) = large_changes();
    let children: Vec<_> = (0..3).map(|_| super::start(&mut project.command(&["changes", "apply", &id]))).collect();
    for child in children {
        let (status, _, stderr) = super::read(&child.wait_with_output().expect("ended"));
        // The first may have discarded the changes before another one opened them.
        assert!(status == 0 || stderr.contains("no change set has the id"), "{status} {stderr}");
    }
    assert!(has_large_changes(&project));
    assert_eq!(project.stored(), Vec::<String>::new());
}

/// Promise (Files): If `changes apply` is killed, each file is whole, the changes are kept, and the next application
/// completes it and leaves nothing else (K4).
#[test]
fn a_killed_application_is_completed() {
    for delay in [5, 20, 40, 80, 160] {
        let (project, id) = large_changes();
        let mut child = super::start(&mut project.command(&["changes", "apply", &id]));
        std::thread::sleep(Duration::from_millis(delay));
        child.kill().expect("killed");
        let is_killed = child.wait().expect("ended").code().is_none();
        for number in 0..60 {
            let size = fs::metadata(project.path(&format!("new{number}"))).map(|found| found.len());
            assert!(size.is_err() || size.is_ok_and(|size| size == 100_000), "new{number}");
        }
        assert!(matches!(project.read("edit").as_deref(), Some("1\n" | "2\n")));
        assert!(project.read("tofile").is_none_or(|text| text == "3\n"));
        if is_killed && !project.stored().is_empty() {
            let (status, _, stderr) = project.changes(&["apply", &id]);
            assert_eq!(status, 0, "{delay} ms: {stderr}");
        }
        assert!(has_large_changes(&project), "{delay} ms");
        assert_eq!(project.stored(), Vec::<String>::new());
    }
}

/// Promise (Files): If the disk is full during `changes apply`, the changes are kept, each file is whole, and no
/// temporary file stays (K4).
#[test]
fn a_full_disk_keeps_the_changes() {
    let project = Project::new(&[]);
    let small = project.directory.path().join("small");
    fs::create_dir(&small).expect("created");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs"]).arg(&small).output();
    if !rustix::process::geteuid().is_root() || !mounted.is_ok_and(|output| output.status.success()) {
        println!("SKIP a_full_disk_keeps_the_changes: only root can mount a small file system");
        return;
    }
    let in_small = |words: &[&str]| outcome(project.command(words).current_dir(&small));
    for name in ["a", "b", "c", "d", "e", "f"] {
        fs::write(small.join(name), "old").expect("written");
    }
    let script = "for name in a b c d e f; do head -c 300000 /dev/zero > $name; done";
    let run = ["run", "--allow-weaker", WEAKER, "--quiet", "--workspace", ".", "--", "sh", "-c", script];
    let (ran, _, run_stderr) = in_small(&run);
    let id = project.stored().pop();
    let applied = id.as_ref().map(|id| in_small(&["changes", "apply", id]));
    let files: Vec<(String, usize)> = fs::read_dir(&small)
        .expect("a directory")
        .map(|entry| entry.expect("an entry"))
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).map_or(0, |b| b.len())))
        .collect();
    let stored = project.stored();
    let resized = Command::new("mount").args(["-o", "remount,size=8m"]).arg(&small).output();
    let again = id.as_ref().map(|id| in_small(&["changes", "apply", id]));
    let last = fs::read(small.join("f")).map_or(0, |bytes| bytes.len());
    // Unmounted before anything can fail.
    let unmounted = Command::new("umount").arg("-l").arg(&small).output();
    assert!(unmounted.is_ok_and(|output| output.status.success()));
    assert_eq!(ran, 0, "{run_stderr}");
    let (status, _, stderr) = applied.expect("kept changes");
    assert!(status == 1 && stderr.contains("no space left to"), "{status} {stderr}");
    assert!(files.len() == 6 && files.iter().all(|(_, size)| matches!(size, 3 | 300_000)), "{files:?}");
    assert_eq!(stored, [id.expect("an id")]);
    assert!(resized.is_ok_and(|output| output.status.success()));
    let (status, _, stderr) = again.expect("kept changes");
    assert_eq!((status, last), (0, 300_000), "{stderr}");
}

trait SpawnReady {
    /// Starts a command, and waits until it has printed `ready`.
    fn spawn_ready(&mut self) -> std::process::Child;
}

impl SpawnReady for Command {
    fn spawn_ready(&mut self) -> std::process::Child {
        use std::io::Read;
        use std::process::Stdio;
        let mut child =
            self.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("started");
        let (start, mut seen) = (Instant::now(), Vec::new());
        let stdout = child.stdout.as_mut().expect("a pipe");
        while !seen.ends_with(b"ready\n") {
            let mut byte = [0];
            assert!(start.elapsed() < Duration::from_secs(60) && stdout.read(&mut byte).expect("read") == 1);
            seen.push(byte[0]);
        }
        child
    }
}

/// Promise (Files): Nothing runs if its changes could not be kept (K4).
#[test]
fn an_unusable_store_is_reported_before_anything_runs() {
    let project = Project::new(&[("a", "1\n")]);
    let state = project.state.path().join("cofferdam/changes");
    fs::create_dir_all(state.parent().expect("a directory")).expect("created");
    fs::write(&state, "in the way").expect("written");
    for words in [&["run", "--workspace", ".", "--", "sh", "-c", "echo 2 > a"][..], &["repl", "--workspace", "."]] {
        let (status, stdout, stderr) = outcome(&mut project.command(words));
        assert!(status == 125 && stdout.is_empty() && !stderr.contains("are lost"), "{words:?}: {stderr}");
    }
    assert_eq!(project.read("a").as_deref(), Some("1\n"));
}

/// Promise (Files): Changes are shown and applied only where they belong, unless another directory is named (K4).
#[test]
fn changes_belong_to_their_directory() {
    let project = Project::new(&[("a", "1\n")]);
    let other = Project::new(&[("a", "1\n")]);
    outcome(&mut project.run(&[], "echo 2 >> a"));
    let id = project.stored().remove(0);
    let apply = |to: &Path| project.changes(&["apply", &id, "--to", to.to_str().expect("text")]);
    // What the host has there is not what the guest saw.
    let (status, _, stderr) = apply(other.directory.path());
    assert_eq!((status, other.read("a").as_deref()), (1, Some("1\n")), "{stderr}");
    assert_eq!(apply(Path::new("/no/such")).0, 127);
    fs::rename(project.path("a"), project.path("kept")).expect("renamed");
    let (status, _, stderr) = project.changes(&["apply", &id]);
    assert!(status == 1 && stderr.contains("conflict: a: "), "{stderr}");
}
