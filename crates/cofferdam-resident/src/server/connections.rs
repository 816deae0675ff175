//! Connections of a client to servers in the sandbox of its run.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cofferdam_contract::{Error, ErrorData, Sandbox};
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::frame::encode;

/// The maximum number of connections of one run. Backends have lower limits.
const MAX_CONNECTIONS: usize = 256;
/// The time to pass on what an ended sandbox has sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The connections of one run. Dropping it ends them.
#[derive(Debug)]
pub struct Connections {
    sandbox: Weak<dyn Sandbox>,
    tasks: JoinSet<io::Result<()>>,
}

impl Connections {
    pub fn new(sandbox: &Arc<dyn Sandbox>) -> Self {
        Self { sandbox: Arc::downgrade(sandbox), tasks: JoinSet::new() }
    }

    /// Connects the client's socket to a port of the sandbox. Answers on the socket. Beyond the limit, closes it.
    pub fn open(&mut self, port: u16, socket: OwnedFd) {
        while self.tasks.try_join_next().is_some() {}
        if self.tasks.len() < MAX_CONNECTIONS {
            self.tasks.spawn(pass(self.sandbox.clone(), port, socket));
        }
    }

    /// Passes on what a closed sandbox has sent.
    pub async fn finish(mut self) {
        let _ = timeout(FLUSH_TIMEOUT, async { while self.tasks.join_next().await.is_some() {} }).await;
    }
}

async fn pass(sandbox: Weak<dyn Sandbox>, port: u16, socket: OwnedFd) -> io::Result<()> {
    let socket = StdStream::from(socket);
    socket.set_nonblocking(true)?;
    let mut client = UnixStream::from_std(socket)?;
    let connected = match sandbox.upgrade() {
        Some(sandbox) => sandbox.connect(port).await,
        None => Err(Error::closed("connect")),
    };
    let answer = connected.as_ref().map(drop).map_err(ErrorData::from);
    client.write_all(&encode(&answer)?).await?;
    if let Ok(mut guest) = connected {
        copy_bidirectional(&mut client, &mut guest).await?;
    }
    Ok(())
}
