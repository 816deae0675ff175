//! Configuration of a [`crate::E2bBackend`].

use std::fmt;
use std::time::Duration;

use cofferdam_contract::{Error, Result};
use hyper::Uri;

/// E2B's own domain.
pub const DEFAULT_DOMAIN: &str = "e2b.app";
/// The template that E2B's SDKs use by default.
pub const DEFAULT_TEMPLATE: &str = "base";
/// The default of [`E2bConfig::lifetime`].
pub const DEFAULT_LIFETIME: Duration = Duration::from_secs(300);
/// The shortest and the longest lifetime. E2B ends every sandbox after a day at the latest.
const LIFETIMES: std::ops::RangeInclusive<u64> = 15..=86_400;
/// The port of the agent in each VM.
const AGENT_PORT: u16 = 49983;
/// The domains that have one host for all sandboxes. Others have a host name for each.
const SHARED_HOSTS: [&str; 3] = ["e2b.app", "e2b.dev", "e2b.pro"];

/// An API key. It is never printed.
#[derive(Clone)]
pub struct Key(String);

impl Key {
    /// Takes a key.
    ///
    /// # Errors
    /// - `InvalidInput` for an empty key, or one with characters that no header can have.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        if text.is_empty() || text.len() > 1024 || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::invalid("connect", "the E2B key is empty or has characters that no key has")
                .with_remedy("set E2B_API_KEY to a key of the E2B dashboard"));
        }
        Ok(Self(text))
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// The configuration of an [`crate::E2bBackend`].
#[derive(Debug, Clone)]
pub struct E2bConfig {
    /// The API key.
    pub key: Key,
    /// The domain of the API and the sandboxes. Default: [`DEFAULT_DOMAIN`].
    pub domain: String,
    /// The address of the API. Default: `https://api.DOMAIN`.
    pub api_url: Option<String>,
    /// One address for all sandboxes. Default: derived from the domain.
    pub sandbox_url: Option<String>,
    /// The template of sandboxes. Default: [`DEFAULT_TEMPLATE`].
    pub template: String,
    /// The time after which E2B ends a sandbox whose owner is gone. It is extended while the owner lives. Default:
    /// [`DEFAULT_LIFETIME`].
    pub lifetime: Duration,
}

impl E2bConfig {
    /// Creates a configuration with the defaults.
    pub fn new(key: Key) -> Self {
        Self {
            key,
            domain: DEFAULT_DOMAIN.to_owned(),
            api_url: None,
            sandbox_url: None,
            template: DEFAULT_TEMPLATE.to_owned(),
            lifetime: DEFAULT_LIFETIME,
        }
    }

    /// Checks the values, and that no key travels without TLS to another host.
    pub(crate) fn validate(&self) -> Result<()> {
        if !is_host(&self.domain) {
            return Err(Error::invalid("connect", "the E2B domain is not a host name")
                .with_context("domain", self.domain.escape_debug().to_string())
                .with_remedy("correct E2B_DOMAIN, or `domain` in [e2b] of the configuration file"));
        }
        let template = &self.template;
        if template.is_empty() || template.len() > 256 || !template.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::invalid("connect", "the E2B template must be 1 to 256 printable characters")
                .with_remedy("use the name or id of a template of the E2B dashboard"));
        }
        if !LIFETIMES.contains(&self.lifetime.as_secs()) {
            return Err(Error::invalid("connect", "the lifetime of an E2B sandbox must be 15 s to 24 h")
                .with_remedy("correct `lifetime` in [e2b] of the configuration file"));
        }
        [&self.api_url, &self.sandbox_url].into_iter().flatten().try_for_each(|url| address(url).map(drop))
    }

    /// Returns the address of the API, without a slash at the end.
    pub(crate) fn api(&self) -> String {
        let own = || format!("https://api.{}", self.domain);
        self.api_url.as_ref().map_or_else(own, |url| url.trim_end_matches('/').to_owned())
    }

    /// Returns the address of the agent of a sandbox, which may have a domain of its own.
    pub(crate) fn agent(&self, sandbox: &str, domain: Option<&str>) -> String {
        if let Some(url) = &self.sandbox_url {
            return url.trim_end_matches('/').to_owned();
        }
        let domain = domain.filter(|domain| is_host(domain)).unwrap_or(&self.domain);
        match SHARED_HOSTS.contains(&domain) {
            true => format!("https://sandbox.{domain}"),
            false => format!("https://{AGENT_PORT}-{sandbox}.{domain}"),
        }
    }

    /// Returns true if all addresses are of this host.
    pub(crate) fn is_local(&self) -> bool {
        let local = |url: &Option<String>| url.as_deref().is_some_and(|url| address(url).is_ok_and(|local| local));
        local(&self.api_url) && local(&self.sandbox_url)
    }
}

