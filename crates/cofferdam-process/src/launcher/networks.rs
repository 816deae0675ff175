//! A stock of fresh network namespaces.
//!
//! Making one is the slowest step of a sandbox, and it depends on nothing that a sandbox asks for. So a process of its
//! own makes them ahead of time, a few at most, and hands them over as descriptors. Each is used once.
//!
//! ```text
//! launcher --token--> maker --namespace--> launcher --setns--> sandbox
//! ```

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use cofferdam_linux::spawn::{self, Fork};
use cofferdam_linux::{message, namespace, process};

/// Namespaces kept ready.
const STOCK: usize = 8;
/// Time to wait for one that is being made.
const PATIENCE: Duration = Duration::from_secs(5);

/// The launcher's side.
#[derive(Debug)]
pub struct Networks {
    maker: Option<OwnedFd>,
    /// Taken, and not yet asked for again.
    owed: usize,
}

impl Networks {
    /// Starts the maker, if there is to be a stock. `proc` is a proc file system that shows the launcher.
    pub fn start(proc: BorrowedFd<'_>, stocked: bool) -> io::Result<Self> {
        if !stocked {
            return Ok(Self { maker: None, owed: 0 });
        }
        let (ours, theirs) = message::pair()?;
        match spawn::fork(0, None, None)? {
            Fork::Child => {
                process::close_all_but(&mut [0, 1, 2, theirs.as_raw_fd(), proc.as_raw_fd()]);
                process::set_name(c"cofferdam-net");
                let _ = process::die_with_parent();
                let _ = make_on_demand(theirs.as_fd(), proc);
                process::exit_now(0)
            }
            Fork::Parent(_) => {
                for _ in 0..STOCK {
                    message::send(ours.as_fd(), b"+", &[])?;
                }
                Ok(Self { maker: Some(ours), owed: 0 })
            }
        }
    }

    /// A namespace that nothing was ever in. Without a maker, the calling process makes it and stays in it.
    pub fn take(&mut self, proc: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        if let Some(maker) = &self.maker {
            match from_stock(maker.as_fd()) {
                Ok(network) => {
                    self.owed += 1;
                    if self.owed >= STOCK / 2 {
                        self.restock();
                    }
                    return Ok(network);
                }
                Err(_) => self.maker = None,
            }
        }
        make(proc)
    }

    /// Ends the maker; the caller reaps it.
    pub fn stop(&mut self) {
        self.maker = None;
    }

    /// Whether there is anything to make. It waits until nothing else is wanted: making one right away would hold up the
    /// very sandbox that took it.
    pub fn is_short(&self) -> bool {
        self.owed > 0
    }

    /// Asks the maker for what was taken.
    pub fn restock(&mut self) {
        if let Some(maker) = &self.maker {
            for _ in 0..std::mem::take(&mut self.owed) {
                // A maker that is gone is noticed when a namespace is wanted.
                let _ = message::send(maker.as_fd(), b"+", &[]);
            }
        }
        self.owed = 0;
    }
}

fn from_stock(maker: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut buffer = [0; 8];
    if !message::wait_readable(maker, Some(PATIENCE))? {
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    let (_, mut fds) = message::receive(maker, &mut buffer)?;
    fds.pop().ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))
}

/// The maker's life: one namespace a token, until the launcher is gone or something fails.
fn make_on_demand(launcher: BorrowedFd<'_>, proc: BorrowedFd<'_>) -> io::Result<()> {
    let mut buffer = [0; 8];
    loop {
        message::wait_readable(launcher, None)?;
        if message::receive(launcher, &mut buffer)?.0 == 0 {
            return Ok(());
        }
        let network = make(proc)?;
        message::send(launcher, b"n", &[network.as_fd()])?;
    }
}

fn make(proc: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    namespace::unshare(namespace::kind::NET)?;
    namespace::loopback_up()?;
    namespace::open_own(proc, "net")
}
