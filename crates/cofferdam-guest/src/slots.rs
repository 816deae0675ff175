//! Pending requests, and the answers that each accepts.
//!
//! ```text
//! call:  sent --> answered             exec:  sent --Started--> running --Output, Credit--> --Ended--> over
//! read:  sent --Opened--> open --Data--> --Done--> over            (NotStarted ends it, too)
//! write: sent --Credit--> --Done--> over      list: sent --Entries--> --Done--> over
//! watch: as read      mark: sent --Marked--> --Entries--> --Done--> over
//! connection: sent --Connected--> open --Data, Credit, DataEnd--> --Done--> over     listen: sent --Done--> --Query, Requested...
//! exec of a former host: running --Output--> --Ended--> over
//! ```
//!
//! Any other answer is a protocol violation.

use std::net::SocketAddrV4;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use cofferdam_contract::supervise::Ended;
use cofferdam_contract::{Error, ErrorKind, ExecDriver, OutputStream};
use tokio::sync::{mpsc, oneshot};

use crate::error;
use crate::window::{Inflow, Window};
use crate::wire::{self, Answer, Counts, MAX_QUERY, NotStarted};

/// The highest number of entries of one listing.
pub const MAX_ENTRIES: usize = 100_000;
/// The highest number of bytes of one listing.
const MAX_LISTED: usize = 48 << 20;

/// One entry of a directory.
#[derive(Debug, Clone)]
pub struct Listed {
    pub mode: u32,
    pub links: u32,
    pub inode: u64,
    pub size: u64,
    pub modified: (i64, u32),
    pub name: Vec<u8>,
    pub target: Vec<u8>,
}

/// The single answer to a request.
#[derive(Debug)]
pub enum Reply {
    Hello {
        magic: u32,
        version: u32,
        pid: u32,
    },
    Done {
        errno: i32,
        kind: u32,
    },
    Probed {
        errno: i32,
        value: u64,
        data: Bytes,
    },
    Counted(Counts),
    Opened {
        size: u64,
    },
    Quiesced,
    Reseeded {
        version: u32,
        execs: Bytes,
    },
    Listed(Vec<Listed>),
    /// A directory is watched, and listed if that was requested.
    Marked {
        wd: i32,
        found: Vec<Listed>,
        /// False if the directory has more entries.
        complete: bool,
    },
    /// The directory has too many entries.
    TooMany,
}

/// The end of an exec, and the driver of its handle.
pub struct ExecEnd {
    pub ended: Option<(Ended, Counts)>,
    pub driver: ExecDriver,
}

/// The state of a request, by its id.
pub enum Slot {
    /// A request with a single answer.
    Call(Notifier<Reply>),
    Exec(ExecSlot),
    /// An exec of a former host.
    Reattached(ReattachedSlot),
    Read {
        opened: Notifier<Reply>,
        flow: Arc<Inflow>,
    },
    Write {
        done: Notifier<Reply>,
        window: Arc<Window>,
    },
    List {
        done: Notifier<Reply>,
        found: Vec<Listed>,
        bytes: usize,
    },
    /// Events of watched directories.
    Watch {
        opened: Notifier<Reply>,
        flow: Arc<Inflow>,
    },
    Mark {
        done: Notifier<Reply>,
        wd: Option<i32>,
        found: Vec<Listed>,
        bytes: usize,
    },
    Connection(ConnectionSlot),
    Listener(ListenerSlot),
}

/// The local address of a connection, or the error number of its failure.
pub type Opened = std::result::Result<SocketAddrV4, i32>;

/// A connection of a guest, or to a guest.
pub struct ConnectionSlot {
    pub opened: Notifier<Opened>,
    pub flow: Arc<Inflow>,
    pub window: Arc<Window>,
    /// True if the guest sends no more bytes.
    pub ended: bool,
}

impl ConnectionSlot {
    /// Ends both directions. With `failed`, bytes may be missing.
    pub fn end(&self, failed: Option<Error>) {
        self.flow.end(failed.map_or(Ok(()), Err));
        self.window.close();
    }
}

