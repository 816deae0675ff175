//! The requests of the driver: method, path, body, and expected status.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{Value, json};

use super::model::{BootSource, Drive, MachineConfig, SnapshotCreate, SnapshotLoad, VmState, Vsock};

/// An HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Queries.
    Get,
    /// Sets.
    Put,
    /// Changes.
    Patch,
}

/// The time class of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// Immediate.
    Quick,
    /// Memory is read or written, or processors are created.
    Slow,
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// Describes the process and the state of its VM.
    DescribeInstance,
    /// Queries the version.
    Version,
    /// Sets processors and memory.
    Machine(MachineConfig),
    /// Sets kernel and command line.
    BootSource(BootSource),
    /// Adds a block device.
    Drive(Drive),
    /// Adds a vsock.
    Vsock(Vsock),
    /// Adds a device with random numbers of the host.
    Entropy,
    /// Starts the VM.
    Start,
    /// Pauses or resumes.
    Change(VmState),
    /// Writes a snapshot.
    CreateSnapshot(SnapshotCreate),
    /// Restores a VM from a snapshot.
    LoadSnapshot(SnapshotLoad),
}

impl Request {
    /// Returns its method.
    pub fn method(&self) -> Method {
        match self {
            Self::DescribeInstance | Self::Version => Method::Get,
            Self::Change(_) => Method::Patch,
            Self::Machine(_)
            | Self::BootSource(_)
            | Self::Drive(_)
            | Self::Vsock(_)
            | Self::Entropy
            | Self::Start
            | Self::CreateSnapshot(_)
            | Self::LoadSnapshot(_) => Method::Put,
        }
    }

    /// Returns its path, which contains only fixed text and a validated [`super::DriveId`].
    pub fn path(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::DescribeInstance => "/",
            Self::Version => "/version",
            Self::Machine(_) => "/machine-config",
            Self::BootSource(_) => "/boot-source",
            Self::Drive(drive) => return Cow::Owned(format!("/drives/{}", drive.id())),
            Self::Vsock(_) => "/vsock",
            Self::Entropy => "/entropy",
            Self::Start => "/actions",
            Self::Change(_) => "/vm",
            Self::CreateSnapshot(_) => "/snapshot/create",
            Self::LoadSnapshot(_) => "/snapshot/load",
        })
    }

    /// Returns its body, if it has one. Fails for a path that is not UTF-8, which JSON cannot represent.
    pub fn body(&self) -> serde_json::Result<Option<Value>> {
        match self {
            Self::DescribeInstance | Self::Version => Ok(None),
            Self::Machine(body) => some(body),
            Self::BootSource(body) => some(body),
            Self::Drive(body) => some(body),
            Self::Vsock(body) => some(body),
            Self::Entropy => Ok(Some(json!({}))),
            Self::Start => Ok(Some(json!({ "action_type": "InstanceStart" }))),
            Self::Change(state) => Ok(Some(json!({ "state": state }))),
            Self::CreateSnapshot(body) => some(body),
            Self::LoadSnapshot(body) => some(body),
        }
    }

    /// Returns the expected status.
    pub fn success(&self) -> u16 {
        if self.method() == Method::Get { 200 } else { 204 }
    }

    pub(super) fn pace(&self) -> Pace {
        match self {
            Self::Start | Self::CreateSnapshot(_) | Self::LoadSnapshot(_) => Pace::Slow,
            _ => Pace::Quick,
        }
    }

    /// Returns text that completes "cannot …".
    pub(super) fn doing(&self) -> &'static str {
        match self {
            Self::DescribeInstance => "query the state of the VM",
            Self::Version => "query the version",
            Self::Machine(_) => "set the VM's processors and memory",
            Self::BootSource(_) => "set the VM's kernel",
            Self::Drive(_) => "add a drive to the VM",
            Self::Vsock(_) => "add a vsock to the VM",
            Self::Entropy => "add a random number device to the VM",
            Self::Start => "start the VM",
            Self::Change(VmState::Paused) => "pause the VM",
            Self::Change(VmState::Resumed) => "resume the VM",
            Self::CreateSnapshot(_) => "write a snapshot of the VM",
            Self::LoadSnapshot(_) => "restore the VM from a snapshot",
        }
    }
}

fn some(body: &impl Serialize) -> serde_json::Result<Option<Value>> {
    serde_json::to_value(body).map(Some)
}
