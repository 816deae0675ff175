//! Secrets of a sandbox: placeholders that it has, and values that requests get instead.
//!
//! A value goes into one place of requests to the hosts of the secret, and nowhere else. It is scrubbed from the
//! responses of these hosts. This module does no IO but to read the values.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use cofferdam_contract::{Error, NetworkPolicy, NetworkSecret, Result, SecretPlace};
use hyper::ext::ReasonPhrase;
use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName,
    HeaderValue, IF_RANGE, PROXY_AUTHORIZATION, RANGE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::uri::PathAndQuery;
use hyper::http::{request, response};
use percent_encoding::{percent_decode_str, percent_encode};
use zeroize::Zeroizing;

use crate::providers::{self, MAX_VALUE, MIN_VALUE, Value};
use crate::rules::{Query, Rules};
use crate::scrub::{RESERVED, Scrubbed, Values};

/// The maximum number of secrets of a policy.
const MAX_SECRETS: usize = 32;
/// The begin of a placeholder, and the number of random digits after it.
const PLACEHOLDER: &str = "cofferdam-secret-";
const DIGITS: usize = 32;
/// Headers that the gateway sets or removes, or that describe the message.
const RESERVED_HEADERS: [HeaderName; 14] = [
    ACCEPT_ENCODING,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    EXPECT,
    HOST,
    IF_RANGE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHORIZATION,
    RANGE,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
];

/// The secrets of one sandbox. Values are zeroed on drop and never printed.
pub struct Secrets {
    list: Vec<Secret>,
    values: Arc<Values>,
}

struct Secret {
    name: String,
    placeholder: String,
    value: Value,
    hosts: Rules,
    location: InjectionPoint,
    uses: AtomicU64,
    max_uses: u64,
}

/// A checked [`SecretPlace`].
enum InjectionPoint {
    Header(HeaderName),
    Query(String),
    Basic,
}

impl Secrets {
    /// Reads the values of secrets from their sources. Blocks its thread.
    pub fn read(secrets: &[NetworkSecret]) -> Result<Self> {
        if secrets.len() > MAX_SECRETS {
            return Err(Error::invalid("create", format!("a network policy can have at most {MAX_SECRETS} secrets")));
        }
        let list: Vec<Secret> = secrets
            .iter()
            .map(|secret| Secret::read(secret).map_err(|error| error.with_context("secret", shown(&secret.name))))
            .collect::<Result<_>>()?;
        let mut names = HashSet::new();
        if let Some(twice) = list.iter().find(|secret| !names.insert(secret.name.as_str())) {
            return Err(Error::invalid("create", "two secrets of the network policy have the same name")
                .with_context("secret", twice.name.clone())
                .with_remedy("give each secret a variable of its own"));
        }
        let values = Values::new(list.iter().map(|secret| secret.value.as_slice())).ok_or_else(|| {
            Error::invalid("create", "the secrets of the network policy are too long in total")
                .with_remedy("use shorter or fewer secrets")
        })?;
        Ok(Self { list, values: Arc::new(values) })
    }

    /// Returns the name and the placeholder of each secret, for the environment of the sandbox.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.list.iter().map(|secret| (secret.name.as_str(), secret.placeholder.as_str()))
    }

    /// Takes over the placeholders of secrets with the same names, such as those of an earlier policy of a sandbox:
    /// its programs still have them. Ignores a text that is no placeholder.
    pub fn keep_placeholders<'a>(&mut self, earlier: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let is_placeholder = |text: &str| {
            let digits = text.strip_prefix(PLACEHOLDER);
            digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
        };
        for (name, placeholder) in earlier.into_iter().filter(|(_, placeholder)| is_placeholder(placeholder)) {
            for secret in self.list.iter_mut().filter(|secret| secret.name == name) {
                secret.placeholder = placeholder.to_owned();
            }
        }
    }

    /// Returns true if a secret names this host. Requests to it must pass [`Secrets::inject`], and its responses
    /// [`Secrets::scrub`].
    pub fn has_host(&self, name: &str, port: u16) -> bool {
        self.of(name, port).next().is_some()
    }

    /// Replaces placeholders in a request to this host, and asks for a response that can be scrubbed. Fails with the
    /// reason if the request must not be sent. Call it after the headers for the next hop are removed.
    pub fn inject(&self, request: &mut request::Parts, name: &str, port: u16) -> std::result::Result<(), String> {
        if !self.has_host(name, port) {
            return Ok(());
        }
        request.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        // A range could begin within a value.
        request.headers.remove(RANGE);
        request.headers.remove(IF_RANGE);
        for secret in self.of(name, port) {
            secret.inject(request).map_err(|why| format!("the secret {}: {why}", secret.name))?;
        }
        Ok(())
    }

    /// Removes values from the head of a response of a host that has secrets. Fails with the reason if the response
    /// cannot be scrubbed.
    pub fn scrub(&self, response: &mut response::Parts) -> std::result::Result<(), String> {
        for (name, plain) in [(CONTENT_ENCODING, "identity"), (TRANSFER_ENCODING, "chunked")] {
            let is_plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(plain.as_bytes());
            if !response.headers.get_all(&name).iter().all(is_plain) {
                return Err(format!(
                    "the server sent a {name} other than {plain}, in which secrets cannot be scrubbed"
                ));
            }
        }
        response.extensions.remove::<ReasonPhrase>();
        for value in response.headers.values_mut() {
            if let Some(scrubbed) = self.values.scrub(value.as_bytes()) {
                let masked = HeaderValue::from_maybe_shared(Bytes::from(scrubbed));
                *value = masked.map_err(|_| "a header of the server cannot be scrubbed".to_owned())?;
            }
        }
        Ok(())
    }

    /// Removes values from the body of a response.
    pub fn scrub_body<B>(&self, body: B) -> Scrubbed<B> {
        Scrubbed::new(body, &self.values)
    }

    fn of(&self, name: &str, port: u16) -> impl Iterator<Item = &Secret> {
        self.list.iter().filter(move |secret| match secret.hosts.lookup(name) {
            Ok(Query::Name(target)) => target.has_port(port),
            _ => false,
        })
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.list.iter().map(|secret| secret.name.as_str()).collect();
        write!(f, "Secrets{names:?}")
    }
}

