//! Cases: copies of files into and out of the workspace, as archives.

use std::sync::Arc;

use cofferdam_contract::archive::{TarEntry, TarKind, TarReader, TarWriter};
use cofferdam_contract::{
    ByteSize, CopyOut, CopyPattern, CopyReport, CopySkipped, ErrorKind, NewEntry, Sandbox, SandboxPath,
};

use crate::GuestProgram as P;
use crate::case::{Context, Outcome, Verdict, check, check_eq, expect_error, path, read_small, text, write_small};
use crate::pattern;

const SECRET: &str = "secret of the host";
/// Minimum number of attempts in a race.
const ROUNDS: u32 = 100;

/// An entry for an archive, with the contents of a file.
type Entry<'a> = (&'a str, TarKind, u32, &'a [u8]);

fn file<'a>(name: &'a str, mode: u32, contents: &'a [u8]) -> Entry<'a> {
    (name, TarKind::File(contents.len() as u64), mode, contents)
}

fn directory(name: &str, mode: u32) -> Entry<'_> {
    (name, TarKind::Directory, mode, b"")
}

fn link<'a>(name: &'a str, target: &str) -> Entry<'a> {
    (name, TarKind::Symlink(target.as_bytes().to_vec()), 0o777, b"")
}

async fn archive(entries: &[Entry<'_>]) -> Outcome<Vec<u8>> {
    let mut tar = TarWriter::new(Vec::new(), "conformance");
    for (name, kind, mode, contents) in entries {
        let path = name.as_bytes().to_vec();
        tar.entry(&TarEntry { kind: kind.clone(), path, mode: *mode, modified: 1_000_000_000 }).await?;
        if let TarKind::File(size) = kind {
            tar.contents(contents).await?;
            tar.pad(*size).await?;
        }
    }
    Ok(tar.finish().await?)
}

async fn put_in(sandbox: &Arc<dyn Sandbox>, to: &str, bytes: Vec<u8>) -> cofferdam_contract::Result<CopyReport> {
    sandbox.copy_in(&SandboxPath::new(to)?, Box::new(std::io::Cursor::new(bytes))).await
}

/// Copies out, and returns each entry as one line of path, kind, permissions and contents or target.
async fn taken_out(sandbox: &Arc<dyn Sandbox>, wanted: &CopyOut) -> Outcome<(Vec<String>, CopyReport)> {
    let mut bytes = Vec::new();
    let report = sandbox.copy_out(wanted, &mut bytes).await?;
    let mut reader = TarReader::new(&bytes[..], "conformance");
    let mut lines = Vec::new();
    while let Some(entry) = reader.next().await? {
        let name = text(&entry.path);
        lines.push(match entry.kind {
            TarKind::File(size) => {
                let contents = text(&reader.input()[..size as usize]);
                reader.skip(size).await?;
                format!("{name} {:o} {contents}", entry.mode)
            }
            TarKind::Directory => format!("{name}/ {:o}", entry.mode),
            TarKind::Symlink(target) => format!("{name} -> {}", text(&target)),
            TarKind::Link(_) | TarKind::Other => format!("{name} of another kind"),
        });
    }
    reader.expect_end().await?;
    Ok((lines, report))
}

pub(super) async fn round_trip(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let bytes = archive(&[
        directory("d", 0o750),
        file("d/script", 0o755, b"#!/bin/sh"),
        file("d/secret", 0o600, b"s"),
        directory("d/empty", 0o700),
        link("d/link", "../elsewhere"),
        file("made/on/the/way", 0o644, b"w"),
        file("set-id", 0o4755, b"x"),
    ])
    .await?;
    let report = put_in(&sandbox, "to", bytes).await?;
    check_eq!((report.entries, report.bytes), (7, 12), "entries and bytes copied in");
    let reasons: Vec<_> = report.skipped.iter().map(|skipped| skipped.reason).collect();
    check_eq!(reasons, vec![CopySkipped::SetId], "what the report lists");
    let done = cx.exec_ok(&sandbox, P::ReadFile { path: "to/d/script".into() }).await?;
    check_eq!(text(&done.stdout), "#!/bin/sh", "what the guest read");
    let (lines, report) = taken_out(&sandbox, &CopyOut::all(path("to")?)).await?;
    let expected = [
        "d/ 750",
        "d/empty/ 700",
        "d/link -> ../elsewhere",
        "d/script 755 #!/bin/sh",
        "d/secret 600 s",
        "made/ 755",
        "made/on/ 755",
        "made/on/the/ 755",
        "made/on/the/way 644 w",
        "set-id 755 x",
    ];
    check_eq!(lines, expected, "what came back");
    check_eq!((report.entries, report.bytes, report.skipped_count), (10, 12, 0), "entries and bytes copied out");
    Ok(())
}

pub(super) async fn replaces_files(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    write_small(&sandbox, "file", "old").await?;
    write_small(&sandbox, "target", "kept").await?;
    write_small(&sandbox, "directory/below", "kept").await?;
    cx.exec_ok(&sandbox, P::MakeSymlink { path: "link".into(), target: "target".into() }).await?;
    let bytes = archive(&[file("file", 0o600, b"new"), file("link", 0o644, b"a file now")]).await?;
    put_in(&sandbox, "", bytes).await?;
    check_eq!(text(&read_small(&sandbox, "file").await?), "new", "a replaced file");
    check_eq!(text(&read_small(&sandbox, "link").await?), "a file now", "a replaced link");
    check_eq!(text(&read_small(&sandbox, "target").await?), "kept", "the target of the replaced link");
    put_in(&sandbox, "", archive(&[link("file", "target")]).await?).await?;
    check_eq!(text(&read_small(&sandbox, "file").await?), "kept", "a file replaced by a link");
    for entry in [file("directory", 0o644, b"x"), link("directory", "target"), directory("target", 0o755)] {
        let refused = put_in(&sandbox, "", archive(&[entry]).await?).await;
        expect_error(refused, &[ErrorKind::Conflict], "an entry in the place of another kind")?;
    }
    check_eq!(text(&read_small(&sandbox, "directory/below").await?), "kept", "a file in a directory");
    Ok(())
}

pub(super) async fn selects_by_patterns(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    for name in ["a/one.txt", "a/two.png", "a/deep/three.txt", "b/four.txt", "c/five"] {
        write_small(&sandbox, name, "x").await?;
    }
    for (patterns, expected, unmatched) in [
        (&["a/*.txt"][..], &["a/ 755", "a/one.txt 644 x"][..], 0),
        (
            &["**/*.txt"],
            &["a/ 755", "a/deep/ 755", "a/deep/three.txt 644 x", "a/one.txt 644 x", "b/ 755", "b/four.txt 644 x"],
            0,
        ),
        (&["a/deep", "c"], &["a/ 755", "a/deep/ 755", "a/deep/three.txt 644 x", "c/ 755", "c/five 644 x"], 0),
        (&["c/five/below", "nothing"], &[], 2),
    ] {
        let patterns = patterns.iter().map(|pattern| CopyPattern::new(pattern)).collect::<Result<_, _>>()?;
        let wanted = CopyOut { patterns, ..CopyOut::all(path("")?) };
        let (lines, report) = taken_out(&sandbox, &wanted).await?;
        check_eq!(lines, expected, "what the patterns select");
        check_eq!(report.unmatched.len(), unmatched, "patterns without a match");
    }
    let (lines, _) = taken_out(&sandbox, &CopyOut::named("/workspace/a/one.txt")?).await?;
    check_eq!(lines, ["one.txt 644 x"], "a single file");
    let missing = sandbox.copy_out(&CopyOut::all(path("missing")?), &mut Vec::new()).await;
    expect_error(missing, &[ErrorKind::NotFound], "copying a missing directory")?;
    Ok(())
}

pub(super) async fn bounded(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    for name in ["a", "b", "c"] {
        sandbox.write_bytes(&path(name)?, pattern::bytes(100_000)).await?;
    }
    let all = CopyOut::all(path("")?);
    for wanted in
        [CopyOut { max_entries: 2, ..all.clone() }, CopyOut { max_bytes: ByteSize::from_bytes(250_000), ..all }]
    {
        let refused = sandbox.copy_out(&wanted, &mut tokio::io::sink()).await;
        expect_error(refused, &[ErrorKind::ResourceExhausted], "a copy beyond its bounds")?;
    }
    Ok(())
}

pub(super) async fn disk_limit_holds(cx: Context) -> Verdict {
    super::limits::enforced(&cx, cofferdam_contract::Protection::Disk).await?;
    let limit = ByteSize::from_mebibytes(8);
    let sandbox = cx.sandbox_of(cx.limited(|limits| limits.disk = Some(limit))?).await?;
    let contents = pattern::bytes(3 << 20);
    let names = ["one", "two", "three", "four"];
    let bytes = archive(&names.map(|name| file(name, 0o644, &contents))).await?;
    let refused = put_in(&sandbox, "", bytes).await;
    expect_error(refused, &[ErrorKind::ResourceExhausted], "a copy beyond the disk limit")?;
    Ok(())
}

pub(super) async fn hostile_archives(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    for name in ["../x", "/x", "a/../../x", "a//b"] {
        let refused = put_in(&sandbox, "sub", archive(&[file(name, 0o644, b"x")]).await?).await;
        expect_error(refused, &[ErrorKind::InvalidInput], &format!("an archive with the path {name:?}"))?;
    }
    let whole = archive(&[file("whole", 0o644, &[7; 5000])]).await?;
    for length in [100, 600, 4000] {
        let refused = put_in(&sandbox, "", whole[..length].to_vec()).await;
        expect_error(refused, &[ErrorKind::InvalidInput, ErrorKind::Io], "a truncated archive")?;
    }
    let missing = sandbox.read_file(&path("whole")?).await.map(drop);
    expect_error(missing, &[ErrorKind::NotFound], "a file whose contents were cut")?;
    let listed = sandbox.list_dir(&path("")?).await?;
    let names: Vec<_> = listed.iter().map(|entry| entry.name.as_str()).filter(|name| *name != "sub").collect();
    check!(names.is_empty(), "refused archives left {names:?}");
    Ok(())
}

pub(super) async fn links_on_the_way(cx: Context) -> Verdict {
    let secret = tempfile::tempdir()?;
    let target = secret.path().display().to_string();
    let sandbox = cx.sandbox().await?;
    write_small(&sandbox, "inside/file", "kept").await?;
    // An archive's own link, and links of the guest, that lead outside and inside.
    let own = archive(&[link("way", &target), file("way/file", 0o644, b"x")]).await?;
    expect_error(put_in(&sandbox, "", own).await, &[ErrorKind::PathEscape], "a path through the archive's own link")?;
    let links = [("out", target.as_str()), ("up", "../../../../../../../.."), ("in", "inside")];
    for (name, target) in links {
        cx.exec_ok(&sandbox, P::MakeSymlink { path: name.into(), target: target.into() }).await?;
        for entry in [file("file", 0o644, b"x"), link("file", "x"), directory("file", 0o755)] {
            let refused = put_in(&sandbox, name, archive(&[entry]).await?).await;
            expect_error(refused, &[ErrorKind::PathEscape], &format!("a copy through the link {name}"))?;
        }
        let entry = NewEntry::Directory { mode: 0o755 };
        expect_error(sandbox.put(&path(name)?, entry).await, &[ErrorKind::Conflict], "a directory in place of a link")?;
    }
    check_eq!(std::fs::read_dir(secret.path())?.count(), 0, "entries of the host's directory");
    check_eq!(text(&read_small(&sandbox, "inside/file").await?), "kept", "a file behind a link");
    Ok(())
}

pub(super) async fn skips_special_files(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let program = P::Sequence(vec![
        P::MakeFifo { path: "fifo".into() },
        P::MakeSymlink { path: "link".into(), target: "/etc/passwd".into() },
        P::WriteFile { path: ".wh.file".into(), contents: "x".into() },
        P::WriteFile { path: "line\nfeed".into(), contents: "x".into() },
    ]);
    cx.exec_ok(&sandbox, program).await?;
    let (lines, report) = taken_out(&sandbox, &CopyOut::all(path("")?)).await?;
    let mut modes = lines.clone();
    modes.retain(|line| line.starts_with("line\nfeed "));
    check_eq!((lines.len(), modes.len()), (2, 1), "copied entries");
    check!(lines.contains(&"link -> /etc/passwd".to_owned()), "no link as it is in {lines:?}");
    let skipped: Vec<_> = report.skipped.iter().map(|skipped| (skipped.path.as_str(), skipped.reason)).collect();
    check_eq!(skipped, [(".wh.file", CopySkipped::Reserved), ("fifo", CopySkipped::NotAFile)], "what the report lists");
    Ok(())
}

pub(super) async fn swapped_during_the_copy(cx: Context) -> Verdict {
    let secret = tempfile::tempdir()?;
    std::fs::write(secret.path().join("secret"), SECRET)?;
    let outside = secret.path().display().to_string();
    let sandbox = cx.sandbox().await?;
    write_small(&sandbox, "inside/secret", "of the guest").await?;
    let swap = P::SwapSymlinkForever { path: "way".into(), inside: "inside".into(), outside };
    let handle = sandbox.start(cx.request(&swap)?.build()?).await?;
    for _ in 0..ROUNDS {
        for from in ["", "way"] {
            let mut bytes = Vec::new();
            // The copied set depends on the moment, but never on files of the host.
            let _ = sandbox.copy_out(&CopyOut::all(path(from)?), &mut bytes).await;
            check!(!contains(&bytes, SECRET), "a copy of {from:?} contains a file of the host");
        }
        let entry = archive(&[file("made", 0o644, b"x")]).await?;
        let _ = put_in(&sandbox, "way", entry).await;
    }
    handle.close().await?;
    check_eq!(std::fs::read_dir(secret.path())?.count(), 1, "entries of the host's directory");
    Ok(())
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}
