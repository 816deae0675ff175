//! Messages between a server and a client.
//!
//! ```text
//! client                          server
//!   |--- FIRST_BYTE, ClientHello -->|
//!   |<-------- ServerHello ---------|     build, environment, and whether it accepts a run
//!   |------ RunRequest, in parts ->|     with its host directories as descriptors;
//!   |                                     or Status or Stop, each answered once
//!   |<-------- Accepted ------------|     or Failed, which ends the connection
//!   |<-------- Output, Lost --------|
//!   |--- Stdin, Cancel, Resize ---->|     Stdin within the window of StdinTaken
//!   |--- Connect ------------------>|     with a socket, on which the server answers and passes the connection
//!   |<-------- Exit or Failed ------|
//!   |<-------- Closed --------------|     the sandbox is removed
//! ```

use std::time::Duration;

use bytes::Bytes;
use cofferdam_contract::{
    ByteSize, Error, ErrorData, ExecRequest, Exit, Level, OutputStream, Posture, Result, SandboxId, Spec, TerminalSize,
};
use cofferdam_engine::{InterpreterMetrics, PoolMetrics};
use serde::{Deserialize, Serialize};

use crate::config::Surroundings;
use crate::error;

/// The version of these messages. It is the first field of each side's first frame in every version.
pub(crate) const PROTOCOL: u32 = 3;
/// The first byte that a client sends. Requests of HTTP begin with a letter.
pub(crate) const FIRST_BYTE: u8 = 0;
/// The maximum size of a piece of a program's input or output, in bytes.
pub(crate) const PIECE: usize = 64 * 1024;
/// The maximum number of input pieces in flight to a program that does not read them.
pub(crate) const STDIN_WINDOW: usize = 4;
/// The maximum size of a run request, in bytes: a script, its arguments, its input and a spec.
pub(crate) const MAX_REQUEST: usize = 24 << 20;
/// The maximum output that is buffered for a client that is slower than its program.
pub(crate) const MAX_KEPT: ByteSize = ByteSize::from_mebibytes(256);
/// The size of a part of a run request, in bytes.
pub(crate) const REQUEST_PART: usize = 512 * 1024;

/// The server's first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerHello {
    pub protocol: u32,
    pub build: String,
    pub surroundings: Surroundings,
    pub backend: String,
    pub level: Level,
    /// True if the backend connects to ports of sandboxes.
    pub connects: bool,
    /// True if the server accepts another run now.
    pub room: bool,
}

/// The client's first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientHello {
    pub protocol: u32,
    pub build: String,
}

/// A message from a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToServer {
    /// A part of an encoded [`RunRequest`].
    RunRequest {
        part: Bytes,
        last: bool,
    },
    Stdin(Bytes),
    StdinEnd,
    Resize(TerminalSize),
    Cancel {
        grace: Duration,
    },
    Kill,
    /// Connect the socket that comes with the message to a port of the sandbox. A `Result<(), ErrorData>` as a frame
    /// precedes the connection's bytes on that socket.
    Connect {
        port: u16,
    },
    Status,
    Stop,
}

/// A message from the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToClient {
    Accepted(Accepted),
    Output {
        stream: OutputStream,
        data: Bytes,
    },
    Lost {
        chunks: u64,
        bytes: u64,
    },
    /// The program has read one more piece of its input.
    StdinTaken,
    /// The program reads no more input.
    StdinClosed,
    Exit(Exit),
    Failed(ErrorData),
    /// The sandbox is closed, or failed to close with this error.
    Closed(Option<ErrorData>),
    /// A [`Status`] as JSON.
    Status(String),
    Stopping,
}

/// A run that has begun.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Accepted {
    pub sandbox: SandboxId,
    pub exec: u64,
    /// JSON, because it leaves out empty fields.
    posture: String,
}

impl Accepted {
    pub(crate) fn new(sandbox: SandboxId, exec: u64, posture: &Posture) -> Result<Self> {
        Ok(Self { sandbox, exec, posture: json(posture)? })
    }

    pub(crate) fn posture(&self) -> Option<Posture> {
        serde_json::from_str(&self.posture).ok()
    }
}

/// A sandbox to create and a command to run in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunRequest {
    /// JSON, the format in which specs are defined.
    spec: String,
    pub request: ExecRequest,
}

