//! The side of the process that takes over.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result, TenantId};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::channel::{self, Channel, Message, PROTOCOL, ended};
use super::shared::{Failing, POLL_INTERVAL, Shared};
use crate::admission::Grant;
use crate::layers::quota::recover;
use crate::listen::{Listen, ListenTls, Listener, SocketFileOwner};
use crate::quota::Demand;
use crate::report;

/// The time to receive the offer of a predecessor.
const OFFER_TIMEOUT: Duration = Duration::from_secs(30);
/// The most listeners of an offer.
const MAX_LISTENERS: usize = 64;
/// The time between two attempts to settle what the predecessor left.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The process that served before, which still has sandboxes.
#[derive(Debug)]
pub struct Predecessor {
    channel: Channel,
    instance: String,
    offered: Vec<(Listener, bool)>,
    /// The files of sockets that this process removes at its end, once the predecessor let it serve.
    files: Vec<SocketFileOwner>,
    is_gone: AtomicBool,
    /// True if the predecessor accepts no further connection.
    is_ending: AtomicBool,
    /// Cancelled when the predecessor has ended and everything of it is settled.
    settled: CancellationToken,
}

impl Predecessor {
    /// Receives the offer of the process at the other end of a channel.
    ///
    /// # Errors
    /// - `Unavailable` if it ends, or has another version of the protocol.
    pub async fn receive(channel: OwnedFd) -> Result<Self> {
        let late = || Error::new(ErrorKind::Unavailable, "hand over", "the old process offered nothing in time");
        tokio::time::timeout(OFFER_TIMEOUT, Self::offered(channel)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn offered(channel: OwnedFd) -> Result<Self> {
        let channel = Channel::new(channel)?;
        let mut offered = Vec::new();
        loop {
            match channel.receive().await? {
                Some((Message::Listener { removes }, Some(socket))) if offered.len() < MAX_LISTENERS => {
                    offered.push((Listener::from_socket(socket, None)?, removes));
                }
                Some((Message::Offer { protocol: PROTOCOL, instance }, _)) => {
                    let (is_gone, is_ending) = (AtomicBool::new(false), AtomicBool::new(false));
                    let settled = CancellationToken::new();
                    let files = Vec::new();
                    return Ok(Self { channel, instance, offered, files, is_gone, is_ending, settled });
                }
                Some(_) => {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "hand over",
                        "the old process has another protocol",
                    )
                    .with_remedy("restart the server"));
                }
                None => return Err(ended("old")),
            }
        }
    }

    /// Takes the socket of an address, if it was offered. An address with the port 0 takes any port.
    ///
    /// # Errors
    /// Those of TLS files.
    pub fn take(&mut self, listen: &Listen) -> Result<Option<Listener>> {
        let is_same = |offered: &Listener| match (offered.listen(), listen) {
            (Ok(Listen::Socket(own)), Listen::Socket(wanted)) => own == *wanted,
            (Ok(Listen::Tcp(own, _)), Listen::Tcp(wanted, _)) => {
                own.ip() == wanted.ip() && (wanted.port() == 0 || own.port() == wanted.port())
            }
            _ => false,
        };
        let Some(at) = self.offered.iter().position(|(offered, _)| is_same(offered)) else { return Ok(None) };
        let tls = if let Listen::Tcp(_, tls) = listen { tls.as_ref() } else { None };
        let (listener, removes) = self.offered.remove(at);
        self.prepare(listener, removes, tls).map(Some)
    }

    /// Takes the sockets that are left: those that the predecessor did not open itself.
    ///
    /// # Errors
    /// Those of TLS files.
    pub fn take_others(&mut self, tls: Option<&ListenTls>) -> Result<Vec<Listener>> {
        std::mem::take(&mut self.offered)
            .into_iter()
            .map(|(listener, removes)| self.prepare(listener, removes, tls))
            .collect()
    }

