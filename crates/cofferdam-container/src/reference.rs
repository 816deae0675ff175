//! Image references and the allowlist. Pure.
//!
//! A name is validated before it is sent to an engine, because it becomes part of a URL there. It is normalized,
//! because `python`, `docker.io/python` and `docker.io/library/python:latest` are one image.

use std::fmt;

use cofferdam_contract::{Error, Result};
use cofferdam_util::sha256;

const MAX_LENGTH: usize = 512;
const HUB: &str = "docker.io";
const DEFAULT_TAG: &str = "latest";
const ALGORITHM: &str = "sha256:";

/// An image as a caller names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Reference {
    requested: String,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Kind {
    /// The id of an image of this engine: `sha256:` and 64 digits.
    Id,
    Name {
        /// The name with its registry.
        name: String,
        tag: Option<String>,
        digest: Option<String>,
    },
}

impl Reference {
    /// Parses `name`, `name:tag`, `name@sha256:…`, or an image's id in full (`sha256:…`).
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            Err(Error::invalid("create", format!("invalid image name: {why}"))
                .with_context("image", text.chars().take(200).collect::<String>().escape_debug().to_string())
                .with_remedy("use name, name:tag or name@sha256:…, such as python:3.13-slim"))
        };
        if text.is_empty() || text.len() > MAX_LENGTH {
            return bad("its length must be 1 to 512 bytes");
        }
        if is_digest(text) {
            return Ok(Self { requested: text.to_owned(), kind: Kind::Id });
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) if is_digest(digest) => (rest, Some(digest.to_owned())),
            Some(_) => return bad("'@' must be followed by sha256: and 64 hexadecimal digits"),
            None => (text, None),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            // A colon before a slash is that of a registry's port.
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return bad("a tag consists of at most 128 letters, digits, '_', '.' and '-'");
        }
        let Some(name) = whole_name(name) else {
            return bad("a name consists of lower-case letters and digits, with '.', '_', '-' and '/' between them");
        };
        let tag = match (tag, &digest) {
            (Some(tag), _) => Some(tag.to_owned()),
            (None, None) => Some(DEFAULT_TAG.to_owned()),
            (None, Some(_)) => None,
        };
        Ok(Self { requested: text.to_owned(), kind: Kind::Name { name, tag, digest } })
    }

    /// Returns the reference as the caller wrote it.
    pub(crate) fn as_str(&self) -> &str {
        &self.requested
    }

    /// Returns the name, and the digest or tag, for a pull. Returns `None` for an id, which registries do not know.
    pub(crate) fn to_pull(&self) -> Option<(&str, &str)> {
        match &self.kind {
            Kind::Id => None,
            Kind::Name { name, tag, digest } => {
                Some((name, digest.as_deref().or(tag.as_deref()).unwrap_or(DEFAULT_TAG)))
            }
        }
    }

    /// Returns name and tag for an image that is created here.
    pub(crate) fn import_name(&self) -> Option<(&str, &str)> {
        match &self.kind {
            Kind::Name { name, tag: Some(tag), digest: None } => Some((name, tag)),
            _ => None,
        }
    }

    /// Returns true if an image that an engine found is the named one, and not one whose id begins like the name.
    pub(crate) fn is(&self, id: &str, tags: &[String], digests: &[String]) -> bool {
        match &self.kind {
            Kind::Id => id == self.requested || id == &self.requested[ALGORITHM.len()..],
            Kind::Name { name, digest: Some(digest), .. } => digests.iter().any(|known| {
                known
                    .split_once('@')
                    .is_some_and(|(of, known)| known == digest && whole_name(of).is_some_and(|of| same_name(&of, name)))
            }),
            Kind::Name { name, tag, digest: None } => tags.iter().any(|known| {
                Self::parse(known).is_ok_and(|known| match known.kind {
                    Kind::Name { name: of, tag: known, .. } => same_name(&of, name) && known == *tag,
                    Kind::Id => false,
                })
            }),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.requested)
    }
}

