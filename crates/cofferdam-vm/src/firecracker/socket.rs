//! Safe connection to a socket in a directory that an untrusted process may write to.
//!
//! A guest that broke out into Firecracker owns its directory, and could create a link there that leads elsewhere. So
//! the path is opened first, without following links, and then connected to. This also works for paths of any length.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use tokio::net::UnixStream;

/// Connects to the socket at `path` itself.
pub(super) async fn connect(path: &Path) -> io::Result<UnixStream> {
    let opened = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode);
    if found != FileType::Socket {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("not a socket but a {found:?}")));
    }
    UnixStream::connect(format!("/proc/self/fd/{}", opened.as_raw_fd())).await
}
