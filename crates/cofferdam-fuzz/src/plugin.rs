//! Fuzz target for what a plugin writes to its host, in portions of any size. The buffer stays bounded, and each
//! message that is accepted is the same after it was encoded again.

use anyhow::{Context, Result, ensure};
use cofferdam_plugin::fuzz::Wire;
use fastrand::Rng;

use crate::cases::damaged;
use crate::drive::Outcome;
use crate::watch;

/// The maximum size of a body.
const MAX_BODY: usize = 4096;
/// The maximum size of the headers of a frame.
const MAX_HEADERS: usize = 4096;
/// The maximum size of an encoded message. Numbers and identifiers can get longer.
const MAX_ENCODED: usize = 16 * MAX_BODY;

/// Bodies that a plugin can send.
const SAMPLES: &[&str] = &[
    r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"sdk":{"name":"x","version":"1"},"methods":["a"]}}"#,
    r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32003,"message":"é\ud83c\udf89","data":{"kind":"plugin-failed","stack":"\n"}}}"#,
    r#"{"jsonrpc":"2.0","id":3,"error":{"code":7,"message":"","data":[1]},"result":null}"#,
    r#"{"jsonrpc":"2.0","id":"text","method":"kv.set","params":{"key":"a","value":[1.5e3,-0,null,true]},"correlationId":"c"}"#,
    r#"{"jsonrpc":"2.0","method":"$/stream","params":{"id":1,"seq":0,"value":{"":[[[[]]]]}}}"#,
    r#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":9007199254740991}}"#,
    r#"[{"jsonrpc":"2.0","method":"log","params":{"level":"info","message":"x"}},{"jsonrpc":"2.0","id":0,"method":"config.get"}]"#,
];
/// Headers before the length.
const HEADERS: &[&str] = &["", "", "", "Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n", "X: y\r\n"];

/// A reader of a plugin's output that checks the properties of every case.
#[derive(Debug, Default)]
pub struct Plugins(());

impl Plugins {
    /// Creates a target.
    pub fn new() -> Self {
        watch::keep_panics();
        Self(())
    }

    /// Generates the case of a seed and checks it.
    pub fn case(&mut self, seed: u64) -> Result<Outcome> {
        let bytes = case(&mut Rng::with_seed(seed));
        self.check(&bytes).with_context(|| format!("the bytes {}", bytes.escape_ascii()))
    }

    /// Checks bytes, of which the first is the size of the portions of the others. An error is a finding.
    pub fn check(&mut self, bytes: &[u8]) -> Result<Outcome> {
        let Some((size, bytes)) = bytes.split_first() else { return Ok(Outcome::Refused) };
        let (mut wire, size) = (Wire::new(MAX_BODY), usize::from(*size) + 1);
        for portion in bytes.chunks(size) {
            wire.feed(portion);
            loop {
                match wire.next_messages() {
                    Ok(Some(messages)) => messages.iter().try_for_each(round_trip)?,
                    Ok(None) => break,
                    Err(_) => return Ok(Outcome::Refused),
                }
            }
            let buffered = wire.buffered();
            ensure!(buffered < MAX_HEADERS + MAX_BODY, "{buffered} bytes are buffered");
        }
        Ok(Outcome::Ended)
    }
}

/// Checks that an encoded message is read as the same one.
fn round_trip(message: &serde_json::Value) -> Result<()> {
    let text = message.to_string();
    let mut wire = Wire::new(MAX_ENCODED);
    wire.feed(format!("Content-Length: {}\r\n\r\n{text}", text.len()).as_bytes());
    let again = wire.next_messages().with_context(|| format!("{text} is refused"))?;
    ensure!(again.as_deref() == Some(std::slice::from_ref(message)), "{text} is read as {again:?}");
    Ok(())
}

fn case(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![rng.u8(..)];
    for _ in 0..1 + rng.usize(..4) {
        let mut body = rng.choice(SAMPLES).copied().unwrap_or_default().as_bytes().to_vec();
        if rng.u8(..3) == 0 {
            body = damaged(rng, body);
        }
        if rng.u8(..32) == 0 {
            body = body.repeat(rng.usize(..64));
        }
        let header = rng.choice(HEADERS).copied().unwrap_or_default();
        bytes.extend(format!("{header}Content-Length: {}\r\n\r\n", body.len()).into_bytes());
        bytes.extend(body);
    }
    if rng.u8(..4) == 0 { damaged(rng, bytes) } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_accepted() {
        for sample in SAMPLES {
            let mut bytes = b"\x03".to_vec();
            bytes.extend(format!("Content-Length: {}\r\n\r\n{sample}", sample.len()).into_bytes());
            assert_eq!(Plugins::new().check(&bytes).unwrap(), Outcome::Ended, "{sample}");
        }
    }

    #[test]
    fn a_message_that_changes_would_be_found() {
        let message = serde_json::json!({"jsonrpc": "2.0", "method": "m", "correlationId": "c", "more": 1});
        assert!(round_trip(&message).is_err());
    }
}