/// Checks an address. Returns true for one of this host.
fn address(url: &str) -> Result<bool> {
    let bad = |message: &str| {
        Error::invalid("connect", message).with_context("address", url.escape_debug().to_string()).with_remedy(
            "use https://HOST[:PORT] in E2B_API_URL and E2B_SANDBOX_URL, or in [e2b] of the configuration file, or \
                 http://127.0.0.1:PORT",
        )
    };
    let uri: Uri = url.parse().map_err(|_| bad("the address is not a URL"))?;
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let local = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    if host.is_empty() || url.contains('@') || uri.query().is_some() {
        return Err(bad("the address must have a host, and no user and no query"));
    }
    match uri.scheme_str() {
        Some("https") => Ok(local),
        Some("http") if local => Ok(true),
        _ => Err(bad("a key is not sent to another host without TLS")),
    }
}

/// Returns true for a host name with an optional port.
fn is_host(text: &str) -> bool {
    let (host, port) = text.split_once(':').unwrap_or((text, "443"));
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-');
    (1..=253).contains(&host.len()) && host.bytes().all(plain) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> E2bConfig {
        E2bConfig::new(Key::new("e2b_0123").unwrap())
    }

    #[test]
    fn addresses_follow_the_domain() {
        let config = config();
        assert_eq!(config.api(), "https://api.e2b.app");
        assert_eq!(config.agent("abc", None), "https://sandbox.e2b.app");
        assert_eq!(config.agent("abc", Some("own.example")), "https://49983-abc.own.example");
        assert_eq!(config.agent("abc", Some("a/b@c")), "https://sandbox.e2b.app", "a domain that is no host");
        let local = E2bConfig {
            api_url: Some("http://127.0.0.1:9/".to_owned()),
            sandbox_url: Some("http://[::1]:9".to_owned()),
            ..config
        };
        assert!(local.validate().is_ok() && local.is_local());
        assert_eq!((local.api().as_str(), local.agent("x", None).as_str()), ("http://127.0.0.1:9", "http://[::1]:9"));
    }

    /// Promise (E2B): The key is never sent without TLS to another host, and never printed.
    #[test]
    fn a_key_is_neither_printed_nor_sent_in_the_clear() {
        for url in ["http://example.com", "http://192.0.2.1:80", "ftp://x", "nonsense", "https://u:p@x"] {
            let config = E2bConfig { api_url: Some(url.to_owned()), ..config() };
            assert!(config.validate().is_err(), "{url}");
        }
        assert!(!format!("{:?}", config()).contains("0123"));
        for key in ["", "a b", "a\nb", "\u{e9}"] {
            assert!(Key::new(key).is_err(), "{key:?}");
        }
        assert!(E2bConfig { lifetime: Duration::from_secs(1), ..config() }.validate().is_err());
        assert!(E2bConfig { domain: "a/b".to_owned(), ..config() }.validate().is_err());
        assert!(E2bConfig { template: "a b".to_owned(), ..config() }.validate().is_err());
    }
}
