//! Raw mode of this process's terminal while the code has a terminal. The modes are restored on every exit path.

use std::sync::Once;

use cofferdam::{Error, ErrorKind, Result, TerminalSize};
use parking_lot::Mutex;
use rustix::stdio::stdin;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// The terminal's original modes while it is raw. Static, because the panic hook needs access.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Returns the size of the terminal, or an error if standard input is not a terminal.
pub fn size() -> Result<TerminalSize> {
    if !isatty(stdin()) {
        return Err(Error::invalid("run", "--tty needs a terminal, but standard input is not a terminal")
            .with_remedy("leave out --tty, or use --stdin to pass a file or pipe"));
    }
    Ok(current_size().unwrap_or(TerminalSize { rows: 24, columns: 80 }))
}

/// Returns the size of the terminal, if it is known.
pub fn current_size() -> Option<TerminalSize> {
    let size = tcgetwinsize(stdin()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some(TerminalSize { rows: size.ws_row, columns: size.ws_col })
}

/// A guard of the terminal in raw mode. Dropping it, or a panic, restores the modes.
#[derive(Debug)]
pub struct RawTerminal(());

impl RawTerminal {
    /// Enters raw mode.
    pub fn enter() -> Result<Self> {
        let failed = |error: rustix::io::Errno| {
            Error::new(ErrorKind::Io, "run", "cannot set up the terminal").with_source(std::io::Error::from(error))
        };
        let before = tcgetattr(stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock() = Some(before);
        let guard = Self(());
        restore_on_panic();
        tcsetattr(stdin(), OptionalActions::Now, &raw).map_err(failed)?;
        Ok(guard)
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let inner = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            inner(info);
        }));
    });
}

fn restore() {
    if let Some(before) = BEFORE.lock().take() {
        // A failure cannot be reported here.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}
