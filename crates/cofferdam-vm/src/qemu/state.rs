//! Saving and loading of VM states with QEMU.
//!
//! The state contains devices only, saved by a command for this purpose. Memory is separate: a booted VM has it in a
//! file of the supervisor, and a restored one in that file and in private pages. So a state of a restored VM is as
//! complete as that of a booted one.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use cofferdam_util::text::excerpt;
use serde_json::{Value, json};

use super::qmp::Qmp;
use super::{PROGRAM, broken};
use crate::error::{Result, io};
use crate::sparse;
use crate::vmm::MAX_DEVICES;

/// The descriptor set that a state is written to; disks have the first numbers.
const SET: u64 = 1000;
const NAME: &str = "state";
/// Interval between two polls: the first and the longest.
const MIN_POLL_INTERVAL: Duration = Duration::from_micros(500);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Returns true if the VM's processors run.
pub(crate) async fn is_running(qmp: &Qmp) -> Result<bool> {
    let status = qmp.command("query-status").await?;
    status.get("running").and_then(Value::as_bool).ok_or_else(|| broken("it does not report whether the VM runs"))
}

/// Saves all devices into a sealed file.
pub(crate) async fn save(qmp: &Qmp) -> Result<File> {
    let file = sparse::blank(0).map_err(io("create a file for", PROGRAM))?;
    // QEMU accepts only a write-only descriptor.
    let writing = OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let writing = writing.map_err(io("open the state for", PROGRAM))?;
    qmp.request("add-fd", json!({ "fdset-id": SET }), Some(writing.as_fd())).await?;
    drop(writing);
    let arguments = json!({ "filename": format!("/dev/fdset/{SET}"), "live": false });
    let saved = qmp.request("xen-save-devices-state", arguments, None).await;
    let removed = qmp.request("remove-fd", json!({ "fdset-id": SET }), None).await;
    saved.and(removed)?;
    sparse::seal(&file).map_err(io("seal the state of", PROGRAM))?;
    let length = file.metadata().map_err(io("inspect the state of", PROGRAM))?.len();
    if !(1..=MAX_DEVICES).contains(&length) {
        return Err(broken(format!("the state of its devices has an invalid size of {length} bytes")));
    }
    Ok(file)
}

/// Loads all devices from a file, into a QEMU that waits for a state.
pub(crate) async fn load(qmp: &Qmp, devices: &File, timeout: Duration) -> Result<()> {
    // With a file position of its own.
    let own =
        File::open(format!("/proc/self/fd/{}", devices.as_raw_fd())).map_err(io("open the state for", PROGRAM))?;
    qmp.request("getfd", json!({ "fdname": NAME }), Some(own.as_fd())).await?;
    qmp.request("migrate-incoming", json!({ "uri": format!("fd:{NAME}") }), None).await?;
    let (begun, mut interval) = (Instant::now(), MIN_POLL_INTERVAL);
    loop {
        let found = qmp.command("query-migrate").await?;
        match found.get("status").and_then(Value::as_str).unwrap_or("none") {
            "completed" => break,
            "none" | "setup" | "active" | "device" => {}
            other => {
                let why = found.get("error-desc").and_then(Value::as_str).unwrap_or(other);
                return Err(broken(format!("it refuses the state: {}", excerpt(why))));
            }
        }
        if begun.elapsed() > timeout {
            return Err(broken(format!("it did not load the state within {timeout:?}")));
        }
        tokio::time::sleep(interval).await;
        interval = (interval * 2).min(MAX_POLL_INTERVAL);
    }
    if is_running(qmp).await? {
        return Err(broken("the restored VM is not paused"));
    }
    Ok(())
}