/// A query of a guest to the resolver.
#[derive(Debug)]
pub struct ResolverQuery {
    /// The sender, as the agent sent it.
    pub from: [u8; 7],
    /// The bytes of the query.
    pub data: Bytes,
}

/// A request to listen. Its channel has space for all queries without a response.
pub struct ListenerSlot {
    pub listening: Notifier<i32>,
    pub queries: mpsc::Sender<ResolverQuery>,
    pub requested: Arc<OnceLock<OnRequest>>,
}

/// The action on a connection that a guest has requested. It must bound what it keeps: a guest chooses the rate.
pub type OnRequest = Box<dyn Fn(SocketAddrV4) + Send + Sync>;

/// A sender of a single value.
pub struct Notifier<T>(Option<oneshot::Sender<T>>);

impl<T> Notifier<T> {
    /// Creates the sender and its receiver.
    pub fn new() -> (Self, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self(Some(sender)), receiver)
    }

    /// Sends the value, unless the receiver was dropped.
    pub fn notify(&mut self, what: T) {
        let _ = self.0.take().map(|sender| sender.send(what));
    }

    pub fn is_notified(&self) -> bool {
        self.0.is_none()
    }
}

pub struct ExecSlot {
    pub driver: ExecDriver,
    pub started: Notifier<std::result::Result<Counts, NotStarted>>,
    pub ended: Notifier<ExecEnd>,
    pub window: Arc<Window>,
    pub terminal: bool,
    /// CPU microseconds that the host itself counted before the request, by the counter that the agent reads.
    pub base: Option<u64>,
}

/// An exec of a former host. Its input is at its end.
pub struct ReattachedSlot {
    pub driver: ExecDriver,
    pub ended: Notifier<ExecEnd>,
}

impl ReattachedSlot {
    /// Hands the end and the driver to the task of the exec.
    pub fn end(mut self, ended: Option<(Ended, Counts)>) {
        self.ended.notify(ExecEnd { ended, driver: self.driver });
    }
}

impl ExecSlot {
    /// Hands the end and the driver to the task of the exec.
    pub fn end(mut self, ended: Option<(Ended, Counts)>) {
        self.window.close();
        self.ended.notify(ExecEnd { ended, driver: self.driver });
    }
}

/// The next state of a slot after an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum After {
    /// More answers will come.
    Go,
    /// The request is complete.
    Done,
    /// More answers may come, but the host does not want them.
    GiveUp,
    /// An exec's program ended.
    Ended(Ended, Counts),
}

