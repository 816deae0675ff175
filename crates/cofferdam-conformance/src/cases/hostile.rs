//! Cases: the file API with hostile guests.
//!
//! The case creates a host directory with a secret. Its contents must never be readable, and it must never change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{ByteSize, EntryKind, ErrorKind, Sandbox, SandboxPath};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::GuestProgram as P;
use crate::case::{
    Context, Outcome, Stop, Verdict, check, check_eq, expect_error, path, read_small, text, write_small,
};

const SECRET: &str = "secret of the host";
const ESCAPE: [ErrorKind; 1] = [ErrorKind::PathEscape];
/// More than any call here takes, and less than the case's deadline.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Minimum number of attempts in a race.
const ROUNDS: u32 = 400;

/// A host directory with a secret, and link targets that lead to it.
struct HostSecret {
    directory: TempDir,
}

impl HostSecret {
    fn new() -> Outcome<Self> {
        let secret = Self { directory: tempfile::tempdir()? };
        std::fs::write(secret.file(), SECRET)?;
        Ok(secret)
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("secret")
    }

    /// Returns link targets that lead to the directory: absolute, through `..`, and through `/proc`.
    fn targets(&self) -> [String; 3] {
        let absolute = self.directory.path().display().to_string();
        let up = "../".repeat(20);
        [absolute.clone(), format!("{up}{}", &absolute[1..]), format!("/proc/self/root{absolute}")]
    }

    fn unharmed(&self) -> Verdict {
        check_eq!(std::fs::read_to_string(self.file())?, SECRET, "the host's secret");
        check_eq!(std::fs::read_dir(self.directory.path())?.count(), 1, "entries of the host's directory");
        Ok(())
    }
}

/// Creates a sandbox with a link `fileN` to the secret and a link `dirN` to its directory for each target.
async fn trapped(cx: &Context, secret: &HostSecret) -> Outcome<Arc<dyn Sandbox>> {
    let sandbox = cx.sandbox().await?;
    let mut links = Vec::new();
    for (number, target) in secret.targets().into_iter().enumerate() {
        links.push(P::MakeSymlink { path: format!("file{number}"), target: format!("{target}/secret") });
        links.push(P::MakeSymlink { path: format!("dir{number}"), target });
    }
    cx.exec_ok(&sandbox, P::Sequence(links)).await?;
    Ok(sandbox)
}

/// Opens a file and reads its contents.
async fn read(sandbox: &Arc<dyn Sandbox>, name: &SandboxPath) -> cofferdam_contract::Result<Vec<u8>> {
    sandbox.read_file_to_end(name, ByteSize::from_bytes(65_536)).await
}

pub(super) async fn dot_dot_and_absolute(cx: Context) -> Verdict {
    for text in ["..", "../x", "a/../../x", "a/..", "/etc/hostname", "/workspacex", "/workspace/../etc/hostname", "/"] {
        expect_error(SandboxPath::new(text), &ESCAPE, &format!("the path {text:?}"))?;
    }
    // Names that only resemble an escape are ordinary names.
    let sandbox = cx.sandbox().await?;
    for name in ["...", "..x", "a\\..\\b", "%2e%2e", "~"] {
        write_small(&sandbox, name, name).await?;
        check_eq!(text(&read_small(&sandbox, name).await?), name, "contents of an odd name");
    }
    Ok(())
}

pub(super) async fn read_through_a_link_outside(cx: Context) -> Verdict {
    let secret = HostSecret::new()?;
    let sandbox = trapped(&cx, &secret).await?;
    for number in 0..3 {
        for name in [format!("file{number}"), format!("dir{number}/secret")] {
            expect_error(read(&sandbox, &path(&name)?).await, &ESCAPE, &format!("reading {name}, a link outside"))?;
        }
    }
    Ok(())
}

pub(super) async fn write_through_a_link_outside(cx: Context) -> Verdict {
    let secret = HostSecret::new()?;
    let sandbox = trapped(&cx, &secret).await?;
    for number in 0..3 {
        for name in [format!("file{number}"), format!("dir{number}/secret"), format!("dir{number}/new/file")] {
            let result = sandbox.write_bytes(&path(&name)?, "changed").await;
            expect_error(result, &ESCAPE, &format!("writing {name}, through a link outside"))?;
            secret.unharmed()?;
        }
    }
    Ok(())
}

