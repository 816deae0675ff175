//! Every endpoint of the OpenAPI document, called by callers that must not use it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use cofferdam_server::{CertificateRules, Identities, Scope, TlsFiles};
use cofferdam_simulated::Step;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use serde_json::{Value, json};

use crate::authority::{Authority, VALID, listen};
use crate::issuer::{Issuer, SigningKey};
use crate::support::{Running, bounds, create, exec, over_tls, start_on, steps};

/// An endpoint of the document.
#[derive(Debug)]
struct Endpoint {
    method: String,
    path: String,
    /// The scope that the document names. `None` for endpoints without keys.
    scope: Option<Scope>,
}

fn endpoints() -> Vec<Endpoint> {
    let document: Value = serde_json::from_str(&cofferdam_server::document()).unwrap();
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let scope = operation["security"][0]["key"][0].as_str().map(|scope| scope.parse().unwrap());
            all.push(Endpoint { method: method.to_uppercase(), path: path.clone(), scope });
        }
    }
    all
}

/// Returns a body that the endpoint accepts, so that nothing but the caller is at fault.
fn body(path: &str, method: &str) -> Vec<u8> {
    let text = match (method, path.rsplit('/').next().unwrap()) {
        ("POST", "execs") => json!(steps(vec![Step::Exit(0)])).to_string(),
        ("POST", "signal") => json!({ "signal": "TERM" }).to_string(),
        ("POST", "apply") => json!({ "digest": "x" }).to_string(),
        ("POST", "move") => json!({ "from": "x", "to": "y" }).to_string(),
        ("POST", "extend") => json!({ "life": 60 }).to_string(),
        ("POST", "runs") => json!({ "exec": steps(vec![Step::Exit(0)]) }).to_string(),
        // The end of an archive without files.
        ("POST", "snapshots" | "load") => "\0".repeat(1024),
        ("POST", "volumes") => json!({ "name": new_name(), "size": "16M" }).to_string(),
        ("PUT", "network") => json!({ "kind": "none" }).to_string(),
        ("POST" | "PUT", _) => "{}".to_owned(),
        _ => String::new(),
    };
    text.into_bytes()
}

/// Returns a name that no other object has.
fn new_name() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!("n{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The objects that a request names.
struct Named<'a> {
    sandbox: &'a str,
    exec: &'a str,
    snapshot: &'a str,
    volume: &'a str,
}

/// The kind of a proof of identity.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Key,
    Token,
    Certificate,
}

/// A caller's proof of identity.
#[derive(Default)]
struct Proof {
    bearer: Option<String>,
    certificate: Option<TlsFiles>,
}

/// The names of scopes, all of those in a list.
fn joined(scopes: &[Scope], by: &str) -> String {
    scopes.iter().map(ToString::to_string).collect::<Vec<_>>().join(by)
}

/// The sources of proofs.
struct World<'a> {
    server: &'a Running,
    issuer: &'a Issuer,
    key: &'a SigningKey,
    authority: &'a Authority,
}

impl World<'_> {
    /// Returns a proof of a tenant with scopes.
    async fn proof(&self, kind: Kind, tenant: &str, scopes: &[Scope]) -> Proof {
        match kind {
            Kind::Key => Proof { bearer: Some(self.server.key(tenant, scopes).await), certificate: None },
            Kind::Token => {
                let token = self.key.token(&self.issuer.claims(tenant, &joined(scopes, " ")));
                Proof { bearer: Some(token), certificate: None }
            }
            Kind::Certificate => {
                let name = uri(tenant, scopes);
                Proof { bearer: None, certificate: Some(self.authority.client(1, &[&name], VALID)) }
            }
        }
    }

    /// Returns proofs that prove nothing.
    fn nothing(&self, kind: Kind) -> Proof {
        match kind {
            Kind::Key => Proof { bearer: Some("cfd_nonsense".to_owned()), certificate: None },
            Kind::Token => {
                let forger = SigningKey::p256("one");
                let token = forger.token(&self.issuer.claims("owner", &joined(Scope::ALL, " ")));
                Proof { bearer: Some(token), certificate: None }
            }
            Kind::Certificate => {
                let files = self.authority.client(2, &["cofferdam://tenant/owner"], VALID);
                Proof { bearer: None, certificate: Some(files) }
            }
        }
    }
}

/// Returns the name in certificates of a tenant with scopes.
fn uri(tenant: &str, scopes: &[Scope]) -> String {
    format!("test://{tenant}/{}", joined(scopes, "/"))
}

fn all_but(scope: Scope) -> Vec<Scope> {
    Scope::ALL.iter().copied().filter(|other| *other != scope).collect()
}

/// Returns rules for the certificates of the matrix.
fn rules() -> CertificateRules {
    let mut sets = vec![Scope::ALL.to_vec()];
    sets.extend(Scope::ALL.iter().flat_map(|scope| [vec![*scope], all_but(*scope)]));
    let rules = ["owner", "stranger"].iter().flat_map(|tenant| {
        let rule = |scopes: &Vec<Scope>| {
            let names: Vec<_> = scopes.iter().map(ToString::to_string).collect();
            json!({ "uri": uri(tenant, scopes), "tenant": tenant, "scopes": names })
        };
        sets.iter().map(rule).collect::<Vec<_>>()
    });
    CertificateRules::parse(&json!({ "rules": rules.collect::<Vec<_>>() }).to_string()).unwrap()
}

