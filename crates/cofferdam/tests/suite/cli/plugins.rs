//! `cofferdam plugins`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::{cofferdam, json, outcome, repository};
use crate::terminal::Terminal;

/// The number of installs that are killed.
const KILLS: u32 = 12;

/// Promise (Plugins): `plugins validate` reports all problems of a manifest with their places, and fails for a plugin that
/// cannot be used.
#[test]
fn manifests_are_validated() {
    let home = tempfile::tempdir().expect("a directory");
    let validate = |words: &[&str]| {
        outcome(cofferdam().args(["plugins", "validate"]).args(words).current_dir(home.path()).env("HOME", home.path()))
    };
    let (status, stdout, stderr) = validate(&[]);
    assert_eq!((status, stdout.as_str()), (125, ""));
    assert!(stderr.contains("no plugin.toml and no plugin.json") && stderr.contains("try: "), "{stderr}");

    let full =
        std::fs::read_to_string(repository().join("crates/cofferdam-plugin/tests/full.toml")).expect("an example");
    std::fs::write(home.path().join("plugin.toml"), &full).expect("written");
    assert_eq!(validate(&[]), (0, "./plugin.toml: ok, weather 1.2.0\n".to_owned(), String::new()));

    let wrong = full.replace("version =", "verson =").replace("\"net\", ", "");
    std::fs::write(home.path().join("plugin.toml"), wrong).expect("written");
    std::fs::write(home.path().join("other.json"), "{\"manifest\": 1,\n \"name\": 7}").expect("written");
    let (status, stdout, stderr) = validate(&["plugin.toml", "other.json"]);
    assert_eq!((status, stderr.as_str()), (1, ""));
    for line in [
        "plugin.toml:3:1: error[unknown-key]: the key 'verson' is unknown\n  try: write 'version', or remove the key\n",
        "error[missing-permission]: sandbox.net has no effect without the permission net\n",
        "other.json:2:10: error[wrong-type]: the value must be of type string, and is of type integer\n",
        "plugin.toml: 3 problems\n",
    ] {
        assert!(stdout.contains(line), "{line}{stdout}");
    }
    let (status, stdout, _) = validate(&["--json", "other.json"]);
    let document = json(&stdout);
    assert_eq!((status, &document["valid"]), (1, &serde_json::json!(false)));
    let problem = &document["manifests"][0]["problems"];
    assert!(problem.as_array().is_some_and(|problems| problems.iter().any(|problem| problem["rule"] == "wrong-type")));

    for path in ["missing.toml", "/dev/zero", "/proc/self/mem"] {
        let (status, stdout, stderr) = validate(&[path]);
        assert_eq!((status, stdout.as_str()), (125, ""), "{path}");
        assert!(stderr.contains("cannot read the manifest"), "{path}: {stderr}");
    }
    let (status, stdout, _) = outcome(cofferdam().args(["plugins", "schema"]));
    assert_eq!((status, &json(&stdout)["properties"]["name"]["type"]), (0, &serde_json::json!("string")));
}

/// A user of `cofferdam plugins`, with a directory for plugins, keys and data.
struct User(tempfile::TempDir);

impl User {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self) -> PathBuf {
        self.0.path().canonicalize().expect("a path")
    }

    /// Runs a subcommand, without a terminal.
    fn plugins(&self, line: &str) -> (i32, String, String) {
        let mut command = self.command();
        outcome(command.args(line.split(' ')))
    }

    fn command(&self) -> Command {
        let mut command = cofferdam();
        command.arg("plugins").current_dir(self.path()).env("XDG_DATA_HOME", self.path().join("data"));
        command
    }

    /// Runs a subcommand that succeeds. Returns its JSON document.
    fn done(&self, line: &str) -> serde_json::Value {
        let (status, stdout, stderr) = self.plugins(&format!("{line} --json"));
        assert_eq!(status, 0, "{line}: {stdout}{stderr}");
        json(&stdout)
    }

    /// Runs a subcommand that fails with this status. Returns standard error.
    fn fails(&self, line: &str, status: i32) -> String {
        let (found, stdout, stderr) = self.plugins(line);
        assert_eq!((found, stdout.as_str()), (status, ""), "{line}: {stderr}");
        stderr
    }

    /// Creates a plugin and its author's key.
    fn author(name: &str) -> Self {
        let user = Self::new();
        user.done(&format!("new {name}"));
        user.done("keygen author.key");
        user
    }

    fn edit(&self, path: &str, from: &str, to: &str) {
        let path = self.path().join(path);
        let text = std::fs::read_to_string(&path).expect("a file");
        assert!(text.contains(from), "{text}");
        std::fs::write(path, text.replace(from, to)).expect("written");
    }
}

