//! What a component holds of the host: one table of a fixed size, whatever is in it.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use cofferdam_contract::OutputStream as Stream;
use wasmtime::component::{Resource, ResourceTable};

use super::bindings::filesystem::types::ErrorCode;
use super::bindings::sockets::network::ErrorCode as SocketError;
use super::error::misuse;
use crate::fs::{FsResult, Ino, Listing, Tree};
use crate::network::{Connection, Interest, Lookup, Target};
use crate::wasi::{Host, OpenDirectory, lock};

/// The most resources of the host that one exec holds: descriptors, streams, what it waits for, errors.
const MAX_RESOURCES: usize = 4096;
/// The most of them that may be files and directories, as in preview 1.
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

/// A node of the files that is held, and let go when the last of its holders goes. Must not be dropped by whoever has
/// the files locked.
#[derive(Debug)]
pub(crate) struct Held {
    files: Arc<Mutex<Tree>>,
    pub(crate) ino: Ino,
}

impl Held {
    pub(crate) fn new(files: &Arc<Mutex<Tree>>, ino: Ino) -> FsResult<Arc<Self>> {
        lock(files).hold(ino)?;
        Ok(Self::already(files, ino))
    }

    /// Takes over a node that is held.
    pub(crate) fn already(files: &Arc<Mutex<Tree>>, ino: Ino) -> Arc<Self> {
        Arc::new(Self { files: Arc::clone(files), ino })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        lock(&self.files).let_go(self.ino);
    }
}

/// A file or directory that is open.
#[derive(Debug, Clone)]
pub enum Opened {
    File { node: Arc<Held>, reads: bool, writes: bool },
    Directory { node: Arc<Held>, directory: OpenDirectory },
}

impl Opened {
    pub(crate) fn ino(&self) -> Ino {
        match self {
            Self::File { node, .. } | Self::Directory { node, .. } => node.ino,
        }
    }
}

/// A listing on its way.
#[derive(Debug)]
pub struct Entries {
    pub(crate) node: Arc<Held>,
    pub(crate) next: u64,
    pub(crate) ready: VecDeque<Listing>,
}

/// What bytes are read from.
#[derive(Debug, Clone)]
pub enum InputStream {
    Stdin,
    File { node: Arc<Held>, position: u64 },
    Socket(Arc<Connection>),
}

/// What bytes are written to.
#[derive(Debug, Clone)]
pub enum OutputStream {
    Printed(Stream),
    /// Without a position, at the end.
    File {
        node: Arc<Held>,
        position: Option<u64>,
    },
    Socket(Arc<Connection>),
}

/// What is waited for.
#[derive(Debug, Clone)]
pub enum Pollable {
    Ready,
    Input,
    /// A moment of the monotonic clock.
    Moment(u64),
    Connection(Arc<Connection>, Interest),
    Lookup(Arc<Lookup>),
}

/// Why a stream failed.
#[derive(Debug)]
pub struct IoError {
    pub(crate) text: String,
    pub(crate) code: Option<ErrorCode>,
    pub(crate) network: Option<SocketError>,
}

/// A socket, and where it leads.
#[derive(Debug)]
pub struct TcpSocket {
    pub(crate) connection: Arc<Connection>,
    pub(crate) remote: Option<SocketAddr>,
}

/// What comes of looking up a name.
#[derive(Debug)]
pub enum Addresses {
    Sought { lookup: Arc<Lookup>, target: Arc<Target> },
    Found(VecDeque<IpAddr>),
    Refused(SocketError),
}

/// The network, which for all that is asked of it is the one that the policy allows.
#[derive(Debug)]
pub struct Network;

/// A resource that is never made.
#[derive(Debug)]
pub enum Nothing {}

impl Host {
    pub(crate) fn resource<T: 'static>(&self, handle: &Resource<T>) -> wasmtime::Result<&T> {
        self.resources.table.get(handle).map_err(misuse)
    }

    pub(crate) fn resource_mut<T: 'static>(&mut self, handle: &Resource<T>) -> wasmtime::Result<&mut T> {
        self.resources.table.get_mut(handle).map_err(misuse)
    }

    pub(crate) fn keep<T: Send + 'static>(&mut self, value: T) -> wasmtime::Result<Resource<T>> {
        self.resources.table.push(value).map_err(misuse)
    }

    pub(crate) fn forget<T: 'static>(&mut self, handle: Resource<T>) -> wasmtime::Result<T> {
        self.resources.table.delete(handle).map_err(misuse)
    }

    /// Whether one more file or directory may be open.
    pub(crate) fn has_room(&self) -> bool {
        self.resources.opened < MAX_OPENED
    }

    pub(crate) fn keep_opened(&mut self, opened: Opened) -> wasmtime::Result<Resource<Opened>> {
        let handle = self.keep(opened)?;
        self.resources.opened += 1;
        Ok(handle)
    }

    pub(crate) fn close(&mut self, handle: Resource<Opened>) -> wasmtime::Result<()> {
        self.forget(handle)?;
        self.resources.opened = self.resources.opened.saturating_sub(1);
        Ok(())
    }
}