/// Returns true if two names are equal. Podman stores images that were created on the machine under `localhost/`.
fn same_name(found: &str, requested: &str) -> bool {
    let local = |name: &str| name.strip_prefix("localhost/").map(str::to_owned);
    let hub = |name: &str| {
        let rest = name.strip_prefix("docker.io/")?;
        Some(rest.strip_prefix("library/").unwrap_or(rest).to_owned())
    };
    found == requested || (local(found).is_some() && local(found) == hub(requested))
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix(ALGORITHM).is_some_and(sha256::is_digest)
}

fn is_tag(text: &str) -> bool {
    let mut bytes = text.bytes();
    text.len() <= 128
        && bytes.next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn is_part(text: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    edge(text.bytes().next())
        && edge(text.bytes().last())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte))
        && !text.contains("..")
}

fn is_registry(text: &str) -> bool {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let is_host = |host: &str| {
        host.split('.').all(|part| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                && !part.starts_with('-')
                && !part.ends_with('-')
        })
    };
    is_host(host) && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Normalizes a name, with its registry.
fn whole_name(text: &str) -> Option<String> {
    let (registry, path) = match text.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
        _ => (HUB, text),
    };
    if !is_registry(registry) || !path.split('/').all(is_part) {
        return None;
    }
    let library = if registry == HUB && !path.contains('/') { "library/" } else { "" };
    Some(format!("{registry}/{library}{path}"))
}

/// A pattern of allowed images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// All tags of this name.
    Name(String),
    /// This reference only.
    Exact(Reference),
    /// All names with this prefix.
    Prefix(String),
}

impl Pattern {
    /// Parses `name`, `name:tag`, `name@sha256:…`, an id, or a prefix and `*`.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if let Some(beginning) = text.strip_suffix('*') {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:".contains(&byte);
            if !beginning.bytes().all(allowed) || beginning.len() > MAX_LENGTH {
                return Err(Error::invalid("configure", "invalid prefix of an image name")
                    .with_context("image", text.escape_debug().to_string())
                    .with_remedy("use a prefix and one '*', such as registry.example.org/team/*"));
            }
            return Ok(Self::Prefix(whole_beginning(beginning)));
        }
        let reference = Reference::parse(text)?;
        Ok(match &reference.kind {
            Kind::Name { name, digest: None, tag: Some(_) } if !names_a_tag(text) => Self::Name(name.clone()),
            _ => Self::Exact(reference),
        })
    }

    /// Returns true if the pattern allows a reference.
    pub(crate) fn allows(&self, reference: &Reference) -> bool {
        match (self, &reference.kind) {
            (Self::Exact(allowed), _) if allowed.requested == reference.requested => true,
            (Self::Exact(Reference { kind: Kind::Name { name, tag, digest }, .. }), Kind::Name { .. }) => {
                let Kind::Name { name: requested, tag: requested_tag, digest: requested_digest } = &reference.kind
                else {
                    return false;
                };
                // A digest identifies the image, so its tag is ignored.
                name == requested && digest == requested_digest && (digest.is_some() || tag == requested_tag)
            }
            (Self::Name(name), Kind::Name { name: requested, .. }) => name == requested,
            (Self::Prefix(beginning), Kind::Name { name, tag, .. }) => {
                let whole = format!("{name}:{}", tag.as_deref().unwrap_or_default());
                whole.starts_with(beginning.as_str())
            }
            _ => false,
        }
    }
}

fn names_a_tag(text: &str) -> bool {
    text.rsplit('/').next().is_some_and(|last| last.contains(':'))
}

