//! State and stop of this user's server.

use std::fmt::Write;

use cofferdam::resident::{Connection, Refusal, SocketDirectory, Status};
use cofferdam::{Error, ErrorKind, Result};

use crate::report::{self, Form};
use crate::resident;
use crate::style::Tone;
use crate::terminal::one_line;

fn socket_directory() -> Result<Result<SocketDirectory, Refusal>> {
    Ok(SocketDirectory::open(resident::candidates().directory())?.ok_or(Refusal::None))
}

/// Prints the state of this user's server.
pub fn status(form: Form) -> Result<u8> {
    let status = match socket_directory()? {
        Ok(directory) => Connection::status(&directory)?,
        Err(refusal) => Err(refusal),
    };
    let status = match status {
        Ok(status) => status,
        Err(refusal) => return report_refusal(&refusal, form),
    };
    let value = serde_json::to_value(&status).unwrap_or_default();
    Ok(report::printed(report::show(form, &value, &table(&status)), 0))
}

fn report_refusal(refusal: &Refusal, form: Form) -> Result<u8> {
    if form == Form::Json {
        return Err(
            Error::new(ErrorKind::Unavailable, "serve status", refusal.to_string()).with_remedy(refusal.remedy())
        );
    }
    report::remark(&refusal.to_string(), Tone::Warning);
    Ok(1)
}

fn table(status: &Status) -> String {
    let Status { pid, uptime_seconds, build, backend, level, running, runs, warm_runs, pool, interpreters } = status;
    let mut out = format!("process {pid}, for {uptime_seconds:.0} s, build {}\n", one_line(build));
    // Writing to a string cannot fail.
    let _ = writeln!(out, "  sandboxes     {} (level {level})", one_line(backend));
    let _ = writeln!(out, "  runs          {running} now, {runs} in total, {warm_runs} in prepared interpreters");
    let _ = writeln!(
        out,
        "  pool          {} prepared, {} in use, {} claimed prepared, {} created on request",
        pool.warm,
        pool.claimed,
        pool.claims.warm,
        pool.claims.total() - pool.claims.warm
    );
    for kind in interpreters {
        let _ = writeln!(
            out,
            "  {:<13} {} prepared, {} starting, {} used, {} missed",
            one_line(&kind.name),
            kind.waiting,
            kind.making,
            kind.taken,
            kind.missed
        );
        if let Some(error) = &kind.last_error {
            let _ = writeln!(out, "                failed: {}", one_line(error));
        }
    }
    out
}

/// Stops this user's server, and waits until it has ended.
pub fn stop() -> Result<u8> {
    let stopped = match socket_directory()? {
        Ok(directory) => Connection::stop(&directory)?,
        Err(refusal) => Err(refusal),
    };
    match stopped {
        Ok(pid) => report::remark(&format!("the server, process {pid}, has exited"), Tone::Good),
        Err(Refusal::None) => report::remark(&Refusal::None.to_string(), Tone::Warning),
        Err(refusal) => {
            return Err(
                Error::new(ErrorKind::Unavailable, "serve stop", refusal.to_string()).with_remedy("send it SIGTERM")
            );
        }
    }
    Ok(0)
}