/// Promise (Plugins): A new plugin is valid, can be packed, installed, listed and uninstalled.
#[test]
fn a_new_plugin_is_packed_installed_listed_and_uninstalled() {
    for runtime in ["python", "node", "command"] {
        let user = User::author(&format!("hello --runtime {runtime}"));
        assert_eq!(user.plugins("validate hello").0, 0);
        assert!(user.fails("new hello", 125).contains("already exists"));
        let packed = user.done("package hello --key author.key");
        assert!(user.fails("package hello --key author.key", 125).contains("--force"));
        assert_eq!(user.done("package hello --key author.key --force")["digest"], packed["digest"]);
        let installed = user.done("install hello-0.1.0.cplugin --trust author.key.pub --yes");
        assert_eq!(installed["plugin"]["digest"], packed["digest"]);
        let directory = installed["directory"].as_str().expect("a path");
        assert!(Path::new(directory).join("plugin.toml").exists());
        let listed = user.done("list");
        assert_eq!(
            (&listed["plugins"][0]["name"], &listed["plugins"][0]["runtime"]),
            (&"hello".into(), &runtime.into())
        );
        assert!(user.plugins("list").1.starts_with("hello "));
        user.done("uninstall hello");
        assert!(!Path::new(directory).exists());
        assert_eq!(user.fails("uninstall hello", 127).lines().count(), 2);
        assert_eq!(user.done("list")["plugins"], serde_json::json!([]));
    }
}

/// Promise (Plugins): Without a terminal nothing is installed unless the key is trusted and `--yes` is passed.
#[test]
fn without_a_terminal_nothing_is_installed_unasked() {
    let user = User::author("hello");
    user.done("package hello --key author.key -o p.cplugin");
    user.done("keygen other.key");
    for (line, reason) in [
        ("install p.cplugin", "unknown key"),
        ("install p.cplugin --yes", "unknown key"),
        ("install p.cplugin --trust author.key.pub", "no terminal"),
        ("install p.cplugin --yes --trust other.key.pub", "the trusted key is"),
        ("install p.cplugin --yes --trust author.key", "private"),
        ("install missing.cplugin --yes", "cannot open"),
        ("install author.key --yes", "not-a-package"),
        ("package hello --key author.key -o p.zip", "does not end in .cplugin"),
        ("package hello --key author.key.pub -o q.cplugin", "cannot use the key file"),
    ] {
        let (status, stdout, stderr) = user.plugins(line);
        assert!(status != 0 && stdout.is_empty() && stderr.contains(reason), "{line}: {status} {stdout}{stderr}");
    }
    assert_eq!(user.done("list")["plugins"], serde_json::json!([]));
    user.done("install p.cplugin --yes --trust author.key.pub");
    // The key is known from now on.
    user.done("install p.cplugin --yes");
}

/// Promise (Plugins): An upgrade shows which permissions are new, and another key needs `--replace-key`.
#[test]
fn an_upgrade_shows_new_permissions_and_keeps_the_key() {
    let user = User::author("hello");
    user.done("package hello --key author.key -o old.cplugin");
    user.done("install old.cplugin --trust author.key.pub --yes");
    user.edit("hello/plugin.toml", "runtime", "permissions = [\"invoke\"]\nruntime");
    user.edit("hello/plugin.toml", "0.1.0", "0.2.0");
    user.done("package hello --key author.key -o new.cplugin");
    let (status, _, stderr) = user.plugins("install new.cplugin --yes");
    assert_eq!(status, 0, "{stderr}");
    for line in ["  replaces     0.1.0\n", "  new          permissions: invoke\n"] {
        assert!(stderr.contains(line), "{stderr}");
    }
    user.done("keygen other.key");
    user.done("package hello --key other.key -o foreign.cplugin");
    let refused = user.fails("install foreign.cplugin --yes --trust other.key.pub", 125);
    assert!(refused.contains("is signed with the key") && refused.contains("--replace-key"), "{refused}");
    let replaced = user.done("install foreign.cplugin --yes --trust other.key.pub --replace-key");
    assert_eq!(replaced["previous"], "0.2.0");
}

