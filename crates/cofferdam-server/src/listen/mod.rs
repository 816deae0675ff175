//! Sockets, connections and their limits.

mod connection;
mod tls;

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_util::private;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::mpsc;

pub use connection::Connections;
pub(crate) use tls::read_pair;
pub use tls::{ClientCertificates, ListenTls, Tls, TlsFiles};

/// The address on which a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket of this user, which replaces a stale one.
    Socket(PathBuf),
    /// A TCP address, with these settings of TLS.
    Tcp(SocketAddr, Option<ListenTls>),
}

impl Listen {
    /// Checks that the files of TLS can be used, and that the host has the address. The address may be in use, by a
    /// server that runs.
    ///
    /// # Errors
    /// - `Unavailable` and `Denied` for an address at which this user cannot listen.
    /// - `Io`, `InvalidInput` and `Denied` for files that cannot be used.
    pub fn check(&self) -> Result<()> {
        let Self::Tcp(address, tls) = self else { return Ok(()) };
        match std::net::TcpListener::bind(address) {
            Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => {
                return Err(cannot_listen(&address.to_string(), error));
            }
            _ => {}
        }
        tls.as_ref().map_or(Ok(()), |tls| Tls::load(tls).map(drop))
    }
}

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket. Its file is removed at the end.
    Socket(UnixListener, SocketFile),
    /// Connections that a Unix socket with several protocols has accepted, and its path.
    Shared(mpsc::Receiver<UnixStream>, PathBuf),
    /// A TCP socket, with TLS.
    Tcp(TcpListener, Option<Arc<Tls>>),
}

impl Listener {
    /// Binds a socket.
    ///
    /// # Errors
    /// - `Unavailable` and `Denied` for an address at which this user cannot listen.
    /// - `Io` and `InvalidInput` for a socket or TLS files that cannot be used.
    pub async fn bind(listen: &Listen) -> Result<Self> {
        match listen {
            Listen::Socket(path) => {
                let (listener, file) = bind_socket(path).await?;
                Ok(Self::Socket(listener, file))
            }
            Listen::Tcp(address, tls) => {
                let tls = tls.as_ref().map(Tls::load).transpose()?.map(Arc::new);
                let bound = TcpListener::bind(address).await;
                let listener = bound.map_err(|error| cannot_listen(&address.to_string(), error))?;
                Ok(Self::Tcp(listener, tls))
            }
        }
    }

    /// Uses a socket that listens already, such as one of systemd or of another process of the server. Its file remains.
    ///
    /// # Errors
    /// - `InvalidInput` for a descriptor of another kind.
    /// - Those of TLS files.
    pub fn from_socket(socket: OwnedFd, tls: Option<&ListenTls>) -> Result<Self> {
        use rustix::net::{AddressFamily, SocketType, sockopt};
        let unusable = |error: std::io::Error| {
            Error::invalid("listen", "a descriptor is no socket that listens for streams")
                .with_source(error)
                .with_remedy("use ListenStream= of systemd with Accept=no")
        };
        let other = || unusable(std::io::ErrorKind::InvalidInput.into());
        let kind = sockopt::socket_type(&socket).map_err(|error| unusable(error.into()))?;
        let listens = sockopt::socket_acceptconn(&socket).map_err(|error| unusable(error.into()))?;
        if kind != SocketType::STREAM || !listens {
            return Err(other());
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(|error| unusable(error.into()))?;
        match sockopt::socket_domain(&socket).map_err(|error| unusable(error.into()))? {
            AddressFamily::UNIX => {
                let listener = UnixListener::from_std(socket.into()).map_err(unusable)?;
                let address = listener.local_addr().map_err(unusable)?;
                let path = address.as_pathname().unwrap_or(Path::new("unnamed")).to_owned();
                Ok(Self::Socket(listener, SocketFile::retained(path)))
            }
            AddressFamily::INET | AddressFamily::INET6 => {
                let tls = tls.map(Tls::load).transpose()?.map(Arc::new);
                Ok(Self::Tcp(TcpListener::from_std(socket.into()).map_err(unusable)?, tls))
            }
            _ => Err(other()),
        }
    }

    /// Returns what the listener listens on.
    ///
    /// # Errors
    /// - `Io` if the address cannot be read.
    pub fn listen(&self) -> Result<Listen> {
        match self {
            Self::Socket(_, file) => Ok(Listen::Socket(file.path.clone())),
            Self::Shared(_, path) => Ok(Listen::Socket(path.clone())),
            Self::Tcp(listener, tls) => {
                let address = listener.local_addr().map_err(|error| cannot_listen("?", error))?;
                Ok(Listen::Tcp(address, tls.as_ref().map(|tls| tls.settings().clone())))
            }
        }
    }

    /// Returns the listening socket. `None` if it belongs to another part of the program.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Socket(listener, _) => Some(listener.as_fd()),
            Self::Shared(..) => None,
            Self::Tcp(listener, _) => Some(listener.as_fd()),
        }
    }

    /// Returns the switch of the file of a Unix socket.
    pub(crate) fn file(&self) -> Option<SocketFileOwner> {
        match self {
            Self::Socket(_, file) => Some(SocketFileOwner(Arc::clone(&file.is_retained))),
            Self::Shared(..) | Self::Tcp(..) => None,
        }
    }

    /// Returns the address as a URL, such as `http://127.0.0.1:8080` or `unix:/run/user/0/cofferdam.sock`.
    pub fn url(&self) -> String {
        match self {
            Self::Socket(_, file) => format!("unix:{}", file.path.display()),
            Self::Shared(_, path) => format!("unix:{}", path.display()),
            Self::Tcp(listener, tls) => {
                let scheme = if tls.is_some() { "https" } else { "http" };
                let address = listener.local_addr().map_or_else(|_| "?".to_owned(), |address| address.to_string());
                format!("{scheme}://{address}")
            }
        }
    }
}

