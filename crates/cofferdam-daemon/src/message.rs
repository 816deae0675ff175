//! What a daemon and a client say to each other.
//!
//! ```text
//! client                          daemon
//!   |<-------- ServerHello ---------|     which build, in which surroundings, whether there is room
//!   |--------- ClientHello -------->|
//!   |--------- Order, in parts ---->|     with the directories that it names, as descriptors;
//!   |                                     or Status, or Stop, each answered once
//!   |<-------- Accepted ------------|     or Failed, the last word
//!   |<-------- Output, Lost --------|
//!   |--- Stdin, Cancel, Resize ---->|     Stdin only as far as StdinTaken allows
//!   |<-------- Exit or Failed ------|
//!   |<-------- Closed --------------|     nothing is left of the sandbox
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

/// The version of these messages. It is the first word of each side's first frame, whatever follows there.
pub(crate) const PROTOCOL: u32 = 1;
/// The most bytes of a program's input or output in one frame.
pub(crate) const PIECE: usize = 64 * 1024;
/// The most pieces of input that may be on their way to a program that does not read them.
pub(crate) const STDIN_WINDOW: usize = 4;
/// The most bytes of an order: a script, its arguments, its input and a spec.
pub(crate) const MAX_ORDER: usize = 24 << 20;
/// The most output that is kept for a client that is slower than its program.
pub(crate) const MAX_KEPT: ByteSize = ByteSize::from_mebibytes(256);
/// Bytes of an order in one frame.
pub(crate) const ORDER_PART: usize = 512 * 1024;

/// The daemon's first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerHello {
    pub protocol: u32,
    pub build: String,
    pub surroundings: Surroundings,
    pub backend: String,
    pub level: Level,
    /// Whether it takes another run now.
    pub room: bool,
}

/// The client's first frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientHello {
    pub protocol: u32,
    pub build: String,
}

/// What a client says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToServer {
    /// A part of an encoded [`Order`].
    Order {
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
    Status,
    Stop,
}

/// What a daemon says.
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
    /// The program has taken one more piece of its input.
    StdinTaken,
    /// The program takes no more input.
    StdinClosed,
    Exit(Exit),
    Failed(ErrorData),
    /// The sandbox is closed, or why it is not.
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
    /// As JSON: it leaves out what is empty.
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

/// What to make and what to run in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// As JSON, as it is defined in.
    spec: String,
    pub request: ExecRequest,
}

impl Order {
    /// Encodes it in parts.
    pub(crate) fn encode(spec: &Spec, request: ExecRequest) -> Result<Vec<ToServer>> {
        let order = Self { spec: json(spec)?, request };
        let whole: Bytes = postcard::to_stdvec(&order).map_err(|_| error::nonsense("run"))?.into();
        if whole.len() > MAX_ORDER {
            return Err(error::too_large());
        }
        let starts = (0..whole.len()).step_by(ORDER_PART);
        let part = |start: usize| {
            let end = whole.len().min(start + ORDER_PART);
            ToServer::Order { part: whole.slice(start..end), last: end == whole.len() }
        };
        Ok(starts.map(part).collect())
    }

    /// What was encoded; the spec and the request are as hostile as anything from outside, and checked.
    pub(crate) fn decode(whole: &[u8]) -> Result<(Spec, ExecRequest)> {
        let bad = |what: &str| Error::invalid("run", format!("the daemon was sent {what}"));
        let order: Self = crate::frame::decode(whole).map_err(|_| bad("an order that makes no sense"))?;
        let spec: Spec = serde_json::from_str(&order.spec).map_err(|_| bad("a spec that makes no sense"))?;
        spec.validate()?;
        let request = order.request;
        request.validate()?;
        // What is kept for a client that does not read is kept here.
        let kept = request.output_buffer().min(MAX_KEPT);
        Ok((spec, request.to_builder().output_buffer(kept).build()?))
    }
}

fn json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|_| error::nonsense("run"))
}

/// How a daemon stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its process.
    pub pid: u32,
    /// Seconds since it began to listen.
    pub uptime_seconds: f64,
    /// Its build.
    pub build: String,
    /// The backend that makes its sandboxes.
    pub backend: String,
    /// How thick that one's wall is.
    pub level: Level,
    /// Runs at this moment.
    pub running: usize,
    /// Runs that it has taken so far.
    pub runs: u64,
    /// Runs that a waiting interpreter took over.
    pub warm_runs: u64,
    /// Its pool.
    pub pool: PoolMetrics,
    /// Its interpreters.
    pub interpreters: Vec<InterpreterMetrics>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contract::{Command, Script, Stdin, TenantId};

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
        for size in [0, ORDER_PART, 16 << 20] {
            let request = script(size);
            let parts = Order::encode(&spec, request.clone()).unwrap();
            let mut whole = Vec::new();
            for (number, message) in parts.iter().enumerate() {
                crate::frame::encode(message).unwrap();
                let ToServer::Order { part, last } = message else { panic!("{message:?}") };
                whole.extend_from_slice(part);
                assert_eq!(*last, number + 1 == parts.len());
            }
            assert_eq!(Order::decode(&whole).unwrap(), (spec.clone(), request));
        }
    }

    #[test]
    fn what_is_not_valid_is_refused_on_the_other_side_too() {
        let order = |spec: &str, request| postcard::to_stdvec(&Order { spec: spec.to_owned(), request }).unwrap();
        let good = ExecRequest::argv(["true"]).build().unwrap();
        assert!(Order::decode(&order("{}", good.clone())).is_ok());
        for spec in ["", "{", r#"{"workspace":{"kind":"host-dir","path":"x"}}"#, r#"{"tenant":"../x"}"#] {
            assert!(Order::decode(&order(spec, good.clone())).is_err(), "{spec}");
        }
        let greedy = good.to_builder().output_buffer(ByteSize::from_mebibytes(1 << 20)).build().unwrap();
        assert_eq!(Order::decode(&order("{}", greedy)).unwrap().1.output_buffer(), MAX_KEPT);
        let empty = serde_json::from_str(r#"{"command":{"argv":[""]}}"#).unwrap();
        assert!(Order::decode(&order("{}", empty)).is_err());
        assert!(Order::decode(b"").is_err());
    }
}