impl Secret {
    fn read(secret: &NetworkSecret) -> Result<Self> {
        let invalid =
            |what: &str, remedy: &str| Err(Error::invalid("create", format!("a secret {what}")).with_remedy(remedy));
        if !is_variable(&secret.name) {
            return invalid(
                "has a name that is no environment variable",
                "use letters, digits and _, such as API_TOKEN",
            );
        }
        if secret.hosts.is_empty() {
            return invalid("has no hosts", "name the hosts whose requests get the value");
        }
        if secret.max_uses == Some(0) {
            return invalid("has max_uses 0", "use at least 1, or leave it out for no limit");
        }
        let location = InjectionPoint::of(&secret.location)?;
        let hosts = Rules::of(&NetworkPolicy::Allow { hosts: secret.hosts.clone() })?;
        let Some(hosts) = hosts.filter(|hosts| hosts.addresses().next().is_none()) else {
            return invalid("has an address as a host", "use names: connections to addresses are not inspected");
        };
        let value = providers::read(&secret.from)?;
        if !(MIN_VALUE..=MAX_VALUE).contains(&value.len()) {
            let remedy = format!("use {MIN_VALUE} bytes to {} KiB", MAX_VALUE >> 10);
            return invalid("has a value that is too short or too long", &remedy);
        }
        if HeaderValue::from_bytes(&value).is_err() || value.trim_ascii().len() != value.len() {
            return invalid(
                "has a value with control characters or blanks around it",
                "use a value of a single line without blanks around it",
            );
        }
        let mut random = [0; DIGITS / 2];
        getrandom::fill(&mut random).map_err(|error| {
            Error::new(cofferdam_contract::ErrorKind::Io, "create", format!("no random bytes: {error}"))
        })?;
        let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self {
            name: secret.name.clone(),
            placeholder: format!("{PLACEHOLDER}{digits}"),
            value,
            hosts,
            location,
            uses: AtomicU64::new(0),
            max_uses: secret.max_uses.unwrap_or(u64::MAX),
        })
    }

    /// Replaces the placeholder, if the request has it in the secret's place.
    fn inject(&self, request: &mut request::Parts) -> std::result::Result<(), String> {
        match &self.location {
            InjectionPoint::Header(name) => self.inject_header(request, name),
            InjectionPoint::Query(name) => self.inject_query(request, name),
            InjectionPoint::Basic => self.inject_basic(request),
        }
    }

    fn inject_header(&self, request: &mut request::Parts, name: &HeaderName) -> std::result::Result<(), String> {
        let texts = || request.headers.get_all(name).iter().map(HeaderValue::as_bytes);
        let count = texts().map(|text| self.count(text)).sum();
        if !self.may_use(count, &request.headers)? {
            return Ok(());
        }
        let hyper::header::Entry::Occupied(mut entry) = request.headers.entry(name) else { return Ok(()) };
        for value in entry.iter_mut().filter(|value| self.count(value.as_bytes()) > 0) {
            *value = sensitive(self.replaced(value.as_bytes(), &self.value))?;
        }
        Ok(())
    }

    fn inject_query(&self, request: &mut request::Parts, name: &str) -> std::result::Result<(), String> {
        let Some(query) = request.uri.query() else { return Ok(()) };
        let is_named = |parameter: &&str| {
            let raw = parameter.split('=').next().unwrap_or_default();
            percent_decode_str(raw).eq(name.bytes())
        };
        let parameters = query.split('&').filter(is_named);
        let count = parameters.map(|parameter| self.count(parameter.as_bytes())).sum();
        if !self.may_use(count, &request.headers)? {
            return Ok(());
        }
        let plain = request.uri.path();
        // A string that grows would leave copies behind.
        let mut path = Zeroizing::new(String::with_capacity(plain.len() + 1 + query.len() + 3 * self.value.len()));
        path.push_str(plain);
        for (index, parameter) in query.split('&').enumerate() {
            path.push(if index == 0 { '?' } else { '&' });
            match parameter.split_once(&self.placeholder).filter(|_| is_named(&parameter)) {
                Some((before, after)) => {
                    path.push_str(before);
                    path.extend(percent_encode(&self.value, RESERVED));
                    path.push_str(after);
                }
                None => path.push_str(parameter),
            }
        }
        let path = PathAndQuery::from_maybe_shared(Bytes::from_owner(path));
        let mut parts = request.uri.clone().into_parts();
        parts.path_and_query = Some(path.map_err(|_| "the query is too long with its value".to_owned())?);
        request.uri = parts.try_into().map_err(|_| "the query is invalid with its value".to_owned())?;
        Ok(())
    }

    fn inject_basic(&self, request: &mut request::Parts) -> std::result::Result<(), String> {
        let credentials = |value: &HeaderValue| {
            let (scheme, encoded) = value.to_str().ok()?.split_once(' ')?;
            let decoded = BASE64_STANDARD.decode(encoded.trim()).ok()?;
            scheme.eq_ignore_ascii_case("basic").then_some(Zeroizing::new(decoded))
        };
        let values = request.headers.get_all(AUTHORIZATION).iter();
        let count = values.filter_map(credentials).map(|text| self.count(&text)).sum();
        if !self.may_use(count, &request.headers)? {
            return Ok(());
        }
        let hyper::header::Entry::Occupied(mut entry) = request.headers.entry(AUTHORIZATION) else { return Ok(()) };
        for value in entry.iter_mut() {
            let Some(text) = credentials(value).filter(|text| self.count(text) > 0) else { continue };
            let text = self.replaced(&text, &self.value);
            let encoded = Zeroizing::new(BASE64_STANDARD.encode(&*text));
            *value = sensitive(Zeroizing::new([b"Basic ", encoded.as_bytes()].concat()))?;
        }
        Ok(())
    }

    /// Returns true if the request has the placeholder, and counts the use. Fails if the secret must not be used.
    fn may_use(&self, count: usize, headers: &HeaderMap) -> std::result::Result<bool, String> {
        match count {
            0 => return Ok(false),
            1 => {}
            _ => return Err("the request has its placeholder more than once".to_owned()),
        }
        if headers.contains_key(UPGRADE) {
            return Err("a request with it must not change to WebSocket, which cannot be scrubbed".to_owned());
        }
        let one_more = |uses: u64| (uses < self.max_uses).then(|| uses + 1);
        match self.uses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(true),
            Err(_) => Err(format!("it was used {} times, as often as the policy allows", self.max_uses)),
        }
    }

    fn count(&self, text: &[u8]) -> usize {
        text.windows(self.placeholder.len()).filter(|window| *window == self.placeholder.as_bytes()).count()
    }

    /// Replaces the first placeholder in a text.
    fn replaced(&self, text: &[u8], value: &[u8]) -> Value {
        let placeholder = self.placeholder.as_bytes();
        let at = text.windows(placeholder.len()).position(|window| window == placeholder);
        let Some(at) = at else { return Zeroizing::new(text.to_vec()) };
        Zeroizing::new([&text[..at], value, &text[at + placeholder.len()..]].concat())
    }
}