/// The file of a Unix socket, removed when dropped, unless it is another process's.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    is_retained: Arc<AtomicBool>,
}

impl SocketFile {
    fn retained(path: PathBuf) -> Self {
        Self { path, is_retained: Arc::new(AtomicBool::new(true)) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.is_retained.load(Ordering::SeqCst) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A switch that gives the file of a Unix socket to this process or to another one.
#[derive(Debug)]
pub(crate) struct SocketFileOwner(Arc<AtomicBool>);

impl SocketFileOwner {
    /// Returns true if this process does not remove the file.
    pub fn is_retained(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Leaves the file to another process.
    pub fn keep(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Makes this process remove the file at its end.
    pub fn remove(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

fn cannot_listen(what: &str, error: std::io::Error) -> Error {
    let is_tcp = what.parse::<SocketAddr>().is_ok();
    let (kind, remedy) = match error.kind() {
        std::io::ErrorKind::AddrInUse => (ErrorKind::Unavailable, "stop the other server, or choose another address"),
        std::io::ErrorKind::AddrNotAvailable => {
            (ErrorKind::Unavailable, "choose an address of this host; `ip address` lists them")
        }
        std::io::ErrorKind::PermissionDenied if is_tcp => (
            ErrorKind::Denied,
            "choose a port above 1023, or let systemd open the socket and pass it (docs/server-operations.md, As a service)",
        ),
        std::io::ErrorKind::PermissionDenied => {
            (ErrorKind::Denied, "choose a path in a directory of this user, such as /run/user/UID")
        }
        _ => (ErrorKind::Io, "choose another address"),
    };
    Error::new(kind, "listen", "cannot listen")
        .with_context("address", what.to_owned())
        .with_source(error)
        .with_remedy(remedy)
}

/// Binds a Unix socket that only this user can use. A socket without a server is replaced.
async fn bind_socket(path: &Path) -> Result<(UnixListener, SocketFile)> {
    let shown = path.display().to_string();
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = private::create_directory(directory).and_then(|()| std::fs::metadata(directory));
    if let Some(exposure) = private::exposure(&found.map_err(|error| cannot_listen(&shown, error))?) {
        let message = format!("the directory of the socket is not safe: {exposure}");
        return Err(Error::new(ErrorKind::Denied, "listen", message)
            .with_context("directory", directory.display().to_string())
            .with_remedy("choose a path in a directory of this user, such as /run/user/UID"));
    }
    match UnixStream::connect(path).await {
        Ok(_) => return Err(cannot_listen(&shown, std::io::ErrorKind::AddrInUse.into())),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| cannot_listen(&shown, error))?;
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(|error| cannot_listen(&shown, error))?;
    let file = SocketFile { path: path.to_owned(), is_retained: Arc::default() };
    // The credentials of each connection are checked as well.
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(|error| cannot_listen(&shown, error))?;
    Ok((listener, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(address: &str) -> Error {
        Listen::Tcp(address.parse().unwrap(), None).check().unwrap_err()
    }

    #[tokio::test]
    async fn the_remedy_fits_the_error() {
        // An address for documentation, which no host has.
        let error = refused("192.0.2.1:0");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("address of this host")), "{error:?}");

        let first = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let used = Listen::Tcp(first.local_addr().unwrap(), None);
        let error = Listener::bind(&used).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("stop the other server")), "{error:?}");

        for (address, part) in [("127.0.0.1:80", "port above 1023"), ("/x/socket", "directory of this user")] {
            let error = cannot_listen(address, std::io::ErrorKind::PermissionDenied.into());
            assert_eq!(error.kind(), ErrorKind::Denied);
            assert!(error.remedy().is_some_and(|remedy| remedy.contains(part)), "{error:?}");
        }
    }
}
