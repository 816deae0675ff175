//! The host resources of a component, in one table of a fixed size.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use cofferdam_contract::OutputStream as Stream;
use parking_lot::Mutex;
use wasmtime::component::{Resource, ResourceTable};

use super::bindings::filesystem::types::ErrorCode;
use super::bindings::sockets::network::ErrorCode as SocketError;
use super::error::misuse;
use crate::fs::{FsResult, Ino, Listing, Tree};
use crate::network::{Connection, Interest, Lookup, Target};
use crate::wasi::{Host, OpenDirectory};

/// The maximum host resources of one exec: descriptors, streams, pollables, errors.
const MAX_RESOURCES: usize = 4096;
/// The maximum of files and directories among them, as in preview 1.
const MAX_OPENED: usize = 1024;

/// The table of one exec.
#[derive(Debug)]
pub(crate) struct Resources {
    table: ResourceTable,
    opened: usize,
}

impl Default for Resources {
    fn default() -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_RESOURCES);
        Self { table, opened: 0 }
    }
}

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
        self.resources.table.get(handle).map_err(misuse)
    }

    pub(crate) fn resource_mut<T: 'static>(&mut self, handle: &Resource<T>) -> wasmtime::Result<&mut T> {
        self.resources.table.get_mut(handle).map_err(misuse)
    }

    pub(crate) fn push_resource<T: Send + 'static>(&mut self, value: T) -> wasmtime::Result<Resource<T>> {
        self.resources.table.push(value).map_err(misuse)
    }

    pub(crate) fn delete_resource<T: 'static>(&mut self, handle: Resource<T>) -> wasmtime::Result<T> {
        self.resources.table.delete(handle).map_err(misuse)
    }

    /// Returns true if one more file or directory can be opened.
    pub(crate) fn has_room(&self) -> bool {
        self.resources.opened < MAX_OPENED
    }

    pub(crate) fn push_opened(&mut self, opened: Opened) -> wasmtime::Result<Resource<Opened>> {
        let handle = self.push_resource(opened)?;
        self.resources.opened += 1;
        Ok(handle)
    }

    pub(crate) fn close(&mut self, handle: Resource<Opened>) -> wasmtime::Result<()> {
        self.delete_resource(handle)?;
        self.resources.opened = self.resources.opened.saturating_sub(1);
        Ok(())
    }
}
