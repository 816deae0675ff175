//! Debuggers and profilers of plugins, in development mode only.

use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use cofferdam_contract::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use tokio::process::Command;

use super::{Mode, launch};
use crate::{Runtime, Strategy};

/// The ports for debuggers. The first one is the default of Node.js.
const PORTS: RangeInclusive<u16> = 9229..=9328;
/// Ends with status 0 if Python has debugpy.
const HAS_DEBUGPY: &str = "import importlib.util as u, sys; sys.exit(u.find_spec('debugpy') is None)";

/// A way to debug a plugin.
#[derive(Debug, Clone)]
pub enum Debugging {
    /// A debugger attaches to this port. No time limit ends a plugin that stands at a breakpoint.
    Inspect(Arc<Port>),
    /// The plugin writes a profile in a format of Chrome to this file when it ends. The path is absolute.
    Profile(PathBuf),
}

/// A port of the loopback interface, reserved until the plugin starts.
#[derive(Debug)]
pub struct Port {
    number: u16,
    held: Mutex<Option<TcpListener>>,
}

impl Port {
    /// Reserves the first free port from 9229 to 9328.
    ///
    /// # Errors
    /// `Unavailable` if all of them are in use.
    pub fn reserve() -> Result<Self> {
        let bind = |number| Some((number, TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?));
        let (number, held) = PORTS.into_iter().find_map(bind).ok_or_else(|| {
            let message = format!("the ports {} to {} are in use", PORTS.start(), PORTS.end());
            Error::new(ErrorKind::Unavailable, "debug plugin", message).with_remedy("end the debuggers that use them")
        })?;
        Ok(Self { number, held: Mutex::new(Some(held)) })
    }

    /// Returns the number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

impl Debugging {
    /// Returns true if a debugger may stop the plugin.
    pub fn is_inspect(&self) -> bool {
        matches!(self, Self::Inspect(_))
    }

    /// Checks that a plugin can be debugged this way.
    pub async fn check(&self, runtime: Runtime, strategy: Strategy, mode: Mode) -> Result<()> {
        let refused =
            |kind, message: &str, remedy: &str| Err(Error::new(kind, "debug plugin", message).with_remedy(remedy));
        if mode == Mode::Production {
            let remedy = "use --development for a plugin that you wrote";
            return refused(ErrorKind::Denied, "debugging is refused in production mode", remedy);
        }
        if !matches!(runtime, Runtime::Python | Runtime::Node) {
            let message = "only plugins in Python and Node.js can be debugged";
            return refused(ErrorKind::Unsupported, message, "use a debugger of the plugin's language");
        }
        if launch::level(strategy).is_some() {
            let message = match self {
                Self::Inspect(_) => "a sandbox has its own loopback interface, which no debugger reaches",
                Self::Profile(_) => "a sandbox cannot write a profile to the host",
            };
            return refused(ErrorKind::InvalidInput, message, "use the strategy thread, which has no isolation");
        }
        if self.is_inspect() && runtime == Runtime::Python && !has_debugpy().await? {
            let message = "python3 has no debugpy, which debuggers attach to";
            return refused(ErrorKind::Unavailable, message, "install it: python3 -m pip install debugpy");
        }
        Ok(())
    }

    /// Returns the additions to the plugin's command.
    pub fn options(&self, runtime: Runtime) -> launch::Options {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let mut options = launch::Options::default();
        match (self, runtime) {
            (Self::Inspect(port), Runtime::Node) => {
                options.interpreter = vec![format!("--inspect=127.0.0.1:{}", port.number)];
            }
            (Self::Inspect(port), _) => {
                let address = format!("127.0.0.1:{}", port.number);
                options.interpreter = words(&["-X", "frozen_modules=off", "-m", "debugpy", "--listen", &address]);
            }
            (Self::Profile(file), Runtime::Node) => {
                let name = file.file_name().unwrap_or(OsStr::new("plugin.cpuprofile")).to_string_lossy();
                let directory = file.parent().unwrap_or(Path::new("/")).display();
                options.interpreter = words(&["--cpu-prof"]);
                options.interpreter.push(format!("--cpu-prof-dir={directory}"));
                options.interpreter.push(format!("--cpu-prof-name={name}"));
            }
            (Self::Profile(file), _) => {
                options.env = vec![("COFFERDAM_PROFILE".to_owned(), file.display().to_string())];
            }
        }
        options
    }

    /// Frees the reserved port for the plugin's process, which starts now.
    pub fn release(&self) {
        if let Self::Inspect(port) = self {
            port.held.lock().take();
        }
    }
}

async fn has_debugpy() -> Result<bool> {
    let failed =
        |error: io::Error| Error::new(ErrorKind::Unavailable, "debug plugin", "cannot run python3").with_source(error);
    let mut probe = Command::new("python3");
    probe.args(["-c", HAS_DEBUGPY]).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(probe.kill_on_drop(true).status().await.map_err(failed)?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_distinct_and_released_for_the_plugin() {
        let (first, second) = (Port::reserve().unwrap(), Port::reserve().unwrap());
        assert!(PORTS.contains(&first.number()));
        assert_ne!(first.number(), second.number());
        let number = first.number();
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_err());
        Debugging::Inspect(Arc::new(first)).release();
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
    }
}
