//! Cases: the file API with cooperative guests.

use std::sync::Arc;

use cofferdam_contract::{ByteSize, EntryKind, ErrorKind, Sandbox};

use crate::GuestProgram as P;
use crate::case::{Context, Stop, Verdict, check, check_eq, expect_error, path, read_small, text, write_small};
use crate::pattern::{self, PatternReader};

pub(super) async fn round_trip(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let all: Vec<u8> = (0..=255).collect();
    for (name, contents) in [
        ("empty", Vec::new()),
        ("small", b"hello\n".to_vec()),
        ("binary", all),
        ("a name with spaces, 'quotes' and \u{e9}", b"x".to_vec()),
        ("made/on/the/way/file", pattern::bytes(100_000)),
    ] {
        let written = sandbox.write_bytes(&path(name)?, contents.clone()).await?;
        check_eq!(written, contents.len() as u64, format!("bytes written to {name:?}"));
        check!(read_small(&sandbox, name).await? == contents, "{name:?} came back changed");
    }
    write_small(&sandbox, "small", "shorter").await?;
    check_eq!(text(&read_small(&sandbox, "small").await?), "shorter", "a replaced file");
    Ok(())
}

pub(super) async fn large_file(cx: Context) -> Verdict {
    let size = cx.large_file().as_bytes();
    // Space for the file beside the one that it replaces, and for backends that keep it in memory.
    let spec = cx.limited(|limits| {
        limits.disk = Some(ByteSize::from_bytes(size * 2 + (64 << 20)));
        limits.memory = Some(ByteSize::from_bytes(size * 2 + (512 << 20)));
    })?;
    let sandbox = cx.sandbox_of(spec).await?;
    let name = path("large")?;
    let written = sandbox.write_file(&name, Box::new(PatternReader::new(size))).await?;
    check_eq!(written, size, "bytes written");
    match pattern::verify(sandbox.read_file(&name).await?).await? {
        Ok(read) => check_eq!(read, size, "bytes read back"),
        Err(at) => return Err(Stop::fail(format!("the file differs near byte {at}"))),
    }
    let listed = sandbox.list_dir(&path("")?).await?;
    check_eq!(listed.iter().map(|entry| entry.size).collect::<Vec<_>>(), vec![size], "listed sizes");
    Ok(())
}

pub(super) async fn shared_with_the_guest(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    write_small(&sandbox, "sub/in", "from outside").await?;
    let program = P::Sequence(vec![
        P::ReadFile { path: "sub/in".into() },
        P::WriteFile { path: "out".into(), contents: "from inside".into() },
        P::WriteFile { path: "sub/out".into(), contents: "into a directory of the API's".into() },
    ]);
    let done = cx.exec_ok(&sandbox, program).await?;
    check_eq!(text(&done.stdout), "from outside", "what the guest read");
    check_eq!(text(&read_small(&sandbox, "out").await?), "from inside", "what the guest wrote");
    check_eq!(text(&read_small(&sandbox, "sub/out").await?), "into a directory of the API's", "what the guest wrote");
    Ok(())
}

async fn names(sandbox: &Arc<dyn Sandbox>, directory: &str) -> Result<Vec<String>, Stop> {
    Ok(sandbox.list_dir(&path(directory)?).await?.into_iter().map(|entry| entry.name).collect())
}

pub(super) async fn replaced_whole_or_not_at_all(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    write_small(&sandbox, "file", "old").await?;
    for name in ["file", "new"] {
        let failing = Box::new(PatternReader::failing_at(1 << 20, 300_000));
        let result = sandbox.write_file(&path(name)?, failing).await;
        check!(result.is_err(), "writing {name} succeeded although its source failed");
    }
    check_eq!(text(&read_small(&sandbox, "file").await?), "old", "the file whose replacement failed");
    check_eq!(names(&sandbox, "").await?, vec!["file"], "entries after the failures");
    Ok(())
}

pub(super) async fn list(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    check_eq!(names(&sandbox, "").await?, Vec::<String>::new(), "a new workspace");
    for (name, contents) in [("b", "12345"), ("a/below", "x"), ("B", "")] {
        write_small(&sandbox, name, contents).await?;
    }
    let program = P::Sequence(vec![
        P::MakeSymlink { path: "c".into(), target: "b".into() },
        P::MakeFifo { path: "d".into() },
        P::MakeDirectory { path: "e".into() },
        P::MakeFiles { path: "e".into(), count: 1500 },
    ]);
    cx.exec_ok(&sandbox, program).await?;
    let listed = sandbox.list_dir(&path("")?).await?;
    let seen: Vec<_> = listed.iter().map(|entry| (entry.name.as_str(), entry.kind)).collect();
    let (file, directory) = (EntryKind::File, EntryKind::Directory);
    let expected = vec![
        ("B", file),
        ("a", directory),
        ("b", file),
        ("c", EntryKind::Symlink),
        ("d", EntryKind::Other),
        ("e", directory),
    ];
    check_eq!(seen, expected, "entries and their kinds");
    let sizes: Vec<u64> = listed.iter().filter(|entry| entry.kind == file).map(|entry| entry.size).collect();
    check_eq!(sizes, vec![0, 5], "sizes of the files");
    let mut expected: Vec<String> = (0..1500).map(|number| format!("f{number}")).collect();
    expected.sort();
    check!(names(&sandbox, "e").await? == expected, "the 1500 entries are incomplete or not in order");
    check_eq!(names(&sandbox, "a").await?, vec!["below"], "entries of a directory below");
    Ok(())
}