/// Passes an answer to its receiver. Fails if the answer violates the protocol.
pub fn handle_answer(slot: &mut Slot, answer: &Answer<'_>) -> Result<After, &'static str> {
    const UNEXPECTED: &str = "an answer to another request";
    match slot {
        Slot::Call(call) => {
            call.notify(match *answer {
                Answer::Hello { magic, version, pid } => Reply::Hello { magic, version, pid },
                Answer::Done { errno, kind } => Reply::Done { errno, kind },
                Answer::Probed { errno, value, data } => {
                    Reply::Probed { errno, value, data: Bytes::copy_from_slice(data) }
                }
                Answer::Counted { counts } => Reply::Counted(counts),
                Answer::Quiesced => Reply::Quiesced,
                Answer::Reseeded { version, execs } => {
                    Reply::Reseeded { version, execs: Bytes::copy_from_slice(execs) }
                }
                _ => return Err(UNEXPECTED),
            });
            Ok(After::Done)
        }
        Slot::Exec(exec) => handle_exec_answer(exec, answer),
        Slot::Reattached(exec) => match *answer {
            Answer::Output { second, data } if !data.is_empty() => {
                let stream = if second { OutputStream::Stderr } else { OutputStream::Stdout };
                exec.driver.publisher().publish(stream, data);
                Ok(After::Go)
            }
            Answer::Ended { status, peak_bytes, cpu_micros, counts } => {
                Ok(After::Ended(Ended { status, peak_bytes, cpu_micros }, counts))
            }
            _ => Err("an event that an exec of a former host cannot have"),
        },
        Slot::Read { opened, flow } | Slot::Watch { opened, flow } => match *answer {
            Answer::Opened { size, .. } if !opened.is_notified() => {
                opened.notify(Reply::Opened { size });
                Ok(After::Go)
            }
            Answer::Data { data } if opened.is_notified() => {
                flow.put(data).then_some(After::Go).ok_or("more of a file than the host requested")
            }
            Answer::Done { errno, kind } => {
                let failed = || error::file("read_file", "(while it was read)", errno, kind);
                flow.end(if errno == 0 { Ok(()) } else { Err(failed()) });
                opened.notify(Reply::Done { errno, kind });
                Ok(After::Done)
            }
            _ => Err(UNEXPECTED),
        },
        Slot::Write { done, window } => match *answer {
            Answer::Credit { bytes } => {
                window.grant(bytes as usize).then_some(After::Go).ok_or("credit for bytes that the host did not send")
            }
            Answer::Done { errno, kind } => {
                done.notify(Reply::Done { errno, kind });
                window.close();
                Ok(After::Done)
            }
            _ => Err(UNEXPECTED),
        },
        Slot::List { done, found, bytes } => match *answer {
            Answer::Entries { entries } => {
                *bytes += entries.len();
                add_entries(found, entries).ok_or("entries that cannot be read")?;
                if found.len() <= MAX_ENTRIES && *bytes <= MAX_LISTED {
                    return Ok(After::Go);
                }
                done.notify(Reply::TooMany);
                Ok(After::GiveUp)
            }
            Answer::Done { errno, kind } => {
                done.notify(match errno {
                    0 => Reply::Listed(std::mem::take(found)),
                    errno => Reply::Done { errno, kind },
                });
                Ok(After::Done)
            }
            _ => Err(UNEXPECTED),
        },
        Slot::Mark { done, wd, found, bytes } => match *answer {
            Answer::Marked { wd: marked } if wd.is_none() => {
                *wd = Some(marked);
                Ok(After::Go)
            }
            Answer::Entries { entries } if wd.is_some() => {
                *bytes += entries.len();
                add_entries(found, entries).ok_or("entries that cannot be read")?;
                if found.len() <= MAX_ENTRIES && *bytes <= MAX_LISTED {
                    return Ok(After::Go);
                }
                let found = std::mem::take(found);
                done.notify(Reply::Marked { wd: wd.unwrap_or(-1), found, complete: false });
                Ok(After::GiveUp)
            }
            Answer::Done { errno, kind } => {
                done.notify(match *wd {
                    Some(wd) => Reply::Marked { wd, found: std::mem::take(found), complete: errno == 0 },
                    None => Reply::Done { errno, kind },
                });
                Ok(After::Done)
            }
            _ => Err(UNEXPECTED),
        },
        Slot::Connection(connection) => handle_connection_answer(connection, answer),
        Slot::Listener(listener) => match *answer {
            Answer::Done { errno, .. } if !listener.listening.is_notified() => {
                listener.listening.notify(errno);
                Ok(if errno == 0 { After::Go } else { After::Done })
            }
            Answer::Query { from, data } if listener.listening.is_notified() && data.len() <= MAX_QUERY => {
                let query = ResolverQuery { from: *from, data: Bytes::copy_from_slice(data) };
                match listener.queries.try_send(query) {
                    Err(mpsc::error::TrySendError::Full(_)) => Err("more queries than the host allows"),
                    // Without a gateway, there are no responses.
                    Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(After::Go),
                }
            }
            Answer::Requested { address, port } if listener.listening.is_notified() => {
                if let Some(requested) = listener.requested.get() {
                    requested(SocketAddrV4::new(address.into(), port));
                }
                Ok(After::Go)
            }
            _ => Err(UNEXPECTED),
        },
    }
}

fn handle_connection_answer(connection: &mut ConnectionSlot, answer: &Answer<'_>) -> Result<After, &'static str> {
    let open = connection.opened.is_notified();
    match *answer {
        Answer::Connected { address, port } if !open => {
            connection.opened.notify(Ok(SocketAddrV4::new(address.into(), port)));
            Ok(After::Go)
        }
        Answer::Data { data } if open && !connection.ended => {
            connection.flow.put(data).then_some(After::Go).ok_or("more of a connection than the host requested")
        }
        Answer::DataEnd if open && !connection.ended => {
            connection.ended = true;
            connection.flow.end(Ok(()));
            Ok(After::Go)
        }
        Answer::Credit { bytes } if open => {
            let granted = connection.window.grant(bytes as usize);
            granted.then_some(After::Go).ok_or("credit for bytes that the host did not send")
        }
        Answer::Done { errno, .. } => {
            connection.opened.notify(Err(errno));
            let reset = || Error::new(ErrorKind::Io, "connect", "the program in the sandbox broke the connection");
            connection.end((errno != 0).then(reset));
            Ok(After::Done)
        }
        _ => Err("events of a connection in the wrong order"),
    }
}

fn add_entries(found: &mut Vec<Listed>, entries: &[u8]) -> Option<()> {
    let mut reader = wire::Reader::new(entries);
    while reader.left() > 0 {
        let wire::Entry { mode, links, inode, size, modified, name, target } = reader.entry()?;
        // A name that could lead out of the directory is invalid.
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) || name == b"." || name == b".." {
            return None;
        }
        let (name, target) = (name.to_vec(), target.to_vec());
        found.push(Listed { mode, links, inode, size, modified, name, target });
    }
    Some(())
}

fn handle_exec_answer(exec: &mut ExecSlot, answer: &Answer<'_>) -> Result<After, &'static str> {
    let running = exec.started.is_notified();
    match *answer {
        Answer::Started { counts } if !running => {
            let counts = Counts { cpu_micros: exec.base.or(counts.cpu_micros), ..counts };
            exec.started.notify(Ok(counts));
            Ok(After::Go)
        }
        Answer::NotStarted { failure } if !running => {
            exec.started.notify(Err(failure));
            Ok(After::Done)
        }
        Answer::Output { second, data } if running && !data.is_empty() && !(second && exec.terminal) => {
            let stream = if second { OutputStream::Stderr } else { OutputStream::Stdout };
            exec.driver.publisher().publish(stream, data);
            Ok(After::Go)
        }
        Answer::Credit { bytes } if running => {
            exec.window.grant(bytes as usize).then_some(After::Go).ok_or("credit for bytes that the host did not send")
        }
        Answer::Ended { status, peak_bytes, cpu_micros, counts } if running => {
            Ok(After::Ended(Ended { status, peak_bytes, cpu_micros }, counts))
        }
        _ => Err("events of an exec in the wrong order"),
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contract::OutputEvent;

    use super::*;
    use crate::record::RunningExec;

    #[test]
    fn reattached_exec_is_read_in_single_bytes_within_its_buffer() {
        const WRITTEN: usize = 3 << 20;
        let cpu = (None, None);
        let exec =
            RunningExec { id: 3, elapsed: 0, wall_time: 9, cpu: cpu.0, cpu_base: cpu.1, script: false, kill_in: None };
        let (mut slot, reattached) = crate::exec::reattach(&exec).unwrap();
        let mut output = reattached.handle.output();
        for at in 0..WRITTEN {
            let answer = Answer::Output { second: at % 1000 == 0, data: b"x" };
            assert_eq!(handle_answer(&mut slot, &answer), Ok(After::Go));
        }
        assert!(handle_answer(&mut slot, &Answer::Output { second: false, data: &[] }).is_err());
        assert!(handle_answer(&mut slot, &Answer::Credit { bytes: 1 }).is_err());
        let (mut events, mut received, mut lost) = (0, 0, 0);
        while let Some(event) = output.try_next() {
            events += 1;
            match event {
                OutputEvent::Chunk(chunk) => received += chunk.data.len(),
                OutputEvent::Lost { bytes, .. } => lost += bytes as usize,
            }
        }
        assert_eq!(received + lost, WRITTEN);
        assert!(received <= 1 << 20 && received > 1 << 19 && events < 3000, "{received} bytes in {events} events");
    }
}
