//! Questions to the user of a terminal.

use std::io::{self, BufRead, IsTerminal, Write};

use cofferdam::{Error, ErrorKind, Result};

use crate::terminal::one_line;

/// The maximum length of an answer.
const MAX_ANSWER: u64 = 64;

/// Returns true if there is a terminal to ask on.
pub fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks a question. Returns true if the user agrees.
pub fn ask(operation: &'static str, question: &str) -> Result<bool> {
    is_yes(question, io::stdin().lock(), io::stderr())
        .map_err(|error| Error::new(ErrorKind::Io, operation, "cannot ask on the terminal").with_source(error))
}

/// Asks a question. Only `y` and `yes` agree.
fn is_yes(question: &str, from: impl BufRead, mut to: impl Write) -> io::Result<bool> {
    write!(to, "{} [y/N] ", one_line(question))?;
    to.flush()?;
    let mut answer = String::new();
    from.take(MAX_ANSWER).read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_an_agreement() {
        for (answer, agreed) in [
            ("y\n", true),
            ("YES\n", true),
            (" y ", true),
            ("", false),
            ("\n", false),
            ("n\n", false),
            ("yess\n", false),
        ] {
            let mut shown = Vec::new();
            assert_eq!(is_yes("Install x\u{1b}?", answer.as_bytes(), &mut shown).unwrap(), agreed, "{answer:?}");
            assert_eq!(String::from_utf8(shown).unwrap(), "Install x\\x1b? [y/N] ");
        }
        let endless = io::BufReader::new(io::repeat(b'y'));
        assert!(!is_yes("?", endless, io::sink()).unwrap());
    }
}
