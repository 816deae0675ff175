//! A terminal of a user.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Timeout without a byte after which a test fails. It decides nothing else.
const READ_TIMEOUT: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// A pseudo-terminal: the end of the user's screen and keyboard, and the end of the programs.
pub struct Terminal {
    pub screen: File,
    pub inside: File,
}

impl Terminal {
    pub fn new() -> Self {
        let screen: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        let inside = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        Self { screen: screen.into(), inside }
    }

    pub fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.screen, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    }

    pub fn stdio(&self) -> Stdio {
        self.inside.try_clone().unwrap().into()
    }

    /// Returns true if programs get complete lines with echo, as in a terminal with default modes.
    pub fn is_cooked(&self) -> bool {
        tcgetattr(&self.inside).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Reads until `text` appears.
    pub fn read_until(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        let mut piece = [0; 1024];
        while !String::from_utf8_lossy(&seen).contains(text) {
            assert!(wait_readable(&self.screen), "'{text}' never came: {}", String::from_utf8_lossy(&seen));
            let count = self.screen.read(&mut piece).unwrap();
            seen.extend_from_slice(&piece[..count]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    }
}

/// Waits until data can be read. Returns false after a timeout.
pub fn wait_readable(screen: &File) -> bool {
    poll(&mut [PollFd::new(screen, PollFlags::IN)], Some(&READ_TIMEOUT)).unwrap() > 0
}