    /// Loads the TLS files of an offered socket, and notes whether its file is removed at the end.
    fn prepare(&mut self, listener: Listener, removes: bool, tls: Option<&ListenTls>) -> Result<Listener> {
        if removes {
            self.files.extend(listener.file());
        }
        let (Listener::Tcp(socket, _), Some(files)) = (&listener, tls) else { return Ok(listener) };
        let copy = socket
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| Error::new(ErrorKind::Io, "listen", "cannot copy a descriptor").with_source(error))?;
        Listener::from_socket(copy, Some(files))
    }

    /// Returns the name of the predecessor in records of sandboxes.
    pub(crate) fn instance(&self) -> &str {
        &self.instance
    }

    /// Reports that this process could serve, and waits until the predecessor accepts nothing any more. The files of the
    /// sockets then belong to this process.
    ///
    /// # Errors
    /// - `Unavailable` if the predecessor ended or stops.
    pub(crate) async fn ready(&self) -> Result<()> {
        self.channel.send(&Message::Ready, &[]).await?;
        match self.channel.receive().await? {
            Some((Message::Go, _)) => {
                self.files.iter().for_each(SocketFileOwner::remove);
                Ok(())
            }
            _ => Err(ended("old")),
        }
    }

    /// Returns true once the predecessor has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst)
    }

    /// Returns true if the predecessor has ended and everything of it is settled.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled.is_cancelled()
    }

    /// Returns true if the predecessor closes its sandboxes and answers no further request, or has ended.
    pub(crate) async fn is_ending(&self) -> bool {
        // A connection that the predecessor closed unanswered may have been sent before that.
        self.is_gone() || (self.connect().await.is_err() && self.is_ending.load(Ordering::SeqCst))
    }

    /// Opens a connection to the predecessor.
    ///
    /// # Errors
    /// - `Unavailable` if it has ended, or closes its sandboxes.
    pub(crate) async fn connect(&self) -> Result<UnixStream> {
        use std::io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset};
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Unavailable, "forward", "cannot create a pair of sockets").with_source(error)
        };
        let (own, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        own.set_nonblocking(true).map_err(failed)?;
        let sent = self.channel.try_send(&Message::Connection, &[theirs.as_fd()]).await;
        sent.map_err(|error| {
            if matches!(error.kind(), BrokenPipe | ConnectionReset | ConnectionRefused) {
                self.is_ending.store(true, Ordering::SeqCst);
            }
            channel::failed(error)
        })?;
        UnixStream::from_std(own).map_err(failed)
    }

    /// Asks the predecessor to stop, and waits until it has, at most for `limit`.
    pub(crate) async fn stop(&self, limit: Duration) {
        self.channel.finish();
        // What it leaves then is settled at the next start.
        let _ = tokio::time::timeout(limit, self.settled.cancelled()).await;
    }
}

/// The predecessor, and the state that this process shares with it.
#[derive(Debug)]
pub struct Followed {
    /// The predecessor.
    pub predecessor: Arc<Predecessor>,
    /// The name of the server in the database.
    pub server: String,
    /// The state that both share.
    pub shared: Shared,
}

/// The reservations of the predecessor's sandboxes, by record.
type Held = BTreeMap<String, Grant>;

impl Followed {
    /// Reserves what the sandboxes of the predecessor have, counts what it has recorded, and lists its snapshots.
    async fn poll(&self, held: &mut Held) -> Result<()> {
        let records = self.shared.store.sandboxes(&self.server).await?;
        let of_predecessor: BTreeMap<_, _> = records
            .into_iter()
            .filter(|record| record.instance == self.predecessor.instance)
            .map(|record| (record.id.clone(), record))
            .collect();
        held.retain(|id, _| of_predecessor.contains_key(id));
        for (id, record) in of_predecessor {
            let [memory_mib, disk_mib] =
                [record.memory_mib, record.disk_mib].map(|mib| u64::try_from(mib).unwrap_or(0));
            let demand = Demand { memory_mib, disk_mib };
            if let (false, Ok(tenant)) = (held.contains_key(&id), TenantId::new(record.tenant)) {
                held.insert(id, self.shared.admission.hold(&tenant, demand));
            }
        }
        self.shared.refresh().await
    }

    /// Settles what the predecessor left.
    async fn settle(&self, held: &mut Held) -> Result<()> {
        let lives = |instance: &str| instance != self.predecessor.instance;
        let left = recover(&self.shared.store, &self.server, lives).await?;
        if left > 0 {
            report::warning(&format!("settled {left} sandboxes of the process before, which was killed"));
        }
        self.poll(held).await?;
        self.shared.snapshots.take_over().await
    }

    /// Reserves what the predecessor has, waits until it accepts nothing any more, and returns the work that follows it
    /// until it has ended and everything of it is settled.
    ///
    /// # Errors
    /// - `Unavailable` if the database fails, or if the predecessor ended or stops.
    pub async fn take_over(self) -> Result<impl Future<Output = ()> + Send> {
        let mut held = Held::new();
        self.poll(&mut held).await?;
        self.predecessor.ready().await?;
        Ok(self.follow(held))
    }

    async fn follow(self, mut held: Held) {
        let predecessor = &self.predecessor;
        let mut failing = Failing::default();
        loop {
            tokio::select! {
                // It sends no further message before its end.
                _ = predecessor.channel.receive() => break,
                () = tokio::time::sleep(POLL_INTERVAL) => failing.note(self.poll(&mut held).await.err()),
            }
        }
        predecessor.is_gone.store(true, Ordering::SeqCst);
        while let Err(error) = self.settle(&mut held).await {
            failing.note(Some(error));
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        predecessor.settled.cancel();
    }
}
