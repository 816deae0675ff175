//! Messages for the operator, on standard error.

/// Prints a warning as one line without control characters.
pub fn warning(message: &str) {
    let line: String = message.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    eprintln!("cofferdam: {line}");
}
