//! The identity of callers: the user at the other end of a Unix socket, a key, a token of an issuer, or a certificate.

mod certificates;
pub mod keys;
mod oidc;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use cofferdam_contract::{Error, Result, TenantId};

pub use certificates::{CertificateRules, PeerCertificate};
pub use oidc::{Oidc, OidcConfig};

use crate::caller::{Caller, Proof, Scope};
use crate::listen::Listen;
use crate::rest::problem::Failure;
use crate::store::{Store, now};

/// The other end of a connection.
#[derive(Debug, Clone)]
pub enum Peer {
    /// A user of this host, by the credentials of a Unix socket.
    User(u32),
    /// A process that is no more trusted than a guest of this user, such as one in another user namespace.
    Guest,
    /// A client over TCP.
    Network(SocketAddr),
    /// A client over TCP with a certificate of an authority of clients.
    Certified(SocketAddr, Arc<PeerCertificate>),
    /// The process of this server that took over, with a request for a sandbox of this one.
    Successor,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(user) => write!(f, "uid {user}"),
            Self::Guest => f.write_str("guest"),
            Self::Network(address) | Self::Certified(address, _) => write!(f, "{}", address.ip()),
            Self::Successor => f.write_str("successor"),
        }
    }
}

/// The key of callers that need none.
const LOCAL: &str = "local";

/// The identities that the server knows besides keys.
#[derive(Debug, Clone, Default)]
pub struct Identities {
    /// The issuer of tokens.
    pub oidc: Option<Arc<Oidc>>,
    /// The meaning of the names in certificates of clients.
    pub certificates: CertificateRules,
}

/// Recognises callers.
#[derive(Debug, Clone)]
pub struct Gate {
    /// The user whose connections to the Unix socket need no key.
    pub owner: u32,
    /// The tenant of that user, and of callers without a key.
    pub tenant: TenantId,
    /// True if callers over TCP need no key.
    pub without_keys: bool,
    /// The keys. Without a store, no key is valid.
    pub store: Option<Store>,
    /// The other identities.
    pub identities: Identities,
}

impl Gate {
    /// Returns the caller behind a peer with the header `Authorization`.
    ///
    /// # Errors
    /// - 401 without a valid key, token or certificate, where one is needed.
    /// - `Denied` for a valid token without a tenant.
    /// - `Unavailable` if the database or the issuer of tokens fails.
    pub async fn recognise(&self, peer: &Peer, authorization: Option<&str>) -> Result<Caller, Failure> {
        let certificate = match peer {
            Peer::Certified(_, certificate) => Some(certificate),
            // Its requests name the caller, and are not recognised here.
            Peer::Successor => return Err(Failure::unauthorized("the request has no caller")),
            Peer::User(_) | Peer::Guest | Peer::Network(_) => None,
        };
        let certified = certificate.map(|certificate| self.certified(certificate)).transpose()?.flatten();
        let Some(header) = authorization else {
            let caller = match (peer, certified) {
                (Peer::User(user), _) if *user == self.owner => {
                    Ok(Caller { is_operator: true, ..self.local(Scope::ALL.iter().copied().collect()) })
                }
                (Peer::Guest, _) => Err(Failure::unauthorized(
                    "the process at the other end is in another user namespace, like a guest, and the request has no key",
                )),
                (Peer::User(_), _) => Err(Failure::unauthorized("the socket belongs to another user")),
                (_, Some(caller)) => Ok(caller),
                _ if self.without_keys => Ok(self.local(Scope::of_tenants())),
                (Peer::Certified(..), None) => Err(Failure::unauthorized(
                    "the certificate of the client names no tenant of this server, and the request has no key",
                )),
                (Peer::Network(_) | Peer::Successor, _) => Err(Failure::unauthorized("the request has no key")),
            };
            return Ok(Caller { certificate: certificate.cloned(), ..caller? });
        };
        let caller = self.authorized(header).await?;
        if certified.is_some_and(|certified| certified.tenant != caller.tenant) {
            return Err(Failure::unauthorized("the certificate of the client and the key are of different tenants"));
        }
        Ok(Caller { certificate: certificate.cloned(), ..caller })
    }

    /// Returns the caller of a key or token.
    async fn authorized(&self, header: &str) -> Result<Caller, Failure> {
        let bearer = header.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let Some((_, text)) = bearer else { return Err(Failure::unauthorized("the key is not valid")) };
        let text = text.trim();
        if let Some(oidc) = self.identities.oidc.as_ref().filter(|_| Oidc::is_token(text)) {
            return oidc.recognise(text).await;
        }
        let caller = match &self.store {
            Some(store) => keys::recognise(store, text).await?,
            None => None,
        };
        caller.ok_or_else(|| Failure::unauthorized("the key is not valid"))
    }

    /// Returns the caller whom a certificate names, if it names one.
    fn certified(&self, certificate: &Arc<PeerCertificate>) -> Result<Option<Caller>, Failure> {
        match certificate.is_valid() {
            true => Ok(self.identities.certificates.caller(certificate)),
            false => Err(Failure::unauthorized("the certificate of the client has ended or was revoked")),
        }
    }