pub(super) async fn list_through_a_link_outside(cx: Context) -> Verdict {
    let secret = HostSecret::new()?;
    let sandbox = trapped(&cx, &secret).await?;
    for number in 0..3 {
        let name = path(&format!("dir{number}"))?;
        expect_error(sandbox.list_dir(&name).await, &ESCAPE, "listing a link to a directory outside")?;
    }
    Ok(())
}

pub(super) async fn remove_through_a_link_outside(cx: Context) -> Verdict {
    let secret = HostSecret::new()?;
    let sandbox = trapped(&cx, &secret).await?;
    for number in 0..3 {
        let through = path(&format!("dir{number}/secret"))?;
        expect_error(sandbox.remove(&through).await, &ESCAPE, "removing through a link outside")?;
        for link in [format!("file{number}"), format!("dir{number}")] {
            sandbox.remove(&path(&link)?).await?;
        }
        secret.unharmed()?;
    }
    check_eq!(sandbox.list_dir(&path("")?).await?.len(), 0, "links left");
    Ok(())
}

pub(super) async fn rename_through_a_link_outside(cx: Context) -> Verdict {
    let secret = HostSecret::new()?;
    let sandbox = trapped(&cx, &secret).await?;
    write_small(&sandbox, "own", "own").await?;
    for number in 0..3 {
        let through = path(&format!("dir{number}/secret"))?;
        expect_error(sandbox.rename(&through, &path("taken")?).await, &ESCAPE, "renaming a file outside")?;
        expect_error(sandbox.rename(&path("own")?, &through).await, &ESCAPE, "renaming to a file outside")?;
        // The links themselves are moved and replaced.
        sandbox.rename(&path(&format!("dir{number}"))?, &path(&format!("moved{number}"))?).await?;
        sandbox.rename(&path("own")?, &path(&format!("file{number}"))?).await?;
        check_eq!(text(&read_small(&sandbox, &format!("file{number}")).await?), "own", "the file that replaced a link");
        sandbox.rename(&path(&format!("file{number}"))?, &path("own")?).await?;
        secret.unharmed()?;
    }
    Ok(())
}

pub(super) async fn link_inside_is_followed(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    write_small(&sandbox, "sub/file", "inside").await?;
    let links = vec![
        P::MakeSymlink { path: "link".into(), target: "sub/file".into() },
        P::MakeSymlink { path: "sub/up".into(), target: "../link".into() },
        P::MakeSymlink { path: "dir".into(), target: "./sub".into() },
    ];
    cx.exec_ok(&sandbox, P::Sequence(links)).await?;
    for name in ["link", "sub/up", "dir/file", "dir/up"] {
        check_eq!(text(&read_small(&sandbox, name).await?), "inside", format!("contents of {name}"));
    }
    write_small(&sandbox, "dir/new", "through a link").await?;
    check_eq!(text(&read_small(&sandbox, "sub/new").await?), "through a link", "a file written through a link");
    Ok(())
}

pub(super) async fn link_loop(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let links = vec![
        P::MakeSymlink { path: "a".into(), target: "b".into() },
        P::MakeSymlink { path: "b".into(), target: "a".into() },
        P::MakeSymlink { path: "self".into(), target: "self/self".into() },
    ];
    cx.exec_ok(&sandbox, P::Sequence(links)).await?;
    for name in ["a", "a/x", "self"] {
        let result = within(read(&sandbox, &path(name)?)).await?;
        check!(result.is_err(), "reading {name}, a link in a loop, succeeded");
    }
    Ok(())
}

async fn within<T>(future: impl Future<Output = T>) -> Outcome<T> {
    timeout(CALL_TIMEOUT, future).await.map_err(|_| Stop::fail("a file of the guest blocked the file API"))
}

