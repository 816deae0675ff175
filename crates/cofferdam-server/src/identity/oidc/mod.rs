//! Tokens of OpenID Connect: signed texts of an issuer that the operator trusts.
//!
//! A token is checked here alone, with the issuer's public keys, which are read when a token needs them.

mod cache;
mod claims;
mod config;
mod issuer;
mod signature;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use cofferdam_contract::{Error, ErrorKind, Result};
use jsonwebtoken::errors::ErrorKind as Reason;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use parking_lot::Mutex;
use serde_json::Value;

use cache::{Found, Step};
pub use config::OidcConfig;
#[cfg(test)]
pub use config::tests::valid as example;
use issuer::IssuerKey;

use crate::caller::Caller;
use crate::report;
use crate::rest::problem::Failure;

/// The most bytes of a token.
const MAX_TOKEN: usize = 16 << 10;
/// The most bytes of the name of a key.
const MAX_KEY_NAME: usize = 256;

/// An issuer of tokens, with its keys.
pub struct Oidc {
    config: OidcConfig,
    validation: Validation,
    client: reqwest::Client,
    keys: Mutex<Keys>,
    /// Held while the keys are read.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Keys {
    keys: Vec<IssuerKey>,
    read: Option<Instant>,
    tried: Option<Instant>,
    failed: bool,
}

impl fmt::Debug for Oidc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Oidc").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Oidc {
    /// Creates an issuer whose keys are not known yet.
    ///
    /// # Errors
    /// - `InvalidInput` for a file of authorities that cannot be used.
    pub fn new(config: OidcConfig) -> Result<Self> {
        signature::install();
        let mut validation = Validation::default();
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.set_issuer(&[&config.issuer_text]);
        validation.set_audience(&config.audience);
        validation.validate_nbf = true;
        validation.leeway = config.leeway.as_secs();
        let client = issuer::client(&config)?;
        Ok(Self { config, validation, client, keys: Mutex::default(), reading: tokio::sync::Mutex::default() })
    }

    /// Reads the issuer's keys, and returns how many can be used.
    ///
    /// # Errors
    /// - `Unavailable` if the issuer does not answer, or answers something else.
    pub async fn check(&self) -> Result<usize> {
        issuer::read_keys(&self.client, &self.config).await.map(|keys| keys.len())
    }

    /// Returns true for a text that has the form of a token.
    pub(crate) fn is_token(text: &str) -> bool {
        text.bytes().filter(|byte| *byte == b'.').count() == 2
    }

    /// Returns the caller whom a token names.
    ///
    /// # Errors
    /// - 401 for a token that is not valid.
    /// - `Denied` for a valid one that names no tenant.
    /// - `Unavailable` if the issuer's keys are not known.
    pub(crate) async fn recognise(self: &Arc<Self>, token: &str) -> Result<Caller, Failure> {
        if token.len() > MAX_TOKEN {
            return Err(Failure::invalid_token("the token is too long"));
        }
        // Errors of the library can have parts of the token as their sources. None is passed on.
        let header = decode_header(token).map_err(|_| Failure::invalid_token("the head of the token is malformed"))?;
        if !self.config.algorithms.contains(&header.alg) {
            return Err(Failure::invalid_token("the algorithm of the token is not accepted"));
        }
        if header.crit.is_some() || header.kid.as_ref().is_some_and(|name| name.len() > MAX_KEY_NAME) {
            return Err(Failure::invalid_token("the head of the token has extensions that are not supported"));
        }
        let Some(key) = self.key(header.kid.as_deref(), header.alg).await? else {
            return Err(Failure::invalid_token("the token is signed with no key of the issuer"));
        };
        let validation = Validation { algorithms: vec![header.alg], ..self.validation.clone() };
        let claims = decode::<Value>(token, &key, &validation).map_err(|error| invalid(error.kind()))?.claims;
        Ok(claims::caller(&claims, &self.config)?)
    }

    async fn key(self: &Arc<Self>, name: Option<&str>, algorithm: Algorithm) -> Result<Option<DecodingKey>> {
        let since = Instant::now();
        let (mut step, mut key) = self.find(name, algorithm);
        if step == Step::Read {
            self.read_detached(since).await;
            (step, key) = self.find(name, algorithm);
        } else if key.is_none() && self.reading.try_lock().is_err() {
            drop(self.reading.lock().await);
            (step, key) = self.find(name, algorithm);
        }
        match step {
            Step::Use => Ok(key),
            Step::UseAndRead => {
                drop(self.read_detached(since));
                Ok(key)
            }
            Step::Refuse => Ok(None),
            // It was read just now, or is read by another request and its time is over.
            Step::Read | Step::Unavailable => {
                Err(Error::new(ErrorKind::Unavailable, "authenticate", "the keys of the issuer cannot be read now")
                    .with_remedy("try again; the server's log has the reason"))
            }
        }
    }

    fn find(&self, name: Option<&str>, algorithm: Algorithm) -> (Step, Option<DecodingKey>) {
        let keys = self.keys.lock();
        let key = cache::fitting(&keys.keys, name, algorithm).cloned();
        let found = Found {
            has_key: key.is_some(),
            age: keys.read.map(|read| read.elapsed()),
            tried: keys.tried.map(|tried| tried.elapsed()),
            failed: keys.failed,
        };
        (cache::step(found, &self.config.timing), key)
    }

    /// Reads the keys in a task of its own: a client that leaves must not stop it.
    fn read_detached(self: &Arc<Self>, since: Instant) -> impl Future<Output = ()> + use<> {
        let this = Arc::clone(self);
        let reading = tokio::spawn(async move { this.read(since).await });
        // A panic there is printed by the runtime.
        async move { drop(reading.await) }
    }

    /// Reads the keys, unless another task has done so since `since`.
    async fn read(&self, since: Instant) {
        let _reading = self.reading.lock().await;
        {
            let mut keys = self.keys.lock();
            if keys.tried.is_some_and(|tried| tried >= since) {
                return;
            }
            keys.tried = Some(Instant::now());
        }
        let read = issuer::read_keys(&self.client, &self.config).await;
        let mut keys = self.keys.lock();
        match read {
            Ok(read) => *keys = Keys { keys: read, read: Some(Instant::now()), failed: false, ..*keys },
            Err(error) => {
                if !std::mem::replace(&mut keys.failed, true) {
                    report::warning(&error.to_string());
                }
            }
        }
    }
}

fn invalid(reason: &Reason) -> Failure {
    Failure::invalid_token(match reason {
        Reason::ExpiredSignature => "the token has expired",
        Reason::ImmatureSignature => "the token is not valid yet; compare the clocks of the issuer and this server",
        Reason::InvalidIssuer => "the token is of another issuer",
        Reason::InvalidAudience => "the token is for another service",
        Reason::InvalidSignature => "the signature of the token is wrong",
        Reason::InvalidAlgorithm | Reason::UnsupportedAlgorithm => "the algorithm of the token is not accepted",
        Reason::MissingRequiredClaim(claim) => match claim.as_str() {
            "exp" => "the token has no end",
            "iss" => "the token names no issuer",
            _ => "the token names no audience",
        },
        Reason::InvalidClaimFormat(_) => "a time of the token is malformed",
        _ => "the token is malformed",
    })
}
