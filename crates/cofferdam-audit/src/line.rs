//! The format of a line, and its verification.
//!
//! ```text
//! {"v":1,"seq":7,"prev":"…","kind":"end", …                   ,"mac":"…","hash":"…"}
//! |<------------- covered by mac ---------------------------->|
//! |<------------- covered by hash ------------------------------------->|
//! ```

use serde::{Deserialize, Serialize};

use crate::{Digest, Error, Key, Record, Result};

/// The version of the format.
pub(crate) const VERSION: u32 = 1;
/// The maximum length of a line with its line break.
pub(crate) const MAX_LINE: usize = 16 * 1024;

const HASH: &[u8] = br#","hash":""#;
const MAC: &[u8] = br#","mac":""#;
const END: &[u8] = br#""}"#;
const DIGITS: usize = 64;

/// A line as written in the log, without its code and hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The version of the format.
    pub v: u32,
    /// Its number in the log, from 1.
    pub seq: u64,
    /// The hash of the line before.
    pub prev: Digest,
    /// The record.
    #[serde(flatten)]
    pub record: Record,
}

/// A line ready to be written.
pub(crate) struct Sealed {
    /// The line with its line break.
    pub bytes: Vec<u8>,
    /// Its hash.
    pub hash: Digest,
}

/// Encodes a line. Lists in a record are shortened until it fits.
pub(crate) fn seal(seq: u64, prev: Digest, mut record: Record, key: Option<&Key>) -> Result<Sealed> {
    loop {
        let line = Line { v: VERSION, seq, prev, record };
        let unwritable = |_| Error::Invalid { what: "a record", reason: "it cannot be written as JSON" };
        let sealed = finish(serde_json::to_vec(&line).map_err(unwritable)?, key);
        if sealed.bytes.len() <= MAX_LINE {
            return Ok(sealed);
        }
        record = line.record;
        let shorter = match &mut record {
            Record::End(end) => {
                end.outcome.files.as_mut().is_some_and(|files| files.halve()) || end.outcome.denials.halve()
            }
            Record::Action(action) => {
                action.files.as_mut().is_some_and(|files| files.halve())
                    || action.network.as_mut().is_some_and(|policy| policy.rules.halve())
            }
            _ => false,
        };
        if !shorter {
            return Err(Error::Invalid { what: "a record", reason: "it is longer than 16 KiB" });
        }
    }
}

fn finish(mut bytes: Vec<u8>, key: Option<&Key>) -> Sealed {
    // The closing brace is appended again after the hash.
    bytes.pop();
    if let Some(key) = key {
        let code = key.sign(&bytes).to_string();
        bytes.extend_from_slice(MAC);
        bytes.extend_from_slice(code.as_bytes());
        bytes.push(b'"');
    }
    let hash = Digest::of(&bytes);
    bytes.extend_from_slice(HASH);
    bytes.extend_from_slice(hash.to_string().as_bytes());
    bytes.extend_from_slice(END);
    bytes.push(b'\n');
    Sealed { bytes, hash }
}

/// The reason why bytes are not a line of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Flaw {
    #[error("it does not end with a hash, so it is not a line of a log")]
    NoHash,
    #[error("its hash does not match its bytes: it was changed")]
    Changed,
    #[error("it has no code made with the key")]
    NoCode,
    #[error("its code was not made with this key: it was forged, or the key is a different one")]
    Forged,
    #[error("its hash is correct, but this version cannot read its record")]
    Unreadable,
}

/// A verified line: its bytes are as they were written.
#[derive(Debug)]
pub(crate) struct Checked {
    /// Its hash.
    pub hash: Digest,
    /// True if the line has a code made with a key.
    pub has_code: bool,
    /// The record.
    pub line: Line,
}

/// Verifies a line, without its line break, against its own hash, and against the key if there is one.
pub(crate) fn check(bytes: &[u8], key: Option<&Key>) -> Result<Checked, Flaw> {
    let (covered, hash) = split(bytes.strip_suffix(END), HASH).ok_or(Flaw::NoHash)?;
    if Digest::of(covered) != hash {
        return Err(Flaw::Changed);
    }
    let coded = split(covered.strip_suffix(b"\""), MAC);
    if let Some(key) = key {
        let (signed, code) = coded.ok_or(Flaw::NoCode)?;
        if !key.verify(signed, &code) {
            return Err(Flaw::Forged);
        }
    }
    let line = serde_json::from_slice(bytes).map_err(|_| Flaw::Unreadable)?;
    Ok(Checked { hash, has_code: coded.is_some(), line })
}

/// Returns the hash at the end of a line without checking it.
pub(crate) fn claimed(bytes: &[u8]) -> Option<Digest> {
    split(bytes.strip_suffix(END), HASH).map(|(_, hash)| hash)
}

