//! Streams: standard input and output, files, and connections.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;

use wasmtime::component::Resource;

use super::bindings::io::error as io_error;
use super::bindings::io::streams::{Host as Streams, HostInputStream, HostOutputStream, StreamError};
use super::error::{StreamFail, code, socket_code, trap};
use super::resources::{InputStream, IoError, OutputStream, Pollable};
use crate::fs::FsError;
use crate::guest_control::Input;
use crate::network::{Connection, Interest, PERMITTED};
use crate::wasi::Host;

/// The maximum bytes of one read or write.
pub(crate) const MAX_TRANSFER: usize = 1 << 20;
/// Bytes per write to a file. A write that exceeds a limit loses at most this much of what would fit.
const SLICE: usize = 64 << 10;
/// The initial read buffer.
const FIRST: usize = 64 << 10;

type Answer<T> = Result<T, StreamFail>;

fn closed<T>() -> Answer<T> {
    Err(StreamFail::Code(StreamError::Closed))
}

/// Limits the length that a guest asks for to one call's maximum.
fn bounded(length: u64) -> usize {
    usize::try_from(length).map_or(MAX_TRANSFER, |length| length.min(MAX_TRANSFER))
}

impl Host {
    /// Reads the available bytes, at most `max`.
    fn read_some(&mut self, handle: &Resource<InputStream>, max: usize) -> Answer<Vec<u8>> {
        let mut buffer = Vec::new();
        match self.resource(handle)? {
            InputStream::Stdin => self.read_stdin(&mut buffer, max)?,
            InputStream::Socket(connection) => {
                let connection = Arc::clone(connection);
                self.receive(&connection, &mut buffer, max)?;
            }
            InputStream::File { node, position } => {
                let (node, position) = (std::sync::Arc::clone(node), *position);
                let result = {
                    let tree = self.locked_tree();
                    tree.stat(node.ino).and_then(|stat| {
                        let left = usize::try_from(stat.size.saturating_sub(position)).unwrap_or(usize::MAX);
                        buffer.resize(left.min(max), 0);
                        tree.read(node.ino, position, &mut buffer)
                    })
                };
                let read = self.or_failed(result)?;
                if read == 0 && max > 0 {
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

    /// Reads standard input. Leaves the buffer empty if no bytes are available yet.
    fn read_stdin(&mut self, buffer: &mut Vec<u8>, max: usize) -> Answer<()> {
        if max == 0 {
            return Ok(());
        }
        let (input, control) = self.input();
        let read = match input {
            Input::Given(bytes) => {
                buffer.extend_from_slice(&bytes.split_to(bytes.len().min(max)));
                Some(buffer.len())
            }
            Input::Streamed => {
                buffer.resize(max.min(FIRST), 0);
                control.read(buffer)
            }
        };
        buffer.truncate(read.unwrap_or_default());
        if read == Some(0) { closed() } else { Ok(()) }
    }

    /// Reads a connection. Leaves the buffer empty if no bytes are available yet.
    fn receive(&mut self, connection: &Connection, buffer: &mut Vec<u8>, max: usize) -> Answer<()> {
        if max == 0 {
            return Ok(());
        }
        buffer.resize(max.min(FIRST), 0);
        let read = match connection.read(buffer) {
            Ok(Some(0)) => return closed(),
            Ok(read) => read.unwrap_or_default(),
            Err(error) => return self.broken(&error),
        };
        buffer.truncate(read);
        Ok(())
    }

    /// Reads a stream, waiting for the first byte or the end.
    fn read_waiting(&mut self, handle: &Resource<InputStream>, max: usize) -> Answer<Vec<u8>> {
        loop {
            let bytes = self.read_some(handle, max)?;
            if !bytes.is_empty() || max == 0 {
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
        if bytes.len() > MAX_TRANSFER {
            return Err(trap("a write that exceeds the stream's permitted length").into());
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

    /// Passes bytes to the kernel, waiting for buffer space. A write within the permitted length usually does not wait.
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

    /// Writes bytes, or traps if they exceed the length that is permitted without waiting.
    fn write_permitted(&mut self, handle: &Resource<OutputStream>, bytes: &[u8]) -> Answer<()> {
        if bytes.len() > self.permitted(handle)? {
            return Err(trap("a write that exceeds the stream's permitted length").into());
        }
        self.write_all(handle, bytes)
    }

    /// Returns the maximum length of one permitted write.
    fn permitted(&self, handle: &Resource<OutputStream>) -> wasmtime::Result<usize> {
        Ok(if matches!(self.resource(handle)?, OutputStream::Socket(_)) { PERMITTED } else { MAX_TRANSFER })
    }

    fn zeros(length: u64) -> Answer<Vec<u8>> {
        if length > MAX_TRANSFER as u64 {
            return Err(trap("a write that exceeds the stream's permitted length").into());
        }
        Ok(vec![0; bounded(length)])
    }

    /// Converts an error of a connection to a stream error.
    fn broken<T>(&mut self, error: &io::Error) -> Answer<T> {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return closed();
        }
        let resource =
            self.push_resource(IoError { text: error.to_string(), code: None, network: Some(socket_code(error)) })?;
        Err(StreamFail::Code(StreamError::LastOperationFailed(resource)))
    }

    /// Converts a file system error to a stream error.
    fn or_failed<T>(&mut self, result: Result<T, FsError>) -> Answer<T> {
        match self.noted(result) {
            Ok(value) => Ok(value),
            Err(error) => {
                let resource =
                    self.push_resource(IoError { text: error.to_string(), code: Some(code(error)), network: None })?;
                Err(StreamFail::Code(StreamError::LastOperationFailed(resource)))
            }
        }
    }
}

impl Streams for Host {
    fn convert_stream_error(&mut self, error: StreamFail) -> wasmtime::Result<StreamError> {
        error.into_code()
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
        self.push_resource(pollable)
    }

    fn drop(&mut self, stream: Resource<InputStream>) -> wasmtime::Result<()> {
        if let InputStream::Socket(connection) = self.delete_resource(stream)? {
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
            _ => Ok(MAX_TRANSFER as u64),
        }
    }

    fn write(&mut self, stream: Resource<OutputStream>, bytes: Vec<u8>) -> Answer<()> {
        self.write_permitted(&stream, &bytes)
    }

    fn blocking_write_and_flush(&mut self, stream: Resource<OutputStream>, bytes: Vec<u8>) -> Answer<()> {
        self.write_all(&stream, &bytes)
    }

    /// Returns at once: files and the kernel already have the written bytes, and printed output is sent within
    /// milliseconds.
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
        self.push_resource(pollable)
    }

    fn write_zeroes(&mut self, stream: Resource<OutputStream>, length: u64) -> Answer<()> {
        self.write_permitted(&stream, &Self::zeros(length)?)
    }

    fn blocking_write_zeroes_and_flush(&mut self, stream: Resource<OutputStream>, length: u64) -> Answer<()> {
        self.write_all(&stream, &Self::zeros(length)?)
    }

    fn splice(&mut self, to: Resource<OutputStream>, from: Resource<InputStream>, length: u64) -> Answer<u64> {
        let permitted = HostOutputStream::check_write(self, Resource::new_borrow(to.rep()))?;
        let bytes = self.read_some(&from, bounded(length.min(permitted)))?;
        self.write_all(&to, &bytes)?;
        Ok(bytes.len() as u64)
    }

    fn blocking_splice(&mut self, to: Resource<OutputStream>, from: Resource<InputStream>, length: u64) -> Answer<u64> {
        let bytes = self.read_waiting(&from, bounded(length))?;
        self.write_all(&to, &bytes)?;
        Ok(bytes.len() as u64)
    }

    fn drop(&mut self, stream: Resource<OutputStream>) -> wasmtime::Result<()> {
        if let OutputStream::Socket(connection) = self.delete_resource(stream)? {
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
        self.delete_resource(error).map(drop)
    }
}