pub(super) async fn remove(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    for name in ["file", "kept", "tree/a/b", "tree/c", "outside-the-tree/x"] {
        write_small(&sandbox, name, name).await?;
    }
    let program = P::Sequence(vec![
        P::MakeSymlink { path: "link".into(), target: "kept".into() },
        P::MakeSymlink { path: "tree/link".into(), target: "../outside-the-tree".into() },
        P::MakeFifo { path: "tree/fifo".into() },
    ]);
    cx.exec_ok(&sandbox, program).await?;
    for name in ["file", "link", "tree"] {
        sandbox.remove(&path(name)?).await?;
    }
    check_eq!(names(&sandbox, "").await?, vec!["kept", "outside-the-tree"], "the remaining entries");
    check_eq!(text(&read_small(&sandbox, "kept").await?), "kept", "the removed link's target");
    check_eq!(names(&sandbox, "outside-the-tree").await?, vec!["x"], "the target of a link in the removed tree");
    Ok(())
}

pub(super) async fn rename(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    for name in ["file", "old", "tree/a/b", "kept", "into/x"] {
        write_small(&sandbox, name, name).await?;
    }
    let program = P::Sequence(vec![
        P::MakeSymlink { path: "link".into(), target: "kept".into() },
        P::MakeDirectory { path: "empty".into() },
    ]);
    cx.exec_ok(&sandbox, program).await?;
    for (from, to) in [
        ("file", "into/file"),
        // A file is replaced, an empty directory by a directory, and a link is moved as such.
        ("into/file", "old"),
        ("tree", "empty"),
        ("link", "into/link"),
        ("kept", "kept"),
    ] {
        sandbox.rename(&path(from)?, &path(to)?).await?;
    }
    check_eq!(names(&sandbox, "").await?, vec!["empty", "into", "kept", "old"], "the entries after the renames");
    check_eq!(names(&sandbox, "into").await?, vec!["link", "x"], "entries of the directory that a link was moved to");
    check_eq!(text(&read_small(&sandbox, "old").await?), "file", "the file that replaced another one");
    check_eq!(text(&read_small(&sandbox, "empty/a/b").await?), "tree/a/b", "a file in the directory that was moved");
    check_eq!(text(&read_small(&sandbox, "kept").await?), "kept", "the target of the link that was moved");
    Ok(())
}

pub(super) async fn rename_refused(cx: Context) -> Verdict {
    use ErrorKind::{Conflict, InvalidInput, NotFound};
    let sandbox = cx.sandbox().await?;
    for name in ["file", "tree/a", "full/b"] {
        write_small(&sandbox, name, name).await?;
    }
    for (from, to, kind, what) in [
        ("nothing", "new", NotFound, "renaming a missing file"),
        ("file", "nothing/new", NotFound, "renaming into a missing directory"),
        ("file", "tree", Conflict, "renaming a file to a directory"),
        ("tree", "file", Conflict, "renaming a directory to a file"),
        ("tree", "full", Conflict, "renaming to a directory with entries"),
        ("file/x", "new", Conflict, "renaming below a file"),
        ("tree", "tree/below", InvalidInput, "renaming a directory into itself"),
        ("", "new", InvalidInput, "renaming the workspace"),
        ("tree", "", InvalidInput, "replacing the workspace"),
    ] {
        expect_error(sandbox.rename(&path(from)?, &path(to)?).await, &[kind], what)?;
    }
    check_eq!(names(&sandbox, "").await?, vec!["file", "full", "tree"], "the entries after refused renames");
    check_eq!(names(&sandbox, "tree").await?, vec!["a"], "the entries of the directory");
    Ok(())
}

pub(super) async fn missing(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let missing = [ErrorKind::NotFound];
    for name in ["nothing", "nothing/below"] {
        let name = path(name)?;
        expect_error(sandbox.read_file(&name).await, &missing, "reading a missing file")?;
        expect_error(sandbox.list_dir(&name).await, &missing, "listing a missing directory")?;
        expect_error(sandbox.remove(&name).await, &missing, "removing a missing file")?;
    }
    Ok(())
}

pub(super) async fn disk_limit_holds(cx: Context) -> Verdict {
    super::limits::enforced(&cx, cofferdam_contract::Protection::Disk).await?;
    let limit = 8u64 << 20;
    let sandbox = cx.sandbox_of(cx.limited(|limits| limits.disk = Some(ByteSize::from_bytes(limit)))?).await?;
    let big = sandbox.write_file(&path("big")?, Box::new(PatternReader::new(limit * 4))).await;
    expect_error(big, &[ErrorKind::ResourceExhausted], "writing four times the disk limit")?;
    check_eq!(names(&sandbox, "").await?, Vec::<String>::new(), "entries after the refusal");
    write_small(&sandbox, "small", "fits").await?;
    check_eq!(text(&read_small(&sandbox, "small").await?), "fits", "a file that fits");
    Ok(())
}
