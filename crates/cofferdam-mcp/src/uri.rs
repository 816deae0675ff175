//! Addresses of file resources: `cofferdam://SANDBOX/PATH`, with all special characters of the path escaped. Pure.

use cofferdam_contract::{Error, Result, SandboxPath};

/// The prefix of all addresses.
pub const SCHEME: &str = "cofferdam://";
/// The template of all addresses.
pub const TEMPLATE: &str = "cofferdam://{sandbox}/{+path}";
/// Maximum length of an address.
const MAX_BYTES: usize = 16 * 1024;

/// Returns the address of a file.
pub fn of(sandbox: &str, path: &str) -> String {
    use std::fmt::Write;
    let mut uri = format!("{SCHEME}{sandbox}/");
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/') {
            uri.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

/// Parses an address into the id of the sandbox and the path.
pub fn parse(uri: &str) -> Result<(String, SandboxPath)> {
    let bad = || {
        Error::invalid("read resource", "the address is not that of a workspace file")
            .with_remedy(format!("use {TEMPLATE}, with the id of a sandbox and the path of a file in its workspace"))
    };
    if uri.len() > MAX_BYTES {
        return Err(bad());
    }
    let (sandbox, path) = uri.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/')).ok_or_else(bad)?;
    let path = unescape(path).ok_or_else(bad)?;
    Ok((sandbox.to_owned(), SandboxPath::new(path)?))
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                bytes.push(u8::try_from(high * 16 + low).ok()?);
            }
            b'?' | b'#' => return None,
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_address_that_climbs_or_is_none_is_refused() {
        assert_eq!(
            parse("cofferdam://sb-1/a%20b/c.txt").unwrap(),
            ("sb-1".to_owned(), SandboxPath::new("a b/c.txt").unwrap())
        );
        for uri in [
            "",
            "file:///etc/passwd",
            "cofferdam://sb-1",
            "cofferdam://sb-1/../x",
            "cofferdam://sb-1/%2e%2e/x",
            "cofferdam://sb-1/a%2F..%2Fb",
            "cofferdam://sb-1//etc/passwd%00",
            "cofferdam://sb-1/%",
            "cofferdam://sb-1/%f",
            "cofferdam://sb-1/%ff",
            "cofferdam://sb-1/a?b",
            &format!("cofferdam://sb-1/{}", "a/".repeat(20_000)),
        ] {
            assert!(parse(uri).is_err(), "{uri}");
        }
    }

    proptest! {
        #[test]
        fn every_path_has_an_address(path in "[a-z%? é/]{1,40}") {
            if let Ok(path) = SandboxPath::new(&path) {
                prop_assert_eq!(parse(&of("sb-1", path.as_str())).unwrap(), ("sb-1".to_owned(), path));
            }
        }
    }
}
