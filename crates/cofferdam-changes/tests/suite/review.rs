//! Reviews as text and as data.

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use cofferdam_changes::{ApplyOptions, ChangeSet, Color, Kind, RenderOptions, Stat, document, render, resolve};

use crate::common::*;

fn text(f: &Fixture, set: &ChangeSet, options: &RenderOptions) -> (String, Stat) {
    let mut text = Vec::new();
    let stat = render(set, f.open().as_fd(), options, &mut text).unwrap();
    (String::from_utf8(text).unwrap(), stat)
}

#[test]
fn changes_that_the_workspace_has_are_marked() {
    let f = Fixture::new(&[("edit", "1\n"), ("gone", "1\n"), ("old", "contents\n"), ("run", "#!\n")]);
    put(&f.guest, "edit", "2\n");
    put(&f.guest, "d/new", "2\n");
    put(&f.guest, ".envrc", "2\n");
    fs::remove_file(f.guest.join("gone")).unwrap();
    fs::rename(f.guest.join("old"), f.guest.join("moved")).unwrap();
    mode(&f.guest.join("run"), 0o755);
    let set = f.set();
    let applied = || {
        let changes = document(&set, f.open().as_fd()).unwrap().changes;
        let applied = changes.iter().filter(|change| change.is_applied).map(|change| change.path.clone());
        let lines = text(&f, &set, &RenderOptions::default()).0.matches("\napplied: ").count();
        let applied: Vec<_> = applied.collect();
        assert_eq!(lines, applied.len());
        applied
    };
    assert_eq!(applied(), Vec::<String>::new());
    f.apply(&set, &ApplyOptions::default());
    assert_eq!(applied(), ["d", "d/new", "edit", "gone", "moved", "old", "run"]);
}

#[test]
fn reviews_look_like_git() {
    let f =
        Fixture::new(&[("code", "1\n2\n3\n4\n5\n6\n7\n8\n9\n"), ("gone", "x\n"), ("run", "#!\n"), ("img", "\0old")]);
    put(&f.guest, "code", "1\n2\n3\n4\nfive\n6\n7\n8\n9");
    put(&f.guest, "img", &format!("\0{}", "x".repeat(1228)));
    put(&f.guest, "new", "one\n");
    fs::remove_file(f.guest.join("gone")).unwrap();
    mode(&f.guest.join("run"), 0o755);
    link("code", &f.guest, "link");
    let (text, stat) = text(&f, &f.set(), &RenderOptions::default());
    let expected = "\
diff a/code b/code
--- a/code
+++ b/code
@@ -2,8 +2,8 @@
 2
 3
 4
-5
+five
 6
 7
 8
-9
+9
\\ No newline at end of file
diff a/gone b/gone
deleted file mode 644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-x
diff a/img b/img
Binary file img changed: 4 B -> 1.2 KiB
diff a/link b/link
new symlink mode 777
+link to code
diff a/new b/new
new file mode 644
--- /dev/null
+++ b/new
@@ -0,0 +1 @@
+one
diff a/run b/run
old mode 644
new mode 755
6 files changed, 3 insertions(+), 3 deletions(-)
";
    assert_eq!(text, expected);
    assert_eq!(stat, Stat { files: 6, insertions: 3, deletions: 3 });
}

