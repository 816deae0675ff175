//! Streams: standard input and output, and files.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;

use wasmtime::component::Resource;

use super::bindings::io::error as io_error;
use super::bindings::io::streams::{Host as Streams, HostInputStream, HostOutputStream, StreamError};
use super::error::{StreamFail, code, socket_code, trap};
use super::resources::{InputStream, IoError, OutputStream, Pollable};
use crate::fs::FsError;
use crate::leash::Input;
use crate::network::{Connection, Interest, PERMITTED};
use crate::wasi::Host;

/// The most bytes that one call reads, and that may be written in one call.
pub(crate) const MOST: usize = 1 << 20;
/// Bytes written at once: what does not fit is refused by this much.
const SLICE: usize = 64 << 10;
/// Without what it points to, a buffer that grows as far as there are bytes.
const FIRST: usize = 64 << 10;

type Answer<T> = Result<T, StreamFail>;

fn closed<T>() -> Answer<T> {
    Err(StreamFail::Told(StreamError::Closed))
}

/// What a guest asks for, no more than goes in one call.
fn bounded(length: u64) -> usize {
    usize::try_from(length).map_or(MOST, |length| length.min(MOST))
}

impl Host {
    /// Reads what is there, at most `most` bytes.
    fn read_some(&mut self, handle: &Resource<InputStream>, most: usize) -> Answer<Vec<u8>> {
        let mut buffer = Vec::new();
        match self.resource(handle)? {
            InputStream::Stdin => self.read_stdin(&mut buffer, most)?,
            InputStream::Socket(connection) => {
                let connection = Arc::clone(connection);
                self.receive(&connection, &mut buffer, most)?;
            }
            InputStream::File { node, position } => {
                let (node, position) = (std::sync::Arc::clone(node), *position);
                let result = {
                    let tree = self.locked_tree();
                    tree.stat(node.ino).and_then(|stat| {
                        let left = usize::try_from(stat.size.saturating_sub(position)).unwrap_or(usize::MAX);
                        buffer.resize(left.min(most), 0);
                        tree.read(node.ino, position, &mut buffer)
                    })
                };
                let read = self.or_failed(result)?;
                if read == 0 && most > 0 {
                    return closed();
                }
                buffer.truncate(read);
                if let InputStream::File { position, .. } = self.resource_mut(handle)? {
                    *position = position.saturating_add(read as u64);
                }
            }
        }
        Ok(buffer)
    }

    /// Leaves the buffer empty where there are no bytes yet.
    fn read_stdin(&mut self, buffer: &mut Vec<u8>, most: usize) -> Answer<()> {
        if most == 0 {
            return Ok(());
        }
        let (input, leash) = self.input();
        let read = match input {
            Input::Given(bytes) => {
                buffer.extend_from_slice(&bytes.split_to(bytes.len().min(most)));
                Some(buffer.len())
            }
            Input::Streamed => {
                buffer.resize(most.min(FIRST), 0);
                leash.read(buffer)
            }
        };
        buffer.truncate(read.unwrap_or_default());
        if read == Some(0) { closed() } else { Ok(()) }
    }

    /// The same, of a connection.
    fn receive(&mut self, connection: &Connection, buffer: &mut Vec<u8>, most: usize) -> Answer<()> {
        if most == 0 {
            return Ok(());
        }
        buffer.resize(most.min(FIRST), 0);
        let read = match connection.read(buffer) {
            Ok(Some(0)) => return closed(),
            Ok(read) => read.unwrap_or_default(),
            Err(error) => return self.broken(&error),
        };
        buffer.truncate(read);
        Ok(())
    }

    /// The same, waiting for the first byte or the end.
    fn read_waiting(&mut self, handle: &Resource<InputStream>, most: usize) -> Answer<Vec<u8>> {
        loop {
            let bytes = self.read_some(handle, most)?;
            if !bytes.is_empty() || most == 0 {
                return Ok(bytes);
            }
            match self.resource(handle)? {
                InputStream::Socket(connection) => {
                    let wanted = Pollable::Connection(Arc::clone(connection), Interest::Read);
                    self.wait_for(&[wanted])?;
                }
                _ => self.wait_until(None, true)?,
            }
        }
    }

