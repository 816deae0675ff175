//! The service manager: sockets that it passes, and notifications to it. Without systemd, nothing happens.

use std::time::Duration;

use cofferdam::{Error, Result};
use cofferdam_server::{ListenTls, Listener};
use sd_notify::NotifyState;

use crate::report;
use crate::style::Tone;

/// The variables that belong to this process alone, so that others do not take them for their own.
pub const OWN_VARIABLES: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];
/// The most sockets that are passed.
const MAX_SOCKETS: usize = 64;

/// Returns the sockets that systemd passes to this process. Those over TCP use TLS if there are files.
pub fn sockets(tls: Option<&ListenTls>) -> Result<Vec<Listener>> {
    let bad = |error: std::io::Error| {
        Error::invalid("listen", "cannot use the sockets of the service manager").with_source(error)
    };
    let passed: Vec<_> = sd_notify::listen_fds_with_names().map_err(bad)?.take(MAX_SOCKETS).collect();
    let listener = |(fd, name): (i32, String)| {
        let socket = cofferdam_linux::process::copy_inherited(fd).map_err(bad)?;
        Listener::from_socket(socket, tls).map_err(|error| error.with_context("socket", name))
    };
    passed.into_iter().map(listener).collect()
}

/// Reports that the server accepts connections.
pub fn ready() {
    notify(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

/// Reports that another process may take over.
pub fn reloading() {
    notify(&[NotifyState::Reloading, NotifyState::Status("starting the new version")]);
}

/// Reports that this process continues to serve after a failed upgrade.
pub fn upgrade_failed() {
    notify(&[NotifyState::Ready, NotifyState::Status("serving; the last upgrade failed")]);
}

/// Reports that the service is another process.
pub fn main_process(id: u32) {
    notify(&[NotifyState::MainPid(id)]);
}

/// Reports that the server drains.
pub fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// Reports that the event loop turns, if the service manager wants that. Runs until it is dropped.
pub async fn watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else {
        return std::future::pending().await;
    };
    let mut interval = tokio::time::interval((limit / 3).max(Duration::from_millis(10)));
    loop {
        interval.tick().await;
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        report::remark(&format!("cannot notify the service manager: {error}"), Tone::Bad);
    }
}