/// Splits bytes that end with `marker` and 64 digits. Returns the bytes before `marker`, and the digits.
fn split<'a>(bytes: Option<&'a [u8]>, marker: &[u8]) -> Option<(&'a [u8], Digest)> {
    let (rest, digits) = bytes.and_then(|bytes| bytes.split_at_checked(bytes.len().checked_sub(DIGITS)?))?;
    let digest = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((rest.strip_suffix(marker)?, digest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::*;

    fn subject() -> Subject {
        Subject {
            id: ExecutionId::new("x".repeat(64)).unwrap(),
            tenant: Some("\u{1}".repeat(128).as_str().into()),
            start: Timestamp::from_micros(0),
            backend: "\\".repeat(64).as_str().into(),
            level: "\"".repeat(64).as_str().into(),
            runtime: Some("\\".repeat(64).as_str().into()),
            version: Some("\\".repeat(64).as_str().into()),
            program: Program::code(b""),
            limits: Limits::default(),
        }
    }

    fn largest() -> Record {
        let file = FileTouched {
            name: Text::new("\"".repeat(300)),
            change: Change::Created,
            bytes: u64::MAX,
            sha256: Some(Digest::ZERO),
        };
        let denial =
            Denial { by: "\\".repeat(64).as_str().into(), what: "\\".repeat(200).as_str().into(), times: u64::MAX };
        let outcome = Outcome {
            exit: Exit { failed: Some("\\".repeat(300).as_str().into()), ..Exit::default() },
            duration_us: u64::MAX,
            usage: Usage::default(),
            posture: Some(Digest::ZERO),
            files: Some((0..100).map(|_| file.clone()).collect()),
            denials: (0..100).map(|_| denial.clone()).collect(),
            artifact: Some(Artifact::Lost { reason: "\\".repeat(300).as_str().into() }),
            sandbox: Some("\\".repeat(200).as_str().into()),
            restored: Some(Restored { from: Some("\\".repeat(200).as_str().into()), programs: true }),
        };
        Record::End(Box::new(End { begin: Some(u64::MAX), subject: subject(), outcome }))
    }

    #[test]
    fn the_largest_record_fits_and_keeps_its_counts() {
        let key = Key::new(vec![1; 32]).unwrap();
        for key in [None, Some(&key)] {
            let sealed = seal(u64::MAX, Digest::ZERO, largest(), key).unwrap();
            assert!(sealed.bytes.len() <= MAX_LINE);
            let (last, line) = sealed.bytes.split_last().unwrap();
            assert!(*last == b'\n' && !line.contains(&b'\n'));
            let checked = check(line, key).unwrap();
            assert_eq!((checked.hash, checked.has_code), (sealed.hash, key.is_some()));
            assert_eq!(claimed(line), Some(sealed.hash));
            let Record::End(end) = checked.line.record else { panic!("not an end record") };
            let files = end.outcome.files.unwrap();
            assert_eq!((files.count(), end.outcome.denials.count()), (100, 100));
            assert!(files.named().len() >= 8);
        }
    }

    #[test]
    fn long_lists_of_an_action_fit_and_keep_their_counts() {
        let action = Action {
            id: "act-1".into(),
            tenant: "acme".into(),
            key: "local".into(),
            time: Timestamp::from_micros(0),
            action: "apply".into(),
            state: ActionState::Ended,
            sandbox: None,
            snapshot: None,
            created: None,
            image: None,
            digest: None,
            dry_run: false,
            files: Some((0..100).map(|_| Text::new("\\".repeat(300))).collect()),
            unapplied: 0,
            network: Some(PolicySet {
                kind: "rules".into(),
                rules: (0..200).map(|_| Text::new("\\".repeat(300))).collect(),
            }),
            failed: None,
        };
        let sealed = seal(1, Digest::ZERO, Record::Action(Box::new(action)), None).unwrap();
        let checked = check(&sealed.bytes[..sealed.bytes.len() - 1], None).unwrap();
        let Record::Action(action) = checked.line.record else { panic!("not an action") };
        let (files, rules) = (action.files.unwrap(), action.network.unwrap().rules);
        assert_eq!((files.count(), rules.count()), (100, 200));
        assert!(files.named().is_empty() && (8..=MAX_RULES).contains(&rules.named().len()), "{rules:?}");
    }

    #[test]
    fn any_change_of_a_byte_is_found() {
        let key = Key::new(vec![1; 32]).unwrap();
        for key in [None, Some(&key)] {
            let sealed = seal(1, Digest::ZERO, Record::Begin(Box::new(subject())), key).unwrap();
            let line = &sealed.bytes[..sealed.bytes.len() - 1];
            for at in 0..line.len() {
                for bit in 0..8 {
                    let mut changed = line.to_vec();
                    changed[at] ^= 1 << bit;
                    assert!(check(&changed, None).is_err(), "byte {at} bit {bit}");
                }
                assert!(check(&line[..at], None).is_err());
            }
        }
    }

    #[test]
    fn lines_cannot_be_forged_without_the_key() {
        let key = Key::new(vec![1; 32]).unwrap();
        let other = Key::new(vec![2; 32]).unwrap();
        let line = |key| {
            let mut bytes = seal(1, Digest::ZERO, Record::Begin(Box::new(subject())), key).unwrap().bytes;
            bytes.pop();
            bytes
        };
        assert_eq!(check(&line(Some(&other)), Some(&key)).unwrap_err(), Flaw::Forged);
        assert_eq!(check(&line(None), Some(&key)).unwrap_err(), Flaw::NoCode);
        assert!(check(&line(Some(&key)), Some(&key)).is_ok());
    }

    #[test]
    fn kinds_of_later_versions_are_read_as_unknown() {
        let bytes = finish(br#"{"v":2,"seq":1,"prev":"0000000000000000000000000000000000000000000000000000000000000000","kind":"new","x":1}"#.to_vec(), None).bytes;
        let checked = check(&bytes[..bytes.len() - 1], None).unwrap();
        assert_eq!(checked.line.record, Record::Unknown);
    }
}