/// Promise (Files): The review of a change set shows control characters of names and contents escaped.
#[test]
fn terminals_interpret_no_bytes_of_the_guest() {
    let f = Fixture::new(&[("a", "1\n")]);
    put(&f.guest, "a", "\x1b[2J\r\x07\u{9b}31m\u{202e}\ttab\n");
    put(&f.guest, "na\x1b]0;x\x07me\n+++", "x\n");
    fs::write(f.guest.join(bytes(b"\xff\x9b")), "x").unwrap();
    link("/x\x1b[0m\u{2066}", &f.guest, "link");
    let set = f.set();
    for color in [Color::Never, Color::Always] {
        let (text, _) = text(&f, &set, &RenderOptions { color, ..RenderOptions::default() });
        let ours = ["\u{1b}[1m", "\u{1b}[36m", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[1;33m", "\u{1b}[0m"];
        let text = ours.iter().fold(text, |text, ours| text.replace(ours, ""));
        let bad = text.chars().find(|c| (c.is_control() && !"\n\t".contains(*c)) || "\u{202e}\u{2066}".contains(*c));
        assert_eq!(bad, None, "{text:?}");
        assert!(text.contains("+\\u{1b}[2J\\u{d}\\u{7}\\u{9b}31m\\u{202e}\ttab"), "{text}");
        assert!(text.contains("na\\u{1b}]0;x\\u{7}me\\u{a}+++") && text.contains("\\xff\\x9b"), "{text}");
    }
}

#[test]
fn renamed_files_are_one_change() {
    let f = Fixture::new(&[("old/a", "contents a"), ("old/b", "contents b"), ("single", "contents c"), ("zero", "")]);
    fs::rename(f.guest.join("old"), f.guest.join("new")).unwrap();
    fs::rename(f.guest.join("single"), f.guest.join("moved")).unwrap();
    fs::rename(f.guest.join("zero"), f.guest.join("empty")).unwrap();
    let set = f.set();
    let renamed: Vec<_> = resolve(&set, f.open().as_fd())
        .unwrap()
        .into_iter()
        .filter_map(|change| match change.kind {
            Kind::Renamed { from } => Some((from, change.path)),
            _ => None,
        })
        .collect();
    let expected = [("single", "moved"), ("old/a", "new/a"), ("old/b", "new/b")];
    assert_eq!(renamed, expected.map(|(from, to)| (PathBuf::from(from), PathBuf::from(to))));
    let (text, _) = text(&f, &set, &RenderOptions::default());
    assert!(text.contains("rename from single\nrename to moved\n"), "{text}");
    assert!(!text.contains("diff a/single b/single"), "{text}");
    f.apply_all(&set);
    assert_eq!(tree(&f.base), tree(&f.guest));
}

#[test]
fn large_files_are_summarised() {
    let f = Fixture::new(&[("a", "1")]);
    put(&f.guest, "a", &"x\n".repeat(600));
    let (text, stat) = text(&f, &f.set(), &RenderOptions { max_text: 1000, ..RenderOptions::default() });
    assert!(text.contains("Large file a changed: 1 B -> 1.1 KiB"), "{text}");
    assert_eq!(stat.insertions, 0);
}

#[test]
fn conflicts_and_guarded_files_are_shown() {
    let f = Fixture::new(&[("a", "1")]);
    put(&f.guest, "a", "2");
    put(&f.guest, ".envrc", "x");
    let set = f.set();
    put(&f.base, "a", "host");
    let (text, _) = text(&f, &set, &RenderOptions::default());
    assert!(text.contains("conflict: the host changed the file after the capture"), "{text}");
    assert!(text.contains("guarded: direnv runs it"), "{text}");
}

#[test]
fn documents_have_stable_names() {
    let f = Fixture::new(&[("a", "1\n"), ("old", "same")]);
    put(&f.guest, "a", "2\n3\n");
    fs::rename(f.guest.join("old"), f.guest.join("new")).unwrap();
    fs::write(f.guest.join(bytes(b"\xff")), "\0").unwrap();
    link("a", &f.guest, "link");
    let set = f.set();
    let found = serde_json::to_value(document(&set, f.open().as_fd()).unwrap()).unwrap();
    let expected = serde_json::json!([
        { "path": "a", "kind": "modified", "type": "file", "size": 4, "mode": "0644", "insertions": 2, "deletions": 1,
          "binary": false },
        { "path": "link", "kind": "added", "type": "symlink", "target": "a", "binary": false },
        { "path": "new", "kind": "renamed", "type": "file", "size": 4, "mode": "0644", "from": "old", "binary": false },
        { "path": "\u{fffd}", "path_base64": "/w==", "kind": "added", "type": "file", "size": 1, "mode": "0644",
          "binary": true },
    ]);
    assert_eq!(found["changes"], expected);
    assert_eq!(found["summary"], serde_json::json!({ "files": 4, "insertions": 2, "deletions": 1 }));
    assert_eq!(found["workspace"], f.base.to_str().unwrap());
}
