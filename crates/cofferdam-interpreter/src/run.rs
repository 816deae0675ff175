//! A request that a prepared interpreter runs. The output and the exit of the inner exec become those of the request.
//!
//! ```text
//! running --(output ends)--> exit of the inner exec --> exit of the request, sandbox released
//!    |  timeout, cancel, kill: the inner exec is ended
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

/// The size of a block that stands for output that was counted and dropped.
const DROPPED: usize = 1 << 20;

/// A control that passes stop requests on to the inner exec.
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

/// Orders the kill of an exec without waiting for its end.
fn kill(exec: &ExecHandle) {
    // `close` orders the kill when it is first polled. The end is observed elsewhere.
    let _ = pin!(exec.close()).poll(&mut Context::from_waker(Waker::noop()));
}

/// A running request.
pub struct Run {
    pub inner: Arc<ExecHandle>,
    pub output: OutputSubscription,
    pub begun: Instant,
    pub deadline: Instant,
    /// CPU seconds of start and warm-up.
    pub warm_cpu: f64,
    /// Number of bytes written before the request's own output.
    pub before: u64,
    /// The sandbox, which is kept alive until the request ends.
    pub sandbox: Arc<dyn Sandbox>,
}

impl Run {
    /// Passes output and exit on until the end. `first` is output that was already read.
    pub async fn drive(mut self, driver: ExecDriver, first: Vec<Chunk>) {
        for Chunk { stream, data } in first {
            driver.publisher().publish(stream, data);
        }
        let (mut timed_out, mut lost) = (false, false);
        loop {
            // Not `biased`: endless output must not delay the timeout.
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
            // Cannot happen: the buffer is as large as the maximum output.
            Ok(_) if lost => Err(Error::new(ErrorKind::Internal, "exit", "output was lost in transit")),
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

/// Counts output that the inner exec dropped at its own maximum, which is above that of the request.
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
