//! A client of one registry: the part of the OCI distribution specification that a pull needs.
//!
//! The registry is untrusted. Every answer has a limit, and is verified by its digest. Credentials are sent over TLS, or
//! to this host itself.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderMap, WWW_AUTHENTICATE};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;

use super::super::error::{Result, StoreError};
use super::super::reference::{DOCKER_HUB, Reference};
use super::RegistryOptions;
use super::credentials::Credentials;
use crate::layer::layout::MAX_TEXT;
use crate::layer::stream::Sha;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Time without any data.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_TOKEN: u64 = 1 << 20;
/// Maximum length of a registry's message.
const MAX_MESSAGE: u64 = 4 << 10;
const MAX_REDIRECTS: usize = 5;
const HUB_HOST: &str = "registry-1.docker.io";
const USER_AGENT: &str = concat!("cofferdam/", env!("CARGO_PKG_VERSION"));
const TYPES: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
                     application/vnd.docker.distribution.manifest.list.v2+json, \
                     application/vnd.docker.distribution.manifest.v2+json";

/// A client of one registry, for one repository.
#[derive(Debug)]
pub(super) struct Registry {
    client: Client,
    /// `https://HOST/v2/REPOSITORY/`.
    base: Url,
    name: String,
    repository: String,
    credentials: Option<Credentials>,
    access: Access,
}

