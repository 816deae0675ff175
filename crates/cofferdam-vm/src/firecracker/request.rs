//! Each request of the API that is made here: its method, path, body, and the status that it must be answered with.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};

use super::model::{
    Action, Balloon, BalloonStatsUpdate, BalloonUpdate, BootSource, Drive, Entropy, Logger, MachineConfig, Metrics,
    Serial, SnapshotCreate, SnapshotLoad, VmState, Vsock,
};

/// A method of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Asks.
    Get,
    /// Sets.
    Put,
    /// Changes.
    Patch,
}

/// How long the answer may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// It is known.
    Quick,
    /// Memory is read or written, or processors are made.
    Slow,
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// What is this process, and what does its machine do?
    DescribeInstance,
    /// Which version is it?
    Version,
    /// Which processors and memory has the machine?
    DescribeMachine,
    /// What does the guest say of its memory?
    BalloonStats,
    /// Processors and memory.
    Machine(MachineConfig),
    /// Kernel and command line.
    BootSource(BootSource),
    /// A block device.
    Drive(Drive),
    /// Streams.
    Vsock(Vsock),
    /// A device by which memory is asked back.
    Balloon(Balloon),
    /// Another size of the balloon.
    ResizeBalloon(BalloonUpdate),
    /// Another time between reports.
    BalloonStatsInterval(BalloonStatsUpdate),
    /// Random numbers.
    Entropy(Entropy),
    /// Where the console goes.
    Serial(Serial),
    /// Where the log goes.
    Logger(Logger),
    /// Where figures go.
    Metrics(Metrics),
    /// Something to do at once.
    Act(Action),
    /// Standing still, or going on.
    Change(VmState),
    /// A snapshot is written.
    CreateSnapshot(SnapshotCreate),
    /// A machine is made from one.
    LoadSnapshot(SnapshotLoad),
}

impl Request {
    /// Its method.
    pub fn method(&self) -> Method {
        match self {
            Self::DescribeInstance | Self::Version | Self::DescribeMachine | Self::BalloonStats => Method::Get,
            Self::ResizeBalloon(_) | Self::BalloonStatsInterval(_) | Self::Change(_) => Method::Patch,
            Self::Machine(_)
            | Self::BootSource(_)
            | Self::Drive(_)
            | Self::Vsock(_)
            | Self::Balloon(_)
            | Self::Entropy(_)
            | Self::Serial(_)
            | Self::Logger(_)
            | Self::Metrics(_)
            | Self::Act(_)
            | Self::CreateSnapshot(_)
            | Self::LoadSnapshot(_) => Method::Put,
        }
    }

    /// Its path, which holds nothing but fixed words and a checked [`super::DriveId`].
    pub fn path(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::DescribeInstance => "/",
            Self::Version => "/version",
            Self::DescribeMachine | Self::Machine(_) => "/machine-config",
            Self::BalloonStats | Self::BalloonStatsInterval(_) => "/balloon/statistics",
            Self::Balloon(_) | Self::ResizeBalloon(_) => "/balloon",
            Self::BootSource(_) => "/boot-source",
            Self::Drive(drive) => return Cow::Owned(format!("/drives/{}", drive.id())),
            Self::Vsock(_) => "/vsock",
            Self::Entropy(_) => "/entropy",
            Self::Serial(_) => "/serial",
            Self::Logger(_) => "/logger",
            Self::Metrics(_) => "/metrics",
            Self::Act(_) => "/actions",
            Self::Change(_) => "/vm",
            Self::CreateSnapshot(_) => "/snapshot/create",
            Self::LoadSnapshot(_) => "/snapshot/load",
        })
    }

    /// Its body, where it has one. A path that is not UTF-8 cannot be said in JSON.
    pub fn body(&self) -> serde_json::Result<Option<Value>> {
        match self {
            Self::DescribeInstance | Self::Version | Self::DescribeMachine | Self::BalloonStats => Ok(None),
            Self::Machine(body) => some(body),
            Self::BootSource(body) => some(body),
            Self::Drive(body) => some(body),
            Self::Vsock(body) => some(body),
            Self::Balloon(body) => some(body),
            Self::ResizeBalloon(body) => some(body),
            Self::BalloonStatsInterval(body) => some(body),
            Self::Entropy(body) => some(body),
            Self::Serial(body) => some(body),
            Self::Logger(body) => some(body),
            Self::Metrics(body) => some(body),
            Self::Act(action) => Ok(Some(json!({ "action_type": action }))),
            Self::Change(state) => Ok(Some(json!({ "state": state }))),
            Self::CreateSnapshot(body) => some(body),
            Self::LoadSnapshot(body) => some(body),
        }
    }

    /// The one status that says it was done.
    pub fn success(&self) -> u16 {
        if self.method() == Method::Get { 200 } else { 204 }
    }

    pub(super) fn pace(&self) -> Pace {
        match self {
            Self::Act(Action::InstanceStart) | Self::CreateSnapshot(_) | Self::LoadSnapshot(_) => Pace::Slow,
            _ => Pace::Quick,
        }
    }

    /// Completes "cannot …".
    pub(super) fn doing(&self) -> &'static str {
        match self {
            Self::DescribeInstance => "ask what the machine does",
            Self::Version => "ask for the version",
            Self::DescribeMachine => "ask for the machine's processors and memory",
            Self::BalloonStats => "ask for the guest's memory",
            Self::Machine(_) => "set the machine's processors and memory",
            Self::BootSource(_) => "set the machine's kernel",
            Self::Drive(_) => "give the machine a drive",
            Self::Vsock(_) => "give the machine a vsock",
            Self::Balloon(_) => "give the machine a balloon",
            Self::ResizeBalloon(_) => "resize the machine's balloon",
            Self::BalloonStatsInterval(_) => "change how often the guest's memory is reported",
            Self::Entropy(_) => "give the machine random numbers",
            Self::Serial(_) => "say where the machine's console goes",
            Self::Logger(_) => "say where the log goes",
            Self::Metrics(_) => "say where the figures go",
            Self::Act(Action::InstanceStart) => "start the machine",
            Self::Act(Action::FlushMetrics) => "have the figures written",
            Self::Change(VmState::Paused) => "pause the machine",
            Self::Change(VmState::Resumed) => "resume the machine",
            Self::CreateSnapshot(_) => "write a snapshot of the machine",
            Self::LoadSnapshot(_) => "make the machine from a snapshot",
        }
    }
}

fn some(body: &impl Serialize) -> serde_json::Result<Option<Value>> {
    serde_json::to_value(body).map(Some)
}