/// Calls the file API repeatedly while a guest makes `name` lead inside and outside alternately.
async fn race(cx: &Context, secret: &HostSecret, swapped: &str, inside: &str, outside: String, name: &str) -> Verdict {
    let sandbox = cx.sandbox().await?;
    write_small(&sandbox, "real/secret", "inside").await?;
    let program = P::SwapSymlinkForever { path: swapped.into(), inside: inside.into(), outside };
    let handle = cx.start_ready(&sandbox, program).await?;
    let (file, directory) = (path(name)?, path(swapped)?);
    let (mut good, mut refused) = (0, 0);
    for round in 0..ROUNDS * 10 {
        if round >= ROUNDS && good > 0 && refused > 0 {
            break;
        }
        match read(&sandbox, &file).await {
            Ok(contents) => {
                check!(!text(&contents).contains(SECRET), "round {round} read the host's secret");
                good += 1;
            }
            Err(error) if error.kind() == ErrorKind::PathEscape => refused += 1,
            // While a link or file is being replaced, it may be missing.
            Err(_) => {}
        }
        if round % 4 == 0 {
            // Any answer is allowed, as long as nothing outside changes.
            let _ = sandbox.write_bytes(&file, "inside").await;
            let _ = sandbox.list_dir(&directory).await;
            secret.unharmed()?;
        }
        if round % 16 == 0 && swapped != name {
            let _ = sandbox.remove(&file).await;
            let _ = sandbox.write_bytes(&path("real/secret")?, "inside").await;
            secret.unharmed()?;
        }
        tokio::task::yield_now().await;
    }
    handle.close().await?;
    secret.unharmed()?;
    if good == 0 || refused == 0 {
        return Err(Stop::skip(format!("no race took place: {good} reads led inside, {refused} outside")));
    }
    Ok(())
}

pub(super) async fn link_swapped_during_the_call(cx: Context) -> Verdict {
    let secret = HostSecret::new()?;
    let outside = secret.file().display().to_string();
    race(&cx, &secret, "swapped", "real/secret", outside, "swapped").await
}

pub(super) async fn directory_swapped_during_the_call(cx: Context) -> Verdict {
    let secret = HostSecret::new()?;
    let [_, outside, _] = secret.targets();
    race(&cx, &secret, "swapped", "real", outside, "swapped/secret").await
}

pub(super) async fn fifo(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    cx.exec_ok(&sandbox, P::MakeFifo { path: "fifo".into() }).await?;
    let fifo = path("fifo")?;
    let conflict = [ErrorKind::Conflict];
    expect_error(within(read(&sandbox, &fifo)).await?, &conflict, "reading a fifo")?;
    expect_error(within(sandbox.write_bytes(&fifo, "x")).await?, &conflict, "writing to a fifo")?;
    let kinds: Vec<EntryKind> = sandbox.list_dir(&path("")?).await?.into_iter().map(|entry| entry.kind).collect();
    check_eq!(kinds, vec![EntryKind::Other], "kind of a fifo");
    sandbox.remove(&fifo).await?;
    Ok(())
}

pub(super) async fn device(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    let devices = ["/dev/zero", "/dev/null", "/dev/tty"];
    let link = |(number, target): (usize, &&str)| P::MakeSymlink { path: number.to_string(), target: (*target).into() };
    cx.exec_ok(&sandbox, P::Sequence(devices.iter().enumerate().map(link).collect())).await?;
    for number in 0..devices.len() {
        let name = path(&number.to_string())?;
        expect_error(within(read(&sandbox, &name)).await?, &ESCAPE, "reading a link to a device")?;
        expect_error(within(sandbox.write_bytes(&name, "x")).await?, &ESCAPE, "writing to a link to a device")?;
    }
    Ok(())
}

pub(super) async fn directory_as_file(cx: Context) -> Verdict {
    let sandbox = cx.sandbox().await?;
    write_small(&sandbox, "dir/file", "x").await?;
    let conflict = [ErrorKind::Conflict];
    expect_error(read(&sandbox, &path("dir")?).await, &conflict, "reading a directory")?;
    expect_error(read(&sandbox, &path("")?).await, &conflict, "reading the workspace as a file")?;
    expect_error(sandbox.write_bytes(&path("dir")?, "x").await, &conflict, "writing over a directory")?;
    check!(sandbox.list_dir(&path("dir/file")?).await.is_err(), "listing a file succeeded");
    check!(sandbox.write_bytes(&path("dir/file/below")?, "x").await.is_err(), "writing below a file succeeded");
    check_eq!(text(&read_small(&sandbox, "dir/file").await?), "x", "the file afterwards");
    Ok(())
}
