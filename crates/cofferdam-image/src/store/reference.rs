//! Names of images, as container engines and registries write them.

use std::fmt;
use std::str::FromStr;

use crate::layer::stream::Sha;

use super::error::StoreError;

/// The registry of names without one.
pub(super) const DOCKER_HUB: &str = "docker.io";
const LIBRARY: &str = "library/";
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// A name of an image: registry, repository, and a tag or digest.
///
/// ```
/// use cofferdam_image::store::Reference;
///
/// let name: Reference = "python:3.13-slim".parse()?;
/// assert_eq!(name.canonical(), "docker.io/library/python:3.13-slim");
/// assert_eq!(name.to_string(), "python:3.13-slim");
/// # Ok::<(), cofferdam_image::store::StoreError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Sha>,
}

impl Reference {
    /// Returns the host of the registry, with its port if it has one.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Returns the path in the registry.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns the tag. A name with neither tag nor digest has the tag `latest`.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Returns the digest, if the name has one.
    #[must_use]
    pub fn digest(&self) -> Option<&Sha> {
        self.digest.as_ref()
    }

    /// Refuses a name with a digest for an image that was not found by it: others trust that the digest decides.
    pub(super) fn without_digest(self) -> Result<Self, StoreError> {
        match self.digest {
            None => Ok(self),
            Some(_) => Err(StoreError::InvalidReference {
                name: self.to_string(),
                reason: "only a pull gives an image a name with a digest",
            }),
        }
    }

    /// Returns the complete name, which is the same for all short forms.
    #[must_use]
    pub fn canonical(&self) -> String {
        format!("{}/{}{}", self.registry, self.repository, self.suffix())
    }

    fn suffix(&self) -> String {
        let tag = self.tag.as_ref().map(|tag| format!(":{tag}")).unwrap_or_default();
        let digest = self.digest.as_ref().map(|digest| format!("@{digest}")).unwrap_or_default();
        tag + &digest
    }
}

impl FromStr for Reference {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let invalid = |reason| StoreError::InvalidReference { name: text.escape_debug().to_string(), reason };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => {
                (rest, Some(Sha::parse(digest).map_err(|_| invalid("its digest is not sha256 with 64 digits"))?))
            }
            None => (text, None),
        };
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag.to_owned())),
            _ => (rest, None),
        };
        if tag.as_deref().is_some_and(|tag| !is_tag(tag)) {
            return Err(invalid("its tag has forbidden characters, or more than 128"));
        }
        let (registry, repository) = match path.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest.to_owned()),
            Some(_) => (DOCKER_HUB, path.to_owned()),
            None => (DOCKER_HUB, format!("{LIBRARY}{path}")),
        };
        let registry = if registry == "index.docker.io" { DOCKER_HUB } else { registry };
        let repository = match repository.contains('/') || registry != DOCKER_HUB {
            true => repository,
            false => format!("{LIBRARY}{repository}"),
        };
        if !is_host(registry) {
            return Err(invalid("its registry is not a host name with an optional port"));
        }
        if repository.len() + registry.len() > MAX_NAME || !repository.split('/').all(is_component) {
            return Err(invalid("a name has lower-case letters, digits, and single separators between them"));
        }
        let tag = if tag.is_none() && digest.is_none() { Some("latest".to_owned()) } else { tag };
        Ok(Self { registry: registry.to_owned(), repository, tag, digest })
    }
}

impl fmt::Display for Reference {
    /// Writes the short form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.registry != DOCKER_HUB {
            return write!(f, "{}", self.canonical());
        }
        let repository = self.repository.strip_prefix(LIBRARY).unwrap_or(&self.repository);
        write!(f, "{repository}{}", self.suffix())
    }
}

fn is_tag(tag: &str) -> bool {
    let first = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= MAX_TAG
        && tag.bytes().next().is_some_and(first)
        && tag.bytes().all(|byte| first(byte) || matches!(byte, b'.' | b'-'))
}

fn is_component(part: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = part.bytes().next().is_some_and(alphanumeric) && part.bytes().last().is_some_and(alphanumeric);
    ends && part.bytes().all(|byte| alphanumeric(byte) || matches!(byte, b'.' | b'_' | b'-')) && !part.contains("..")
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    };
    let is_address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_name = match is_address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let part = |part: &str| {
                let inner = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
                !part.is_empty() && inner && !part.starts_with('-') && !part.ends_with('-')
            };
            name.split('.').all(part)
        }
    };
    is_name && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn short_names_get_registry_and_tag() {
        let rows = [
            ("python", "docker.io/library/python:latest", "python:latest"),
            ("python:3.13-slim", "docker.io/library/python:3.13-slim", "python:3.13-slim"),
            ("docker.io/python", "docker.io/library/python:latest", "python:latest"),
            ("index.docker.io/a/b", "docker.io/a/b:latest", "a/b:latest"),
            ("cofferdam/base:latest", "docker.io/cofferdam/base:latest", "cofferdam/base:latest"),
            ("localhost/a", "localhost/a:latest", "localhost/a:latest"),
            ("localhost:5000/a/b_c:x", "localhost:5000/a/b_c:x", "localhost:5000/a/b_c:x"),
            ("[::1]:5000/a", "[::1]:5000/a:latest", "[::1]:5000/a:latest"),
            ("ghcr.io/a/b.c/d--e", "ghcr.io/a/b.c/d--e:latest", "ghcr.io/a/b.c/d--e:latest"),
        ];
        for (text, canonical, short) in rows {
            let found: Reference = text.parse().unwrap();
            assert_eq!((found.canonical().as_str(), found.to_string().as_str()), (canonical, short), "{text}");
            assert_eq!(found.canonical().parse::<Reference>().unwrap(), found);
            assert_eq!(found.to_string().parse::<Reference>().unwrap(), found);
        }
        let digest: Reference = format!("a@{DIGEST}").parse().unwrap();
        assert_eq!((digest.tag(), digest.canonical()), (None, format!("docker.io/library/a@{DIGEST}")));
        let both: Reference = format!("a:1@{DIGEST}").parse().unwrap();
        assert_eq!((both.tag(), both.digest().map(ToString::to_string)), (Some("1"), Some(DIGEST.to_owned())));
    }

    #[test]
    fn other_texts_are_refused() {
        let long = "a".repeat(256);
        let tag = format!("a:{}", "t".repeat(129));
        for text in [
            "",
            ":",
            "a:",
            "A",
            "a/B",
            "a//b",
            "/a",
            "a/",
            "../a",
            "a/../b",
            "a b",
            "a:b c",
            "a@",
            "a@sha256:1",
            "-a",
            "a-",
            "a..b",
            "http://a/b",
            "a.b:0/c",
            "a.b:x/c",
            "a.b:70000/c",
            "-x.y/a",
            "[::g]/a",
            "a\n",
            "a:\u{1b}",
            &long,
            &tag,
            &format!("a@{DIGEST}0"),
            &format!("a@sha512:{DIGEST}"),
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
    }
}
