//! Connecting to a socket in a directory that somebody else may write to.
//!
//! Whoever broke out into Firecracker owns its directory, and could put a link there that leads elsewhere. So what
//! stands at the path is held first, links not followed, and then connected to. It also works at any length of path.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use tokio::net::UnixStream;

/// Connects to the socket that stands at `path` itself.
pub(super) async fn connect(path: &Path) -> io::Result<UnixStream> {
    let held = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = FileType::from_raw_mode(rustix::fs::fstat(&held)?.st_mode);
    if found != FileType::Socket {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is no socket but a {found:?}")));
    }
    UnixStream::connect(format!("/proc/self/fd/{}", held.as_raw_fd())).await
}
