//! Tests of the file API and of archives, with the real agent.

use std::io::Cursor;
use std::time::Duration;

use cofferdam_contract::{ErrorKind, FileReader, SandboxPath};
use cofferdam_guest::Guest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::enclosure::{LONG, guest};
use crate::execs::shell;

fn path(text: &str) -> SandboxPath {
    SandboxPath::new(text).unwrap()
}

fn contents(text: &'static str) -> FileReader {
    Box::new(text.as_bytes())
}

async fn read(guest: &Guest, name: &str) -> Vec<u8> {
    let mut data = Vec::new();
    guest.read_file(&path(name)).await.unwrap().read_to_end(&mut data).await.unwrap();
    data
}

/// Promise (Containers): The guest agent's file API follows links inside the workspace only.
#[tokio::test]
async fn links_are_followed_inside_and_nowhere_else() {
    let (_enclosure, guest) = guest().await;
    let line = "mkdir -p a/b/c && echo deep > a/b/c/file && ln -s ../../a/b a/b/again && ln -s again/c/../c/file a/b/way && \
                ln -s ../etc/passwd out && ln -s /etc/passwd absolute && ln -s loop loop && ln -s a/../../etc far && \
                ln -s /proc/self/root magic && ln -s a/b/c/. dot && ln -s new-target dangling";
    assert!(shell(&guest, line).await.0.success());
    for name in ["a/b/way", "a/b/again/c/file", "dot/file"] {
        assert_eq!(read(&guest, name).await, b"deep\n", "{name}");
    }
    for name in ["out", "absolute", "loop", "far/passwd", "magic/etc/passwd"] {
        let error = guest.read_file(&path(name)).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::PathEscape, "{name}: {error}");
        let error = guest.write_file(&path(name), contents("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PathEscape, "{name}: {error}");
    }
    let error = guest.list_dir(&path("magic/etc")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PathEscape);
    assert_eq!(guest.write_file(&path("dangling"), contents("through")).await.unwrap(), 7);
    assert_eq!(read(&guest, "new-target").await, b"through");
    // Removing a link keeps its target.
    guest.remove(&path("dot")).await.unwrap();
    assert_eq!(read(&guest, "a/b/c/file").await, b"deep\n");
    let (_, left) = shell(&guest, "ls -A | grep -c cofferdam-draft").await;
    assert_eq!(left, "0\n");
}

#[tokio::test]
async fn special_files_are_refused_without_blocking() {
    let (_enclosure, guest) = guest().await;
    let line = "mkfifo fifo && mkdir dir && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'";
    assert!(shell(&guest, line).await.0.success());
    for name in ["fifo", "dir", "sock", ""] {
        let reading = tokio::time::timeout(LONG, guest.read_file(&path(name))).await.expect("reading does not block");
        assert_eq!(reading.err().unwrap().kind(), ErrorKind::Conflict, "{name}");
        let error = guest.write_file(&path(name), contents("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{name}");
    }
}

/// Promise (Containers): The guest agent's file API stays inside the workspace while links are swapped.
#[tokio::test]
async fn swapped_links_never_expose_files_outside() {
    let (_enclosure, guest) = guest().await;
    assert!(shell(&guest, "mkdir in; echo inside > in/passwd; ln -s in here").await.0.success());
    let swap = "while :; do ln -sfn /etc here; ln -sfn in here; ln -sfn ../etc here; ln -sfn in here; done";
    assert!(shell(&guest, &format!("({swap}) > /dev/null 2>&1 & echo on")).await.0.success());
    let (mut inside, mut refused) = (0, 0);
    let begun = std::time::Instant::now();
    while (inside < 50 || refused < 50) && begun.elapsed() < LONG {
        match guest.read_file(&path("here/passwd")).await {
            Ok(mut reader) => {
                let mut data = Vec::new();
                reader.read_to_end(&mut data).await.unwrap();
                assert_eq!(data, b"inside\n");
                inside += 1;
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::PathEscape | ErrorKind::NotFound), "{error:?}");
                refused += 1;
            }
        }
        match guest.write_file(&path("here/new"), contents("x")).await {
            Ok(_) | Err(_) => {}
        }
    }
    assert!(inside >= 50 && refused >= 50, "{inside} inside, {refused} refused");
}

#[tokio::test]
async fn a_full_disk_leaves_the_old_file_and_no_draft() {
    let (_enclosure, guest) = guest().await;
    guest.write_file(&path("kept"), contents("old")).await.unwrap();
    let huge: FileReader = Box::new(tokio::io::repeat(1).take(crate::enclosure::DISK));
    let error = guest.write_file(&path("kept"), huge).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    assert_eq!(read(&guest, "kept").await, b"old");
    assert_eq!(shell(&guest, "ls -A").await.1, "kept\n");
    // Dropped half-way.
    let (mut ours, theirs) = tokio::io::duplex(1024);
    let name = path("half");
    let writing = guest.write_file(&name, Box::new(theirs));
    ours.write_all(b"some").await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(200), writing).await.is_err());
    assert_eq!(shell(&guest, "ls -A").await.1, "kept\n");
}

#[tokio::test]
async fn deep_wide_and_oddly_named_trees_are_listed_and_removed() {
    let (_enclosure, guest) = guest().await;
    let line = r#"import os
os.mkdir("tree"); os.chdir("tree")
for i in range(2000): open(f"{i:04}", "w").close()
open(b"\xff\xfe\n", "w").close()
for i in range(900): os.mkdir("d"); os.chdir("d")
"#;
    guest.write_file(&path("make.py"), Box::new(Cursor::new(line))).await.unwrap();
    assert!(shell(&guest, "python3 make.py").await.0.success());
    let found = guest.list_dir(&path("tree")).await.unwrap();
    assert_eq!(found.len(), 2002);
    assert!(found.is_sorted_by_key(|entry| entry.name.clone()));
    guest.remove(&path("tree")).await.unwrap();
    assert_eq!(shell(&guest, "ls -A").await.1, "make.py\n");
}

