//! One request that a waiting interpreter runs: from the inner exec's output and end to the handle of the request.
//!
//! ```text
//! running --(output ends)--> exit of the inner exec --> exit of the request, sandbox let go
//!    |  time-out, cancel, kill: the inner exec is ended
//! ```

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cofferdam_contract::{
    Chunk, Error, ErrorKind, ExecControl, ExecDriver, ExecHandle, Exit, OutputEvent, OutputStream, OutputSubscription,
    Result, Sandbox, TerminalSize,
};

/// Stands for output that was counted and dropped.
const DROPPED: usize = 1 << 20;

/// Passes the request's wishes on to the inner exec.
pub struct Control(pub Arc<ExecHandle>);

impl ExecControl for Control {
    fn cancel(&self, grace: Duration) {
        self.0.request_cancel(grace);
    }

    fn kill(&self) {
        kill(&self.0);
    }

    fn resize(&self, _size: TerminalSize) -> Result<()> {
        Err(Error::unsupported("resize", "the exec has no terminal"))
    }
}

/// Orders the end of an exec without waiting for it.
fn kill(exec: &ExecHandle) {
    // The order is given when `close` is first polled; what it waits for then is seen elsewhere.
    let _ = pin!(exec.close()).poll(&mut Context::from_waker(Waker::noop()));
}

/// A request that runs.
pub struct Run {
    pub inner: Arc<ExecHandle>,
    pub output: OutputSubscription,
    pub begun: Instant,
    pub deadline: Instant,
    /// CPU seconds of starting and warming.
    pub warm_cpu: f64,
    /// Bytes that came before the request's own.
    pub before: u64,
    /// Lives as long as the request.
    pub sandbox: Arc<dyn Sandbox>,
}

impl Run {
    /// Passes everything on until the end. `first` is output that has been read already.
    pub async fn drive(mut self, driver: ExecDriver, first: Vec<Chunk>) {
        for Chunk { stream, data } in first {
            driver.publisher().publish(stream, data);
        }
        let (mut timed_out, mut lost) = (false, false);
        loop {
            // Not `biased`: output that never ends must not keep the time-out waiting.
            tokio::select! {
                event = self.output.next() => match event {
                    Some(OutputEvent::Chunk(Chunk { stream, data })) => driver.publisher().publish(stream, data),
                    Some(OutputEvent::Lost { .. }) => lost = true,
                    None => break,
                },
                () = tokio::time::sleep_until(self.deadline.into()), if !timed_out => {
                    timed_out = true;
                    kill(&self.inner);
                }
            }
        }
        let outcome = match self.inner.exit().await {
            // Cannot happen: as much is kept as can come.
            Ok(_) if lost => Err(Error::new(ErrorKind::Internal, "exit", "output was lost on its way")),
            Ok(exit) => {
                count_dropped(&driver, &exit, self.before);
                Ok(self.exit(exit, timed_out))
            }
            Err(error) => Err(error),
        };
        driver.finish(outcome);
        drop(self.sandbox);
    }

    fn exit(&self, mut exit: Exit, timed_out: bool) -> Exit {
        if timed_out {
            exit.code = -1;
            exit.timed_out = true;
            exit.cancelled = false;
        }
        exit.duration = self.begun.elapsed();
        exit.usage.cpu_seconds = (exit.usage.cpu_seconds - self.warm_cpu).max(0.0);
        exit
    }
}

/// What the inner exec dropped at its maximum, which is above the request's, still counts as written.
fn count_dropped(driver: &ExecDriver, exit: &Exit, before: u64) {
    if !exit.truncated {
        return;
    }
    let zeros = Bytes::from(vec![0; DROPPED]);
    let mut missing = exit.usage.output_bytes.saturating_sub(before + driver.publisher().bytes_seen());
    while missing > 0 {
        let size = missing.min(DROPPED as u64);
        driver.publisher().publish(OutputStream::Stdout, zeros.slice(..size as usize));
        missing -= size;
    }
}