impl InjectionPoint {
    fn of(location: &SecretPlace) -> Result<Self> {
        let invalid =
            |what: &str, remedy: &str| Err(Error::invalid("create", format!("a secret {what}")).with_remedy(remedy));
        match location {
            SecretPlace::Header(name) => match HeaderName::from_bytes(name.as_bytes()) {
                Ok(name) if RESERVED_HEADERS.contains(&name) || name == UPGRADE => invalid(
                    "has a header that the gateway sets itself",
                    "use a header such as authorization or x-api-key",
                ),
                Ok(name) => Ok(Self::Header(name)),
                Err(_) => invalid("has an invalid name of a header", "use a header such as authorization or x-api-key"),
            },
            SecretPlace::Query(name) if name.is_empty() => {
                invalid("has no name of a query parameter", "name the parameter, such as key")
            }
            SecretPlace::Query(name) => Ok(Self::Query(name.clone())),
            SecretPlace::Basic => Ok(Self::Basic),
            _ => Err(Error::unsupported("create", "this place of a secret is not supported")),
        }
    }
}

/// Creates a header value that is not printed, and zeroed once it was sent.
fn sensitive(value: Value) -> std::result::Result<HeaderValue, String> {
    let value = HeaderValue::from_maybe_shared(Bytes::from_owner(value));
    let mut value = value.map_err(|_| "the header is invalid with its value".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

fn is_variable(name: &str) -> bool {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    plain && (1..=64).contains(&name.len()) && !name.starts_with(|c: char| c.is_ascii_digit())
}

fn shown(name: &str) -> String {
    name.chars().take(64).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests;