    /// Returns false if a proof of a caller is no longer valid: a key or certificate that was revoked, a token that has
    /// expired.
    pub async fn still_accepts(&self, caller: &Caller) -> bool {
        if caller.certificate.as_ref().is_some_and(|certificate| !certificate.is_valid()) {
            return false;
        }
        match (caller.proof, &self.store) {
            (Proof::Until(end), _) => now() <= end,
            // If the database fails, the next check finds it.
            (Proof::Key, Some(store)) => {
                store.key(&caller.key).await.map_or(true, |key| key.is_some_and(|key| key.is_valid(now())))
            }
            (Proof::Key, None) | (Proof::Connection, _) => true,
        }
    }

    fn local(&self, scopes: BTreeSet<Scope>) -> Caller {
        Caller {
            tenant: self.tenant.clone(),
            scopes,
            key: LOCAL.to_owned(),
            is_operator: false,
            proof: Proof::Connection,
            certificate: None,
        }
    }
}

/// The operator's explicit consent to a listener that others can read or use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Consent {
    /// Other hosts may read requests, keys and answers.
    pub without_tls: bool,
    /// Every client that can connect is a caller.
    pub without_keys: bool,
}

/// Checks that a listener is safe.
///
/// # Errors
/// - `Denied` for an address that other hosts reach without TLS, or for callers over TCP without valid keys, tokens or
///   certificates, unless the operator consents.
pub async fn check_listener(listen: &Listen, consent: Consent, store: &Store, identities: &Identities) -> Result<()> {
    let Listen::Tcp(address, tls) = listen else { return Ok(()) };
    let refuse = |message: String, remedy: &str| {
        let error = Error::new(cofferdam_contract::ErrorKind::Denied, "listen", message);
        Err(error.with_context("address", address.to_string()).with_remedy(remedy.to_owned()))
    };
    if !address.ip().is_loopback() && tls.is_none() && !consent.without_tls {
        return refuse(
            "other hosts could read keys and answers without TLS".to_owned(),
            "give --tls-cert and --tls-key, or listen on 127.0.0.1 behind a proxy, or consent with --without-tls",
        );
    }
    let has_certificates = tls.as_ref().is_some_and(|tls| tls.clients.is_some());
    if consent.without_keys || identities.oidc.is_some() || has_certificates {
        return Ok(());
    }
    let valid = store.keys().await?.iter().any(|key| key.is_valid(now()));
    if !valid && !address.ip().is_loopback() {
        return refuse(
            "there is no valid key, so that no client could use the server".to_owned(),
            "create one with cofferdam keys create, give --oidc or --tls-client-ca, or consent with --without-keys",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listen::{ClientCertificates, ListenTls, TlsFiles};

    /// Promise (Server): It refuses to listen beyond loopback without keys and TLS, unless the operator consents.
    #[tokio::test]
    async fn only_safe_listeners_are_accepted() {
        let (_directory, store) = crate::store::tests::fresh().await;
        let files = || TlsFiles { certificate: "c".into(), key: "k".into() };
        let identities = Identities::default();
        let (public, loopback) = ("0.0.0.0:8443".parse().unwrap(), "127.0.0.1:8080".parse().unwrap());
        let consent = |without_tls, without_keys| Consent { without_tls, without_keys };
        let accepted =
            async |listen: Listen, consent| check_listener(&listen, consent, &store, &identities).await.is_ok();
        for (keys, rows) in [
            (false, [(public, true, false), (public, false, false), (loopback, false, true), (loopback, true, true)]),
            (true, [(public, true, true), (public, false, false), (loopback, false, true), (loopback, true, true)]),
        ] {
            if keys {
                let scopes = Scope::of_tenants();
                let new = keys::NewKey { tenant: TenantId::default(), name: String::new(), scopes, life: None };
                keys::create(&store, new).await.unwrap();
            }
            for (address, tls, expected) in rows {
                let listen = Listen::Tcp(address, tls.then(|| files().into()));
                assert_eq!(accepted(listen.clone(), consent(false, false)).await, expected, "{listen:?} {keys}");
                assert!(accepted(listen, consent(true, true)).await);
            }
        }
        assert!(accepted(Listen::Tcp(public, None), consent(true, false)).await);
        assert!(!accepted(Listen::Tcp(public, None), consent(false, true)).await);
        assert!(accepted(Listen::Socket("x".into()), consent(false, false)).await);
    }

    #[tokio::test]
    async fn tokens_and_certificates_replace_keys_but_not_tls() {
        let (_directory, store) = crate::store::tests::fresh().await;
        let files = TlsFiles { certificate: "c".into(), key: "k".into() };
        let clients = ClientCertificates { authorities: "a".into(), revoked: None, required: false };
        let (with, without) = (ListenTls { files: files.clone(), clients: Some(clients) }, ListenTls::from(files));
        let oidc = || OidcConfig::parse(&oidc::example().to_string()).and_then(Oidc::new).map(Arc::new).unwrap();
        let tokens = Identities { oidc: Some(oidc()), ..Identities::default() };
        let nothing = Identities::default();
        for (tls, identities, expected) in [
            (Some(&without), &nothing, false),
            (Some(&with), &nothing, true),
            (Some(&without), &tokens, true),
            (None, &tokens, false),
        ] {
            let listen = Listen::Tcp("0.0.0.0:1".parse().unwrap(), tls.cloned());
            let checked = check_listener(&listen, Consent::default(), &store, identities).await;
            assert_eq!(checked.is_ok(), expected, "{listen:?}");
        }
    }
}