/// The value of the header `Authorization`.
#[derive(Clone, Default)]
enum Access {
    #[default]
    None,
    Basic(String, String),
    Bearer(String),
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Access(..)")
    }
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Registry {
    /// Connects to the registry of an image. Chooses plain HTTP only for registries on this host or in the options, if
    /// they do not answer with TLS.
    pub(super) async fn connect(
        reference: &Reference,
        options: &RegistryOptions,
        credentials: Option<Credentials>,
    ) -> Result<Self> {
        let name = reference.registry().to_owned();
        let client = client(options).map_err(|what| StoreError::Registry { registry: name.clone(), what })?;
        let host = if name == DOCKER_HUB { HUB_HOST } else { &name };
        let may_be_plain = is_loopback(host) || options.insecure.contains(&name);
        let scheme = match may_be_plain {
            true => {
                let plain = format!("http://{host}/v2/");
                let encrypted = format!("https://{host}/v2/");
                match client.get(&encrypted).send().await {
                    Ok(_) => "https",
                    // A registry without TLS answers here. One with another certificate does not.
                    Err(error) => match client.get(&plain).send().await {
                        Ok(answer) if answer.status() != StatusCode::BAD_REQUEST => "http",
                        _ => return Err(unreachable(&name, error)),
                    },
                }
            }
            false => "https",
        };
        let base = format!("{scheme}://{host}/v2/{}/", reference.repository());
        let base = Url::parse(&base).map_err(|error| StoreError::Registry {
            registry: name.clone(),
            what: format!("it has no valid address: {error}"),
        })?;
        let repository = reference.repository().to_owned();
        Ok(Self { client, base, name, repository, credentials, access: Access::None })
    }

    /// Returns a manifest or an index, by tag or digest.
    pub(super) async fn manifest(&mut self, version: &str) -> Result<Vec<u8>> {
        let answer = self.get(&format!("manifests/{version}")).await?;
        self.read(answer, MAX_TEXT).await
    }

    /// Returns a small file, verified by its digest.
    pub(super) async fn document(&mut self, digest: &Sha) -> Result<Vec<u8>> {
        let answer = self.get(&format!("blobs/{digest}")).await?;
        let text = self.read(answer, MAX_TEXT).await?;
        if Sha::of(&text) == *digest { Ok(text) } else { Err(crate::layer::stream::wrong_digest(digest).into()) }
    }

    /// Writes a file, and reports the length of each piece. The writer verifies size and digest.
    pub(super) async fn blob(&mut self, digest: &Sha, out: &mut impl Write, done: &mut dyn FnMut(u64)) -> Result<()> {
        let mut answer = self.get(&format!("blobs/{digest}")).await?;
        while let Some(piece) = answer.chunk().await.map_err(|error| self.broken(error))? {
            out.write_all(&piece).map_err(super::super::error::io("store", "a file of the image"))?;
            done(piece.len() as u64);
        }
        Ok(())
    }

    async fn get(&mut self, path: &str) -> Result<Response> {
        let failed = |what: String| StoreError::Registry { registry: self.name.clone(), what };
        let url = self.base.join(path).map_err(|error| failed(error.to_string()))?;
        let answer = self.send(&url).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return self.accept(answer).await;
        }
        if answer.url().host_str() != self.base.host_str() || answer.url().scheme() != self.base.scheme() {
            return Err(failed("it redirects to a host that wants credentials".to_owned()));
        }
        self.authenticate(answer.headers()).await?;
        let answer = self.send(&url).await?;
        self.accept(answer).await
    }

    async fn send(&self, url: &Url) -> Result<Response> {
        let request = with_access(self.client.get(url.clone()).header(ACCEPT, TYPES), &self.access);
        request.send().await.map_err(|error| unreachable(&self.name, error))
    }

    async fn accept(&self, answer: Response) -> Result<Response> {
        match answer.status() {
            StatusCode::OK => Ok(answer),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.denied()),
            StatusCode::NOT_FOUND => {
                Err(StoreError::NotInRegistry { registry: self.name.clone(), repository: self.repository.clone() })
            }
            status => {
                let text = self.read(answer, MAX_MESSAGE).await.unwrap_or_default();
                let text = String::from_utf8_lossy(&text).trim().escape_debug().to_string();
                let what = format!("it answered {status}{}{text}", if text.is_empty() { "" } else { ": " });
                Err(StoreError::Registry { registry: self.name.clone(), what })
            }
        }
    }

    fn denied(&self) -> StoreError {
        StoreError::AccessDenied {
            registry: self.name.clone(),
            repository: self.repository.clone(),
            has_credentials: self.credentials.is_some(),
        }
    }

    /// Obtains access as the registry's challenge demands.
    async fn authenticate(&mut self, headers: &HeaderMap) -> Result<()> {
        let texts: Vec<&str> = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|text| text.to_str().ok()).collect();
        let all = texts.iter().filter_map(|text| http_auth::parse_challenges(text).ok()).flatten();
        let all: Vec<_> = all.collect();
        let of = |scheme: &str| all.iter().find(|challenge| challenge.scheme.eq_ignore_ascii_case(scheme));
        if let Some(challenge) = of("bearer") {
            let find = |name: &str| {
                let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.to_unescaped())
            };
            let realm = find("realm").and_then(|realm| Url::parse(&realm).ok()).ok_or_else(|| self.denied())?;
            let scope = find("scope").unwrap_or_else(|| format!("repository:{}:pull", self.repository));
            let service = find("service");
            self.access = Access::Bearer(self.token(realm, &scope, service.as_deref()).await?);
            return Ok(());
        }
        match (of("basic"), &self.credentials) {
            (Some(_), Some(Credentials::Basic(user, password))) if may_have_secrets(&self.base) => {
                self.access = Access::Basic(user.clone(), password.clone());
                Ok(())
            }
            _ => Err(self.denied()),
        }
    }

    async fn token(&self, realm: Url, scope: &str, service: Option<&str>) -> Result<String> {
        if !may_have_secrets(&realm) {
            let what = "its token server has no TLS".to_owned();
            return Err(StoreError::Registry { registry: self.name.clone(), what });
        }
        let mut query = vec![("scope", scope)];
        query.extend(service.map(|service| ("service", service)));
        // Without TLS, others can answer with a challenge, and name a server of their own.
        let credentials = self.credentials.as_ref().filter(|_| may_have_secrets(&self.base));
        let request = match credentials {
            Some(Credentials::Identity(token)) => {
                query.extend([("grant_type", "refresh_token"), ("refresh_token", token), ("client_id", "cofferdam")]);
                let mut form = realm.clone();
                form.query_pairs_mut().clear().extend_pairs(&query);
                let body = form.query().unwrap_or_default().to_owned();
                self.client.post(realm).header("content-type", "application/x-www-form-urlencoded").body(body)
            }
            other => {
                let mut url = realm;
                url.query_pairs_mut().extend_pairs(&query);
                let access = match other {
                    Some(Credentials::Basic(user, password)) => Access::Basic(user.clone(), password.clone()),
                    _ => Access::None,
                };
                with_access(self.client.get(url), &access)
            }
        };
        let answer = request.send().await.map_err(|error| unreachable(&self.name, error))?;
        if answer.status() != StatusCode::OK {
            return Err(self.denied());
        }
        let text = self.read(answer, MAX_TOKEN).await?;
        let token: Option<Token> = serde_json::from_slice(&text).ok();
        token.and_then(|token| token.token.or(token.access_token)).ok_or_else(|| StoreError::Registry {
            registry: self.name.clone(),
            what: "its token server sent no token".to_owned(),
        })
    }

    async fn read(&self, mut answer: Response, max: u64) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(|error| self.broken(error))? {
            if (text.len() + piece.len()) as u64 > max {
                let what = format!("it sent a document of more than {max} bytes");
                return Err(StoreError::Registry { registry: self.name.clone(), what });
            }
            text.extend_from_slice(&piece);
        }
        Ok(text)
    }

    fn broken(&self, error: reqwest::Error) -> StoreError {
        StoreError::Interrupted { registry: self.name.clone(), what: describe(error) }
    }
}

