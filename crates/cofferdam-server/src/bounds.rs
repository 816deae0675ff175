//! Bounds of one server: sizes, counts and times that no client exceeds.

use std::time::Duration;

use cofferdam_contract::ByteSize;

/// Bounds of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// Open connections. Further ones wait to be accepted.
    pub connections: usize,
    /// Requests that are answered at once, streams included. More are refused.
    pub requests: usize,
    /// Requests of one tenant that are answered at once, streams included. More are refused.
    pub requests_of_tenant: usize,
    /// Bytes of a request's head.
    pub head: usize,
    /// Bytes of a JSON body.
    pub json: usize,
    /// Bytes of a file in one upload.
    pub file: u64,
    /// Bytes of the file of a snapshot.
    pub snapshot: u64,
    /// Bytes of an archive of images.
    pub image: u64,
    /// Bytes of a volume.
    pub volume: ByteSize,
    /// Bytes of input in one request or message.
    pub stdin: usize,
    /// Bytes of output that an exec keeps for readers that come back.
    pub replay: ByteSize,
    /// Bytes of output that all execs of a sandbox keep together.
    pub replay_of_sandbox: ByteSize,
    /// Bytes of output of one exec. More is read and discarded.
    pub output: ByteSize,
    /// Execs of a sandbox that run at once.
    pub running: usize,
    /// Execs of a sandbox that have ended and whose output and exit are kept.
    pub ended: usize,
    /// Time to receive a request's head, and to negotiate TLS.
    pub head_time: Duration,
    /// Time to receive a JSON body.
    pub body_time: Duration,
    /// Time that an upload may pause, and that a client may leave an answer unread.
    pub stall_time: Duration,
    /// Time to answer a request that waits for nothing but the backend.
    pub answer_time: Duration,
    /// Time to answer a request that creates, copies or examines much, such as a sandbox from a snapshot.
    pub work_time: Duration,
    /// Time to answer a request with a large body or a large result: uploads, archives, snapshots. Each pause of a body is
    /// bounded by `stall_time`, too.
    pub transfer_time: Duration,
    /// Time that a request may wait for the exit of an exec.
    pub wait_time: Duration,
    /// Lifetime of a sandbox whose creator sets none.
    pub default_life: Duration,
    /// The longest time from now to the end of a sandbox, and of an exec.
    pub max_life: Duration,
    /// Time without use after which a sandbox is closed, if its creator sets none.
    pub default_idle: Duration,
    /// Time between two checks for sandboxes whose time is over.
    pub tick: Duration,
    /// Time for requests to end after the server was asked to stop.
    pub drain_time: Duration,
    /// Time for sandboxes to end after another process took over.
    pub handover_time: Duration,
}

impl Bounds {
    /// Sets the requests that are answered at once. The bounds of one tenant and of connections keep their ratio to them.
    #[must_use]
    pub fn with_requests(self, requests: u32) -> Self {
        let requests = requests as usize;
        Self { connections: requests * 2, requests, requests_of_tenant: requests / 4, ..self }
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 4096,
            requests: 2048,
            requests_of_tenant: 512,
            // A path of 4096 characters has up to 48 KiB in its encoded form.
            head: 64 << 10,
            json: 2 << 20,
            file: 1 << 30,
            snapshot: 64 << 30,
            image: 16 << 30,
            volume: ByteSize::from_mebibytes(64 << 10),
            stdin: 1 << 20,
            replay: ByteSize::from_mebibytes(1),
            replay_of_sandbox: ByteSize::from_mebibytes(16),
            output: ByteSize::from_mebibytes(64),
            running: 32,
            ended: 32,
            head_time: Duration::from_secs(30),
            body_time: Duration::from_secs(30),
            stall_time: Duration::from_secs(60),
            answer_time: Duration::from_secs(120),
            work_time: Duration::from_secs(10 * 60),
            // Enough for the largest snapshot at 25 Mbit/s.
            transfer_time: Duration::from_secs(6 * 60 * 60),
            wait_time: Duration::from_secs(60),
            default_life: Duration::from_secs(60 * 60),
            max_life: Duration::from_secs(24 * 60 * 60),
            default_idle: Duration::from_secs(15 * 60),
            tick: Duration::from_millis(500),
            drain_time: Duration::from_secs(10),
            handover_time: Duration::from_secs(60 * 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_of_requests_keep_their_ratio() {
        assert_eq!(Bounds::default().with_requests(2048), Bounds::default());
        let more = Bounds::default().with_requests(16_384);
        assert_eq!((more.connections, more.requests, more.requests_of_tenant), (32_768, 16_384, 4096));
    }
}