/// Normalizes a prefix like [`whole_name`].
fn whole_beginning(text: &str) -> String {
    match text.split_once('/') {
        Some((first, rest)) if first == HUB && !rest.contains('/') && !rest.is_empty() => {
            format!("{HUB}/library/{rest}")
        }
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => text.to_owned(),
        Some(_) => format!("{HUB}/{text}"),
        None if text.is_empty() => String::new(),
        None => format!("{HUB}/library/{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn named(text: &str) -> Reference {
        Reference::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn names_have_one_form() {
        for (text, pulled) in [
            ("python", ("docker.io/library/python", "latest")),
            ("docker.io/python:3", ("docker.io/library/python", "3")),
            ("a/b", ("docker.io/a/b", "latest")),
            ("localhost:5000/x/y:v1", ("localhost:5000/x/y", "v1")),
            ("Reg.example.org/x", ("Reg.example.org/x", "latest")),
            (&format!("python@{DIGEST}"), ("docker.io/library/python", DIGEST)),
            (&format!("python:3@{DIGEST}"), ("docker.io/library/python", DIGEST)),
        ] {
            assert_eq!(named(text).to_pull(), Some(pulled), "{text}");
        }
        assert_eq!(named(DIGEST).to_pull(), None);
    }

    #[test]
    fn invalid_image_names_are_refused() {
        let long = "a".repeat(513);
        for text in [
            "",
            "..",
            "../x",
            "a/../b",
            "/a",
            "a/",
            "a//b",
            "A",
            "a b",
            "a?b",
            "a#b",
            "a%2fb",
            "a:b:c",
            "a@x",
            "a@sha256:0",
            "-a",
            "a:-b",
            "a\nb",
            "a:",
            "é",
            "x/containers/create?",
            &long,
        ] {
            assert!(Reference::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn image_matches_the_requested_name() {
        let id = DIGEST;
        let tags = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>();
        assert!(named("python").is(id, &tags(&["python:latest"]), &[]));
        assert!(named("x/y:1").is(id, &tags(&["a:b", "docker.io/x/y:1"]), &[]));
        assert!(named("x/y").is(id, &tags(&["localhost/x/y:latest"]), &[]), "as Podman names it");
        assert!(named("y").is(id, &tags(&["localhost/y:latest"]), &[]), "as Podman names it");
        assert!(!named("x/y").is(id, &tags(&["localhost/z/y:latest"]), &[]));
        // An engine also accepts a name of hexadecimal digits as the prefix of an id.
        assert!(!named("0123").is(id, &tags(&["python:latest"]), &[]));
        assert!(named(DIGEST).is(id, &[], &[]));
        assert!(named(DIGEST).is(&DIGEST[7..], &[], &[]), "as Podman writes it");
        let digest = format!("python@{DIGEST}");
        assert!(named(&digest).is("sha256:ff", &[], std::slice::from_ref(&digest)));
        assert!(!named(&digest).is("sha256:ff", &tags(&["python:latest"]), &[]));
        assert!(!named(&digest).is("sha256:ff", &[], &[format!("ruby@{DIGEST}")]));
    }

    #[test]
    fn allowlist_allows_listed_images_only() {
        let other = DIGEST.replace('0', "1");
        let (digest, other) = (format!("python@{DIGEST}"), format!("python@{other}"));
        let tagged = format!("python:3@{DIGEST}");
        for (pattern, allowed, refused) in [
            ("python", vec!["python", "python:3", "docker.io/library/python:x", &digest], vec!["python2", "a/python"]),
            ("python:3", vec!["python:3", "docker.io/python:3"], vec!["python", "python:33", &digest, &tagged]),
            (&*digest, vec![&*digest, &tagged], vec!["python", "python:3", &other]),
            (
                "reg.io/team/*",
                vec!["reg.io/team/a", "reg.io/team/b/c:1"],
                vec!["reg.io/team", "reg.io/teams/a", "team/a"],
            ),
            ("python:3*", vec!["python:3", "python:3.13"], vec!["python:2", "python", "python3"]),
            ("team/*", vec!["team/a"], vec!["teams/a", "reg.io/team/a"]),
            (DIGEST, vec![DIGEST], vec!["python", &digest]),
            ("*", vec!["python", "reg.io/x/y:1", &digest], vec![DIGEST]),
        ] {
            let pattern = Pattern::parse(pattern).unwrap();
            for text in allowed {
                assert!(pattern.allows(&named(text)), "{pattern:?} {text}");
            }
            for text in refused {
                assert!(!pattern.allows(&named(text)), "{pattern:?} {text}");
            }
        }
        for text in ["", "a b", "a?*", "a**", "*a"] {
            assert!(Pattern::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_name_is_no_more_than_a_path_of_names(text in "[a-zA-Z0-9./:@_%?# -]{0,40}") {
            if let Ok(reference) = Reference::parse(&text) {
                prop_assert!(!reference.as_str().contains(['%', '?', '#', ' ', '\\']));
                prop_assert!(reference.as_str().split('/').all(|part| !matches!(part, "" | "." | "..")));
            }
        }
    }
}
