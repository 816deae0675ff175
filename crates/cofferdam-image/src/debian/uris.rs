//! Parser for the output of `apt-get --print-uris`: one line per package, `'URI' FILE SIZE SHA256:HASH`.

use cofferdam_util::sha256;

use super::error::{DebianError, Result};
use super::package::Package;

/// Parses every line. An unknown line, or one without a SHA-256, is an error: nothing may be skipped silently.
pub(crate) fn parse(text: &str) -> Result<Vec<Package>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| package(line).ok_or_else(|| DebianError::StrangeAnswer { line: line.to_owned() })).collect()
}

fn package(line: &str) -> Option<Package> {
    let (uri, rest) = line.strip_prefix('\'')?.split_once("' ")?;
    let mut words = rest.split(' ').filter(|word| !word.is_empty());
    let (file, size, hash) = (words.next()?, words.next()?, words.next()?);
    let sha256 = hash.strip_prefix("SHA256:")?;
    let (name, version, architecture) = parts(file)?;
    let whole = words.next().is_none() && sha256::is_digest(sha256) && !uri.is_empty();
    let size = size.parse().ok()?;
    let (file, uri, sha256) = (file.to_owned(), uri.to_owned(), sha256.to_owned());
    whole.then_some(Package { name, version, architecture, size, sha256, file, uri })
}

/// Splits `NAME_VERSION_ARCHITECTURE.deb`, in which a version's colon is written `%3a`.
fn parts(file: &str) -> Option<(String, String, String)> {
    let mut parts = file.strip_suffix(".deb")?.split('_');
    let (name, version, architecture) = (parts.next()?, parts.next()?, parts.next()?);
    let plain =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.~:".contains(&b));
    let version = unescape(version)?;
    let good = parts.next().is_none()
        && plain(name)
        && plain(&version)
        && plain(architecture)
        && !name.starts_with(['.', '-'])
        && file.len() <= 255;
    good.then(|| (name.to_owned(), version, architecture.to_owned()))
}

/// Decodes `%XX`. Returns `None` for an invalid escape or text that is not UTF-8.
pub(crate) fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let digits = after.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HASH: &str = "c4945123d66d0503ba42e2fc0585abc76d0838978c6d277b9cc37a4da25d1a34";

    #[test]
    fn a_line_of_apt_is_understood() {
        let line = format!(
            "'http://deb.example/pool/libattr1_2.5.1-4_amd64.deb' libattr1_1%3a2.5.1-4_amd64.deb 22164 SHA256:{HASH}"
        );
        let found = parse(&format!("\n{line}\n")).expect("a package");
        assert_eq!(found.len(), 1);
        let package = &found[0];
        assert_eq!((&*package.name, &*package.version, &*package.architecture), ("libattr1", "1:2.5.1-4", "amd64"));
        assert_eq!((package.size, &*package.sha256), (22164, HASH));
    }

    #[test]
    fn lines_without_a_good_hash_or_name_are_errors() {
        for line in [
            "'http://x/a_1_all.deb' a_1_all.deb 5 ".to_owned(),
            "'http://x/a_1_all.deb' a_1_all.deb 5 MD5Sum:56fcb38f86c7c8b1f2ae5bd4d5cd7d2d".to_owned(),
            format!("'http://x/a_1_all.deb' ../a_1_all.deb 5 SHA256:{HASH}"),
            format!("'http://x/a_1_all.deb' a%2f_1_all.deb 5 SHA256:{HASH}"),
            format!("'http://x/a_1_all.deb' a_1%2f.._all.deb 5 SHA256:{HASH}"),
            format!("'http://x/a_1_all.deb' a_1_all.deb -5 SHA256:{HASH}"),
            format!("'http://x/a_1_all.deb' a_1_all.deb 5 SHA256:{}", &HASH[1..]),
            format!("'http://x/a_1_all.deb' a_1_all.deb 5 SHA256:{HASH} more"),
            "E: something".to_owned(),
        ] {
            assert!(matches!(parse(&line), Err(DebianError::StrangeAnswer { .. })), "{line}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_understood_or_refused(text in ".{0,200}") {
            for package in parse(&text).unwrap_or_default() {
                prop_assert!(!package.file.contains('/') && sha256::is_digest(&package.sha256));
            }
        }

        #[test]
        fn names_come_back_as_they_were(
            name in "[a-z0-9][a-z0-9+.-]{1,20}", version in "([0-9]:)?[0-9][A-Za-z0-9.+~-]{0,20}", size in any::<u64>()
        ) {
            let file = format!("{name}_{}_arm64.deb", version.replace(':', "%3a"));
            let found = parse(&format!("'http://x/{file}' {file} {size} SHA256:{HASH}")).expect("a package");
            prop_assert_eq!((&found[0].name, &found[0].version, found[0].size), (&name, &version, size));
            prop_assert!(!found[0].file.contains('/'));
        }

        #[test]
        fn escapes_are_undone(text in "\\PC{0,40}") {
            let escaped: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
            prop_assert_eq!(unescape(&escaped), Some(text));
        }
    }
}
