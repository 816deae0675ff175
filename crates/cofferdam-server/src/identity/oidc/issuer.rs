//! The issuer's description and keys, read over HTTP within bounds.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, Result};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use reqwest::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::config::{OidcConfig, address};
use crate::client::tls_config;

/// The time for the description, and for the keys.
const READ_TIME: Duration = Duration::from_secs(5);
/// The most bytes of a document.
const MAX_DOCUMENT: usize = 256 << 10;
/// The most keys that are read.
const MAX_KEYS: usize = 100;

/// A public key of an issuer.
#[derive(Clone)]
pub struct IssuerKey {
    /// The name in the heads of tokens.
    pub name: Option<String>,
    /// The algorithms with which it may be used.
    pub algorithms: Vec<Algorithm>,
    /// The key.
    pub key: DecodingKey,
}

#[derive(Deserialize)]
struct Description {
    issuer: String,
    jwks_uri: String,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

/// Returns the client for requests to an issuer. It follows no redirects.
///
/// # Errors
/// - `InvalidInput` for a file of authorities that cannot be used.
pub fn client(config: &OidcConfig) -> Result<Client> {
    let tls = Arc::unwrap_or_clone(tls_config(config.ca.as_deref(), None)?);
    Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .timeout(READ_TIME)
        .user_agent("cofferdam")
        .build()
        .map_err(|error| Error::new(ErrorKind::Internal, "read identity", "cannot set TLS up").with_source(error))
}

/// Reads the keys of an issuer.
///
/// # Errors
/// - `Unavailable` if the issuer does not answer, or answers something else.
pub async fn read_keys(client: &Client, config: &OidcConfig) -> Result<Vec<IssuerKey>> {
    let description: Description = document(client, &config.discovery()).await?;
    if description.issuer != config.issuer_text {
        let message = format!("the issuer describes itself as '{}'", description.issuer.escape_debug());
        return Err(unavailable(config.discovery(), message)
            .with_remedy("write 'issuer' in the file of --oidc as the issuer does, to the last character"));
    }
    let uri = address(&description.jwks_uri)?;
    if config.issuer.scheme() == "https" && uri.scheme() != "https" {
        return Err(unavailable(uri, "the issuer has its keys at an address without TLS"));
    }
    let set: KeySet = document(client, uri.as_str()).await?;
    Ok(set.keys.into_iter().take(MAX_KEYS).filter_map(key).collect())
}

async fn document<T: DeserializeOwned>(client: &Client, address: &str) -> Result<T> {
    let broken =
        |error: reqwest::Error| unavailable(address, "the issuer does not answer").with_source(error.without_url());
    let mut response = client.get(address).send().await.map_err(broken)?;
    if !response.status().is_success() {
        return Err(unavailable(address, format!("the issuer answers {}", response.status())));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(broken)? {
        if bytes.len() + chunk.len() > MAX_DOCUMENT {
            return Err(unavailable(address, "the issuer's answer is too large"));
        }
        bytes.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&bytes)
        .map_err(|error| unavailable(address, "the issuer's answer is malformed").with_source(error))
}

fn unavailable(address: impl ToString, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, "read keys of issuer", message.into())
        .with_context("address", address.to_string())
        .with_remedy("check that the issuer is reachable from the server, and 'issuer' in the file of --oidc")
}

/// Returns a key that can verify signatures, or `None` for another one.
fn key(document: Value) -> Option<IssuerKey> {
    let jwk: Jwk = serde_json::from_value(document).ok()?;
    let is_for_signatures = jwk.common.public_key_use.as_ref().is_none_or(|all| *all == PublicKeyUse::Signature)
        && jwk.common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
    let mut algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => vec![
            Algorithm::RS256,
            Algorithm::RS384,
            Algorithm::RS512,
            Algorithm::PS256,
            Algorithm::PS384,
            Algorithm::PS512,
        ],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => vec![Algorithm::ES256],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => vec![Algorithm::ES384],
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => vec![Algorithm::EdDSA],
        // Among them secrets, which no issuer publishes.
        _ => return None,
    };
    if let Some(named) = &jwk.common.key_algorithm {
        let named = Algorithm::try_from(*named).ok()?;
        algorithms.retain(|algorithm| *algorithm == named);
    }
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    (is_for_signatures && !algorithms.is_empty()).then_some(IssuerKey { name: jwk.common.key_id, algorithms, key })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_public_keys_for_signatures_are_used() {
        let curve = |extra: Value| {
            let mut document = json!({ "kty": "EC", "crv": "P-256", "kid": "a", "x": "AAAA", "y": "AAAA" });
            document.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            key(document).map(|key| key.algorithms)
        };
        assert_eq!(curve(json!({})), Some(vec![Algorithm::ES256]));
        assert_eq!(curve(json!({ "use": "sig", "alg": "ES256" })), Some(vec![Algorithm::ES256]));
        for extra in [
            json!({ "use": "enc" }),
            json!({ "alg": "ES384" }),
            json!({ "alg": "HS256" }),
            json!({ "alg": "none" }),
            json!({ "key_ops": ["sign"] }),
            json!({ "crv": "P-521" }),
            json!({ "crv": "secp256k1" }),
            json!({ "kty": "oct", "k": "AAAA" }),
        ] {
            assert_eq!(curve(extra.clone()), None, "{extra}");
        }
        let rsa = key(json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB", "alg": "PS256" })).unwrap();
        assert_eq!((rsa.algorithms, rsa.name), (vec![Algorithm::PS256], None));
    }
}
