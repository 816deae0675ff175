//! The copy of a package into a sandbox whose backend mounts no directory of the host.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use cofferdam_contract::{Error, ErrorKind, Result, Sandbox, SandboxPath};
use cofferdam_linux::walk::{self, Entry};
use tokio::sync::mpsc;

use crate::package::{MAX_FILES, MAX_SIZE};

/// The number of opened files that wait to be copied.
const MAX_OPENED: usize = 8;

/// Copies the plain files of a package into the workspace. Links, sockets and devices are left out.
///
/// # Errors
/// The package has more than 20,000 files or 256 MiB, or the sandbox does not take them.
pub async fn copy(package: OwnedFd, sandbox: &dyn Sandbox) -> Result<()> {
    let (sender, mut files) = mpsc::channel::<(String, File)>(MAX_OPENED);
    let listing = tokio::task::spawn_blocking(move || list(&package, &sender));
    while let Some((path, file)) = files.recv().await {
        let path = SandboxPath::new(path)?;
        sandbox.write_file(&path, Box::new(tokio::fs::File::from_std(file))).await?;
    }
    let listed = listing.await.unwrap_or_else(|_| Err(io::Error::other("the listing ended early")));
    listed.map_err(|error| {
        Error::new(ErrorKind::Io, "start plugin", format!("cannot copy the plugin into its sandbox: {error}"))
    })
}

fn list(package: &OwnedFd, to: &mpsc::Sender<(String, File)>) -> io::Result<()> {
    let (mut count, mut size) = (0, 0u64);
    walk::walk(package.as_fd(), &mut |path, _, entry| {
        let (file, length) = match entry {
            Entry::File(file, length) => (file, length),
            Entry::Unreadable(error) => return Err(error),
            Entry::Directory | Entry::Link(_) | Entry::Other => return Ok(()),
        };
        let Some(path) = path.to_str() else { return Ok(()) };
        (count, size) = (count + 1, size.saturating_add(length));
        if count > MAX_FILES || size > MAX_SIZE {
            return Err(io::Error::other("it has more than 20,000 files or 256 MiB"));
        }
        to.blocking_send((path.to_owned(), file)).map_err(|_| io::Error::other("the sandbox does not take its files"))
    })
}
