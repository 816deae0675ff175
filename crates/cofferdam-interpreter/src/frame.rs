//! The single message that a prepared interpreter reads.
//!
//! ```text
//! u32 length of the head | u32 length of the code | head | code
//! head: strings separated by NUL bytes: kind, name, directory, number of arguments, arguments, variables
//! ```
//!
//! Numbers are big-endian. A variable is `NAME=VALUE`, or `NAME` alone to unset it. No string can contain a NUL byte,
//! because such a request does not validate. The rest of the stream is the standard input of the code.
//! request with one does not validate. What follows on the same stream is the code's standard input.

use bytes::{BufMut, Bytes, BytesMut};

use crate::plan::{Plan, Source};

/// Encodes a plan.
pub fn encode(plan: &Plan<'_>) -> Bytes {
    let (kind, name, code) = match &plan.source {
        Source::Code { name, contents } => ("code", *name, contents.as_ref()),
        Source::File(path) => ("file", *path, &[][..]),
    };
    let mut head = format!("{kind}\0{name}\0{}\0{}", plan.directory.as_deref().unwrap_or_default(), plan.args.len());
    for arg in plan.args {
        head.extend(["\0", arg]);
    }
    for (key, value) in &plan.env {
        head.extend(["\0", key]);
        head.extend(value.iter().flat_map(|value| ["=", value]));
    }
    let mut frame = BytesMut::with_capacity(8 + head.len() + code.len());
    // The contract bounds arguments, variables and code far below 4 GiB.
    frame.put_u32(head.len() as u32);
    frame.put_u32(code.len() as u32);
    frame.put_slice(head.as_bytes());
    frame.put_slice(code);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_holds_every_part_once() {
        let contents = Bytes::from_static(b"x\0y");
        let args = ["a".to_owned(), String::new()];
        let plan = Plan {
            source: Source::Code { name: "m.py", contents: &contents },
            args: &args,
            directory: None,
            env: vec![("K", Some("v=w")), ("U", None)],
        };
        let head = b"code\0m.py\0\x002\0a\0\0K=v=w\0U";
        let mut expected = vec![0, 0, 0, head.len() as u8, 0, 0, 0, 3];
        expected.extend_from_slice(head);
        expected.extend_from_slice(b"x\0y");
        assert_eq!(encode(&plan), expected);
    }
}
