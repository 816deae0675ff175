//! Identifiers that no client can guess.

use std::time::{SystemTime, UNIX_EPOCH};

use cofferdam_contract::{Error, ErrorKind, Result};
use cofferdam_util::hex;

/// Returns `prefix`, the time in milliseconds and 128 random bits. Identifiers sort by the time of their creation.
///
/// # Errors
/// - `Unavailable` if the kernel has no random bytes.
pub fn new_id(prefix: &str) -> Result<String> {
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    Ok(format!("{prefix}-{millis:011x}{}", hex::encode(random::<16>()?)))
}

/// Returns random bytes.
///
/// # Errors
/// - `Unavailable` if the kernel has none.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "create an id", "the kernel has no random bytes").with_source(error)
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_name_files() {
        let (one, two) = (new_id("sb").unwrap(), new_id("sb").unwrap());
        assert_ne!(one[14..], two[14..]);
        assert_eq!(one.len(), 3 + 11 + 32);
        assert!(cofferdam_audit::ExecutionId::new(one).is_ok());
    }
}