fn with_access(request: RequestBuilder, access: &Access) -> RequestBuilder {
    match access {
        Access::None => request,
        Access::Basic(user, password) => request.basic_auth(user, Some(password)),
        Access::Bearer(token) => request.bearer_auth(token),
    }
}

/// Returns true if credentials may be sent to this address.
fn may_have_secrets(url: &Url) -> bool {
    url.scheme() == "https" || (url.scheme() == "http" && url.host_str().is_some_and(is_loopback))
}

/// Returns true if a host, with or without a port, is this host.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn unreachable(registry: &str, error: reqwest::Error) -> StoreError {
    StoreError::Unreachable { registry: registry.to_owned(), what: describe(error) }
}

/// Returns the reasons of an error, without the address, which may contain a token.
fn describe(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(reason) = source {
        text = format!("{text}: {reason}");
        source = reason.source();
    }
    text.escape_debug().to_string()
}

fn client(options: &RegistryOptions) -> std::result::Result<Client, String> {
    let mut roots = rustls::RootCertStore::empty();
    // Unreadable certificates of the host are skipped: a missing one shows in the connection's error.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for certificate in &options.certificates {
        let parsed = pem::parse_many(certificate).map_err(|error| format!("a certificate is not PEM: {error}"))?;
        for certificate in parsed {
            roots
                .add(certificate.into_contents().into())
                .map_err(|error| format!("a certificate is unusable: {error}"))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let policy = reqwest::redirect::Policy::custom(|attempt| {
        let from_tls = attempt.previous().iter().any(|url| url.scheme() == "https");
        if attempt.previous().len() > MAX_REDIRECTS {
            attempt.error("it redirects without an end")
        } else if from_tls && attempt.url().scheme() != "https" {
            attempt.error("it redirects to an address without TLS")
        } else {
            attempt.follow()
        }
    });
    Client::builder()
        .tls_backend_preconfigured(config)
        .redirect(policy)
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .user_agent(USER_AGENT)
        .build()
        .map_err(describe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_go_to_tls_and_to_this_host_only() {
        for (url, may) in [
            ("https://a.example/token", true),
            ("http://a.example/token", false),
            ("http://localhost:5000/token", true),
            ("http://127.0.0.2/token", true),
            ("http://[::1]:5000/token", true),
            ("http://localhost.example/token", false),
            ("http://127.0.0.1.example/token", false),
            ("ftp://localhost/token", false),
        ] {
            assert_eq!(may_have_secrets(&Url::parse(url).unwrap()), may, "{url}");
        }
    }
}
