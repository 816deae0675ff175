//! The descriptors of the protocol.

use std::io::{self, Read, Write};

/// Returns the streams of the protocol. Afterwards, prints go to standard error and standard input is empty.
#[cfg(unix)]
pub fn take() -> io::Result<(impl Read + Send, impl Write + Send)> {
    use std::fs::File;

    let input = File::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
    let output = File::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?);
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    Ok((input, output))
}

/// Returns the streams of the protocol. WASI cannot duplicate descriptors: a plugin must not print.
#[cfg(not(unix))]
pub fn take() -> io::Result<(impl Read + Send, impl Write + Send)> {
    Ok((io::stdin(), io::stdout()))
}