impl RunRequest {
    /// Encodes the request in parts.
    pub(crate) fn encode(spec: &Spec, request: ExecRequest) -> Result<Vec<ToServer>> {
        let run = Self { spec: json(spec)?, request };
        let whole: Bytes = postcard::to_stdvec(&run).map_err(|_| error::invalid_message("run"))?.into();
        if whole.len() > MAX_REQUEST {
            return Err(error::too_large());
        }
        let starts = (0..whole.len()).step_by(REQUEST_PART);
        let part = |start: usize| {
            let end = whole.len().min(start + REQUEST_PART);
            ToServer::RunRequest { part: whole.slice(start..end), last: end == whole.len() }
        };
        Ok(starts.map(part).collect())
    }

    /// Decodes and checks a request. Its spec and its exec request are untrusted input.
    pub(crate) fn decode(whole: &[u8]) -> Result<(Spec, ExecRequest)> {
        let bad = |what: &str| Error::invalid("run", format!("the server received {what}"));
        let run: Self = crate::frame::decode(whole).map_err(|_| bad("an invalid request"))?;
        let spec: Spec = serde_json::from_str(&run.spec).map_err(|_| bad("an invalid spec"))?;
        spec.validate()?;
        let request = run.request;
        request.validate()?;
        // Output for a client that does not read is buffered in this process.
        let buffer = request.output_buffer().min(MAX_KEPT);
        Ok((spec, request.to_builder().output_buffer(buffer).build()?))
    }
}

fn json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|_| error::invalid_message("run"))
}

/// The status of a server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The server's process id.
    pub pid: u32,
    /// Seconds since the server began to listen.
    pub uptime_seconds: f64,
    /// The server's build.
    pub build: String,
    /// The backend that creates the server's sandboxes.
    pub backend: String,
    /// The isolation level of that backend.
    pub level: Level,
    /// Number of current runs.
    pub running: usize,
    /// Number of runs so far.
    pub runs: u64,
    /// Number of runs that a prepared interpreter served.
    pub warm_runs: u64,
    /// Metrics of the pool.
    pub pool: PoolMetrics,
    /// Metrics of the prepared interpreters.
    pub interpreters: Vec<InterpreterMetrics>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::{Command, Script, Stdin, TenantId};

    /// Promise (Server): A request is the same after its transfer to the server.
    #[test]
    fn an_order_comes_out_as_it_went_in() {
        let spec = Spec::builder().tenant(TenantId::new("a").unwrap()).attribute("x.y", 1).build().unwrap();
        let script = |size: usize| {
            let contents = vec![7; size].into();
            let script = Script { interpreter: vec!["sh".into()], name: "m".into(), contents, args: vec!["é".into()] };
            ExecRequest::builder(Command::Script(script))
                .stdin(Stdin::Bytes("in".into()))
                .output_buffer(ByteSize::from_bytes(9))
                .env("A", "b")
                .build()
                .unwrap()
        };
        for size in [0, REQUEST_PART, 16 << 20] {
            let request = script(size);
            let parts = RunRequest::encode(&spec, request.clone()).unwrap();
            let mut whole = Vec::new();
            for (number, message) in parts.iter().enumerate() {
                crate::frame::encode(message).unwrap();
                let ToServer::RunRequest { part, last } = message else { panic!("{message:?}") };
                whole.extend_from_slice(part);
                assert_eq!(*last, number + 1 == parts.len());
            }
            assert_eq!(RunRequest::decode(&whole).unwrap(), (spec.clone(), request));
        }
    }

    /// Promise (Server): The receiver of a message refuses invalid values.
    #[test]
    fn receiver_refuses_invalid_values() {
        let encoded =
            |spec: &str, request| postcard::to_stdvec(&RunRequest { spec: spec.to_owned(), request }).unwrap();
        let good = ExecRequest::argv(["true"]).build().unwrap();
        assert!(RunRequest::decode(&encoded("{}", good.clone())).is_ok());
        for spec in ["", "{", r#"{"workspace":{"kind":"host-dir","path":"x"}}"#, r#"{"tenant":"../x"}"#] {
            assert!(RunRequest::decode(&encoded(spec, good.clone())).is_err(), "{spec}");
        }
        let greedy = good.to_builder().output_buffer(ByteSize::from_mebibytes(1 << 20)).build().unwrap();
        assert_eq!(RunRequest::decode(&encoded("{}", greedy)).unwrap().1.output_buffer(), MAX_KEPT);
        let empty = serde_json::from_str(r#"{"command":{"argv":[""]}}"#).unwrap();
        assert!(RunRequest::decode(&encoded("{}", empty)).is_err());
        assert!(RunRequest::decode(b"").is_err());
    }
}