    fn write_all(&mut self, handle: &Resource<OutputStream>, bytes: &[u8]) -> Answer<()> {
        if bytes.len() > MOST {
            return Err(trap("more written to a stream than it permitted").into());
        }
        match self.resource(handle)? {
            OutputStream::Socket(connection) => {
                let connection = Arc::clone(connection);
                self.send(&connection, bytes)
            }
            OutputStream::Printed(stream) => {
                let stream = *stream;
                self.output.write(stream, bytes);
                Ok(())
            }
            OutputStream::File { node, position } => {
                let (node, position, now) = (std::sync::Arc::clone(node), *position, self.clock().stamp());
                let mut end = position.unwrap_or_default();
                let result = {
                    let mut tree = self.locked_tree();
                    let start = position.map_or_else(|| tree.stat(node.ino).map(|stat| stat.size), Ok);
                    start.and_then(|start| {
                        end = start;
                        bytes.chunks(SLICE).try_for_each(|slice| {
                            tree.write(node.ino, end, slice, now)?;
                            end = end.saturating_add(slice.len() as u64);
                            Ok(())
                        })
                    })
                };
                if let OutputStream::File { position: Some(position), .. } = self.resource_mut(handle)? {
                    *position = end;
                }
                self.or_failed(result)
            }
        }
    }

    /// Passes bytes to the kernel, waiting for room. Of what was permitted, all has room as a rule.
    fn send(&mut self, connection: &Arc<Connection>, mut bytes: &[u8]) -> Answer<()> {
        while !bytes.is_empty() {
            match connection.write(bytes) {
                Ok(Some(sent)) => bytes = &bytes[sent..],
                Ok(None) => drop(self.wait_for(&[Pollable::Connection(Arc::clone(connection), Interest::Write)])?),
                Err(error) => return self.broken(&error),
            }
        }
        Ok(())
    }

    /// Writes no more than may be written without waiting.
    fn write_permitted(&mut self, handle: &Resource<OutputStream>, bytes: &[u8]) -> Answer<()> {
        if bytes.len() > self.permitted(handle)? {
            return Err(trap("more written to a stream than it permitted").into());
        }
        self.write_all(handle, bytes)
    }

    /// The most that is ever permitted at once.
    fn permitted(&self, handle: &Resource<OutputStream>) -> wasmtime::Result<usize> {
        Ok(if matches!(self.resource(handle)?, OutputStream::Socket(_)) { PERMITTED } else { MOST })
    }

    fn zeros(length: u64) -> Answer<Vec<u8>> {
        if length > MOST as u64 {
            return Err(trap("more written to a stream than it permitted").into());
        }
        Ok(vec![0; bounded(length)])
    }

    /// An error of a connection as a stream tells it.
    fn broken<T>(&mut self, error: &io::Error) -> Answer<T> {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return closed();
        }
        let kept = self.keep(IoError { text: error.to_string(), code: None, network: Some(socket_code(error)) })?;
        Err(StreamFail::Told(StreamError::LastOperationFailed(kept)))
    }

    /// An error of the files as a stream tells it.
    fn or_failed<T>(&mut self, result: Result<T, FsError>) -> Answer<T> {
        match self.noted(result) {
            Ok(value) => Ok(value),
            Err(error) => {
                let kept = self.keep(IoError { text: error.to_string(), code: Some(code(error)), network: None })?;
                Err(StreamFail::Told(StreamError::LastOperationFailed(kept)))
            }
        }
    }
}

impl Streams for Host {
    fn convert_stream_error(&mut self, error: StreamFail) -> wasmtime::Result<StreamError> {
        error.told()
    }
}

impl HostInputStream for Host {
    fn read(&mut self, stream: Resource<InputStream>, length: u64) -> Answer<Vec<u8>> {
        self.read_some(&stream, bounded(length))
    }

    fn blocking_read(&mut self, stream: Resource<InputStream>, length: u64) -> Answer<Vec<u8>> {
        self.read_waiting(&stream, bounded(length))
    }

    fn skip(&mut self, stream: Resource<InputStream>, length: u64) -> Answer<u64> {
        Ok(self.read_some(&stream, bounded(length))?.len() as u64)
    }