/// Returns the status of the answer.
async fn call(server: &Running, endpoint: &Endpoint, named: &Named<'_>, proof: &Proof) -> u16 {
    let path = endpoint.path.replace("{sandbox}", named.sandbox).replace("{snapshot}", named.snapshot);
    let path = path.replace("{volume}", named.volume);
    let path = path
        .replace("{exec}", named.exec)
        .replace("{tenant}", "someone")
        .replace("{port}", "80")
        .replace("{kernel}", "none")
        .replace("{plugin}", "echo")
        .replace("{method}", "echo");
    let query = match (endpoint.method.as_str(), path.as_str()) {
        (_, path) if path.contains("/files") => "?path=x",
        ("GET", "/v1/images/inspect") | ("POST", "/v1/images/pull") | ("DELETE", "/v1/images") => "?name=base:1",
        _ => "",
    };
    let mut sender = over_tls(server, proof.certificate.as_ref()).await;
    let mut request = hyper::Request::builder()
        .method(endpoint.method.as_str())
        .uri(format!("{path}{query}"))
        .header(HOST, "localhost")
        .header(CONTENT_TYPE, "application/json");
    if let Some(key) = &proof.bearer {
        request = request.header(AUTHORIZATION, format!("Bearer {key}"));
    }
    let body = body(&endpoint.path, &endpoint.method);
    sender
        .send_request(request.body(http_body_util::Full::<bytes::Bytes>::from(body)).unwrap())
        .await
        .unwrap()
        .status()
        .as_u16()
}

/// Promise (Server): Every endpoint answers 401 without a key, token or certificate, 403 to one with all scopes but its
/// own, and 404 for another tenant's object.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_endpoint_refuses_unauthorized_clients() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, key) = (Authority::new(directory.path(), "clients"), SigningKey::p256("one"));
    let issuer = Issuer::start(directory.path(), &[&key]).await;
    let listen = listen(directory.path(), &authority, None, false);
    let identities = Identities { oidc: Some(issuer.known()), certificates: rules() };
    let server = start_on(directory, &listen, bounds(), |config| {
        config.gate.identities = identities;
        config.policy.images = true;
    })
    .await;
    let world = World { server: &server, issuer: &issuer, key: &key, authority: &authority };
    let (owner, _) = server.keyed("owner", Scope::ALL).await;
    let sandbox = create(&owner, json!({ "name": "box" })).await;
    let own = exec(&owner, &sandbox, &steps(vec![Step::SleepForever])).await.unwrap().id;
    let path = "/v1/sandboxes/box/snapshot";
    let taken = crate::support::post(&owner, path, json!({ "name": "base" })).await.unwrap();
    crate::support::post(&owner, "/v1/volumes", json!({ "name": "data", "size": "16M" })).await.unwrap();
    let owned = Named { sandbox: &sandbox, exec: &own, snapshot: taken["id"].as_str().unwrap(), volume: "data" };
    let by_name = Named { sandbox: "box", exec: &own, snapshot: "base", volume: "data" };
    let missing = Named { sandbox: "sb-none", exec: &own, snapshot: "sn-none", volume: "none" };
    let all = endpoints();
    assert!(all.len() >= 48, "{}", all.len());
    let mut seen = BTreeSet::new();
    for endpoint in &all {
        let Some(scope) = endpoint.scope else {
            assert_eq!(call(&server, endpoint, &owned, &Proof::default()).await, 200, "{endpoint:?}");
            continue;
        };
        seen.insert(scope);
        assert_eq!(call(&server, endpoint, &owned, &Proof::default()).await, 401, "{endpoint:?}");
        for kind in [Kind::Key, Kind::Token, Kind::Certificate] {
            let shown = format!("{kind:?} {endpoint:?}");
            let without = world.proof(kind, "owner", &all_but(scope)).await;
            assert_eq!(call(&server, endpoint, &owned, &world.nothing(kind)).await, 401, "{shown}");
            assert_eq!(call(&server, endpoint, &owned, &without).await, 403, "{shown}");
            // The certificates of the authority share their files.
            let stranger = world.proof(kind, "stranger", Scope::ALL).await;
            let names_object = ["{sandbox}", "{snapshot}", "{volume}"].iter().any(|it| endpoint.path.contains(it));
            for named in [&owned, &by_name].into_iter().filter(|_| names_object) {
                let status = call(&server, endpoint, named, &stranger).await;
                assert_eq!(status, 404, "{shown} {}", named.sandbox);
            }
            let with = world.proof(kind, "owner", &[scope]).await;
            let status = call(&server, endpoint, &missing, &with).await;
            match names_object {
                // The scope that the document names is enough: the object is missing, not the right.
                true => assert_eq!(status, 404, "{shown}"),
                false => assert!((200..300).contains(&status), "{shown}: {status}"),
            }
        }
    }
    assert_eq!(seen, Scope::ALL.iter().copied().collect(), "every scope has an endpoint");
    assert!(crate::support::get(&owner, "/v1/snapshots/base").await.is_ok(), "nothing of it had an effect");
    assert!(crate::support::get(&owner, "/v1/volumes/data").await.is_ok(), "nothing of it had an effect");
    assert!(crate::support::get(&owner, "/v1/sandboxes/box").await.is_ok(), "nothing of it had an effect");
    let path = format!("/v1/sandboxes/box/execs/{own}");
    assert_eq!(crate::support::get(&owner, &path).await.unwrap()["state"], "running");
    server.stop().await;
}
