//! The decision when the issuer's keys are read. Pure.
//!
//! ```text
//! none --(read)--> fresh --(age: refresh)--> old, used while read again --(age: keep)--> none
//! ```

use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey};

use super::config::Timing;
use super::issuer::IssuerKey;

/// The next step for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Use the key that was found.
    Use,
    /// Use the key that was found, and read the keys again.
    UseAndRead,
    /// Read the keys, then decide again.
    Read,
    /// Refuse the token: no key of the issuer fits.
    Refuse,
    /// Refuse for now: the issuer's keys are not known.
    Unavailable,
}

/// The keys as a token finds them.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// True if a key fits the token.
    pub has_key: bool,
    /// The age of the keys, if there are any.
    pub age: Option<Duration>,
    /// The time since the last attempt to read them.
    pub tried: Option<Duration>,
    /// True if that attempt failed.
    pub failed: bool,
}

/// Returns the next step.
pub fn step(found: Found, timing: &Timing) -> Step {
    let age = found.age.filter(|age| *age <= timing.keep);
    let may_read = found.tried.is_none_or(|tried| tried >= timing.retry);
    match age {
        Some(age) if found.has_key && age < timing.refresh => Step::Use,
        Some(_) if found.has_key && may_read => Step::UseAndRead,
        Some(_) if found.has_key => Step::Use,
        _ if may_read => Step::Read,
        // The key may be one that the issuer has had since.
        Some(_) if !found.failed => Step::Refuse,
        _ => Step::Unavailable,
    }
}

/// Returns the one key that fits a token. Several are none: the token does not say which one is meant.
pub fn fitting<'a>(keys: &'a [IssuerKey], name: Option<&str>, algorithm: Algorithm) -> Option<&'a DecodingKey> {
    let is_named = |key: &&IssuerKey| name.is_none() || key.name.as_deref() == name;
    let mut fitting = keys.iter().filter(is_named).filter(|key| key.algorithms.contains(&algorithm));
    match (fitting.next(), fitting.next()) {
        (Some(key), None) => Some(&key.key),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TIMING: Timing =
        Timing { refresh: Duration::from_secs(300), keep: Duration::from_secs(900), retry: Duration::from_secs(10) };

    fn seconds(times: std::ops::Range<u64>) -> impl Strategy<Value = Option<Duration>> {
        proptest::option::of(times.prop_map(Duration::from_secs))
    }

    proptest! {
        /// Promise (Server): Unknown keys in tokens make the server ask their issuer at a bounded rate, and keys of an
        /// issuer that does not answer are used for a bounded time.
        #[test]
        fn reads_are_rare_and_old_keys_unused(
            has_key: bool, failed: bool, age in seconds(0..2000), tried in seconds(0..100),
        ) {
            let step = step(Found { has_key, age, tried, failed }, &TIMING);
            let reads = matches!(step, Step::Read | Step::UseAndRead);
            let uses = matches!(step, Step::Use | Step::UseAndRead);
            prop_assert!(!reads || tried.is_none_or(|tried| tried >= TIMING.retry));
            prop_assert!(!uses || (has_key && age.is_some_and(|age| age <= TIMING.keep)));
            prop_assert!(step != Step::Refuse || (!has_key && !failed));
            if has_key && age.is_some_and(|age| age <= TIMING.keep) {
                prop_assert!(uses);
            }
        }
    }

    #[test]
    fn the_key_of_a_token_is_unambiguous() {
        let key = |name: Option<&str>, algorithm| IssuerKey {
            name: name.map(str::to_owned),
            algorithms: vec![algorithm],
            key: DecodingKey::from_ed_der(&[0; 32]),
        };
        let keys =
            [key(Some("a"), Algorithm::EdDSA), key(Some("b"), Algorithm::ES256), key(Some("a"), Algorithm::RS256)];
        assert!(fitting(&keys, Some("a"), Algorithm::EdDSA).is_some());
        assert!(fitting(&keys, None, Algorithm::ES256).is_some());
        assert!(fitting(&keys, Some("b"), Algorithm::EdDSA).is_none());
        let twice = [key(Some("a"), Algorithm::EdDSA), key(Some("a"), Algorithm::EdDSA)];
        assert!(fitting(&twice, Some("a"), Algorithm::EdDSA).is_none());
        assert!(fitting(&twice, None, Algorithm::EdDSA).is_none());
    }
}