    fn blocking_skip(&mut self, stream: Resource<InputStream>, length: u64) -> Answer<u64> {
        Ok(self.read_waiting(&stream, bounded(length))?.len() as u64)
    }

    fn subscribe(&mut self, stream: Resource<InputStream>) -> wasmtime::Result<Resource<Pollable>> {
        let pollable = match self.resource(&stream)? {
            InputStream::Stdin => Pollable::Input,
            InputStream::File { .. } => Pollable::Ready,
            InputStream::Socket(connection) => Pollable::Connection(Arc::clone(connection), Interest::Read),
        };
        self.keep(pollable)
    }

    fn drop(&mut self, stream: Resource<InputStream>) -> wasmtime::Result<()> {
        if let InputStream::Socket(connection) = self.forget(stream)? {
            connection.shut_down(Shutdown::Read);
        }
        Ok(())
    }
}

impl HostOutputStream for Host {
    fn check_write(&mut self, stream: Resource<OutputStream>) -> Answer<u64> {
        match self.resource(&stream)? {
            OutputStream::Socket(connection) if !connection.writes() => closed(),
            OutputStream::Socket(connection) if connection.is_ready(Interest::Write) => Ok(PERMITTED as u64),
            OutputStream::Socket(_) => Ok(0),
            _ => Ok(MOST as u64),
        }
    }

    fn write(&mut self, stream: Resource<OutputStream>, bytes: Vec<u8>) -> Answer<()> {
        self.write_permitted(&stream, &bytes)
    }

    fn blocking_write_and_flush(&mut self, stream: Resource<OutputStream>, bytes: Vec<u8>) -> Answer<()> {
        self.write_all(&stream, &bytes)
    }

    /// What is written is with the files or the kernel at once; what is printed goes on by itself within milliseconds.
    fn flush(&mut self, stream: Resource<OutputStream>) -> Answer<()> {
        self.resource(&stream)?;
        Ok(())
    }

    fn blocking_flush(&mut self, stream: Resource<OutputStream>) -> Answer<()> {
        HostOutputStream::flush(self, stream)
    }

    fn subscribe(&mut self, stream: Resource<OutputStream>) -> wasmtime::Result<Resource<Pollable>> {
        let pollable = match self.resource(&stream)? {
            OutputStream::Socket(connection) => Pollable::Connection(Arc::clone(connection), Interest::Write),
            _ => Pollable::Ready,
        };
        self.keep(pollable)
    }

    fn write_zeroes(&mut self, stream: Resource<OutputStream>, length: u64) -> Answer<()> {
        self.write_permitted(&stream, &Self::zeros(length)?)
    }

    fn blocking_write_zeroes_and_flush(&mut self, stream: Resource<OutputStream>, length: u64) -> Answer<()> {
        self.write_all(&stream, &Self::zeros(length)?)
    }

    fn splice(&mut self, to: Resource<OutputStream>, from: Resource<InputStream>, length: u64) -> Answer<u64> {
        let most = HostOutputStream::check_write(self, Resource::new_borrow(to.rep()))?;
        let bytes = self.read_some(&from, bounded(length.min(most)))?;
        self.write_all(&to, &bytes)?;
        Ok(bytes.len() as u64)
    }

    fn blocking_splice(&mut self, to: Resource<OutputStream>, from: Resource<InputStream>, length: u64) -> Answer<u64> {
        let bytes = self.read_waiting(&from, bounded(length))?;
        self.write_all(&to, &bytes)?;
        Ok(bytes.len() as u64)
    }

    fn drop(&mut self, stream: Resource<OutputStream>) -> wasmtime::Result<()> {
        if let OutputStream::Socket(connection) = self.forget(stream)? {
            connection.shut_down(Shutdown::Write);
        }
        Ok(())
    }
}

impl io_error::Host for Host {}

impl io_error::HostError for Host {
    fn to_debug_string(&mut self, error: Resource<IoError>) -> wasmtime::Result<String> {
        Ok(self.resource(&error)?.text.clone())
    }

    fn drop(&mut self, error: Resource<IoError>) -> wasmtime::Result<()> {
        self.forget(error).map(drop)
    }
}