const TREE: &str = r#"
mkdir -p src/empty 'with space' && echo one > src/one && chmod 640 src/one && ln src/one src/two && ln -s one src/three
ln -s /nowhere/at/all dangling && printf '\0\1\2' > 'with space/binary' && : > nothing
head -c 3000000 /dev/urandom > large && chmod 700 src && mkfifo fifo
long=$(printf 'x%.0s' $(seq 200)) && mkdir -p $long/$long && echo deep > $long/$long/$long && ln -s $long/$long/$long far
touch -d @1000000000 src/one large src/empty && touch -h -d @1000000001 dangling
"#;
/// A command that lists all properties that an archive preserves.
const LISTING: &str = "find . ! -name fifo ! -name . -printf '%P %y %m %l %s\\n' | sed 's/ d \\([0-9]*\\)  [0-9]*$/ d \\1/' | sort; \
                    find . -type f -exec cksum {} + | sort; stat -c '%n %Y' src/one large src/empty dangling; \
                    stat -c %h src/two; find . -name fifo";

#[tokio::test]
async fn an_archive_is_the_same_each_time_and_comes_back_whole() {
    let (_enclosure, first) = guest().await;
    let (exit, _) = shell(&first, TREE).await;
    assert!(exit.success(), "{exit:?}");
    let (_, listing) = shell(&first, LISTING).await;
    let mut archive = Vec::new();
    let created = first.export(&mut archive).await.unwrap();
    assert_eq!(created.bytes, archive.len() as u64);
    let mut again = Vec::new();
    assert_eq!(first.export(&mut again).await.unwrap(), created);
    assert!(again == archive);

    let (_enclosure, second) = guest().await;
    let read = second.import(&mut &archive[..]).await.unwrap();
    assert_eq!(read, created, "the same length, entries and hash");
    let (_, imported) = shell(&second, LISTING).await;
    assert_eq!(imported.trim(), listing.replace("./fifo", "").trim());
    let mut third = Vec::new();
    assert_eq!(second.export(&mut third).await.unwrap(), created, "the imported workspace exports to the same archive");

    // `tar` reads it, too.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("layer.tar");
    std::fs::write(&file, &archive).unwrap();
    let output = std::process::Command::new("tar").arg("-tf").arg(&file).output().unwrap();
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(names.lines().any(|name| name == "workspace/with space/binary"), "{names}");
    assert_eq!(names.lines().count() as u64, created.entries);
}

fn header(kind: tar::EntryType, name: &str, target: &str, size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_link_name_literal(target).unwrap();
    header.set_size(size);
    header.set_mode(0o6777);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    header.as_bytes().to_vec()
}

#[tokio::test]
async fn hostile_archives_are_refused_and_put_nothing_outside() {
    use tar::EntryType as E;
    let (_enclosure, guest) = guest().await;
    let end = vec![0; 1024];
    let data = |text: &str| [text.as_bytes(), &vec![0; 512 - text.len()][..]].concat();
    let mut bad_sum = header(E::Regular, "workspace/a", "", 0);
    bad_sum[150] ^= 1;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("nothing at all", vec![]),
        ("no header", vec![b'x'; 2048]),
        ("a wrong sum", [bad_sum, end.clone()].concat()),
        ("an absolute path", [header(E::Regular, "/etc/x", "", 0), end.clone()].concat()),
        ("a way up", [header(E::Regular, "workspace/../x", "", 0), end.clone()].concat()),
        ("a device", [header(E::Char, "workspace/null", "", 0), end.clone()].concat()),
        ("a size that lies", [header(E::Regular, "workspace/a", "", 1 << 40), data("short"), end.clone()].concat()),
        ("no end", header(E::Regular, "workspace/a", "", 0)),
        ("something after the end", [end.clone(), b"more".to_vec()].concat()),
        ("huge records", [header(E::XHeader, "x", "", 1 << 33), end.clone()].concat()),
        ("broken records", [header(E::XHeader, "x", "", 9), data("99999 a=b"), end.clone()].concat()),
        ("records of nothing", [header(E::XHeader, "x", "", 9), data("9 path=a\n"), end.clone()].concat()),
    ];
    for (what, bytes) in cases {
        let error = guest.import(&mut &bytes[..]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{what}: {error}");
    }
    // First a link, and then a file through it.
    for target in ["/tmp", "../tmp", "."] {
        let bytes = [
            header(E::Symlink, "workspace/link", target, 0),
            header(E::Regular, "workspace/link/file", "", 5),
            data("there"),
            end.clone(),
        ];
        let error = guest.import(&mut &bytes.concat()[..]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PathEscape, "{target}: {error}");
        guest.remove(&path("link")).await.unwrap();
    }
    let (_, found) = shell(&guest, "ls -A /tmp; ls -A; find / -xdev -perm /6000 -user 1000 2>/dev/null").await;
    assert_eq!(found.lines().filter(|name| *name != ".cofferdam-code").collect::<Vec<_>>(), ["a"]);
    // A file at the path of a link replaces the link.
    let bytes = [
        header(E::Symlink, "workspace/link", "/tmp/x", 0),
        header(E::Regular, "workspace/link", "", 5),
        data("there"),
        end,
    ];
    guest.import(&mut &bytes.concat()[..]).await.unwrap();
    assert_eq!(shell(&guest, "stat -c '%F %a' link; cat link").await.1, "regular file 777\nthere");
}
