//! The host resources of a component. `wasi/resources.rs` has their table.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use cofferdam_contract::OutputStream as Stream;
use parking_lot::Mutex;
use wasmtime::component::Resource;

use super::bindings::filesystem::types::ErrorCode;
use super::bindings::sockets::network::ErrorCode as SocketError;
use super::error::misuse;
use crate::fs::{FsResult, Ino, Listing, Tree};
use crate::network::{Connection, Interest, Lookup, Target};
use crate::wasi::{Host, OpenDirectory};

/// A reference to a file system node, which is released with the last reference. Must not be dropped while the files
/// are locked, since the drop locks them.
#[derive(Debug)]
pub(crate) struct NodeRef {
    files: Arc<Mutex<Tree>>,
    pub(crate) ino: Ino,
}

impl NodeRef {
    pub(crate) fn new(files: &Arc<Mutex<Tree>>, ino: Ino) -> FsResult<Arc<Self>> {
        files.lock().acquire(ino)?;
        Ok(Self::from_acquired(files, ino))
    }

    /// Wraps a node that the caller has already referenced.
    pub(crate) fn from_acquired(files: &Arc<Mutex<Tree>>, ino: Ino) -> Arc<Self> {
        Arc::new(Self { files: Arc::clone(files), ino })
    }
}

impl Drop for NodeRef {
    fn drop(&mut self) {
        self.files.lock().release(self.ino);
    }
}

/// An open file or directory.
#[derive(Debug, Clone)]
pub enum Opened {
    File { node: Arc<NodeRef>, reads: bool, writes: bool },
    Directory { node: Arc<NodeRef>, directory: OpenDirectory },
}

impl Opened {
    pub(crate) fn ino(&self) -> Ino {
        match self {
            Self::File { node, .. } | Self::Directory { node, .. } => node.ino,
        }
    }
}

/// A directory listing in progress.
#[derive(Debug)]
pub struct Entries {
    pub(crate) node: Arc<NodeRef>,
    pub(crate) next: u64,
    pub(crate) ready: VecDeque<Listing>,
}

/// The source of an input stream.
#[derive(Debug, Clone)]
pub enum InputStream {
    Stdin,
    File { node: Arc<NodeRef>, position: u64 },
    Socket(Arc<Connection>),
}

/// The target of an output stream.
#[derive(Debug, Clone)]
pub enum OutputStream {
    Printed(Stream),
    /// A file. Without a position, bytes are appended.
    File {
        node: Arc<NodeRef>,
        position: Option<u64>,
    },
    Socket(Arc<Connection>),
}

/// An event that a component can wait for.
#[derive(Debug, Clone)]
pub enum Pollable {
    Ready,
    Input,
    /// A time of the monotonic clock.
    Moment(u64),
    Connection(Arc<Connection>, Interest),
    Lookup(Arc<Lookup>),
}

/// The error of a stream.
#[derive(Debug)]
pub struct IoError {
    pub(crate) text: String,
    pub(crate) code: Option<ErrorCode>,
    pub(crate) network: Option<SocketError>,
}

/// A socket, with its remote address.
#[derive(Debug)]
pub struct TcpSocket {
    pub(crate) connection: Arc<Connection>,
    pub(crate) remote: Option<SocketAddr>,
}

/// The state of a name lookup.
#[derive(Debug)]
pub enum Addresses {
    Pending { lookup: Arc<Lookup>, target: Arc<Target> },
    Found(VecDeque<IpAddr>),
    Refused(SocketError),
}

/// The network handle. There is only one network, restricted by the policy.
#[derive(Debug)]
pub struct Network;

/// A resource that is never created.
#[derive(Debug)]
pub enum Nothing {}

impl Host {
    pub(crate) fn resource<T: 'static>(&self, handle: &Resource<T>) -> wasmtime::Result<&T> {
        self.resources.get(handle).map_err(misuse)
    }

    pub(crate) fn resource_mut<T: 'static>(&mut self, handle: &Resource<T>) -> wasmtime::Result<&mut T> {
        self.resources.get_mut(handle).map_err(misuse)
    }

    pub(crate) fn push_resource<T: Send + 'static>(&mut self, value: T) -> wasmtime::Result<Resource<T>> {
        self.resources.push(value).map_err(misuse)
    }

    pub(crate) fn delete_resource<T: 'static>(&mut self, handle: Resource<T>) -> wasmtime::Result<T> {
        self.resources.delete(handle).map_err(misuse)
    }

    /// Returns true if one more file or directory can be opened.
    pub(crate) fn has_room(&self) -> bool {
        self.resources.has_room()
    }

    pub(crate) fn push_opened(&mut self, opened: Opened) -> wasmtime::Result<Resource<Opened>> {
        self.resources.push_opened(opened).map_err(misuse)
    }

    pub(crate) fn close(&mut self, handle: Resource<Opened>) -> wasmtime::Result<()> {
        self.resources.delete_opened(handle).map(drop).map_err(misuse)
    }
}
