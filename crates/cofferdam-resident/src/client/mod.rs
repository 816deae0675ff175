//! The client's side: finds the server, checks that it is compatible, and requests a run, the status or a stop.
//!
//! A search for a server that does not exist costs a few system calls. It needs no thread and no event loop.

mod backend;
mod connect;
mod exec;

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use cofferdam_contract::{Error, ErrorKind, Level, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use backend::ResidentBackend;

use crate::config::Surroundings;
use crate::error;
use crate::frame::{decode, encode, split};
use crate::message::{ClientHello, FIRST_BYTE, PROTOCOL, ServerHello, Status, ToClient, ToServer};
use crate::peer::{Caller, Peer};
use crate::socket_directory::SocketDirectory;

/// The time in which a server must answer, the handshake included.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The time in which a server must stop: it drains, and keeps the changes of workspaces for at most two minutes.
const STOP_TIMEOUT: Duration = Duration::from_secs(180);
/// The interval at which the client polls for the server's end.
const STOP_INTERVAL: Duration = Duration::from_millis(10);

/// A client's requirements for a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements {
    /// The client's own build.
    pub build: String,
    /// The client's own environment.
    pub surroundings: Surroundings,
    /// The required backend.
    pub backend: String,
}

/// A reason not to use a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No server is running.
    None,
    /// The server did not complete the handshake in time, or violated the protocol.
    Silent,
    /// The server has another build.
    OtherBuild,
    /// The server has another environment, so it would find other interpreters.
    OtherSurroundings,
    /// The server uses another backend.
    OtherBackend(String),
    /// The server is confined differently, in this respect.
    OtherConfinement(String),
    /// The server is at its limit of runs.
    Full,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no server is running"),
            Self::Silent => f.write_str("the server does not answer, or speaks another protocol version"),
            Self::OtherBuild => f.write_str("the server has another build"),
            Self::OtherSurroundings => {
                f.write_str("the server was started with another PATH, HOME, container engine or VM image")
            }
            Self::OtherBackend(name) => write!(f, "the server uses the backend '{name}'"),
            Self::OtherConfinement(how) => f.write_str(how),
            Self::Full => f.write_str("the server is at its limit of runs, or is stopping"),
        }
    }
}

impl Refusal {
    /// Returns the remedy.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::None => "start one with `cofferdam serve --detach`, or use --use-server start",
            Self::Full => "try again later, or use --use-server auto",
            Self::OtherBackend(_) => "start one for this backend, or use --use-server auto",
            Self::OtherConfinement(_) => "start one under the same confinement, or use --use-server auto",
            Self::Silent | Self::OtherBuild | Self::OtherSurroundings => {
                "restart it from here: `cofferdam serve stop`, then `cofferdam serve --detach`"
            }
        }
    }
}

/// A connection to a compatible server, for one run, status query or stop.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    buffer: BytesMut,
    peer: Peer,
    backend: String,
    level: Level,
    connects: bool,
}

impl Connection {
    /// Connects for a run, if a compatible server is running.
    pub fn for_run(directory: &SocketDirectory, requirements: &Requirements) -> Result<Result<Self, Refusal>> {
        let (connection, hello) = match Self::greet(directory, &requirements.build)? {
            Ok(greeted) => greeted,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let refusal = if hello.build != requirements.build {
            Refusal::OtherBuild
        } else if hello.surroundings != requirements.surroundings {
            Refusal::OtherSurroundings
        } else if hello.backend != requirements.backend {
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

    /// Returns the server's process id.
    pub fn pid(&self) -> u32 {
        self.peer.pid()
    }

    /// Queries the server's status.
    pub fn status(directory: &SocketDirectory) -> Result<Result<Status, Refusal>> {
        let mut connection = match Self::greet(directory, "")? {
            Ok((connection, _)) => connection,
            Err(refusal) => return Ok(Err(refusal)),
        };
        match connection.ask(&ToServer::Status) {
            Ok(ToClient::Status(text)) => {
                serde_json::from_str(&text).map(Ok).map_err(|_| error::invalid_message("serve status"))
            }
            Ok(_) => Err(error::invalid_message("serve status")),
            Err(error) => Err(error::os("the server did not answer", error)),
        }
    }

    /// Stops the server and waits until it has ended.
    pub fn stop(directory: &SocketDirectory) -> Result<Result<u32, Refusal>> {
        let mut connection = match Self::greet(directory, "")? {
            Ok((connection, _)) => connection,
            Err(refusal) => return Ok(Err(refusal)),
        };
        match connection.ask(&ToServer::Stop) {
            Ok(ToClient::Stopping) => {}
            Ok(_) => return Err(error::invalid_message("serve stop")),
            Err(error) => return Err(error::os("the server did not answer", error)),
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        while directory.is_taken() || !connection.peer.has_ended() {
            if Instant::now() >= deadline {
                let message = format!("the server, process {}, does not stop", connection.pid());
                return Err(Error::new(ErrorKind::Unavailable, "serve stop", message)
                    .with_remedy("wait, or kill it, which loses changes of workspaces that are not kept yet"));
            }
            std::thread::sleep(STOP_INTERVAL);
        }
        Ok(Ok(connection.pid()))
    }

    fn greet(directory: &SocketDirectory, build: &str) -> Result<Result<(Self, ServerHello), Refusal>> {
        let Some((stream, peer)) = directory.connect()? else { return Ok(Err(Refusal::None)) };
        let limits =
            stream.set_read_timeout(Some(ANSWER_TIMEOUT)).and_then(|()| stream.set_write_timeout(Some(ANSWER_TIMEOUT)));
        limits.map_err(|error| error::os("cannot set a time-out", error))?;
        let mut connection = Self {
            stream,
            buffer: BytesMut::new(),
            peer,
            backend: String::new(),
            level: Level::Simulated,
            connects: false,
        };
        let hello = ClientHello { protocol: PROTOCOL, build: build.to_owned() };
        let greeted = connection.greet_first(&hello).and_then(|()| connection.receive::<ServerHello>());
        match greeted {
            Ok(theirs) if theirs.protocol == PROTOCOL => {
                connection.backend.clone_from(&theirs.backend);
                connection.level = theirs.level;
                connection.connects = theirs.connects;
                Ok(Ok((connection, theirs)))
            }
            // The server is too slow, has just ended, or has a version with another handshake.
            Ok(_) | Err(_) => Ok(Err(Refusal::Silent)),
        }
    }

    fn greet_first(&mut self, hello: &ClientHello) -> io::Result<()> {
        let frame = encode(hello)?;
        self.stream.write_all(&[&[FIRST_BYTE], frame.as_slice()].concat())
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
