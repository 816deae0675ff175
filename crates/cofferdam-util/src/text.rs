//! Untrusted text in messages.

/// Maximum length of an excerpt, in bytes.
const MAX_EXCERPT: usize = 1000;

/// Returns the beginning of untrusted text, without control characters.
pub fn excerpt(text: &str) -> String {
    let text = text.trim();
    let end = text.floor_char_boundary(MAX_EXCERPT);
    let cut = if end < text.len() { " …" } else { "" };
    let printable: String = text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{printable}{cut}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_is_bounded_and_has_no_control_characters() {
        assert_eq!(excerpt(" a\u{1b}[2Jb\n"), "a [2Jb");
        assert_eq!(excerpt(&"é".repeat(600)), format!("{} …", "é".repeat(500)));
        assert_eq!(excerpt(&format!("x{}", "é".repeat(600))), format!("x{} …", "é".repeat(499)));
    }
}
