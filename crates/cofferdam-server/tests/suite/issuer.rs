//! An issuer of tokens on this host, over TLS.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use cofferdam_server::{Oidc, OidcConfig};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};

/// The tenant claim of tokens.
pub const ORG: &str = "org";

/// A key with which an issuer signs.
pub struct SigningKey {
    pub name: String,
    pair: Pair,
}

enum Pair {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    pub fn p256(name: &str) -> Self {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).unwrap();
        Self { name: name.to_owned(), pair: Pair::P256(pair) }
    }

    pub fn ed25519(name: &str) -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self { name: name.to_owned(), pair: Pair::Ed25519(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap()) }
    }

    pub fn public(&self) -> &[u8] {
        match &self.pair {
            Pair::P256(pair) => pair.public_key().as_ref(),
            Pair::Ed25519(pair) => pair.public_key().as_ref(),
        }
    }

    /// Returns the key as issuers publish it.
    pub fn document(&self) -> Value {
        let public = self.public();
        match &self.pair {
            Pair::P256(_) => json!({
                "kty": "EC", "crv": "P-256", "kid": self.name, "use": "sig",
                "x": encode(&public[1..33]), "y": encode(&public[33..]),
            }),
            Pair::Ed25519(_) => json!({ "kty": "OKP", "crv": "Ed25519", "kid": self.name, "x": encode(public) }),
        }
    }

    pub fn algorithm(&self) -> &'static str {
        match &self.pair {
            Pair::P256(_) => "ES256",
            Pair::Ed25519(_) => "EdDSA",
        }
    }

    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        match &self.pair {
            Pair::P256(pair) => pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// Returns a token with a usual head.
    pub fn token(&self, claims: &Value) -> String {
        let head = json!({ "alg": self.algorithm(), "typ": "JWT", "kid": self.name });
        token(&head, claims, |message| self.sign(message))
    }
}

/// Returns a token with any head and signature.
pub fn token(head: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let message = format!("{}.{}", encode(head.to_string().as_bytes()), encode(claims.to_string().as_bytes()));
    let signature = encode(&sign(message.as_bytes()));
    format!("{message}.{signature}")
}

pub fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// An answer of an issuer: status, header `Location`, body.
pub type Answer = (u16, Option<String>, String);

/// A running issuer.
pub struct Issuer {
    pub url: String,
    pub ca: PathBuf,
    answers: Arc<Mutex<BTreeMap<String, Answer>>>,
    requests: Arc<Mutex<usize>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Issuer {
    /// Starts an issuer with these keys.
    pub async fn start(directory: &Path, keys: &[&SigningKey]) -> Self {
        let created = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let ca = directory.join("issuer.pem");
        std::fs::write(&ca, created.cert.pem()).unwrap();
        let private = PrivateKeyDer::Pkcs8(created.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![created.cert.der().clone()], private)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let (answers, requests) = (Arc::new(Mutex::new(BTreeMap::new())), Arc::new(Mutex::new(0)));
        let (all, count) = (Arc::clone(&answers), Arc::clone(&requests));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, all, count) = (acceptor.clone(), Arc::clone(&all), Arc::clone(&count));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(async |request: Request<hyper::body::Incoming>| {
                        *count.lock() += 1;
                        let answer = all.lock().get(request.uri().path()).cloned();
                        let (status, location, body) = answer.unwrap_or((404, None, String::new()));
                        let mut response = Response::builder().status(status);
                        if let Some(location) = location {
                            response = response.header("location", location);
                        }
                        Ok::<_, Infallible>(response.body(Full::new(Bytes::from(body))).unwrap())
                    });
                    let connection =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                    let _ = connection.await;
                });
            }
        });
        let issuer = Self { url, ca, answers, requests, task };
        issuer.describe(json!({ "issuer": issuer.url, "jwks_uri": format!("{}/keys", issuer.url) }));
        issuer.publish(keys);
        issuer
    }

    pub fn answer(&self, path: &str, answer: Answer) {
        self.answers.lock().insert(path.to_owned(), answer);
    }

    pub fn describe(&self, description: Value) {
        self.answer("/.well-known/openid-configuration", (200, None, description.to_string()));
    }

    pub fn publish(&self, keys: &[&SigningKey]) {
        let keys: Vec<_> = keys.iter().map(|key| key.document()).collect();
        self.answer("/keys", (200, None, json!({ "keys": keys }).to_string()));
    }

    /// Lets every request fail.
    pub fn fail(&self) {
        self.answers.lock().values_mut().for_each(|answer| answer.0 = 500);
    }

    pub fn recover(&self) {
        self.answers.lock().values_mut().for_each(|answer| answer.0 = 200);
    }

    /// Returns the number of requests up to now.
    pub fn requests(&self) -> usize {
        *self.requests.lock()
    }

    /// Returns claims that the server accepts.
    pub fn claims(&self, tenant: &str, scopes: &str) -> Value {
        json!({
            "iss": self.url, "aud": "cofferdam", "sub": "tester", "exp": now() + 600, "iat": now(),
            ORG: tenant, "scope": scopes,
        })
    }

    /// Returns the settings of a server.
    pub fn settings(&self) -> Value {
        let names = |scope: &cofferdam_server::Scope| (scope.to_string(), json!([scope.to_string()]));
        let scopes: serde_json::Map<String, Value> = cofferdam_server::Scope::ALL.iter().map(names).collect();
        json!({
            "issuer": self.url, "audience": ["cofferdam"], "ca": self.ca, "leeway": 0,
            "tenant": { "claim": ORG }, "scopes": { "claim": "scope", "values": scopes },
            "refresh": 1, "retry": 1, "keep": 3,
        })
    }

    /// Returns the issuer as a server knows it.
    pub fn known(&self) -> Arc<Oidc> {
        known(&self.settings())
    }
}

pub fn known(settings: &Value) -> Arc<Oidc> {
    Arc::new(Oidc::new(OidcConfig::parse(&settings.to_string()).unwrap()).unwrap())
}

/// Waits until something is true.
pub async fn eventually(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_true().await {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