/// Promise (Plugins): On a terminal, only a yes installs a package.
#[test]
fn on_a_terminal_only_a_yes_installs() {
    let user = User::author("hello");
    user.done("package hello --key author.key -o p.cplugin");
    for (answers, installed) in [(&["n"][..], false), (&["y", ""], false), (&["y", "y"], true)] {
        let mut terminal = Terminal::new();
        let mut command = user.command();
        command
            .args(["install", "p.cplugin"])
            .stdin(terminal.stdio())
            .stdout(terminal.stdio())
            .stderr(terminal.stdio());
        let mut child = command.spawn().expect("started");
        for answer in answers {
            terminal.read_until("[y/N] ");
            terminal.screen.write_all(format!("{answer}\n").as_bytes()).expect("typed");
        }
        assert_eq!(child.wait().expect("ended").code(), Some(if installed { 0 } else { 1 }), "{answers:?}");
        assert_eq!(user.done("list")["plugins"].as_array().map(Vec::len), Some(usize::from(installed)));
    }
}

/// Promise (Plugins): An install that is killed at any moment leaves the old version or the new one, and the next install
/// removes what it left (B9).
#[test]
fn a_killed_install_leaves_the_old_version_or_the_new_one() {
    let user = User::author("hello");
    let large: Vec<u8> = (0..4_u32 << 20).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(user.path().join("hello/data"), large).expect("written");
    user.done("package hello --key author.key -o old.cplugin");
    user.edit("hello/plugin.toml", "0.1.0", "0.2.0");
    user.done("package hello --key author.key -o new.cplugin");
    let start = Instant::now();
    user.done("install new.cplugin --trust author.key.pub --yes");
    let whole = start.elapsed();
    let mut unfinished = 0;
    for kill in 0..KILLS {
        user.done("install old.cplugin --yes");
        let mut child = user.command().args(["install", "new.cplugin", "--yes"]).spawn().expect("started");
        std::thread::sleep(whole * kill / KILLS);
        child.kill().expect("killed");
        let is_done = child.wait().expect("ended").success();
        let listed = user.done("list");
        let version = listed["plugins"][0]["version"].as_str().expect("a version");
        assert!(version == "0.2.0" || (version == "0.1.0" && !is_done), "{listed}");
        unfinished += usize::from(version == "0.1.0");
        assert_eq!(user.plugins("inspect hello").0, 0);
    }
    assert!(unfinished > 0, "no install was killed before its end");
    user.done("install new.cplugin --yes");
    user.done("uninstall hello");
    let store = user.path().join("data/cofferdam/plugins/store");
    assert_eq!(std::fs::read_dir(store).expect("the store").count(), 0);
}

/// Promise (Plugins): `plugins logs --follow` prints the lines of a rotated log and those of the next one (B10).
#[test]
fn a_followed_log_is_whole_across_a_rotation() {
    let user = User::new();
    let (log, rotated) = (user.path().join("plugins.jsonl"), user.path().join("plugins.jsonl.1"));
    let line = |number: usize| format!("{{\"plugin\": \"p\", \"number\": {number}}}\n");
    std::fs::write(&log, line(0)).expect("written");
    let mut command = user.command();
    command.args(["logs", "--follow", "--json", "--state", "."]).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("started");
    let mut printed = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = || json(&printed.next().expect("a line").expect("read"))["number"].clone();
    assert_eq!(next(), 0);
    // All between two looks at the log, or nearly all.
    let mut file = std::fs::File::options().append(true).open(&log).expect("opened");
    file.write_all(line(1).as_bytes()).expect("written");
    std::fs::rename(&log, rotated).expect("renamed");
    std::fs::write(&log, line(2)).expect("written");
    assert_eq!((next(), next()), (1.into(), 2.into()));
    child.kill().expect("killed");
    child.wait().expect("ended");
}
