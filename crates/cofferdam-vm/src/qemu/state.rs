//! States of machines: how QEMU writes one down, and how it takes one in.
//!
//! What is written down are the devices alone, by the command that says so. Memory is none of it: a machine that was
//! booted has it in a file of ours, one that was restored in that file and in pages of its own. So a state of a state is
//! like the first.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::qmp::Qmp;
use super::{PROGRAM, broken};
use crate::error::{Result, io};
use crate::sparse;

/// The largest state of devices that is taken. What they have is some tens of kilobytes.
pub(crate) const MAX_DEVICES: u64 = 16 << 20;
/// The set of descriptors that a state is written to; disks have the first numbers.
const SET: u64 = 1000;
const NAME: &str = "state";
/// How often it is asked whether it is ready.
const FIRST_LOOK: Duration = Duration::from_micros(500);
const MAX_LOOK: Duration = Duration::from_millis(10);

/// Whether the machine's processors run.
pub(crate) async fn is_running(qmp: &Qmp) -> Result<bool> {
    let status = qmp.command("query-status").await?;
    status.get("running").and_then(Value::as_bool).ok_or_else(|| broken("it does not say whether the machine runs"))
}

/// Has all devices written to a file, which nobody can change afterwards.
pub(crate) async fn save(qmp: &Qmp) -> Result<File> {
    let file = sparse::blank(0).map_err(io("make a file for", PROGRAM))?;
    // It takes no file that it could read.
    let writing = OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let writing = writing.map_err(io("open the state for", PROGRAM))?;
    qmp.order("add-fd", json!({ "fdset-id": SET }), Some(writing.as_fd())).await?;
    drop(writing);
    let place = json!({ "filename": format!("/dev/fdset/{SET}"), "live": false });
    let saved = qmp.order("xen-save-devices-state", place, None).await;
    let removed = qmp.order("remove-fd", json!({ "fdset-id": SET }), None).await;
    saved.and(removed)?;
    sparse::seal(&file).map_err(io("close the state of", PROGRAM))?;
    let length = file.metadata().map_err(io("look at the state of", PROGRAM))?.len();
    if !(1..=MAX_DEVICES).contains(&length) {
        return Err(broken(format!("the state of its devices has {length} bytes")));
    }
    Ok(file)
}

/// Has all devices taken from a file, by a QEMU that waits for that.
pub(crate) async fn load(qmp: &Qmp, devices: &File, limit: Duration) -> Result<()> {
    // With a position of its own.
    let own =
        File::open(format!("/proc/self/fd/{}", devices.as_raw_fd())).map_err(io("open the state for", PROGRAM))?;
    qmp.order("getfd", json!({ "fdname": NAME }), Some(own.as_fd())).await?;
    qmp.order("migrate-incoming", json!({ "uri": format!("fd:{NAME}") }), None).await?;
    let (begun, mut look) = (Instant::now(), FIRST_LOOK);
    loop {
        let found = qmp.command("query-migrate").await?;
        match found.get("status").and_then(Value::as_str).unwrap_or("none") {
            "completed" => break,
            "none" | "setup" | "active" | "device" => {}
            other => {
                let why = found.get("error-desc").and_then(Value::as_str).unwrap_or(other);
                return Err(broken(format!("it does not take the state: {}", crate::error::shown(why))));
            }
        }
        if begun.elapsed() > limit {
            return Err(broken(format!("it did not take the state within {limit:?}")));
        }
        tokio::time::sleep(look).await;
        look = (look * 2).min(MAX_LOOK);
    }
    if is_running(qmp).await? {
        return Err(broken("it lets a machine run that is to wait"));
    }
    Ok(())
}
