//! The client's side: finds the daemon, sees whether it will do, and runs something through it or asks it something.
//!
//! Looking for a daemon where there is none costs a few system calls: no thread and no event loop is needed before a run
//! begins.

mod backend;
mod exec;

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use cofferdam_contract::{Error, ErrorKind, Level, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use backend::DaemonBackend;

use crate::config::Surroundings;
use crate::error;
use crate::frame::{decode, encode, split};
use crate::message::{ClientHello, PROTOCOL, ServerHello, Status, ToClient, ToServer};
use crate::peer::{Caller, Peer};
use crate::place::Place;

/// How long a daemon may take to greet or to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a daemon that was told to end may take, besides the time that its runs have.
const ENDING: Duration = Duration::from_secs(45);
/// How often it is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(10);

/// What a client needs of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Its own build.
    pub build: String,
    /// Its own surroundings.
    pub surroundings: Surroundings,
    /// The backend.
    pub backend: String,
}

/// Why a daemon is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is none.
    None,
    /// It did not greet in time, or not as a daemon does.
    Silent,
    /// It is another build.
    OtherBuild,
    /// It finds other interpreters than we would.
    OtherSurroundings,
    /// It makes other sandboxes.
    OtherBackend(String),
    /// It sees or may do other things than we do; in which way.
    OtherConfinement(String),
    /// It runs as much as it may.
    Full,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no daemon runs"),
            Self::Silent => f.write_str("the daemon does not answer, or not as this version does"),
            Self::OtherBuild => f.write_str("the daemon is of another build"),
            Self::OtherSurroundings => {
                f.write_str("the daemon was started with another PATH, HOME, container engine or image of machines")
            }
            Self::OtherBackend(name) => write!(f, "the daemon makes sandboxes of the backend '{name}'"),
            Self::OtherConfinement(how) => f.write_str(how),
            Self::Full => f.write_str("the daemon runs as much as it may, or is ending"),
        }
    }
}

impl Refusal {
    /// What can be done about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::None => "start one with `cofferdam daemon --detach`, or use --daemon start",
            Self::Full => "try again later, or use --daemon auto",
            Self::OtherBackend(_) => "start one for this backend, or use --daemon auto",
            Self::OtherConfinement(_) => "start one under the same confinement, or use --daemon auto",
            Self::Silent | Self::OtherBuild | Self::OtherSurroundings => {
                "start it anew from here: `cofferdam daemon stop`, then `cofferdam daemon --detach`"
            }
        }
    }
}

/// A connection to a daemon that will do, for one run or one question.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    buffer: BytesMut,
    peer: Peer,
    backend: String,
    level: Level,
}

impl Connection {
    /// Connects for a run, if there is a daemon that will do.
    pub fn for_run(place: &Place, asked: &Asked) -> Result<Result<Self, Refusal>> {
        let (connection, hello) = match Self::greet(place, &asked.build)? {
            Ok(greeted) => greeted,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let refusal = if hello.build != asked.build {
            Refusal::OtherBuild
        } else if hello.surroundings != asked.surroundings {
            Refusal::OtherSurroundings
        } else if hello.backend != asked.backend {
            Refusal::OtherBackend(hello.backend)
        } else if !hello.room {
            Refusal::Full
        } else if let Err(error) = connection.peer.confined_alike(Caller::Us) {
            Refusal::OtherConfinement(error.message().to_owned())
        } else {
            return Ok(Ok(connection));
        };
        Ok(Err(refusal))
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.peer.pid()
    }

    /// Asks how the daemon stands.
    pub fn status(place: &Place) -> Result<Result<Status, Refusal>> {
        let mut connection = match Self::greet(place, "")? {
            Ok((connection, _)) => connection,
            Err(refusal) => return Ok(Err(refusal)),
        };
        match connection.ask(&ToServer::Status) {
            Ok(ToClient::Status(text)) => {
                serde_json::from_str(&text).map(Ok).map_err(|_| error::nonsense("daemon status"))
            }
            Ok(_) => Err(error::nonsense("daemon status")),
            Err(error) => Err(error::os("the daemon did not answer", error)),
        }
    }

    /// Tells the daemon to end, and waits until it has.
    pub fn stop(place: &Place) -> Result<Result<u32, Refusal>> {
        let mut connection = match Self::greet(place, "")? {
            Ok((connection, _)) => connection,
            Err(refusal) => return Ok(Err(refusal)),
        };
        match connection.ask(&ToServer::Stop) {
            Ok(ToClient::Stopping) => {}
            Ok(_) => return Err(error::nonsense("daemon stop")),
            Err(error) => return Err(error::os("the daemon did not answer", error)),
        }
        let deadline = Instant::now() + ENDING;
        while place.is_taken() || !connection.peer.has_ended() {
            if Instant::now() >= deadline {
                let message = format!("the daemon, process {}, does not end", connection.pid());
                return Err(Error::new(ErrorKind::Unavailable, "daemon stop", message).with_remedy("kill it"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(Ok(connection.pid()))
    }

    fn greet(place: &Place, build: &str) -> Result<Result<(Self, ServerHello), Refusal>> {
        let Some((stream, peer)) = place.connect()? else { return Ok(Err(Refusal::None)) };
        let limits = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
        limits.map_err(|error| error::os("cannot set a time-out", error))?;
        let mut connection =
            Self { stream, buffer: BytesMut::new(), peer, backend: String::new(), level: Level::Simulated };
        let hello = ClientHello { protocol: PROTOCOL, build: build.to_owned() };
        let greeted = connection.send(&hello).and_then(|()| connection.receive::<ServerHello>());
        match greeted {
            Ok(theirs) if theirs.protocol == PROTOCOL => {
                connection.backend.clone_from(&theirs.backend);
                connection.level = theirs.level;
                Ok(Ok((connection, theirs)))
            }
            // Too slow, ending just now, or of a version that greets otherwise.
            Ok(_) | Err(_) => Ok(Err(Refusal::Silent)),
        }
    }

    fn ask(&mut self, question: &ToServer) -> io::Result<ToClient> {
        self.send(question)?;
        self.receive()
    }

    fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        self.stream.write_all(&encode(message)?)
    }

    fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let mut piece = [0; 4096];
        loop {
            if let Some(body) = split(&mut self.buffer)? {
                return decode(&body);
            }
            match self.stream.read(&mut piece)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.buffer.extend_from_slice(&piece[..count]),
            }
        }
    }
}
