//! Certificates of clients.

use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind};
use cofferdam_server::client::{Client, Credentials};
use cofferdam_server::remote::{RemoteBackend, RemoteConfig};
use cofferdam_server::{CertificateRules, Listen, Scope, TlsFiles};
use cofferdam_simulated::Step;
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::json;

use crate::authority::{Authority, VALID, listen};
use crate::issuer::eventually;
use crate::support::{Running, bounds, create, exec, get, post, start_on, steps};

fn client(server: &Running, certificate: Option<&TlsFiles>, key: Option<&str>) -> Client {
    let ca = server.directory.path().join("cert.pem");
    Client::with(&server.url, &Credentials { key, ca: Some(&ca), certificate }).unwrap()
}

async fn refusal(client: &Client) -> (String, Error) {
    let error = get(client, "/v1/sandboxes").await.expect_err("refused");
    (format!("{error} {}", error.remedy().unwrap_or_default()), error)
}

/// Promise (Server): A client's certificate gives the tenant that its name means, and is no way to another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_name_their_tenant() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "clients");
    let listen = listen(directory.path(), &authority, None, false);
    let server = start_on(directory, &listen, bounds(), |_| {}).await;
    let of = |serial, names: &[&str]| authority.client(serial, names, VALID);
    let (one, two) = (of(1, &["cofferdam://tenant/acme", "host.example"]), of(2, &["cofferdam://tenant/umbrella"]));
    let (acme, umbrella) = (client(&server, Some(&one), None), client(&server, Some(&two), None));
    let own = create(&acme, json!({ "name": "box" })).await;
    assert_eq!(get(&acme, "/v1/sandboxes/box").await.unwrap()["id"], own);
    assert_eq!(get(&umbrella, "/v1/sandboxes/box").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(get(&acme, "/v1/metrics").await.unwrap_err().operation(), "authorize", "no scope admin");
    let (key, theirs) = (server.key("acme", Scope::ALL).await, server.key("umbrella", Scope::ALL).await);
    assert_eq!(get(&client(&server, None, Some(&key)), "/v1/sandboxes/box").await.unwrap()["id"], own);
    assert!(get(&client(&server, Some(&one), Some(&key)), "/v1/sandboxes/box").await.is_ok());
    let (text, _) = refusal(&client(&server, Some(&one), Some(&theirs))).await;
    assert!(text.contains("different tenants"), "{text}");
    let (text, _) = refusal(&client(&server, Some(&one), Some("cfd_nonsense"))).await;
    assert!(text.contains("the key is not valid"), "{text}");
    for names in [
        &["host.example"][..],
        &["cofferdam://tenant/acme", "cofferdam://tenant/umbrella"],
        &["cofferdam://tenant/a%62"],
    ] {
        let unclear = of(3, names);
        let (text, error) = refusal(&client(&server, Some(&unclear), None)).await;
        assert!(text.contains("names no tenant") && error.operation() == "authenticate", "{text}");
        assert!(get(&client(&server, Some(&unclear), Some(&key)), "/v1/sandboxes").await.is_ok(), "the key counts");
    }
    let (text, _) = refusal(&client(&server, None, None)).await;
    assert!(text.contains("the request has no key"), "{text}");
    server.stop().await;
}

/// Promise (Server): A server that requires certificates speaks to no client without a valid one, and the client names
/// the reason and the remedy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn required_certificates_are_explained() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, stranger) =
        (Authority::new(directory.path(), "clients"), Authority::new(directory.path(), "strangers"));
    let name = ["cofferdam://tenant/acme"];
    let revoked = authority.revoke(&[5]);
    let listen = listen(directory.path(), &authority, Some(revoked), true);
    let server = start_on(directory, &listen, bounds(), |_| {}).await;
    let key = server.key("acme", Scope::ALL).await;
    for (files, texts) in [
        (None, ["requires a certificate", "--client-cert"]),
        (Some(stranger.client(1, &name, VALID)), ["does not trust the authority", "--tls-client-ca"]),
        (Some(authority.client(2, &name, -7200..-3600)), ["expired or not valid yet", "clocks"]),
        (Some(authority.client(3, &name, 3600..7200)), ["expired or not valid yet", "clocks"]),
        (
            Some(authority.certificate(4, &name, VALID, ExtendedKeyUsagePurpose::ServerAuth)),
            ["certificate", "clientAuth"],
        ),
        (Some(authority.client(5, &name, VALID)), ["was revoked", "new certificate"]),
    ] {
        // The alert comes after the negotiation, over HTTP/2 and in a race with the request.
        for _ in 0..5 {
            let (text, error) = refusal(&client(&server, files.as_ref(), Some(&key))).await;
            assert!(texts.iter().all(|part| text.contains(part)), "{files:?}: {text} {error:?}");
            assert_eq!(error.kind(), ErrorKind::Denied);
        }
    }
    let good = authority.client(6, &name, VALID);
    assert!(get(&client(&server, Some(&good), None), "/v1/sandboxes").await.is_ok());
    // WebSockets have connections of their own.
    let own = client(&server, Some(&good), None);
    create(&own, json!({ "name": "a" })).await;
    let started = exec(&own, "a", &steps(vec![Step::Exit(3)])).await.unwrap();
    assert!(own.attach("a", &started.id, 0).await.is_ok());
    let config = RemoteConfig {
        server: server.url.clone(),
        ca: Some(server.directory.path().join("cert.pem")),
        certificate: Some(good),
        ..RemoteConfig::default()
    };
    RemoteBackend::connect(&config).await.expect("the backend shows it, too");
    let error = RemoteBackend::connect(&RemoteConfig { certificate: None, ..config }).await.expect_err("refused");
    assert!(error.message().contains("requires a certificate"), "{error}");
    server.stop().await;
}

/// Promise (Server): A certificate that is revoked is refused within seconds, on open connections too, and its streams
/// end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_certificate_is_refused_on_open_connections() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "clients");
    let (name, revoked) = (["cofferdam://tenant/acme"], authority.revoke(&[]));
    let listen = listen(directory.path(), &authority, Some(revoked), false);
    let quick = cofferdam_server::Bounds { stall_time: Duration::from_secs(2), ..bounds() };
    let server = start_on(directory, &listen, quick, |_| {}).await;
    let (one, two) = (authority.client(1, &name, VALID), authority.client(2, &name, VALID));
    let (ending, lasting) = (client(&server, Some(&one), None), client(&server, Some(&two), None));
    create(&ending, json!({ "name": "a" })).await;
    let started = exec(&ending, "a", &steps(vec![Step::SleepForever])).await.unwrap();
    let mut attached = ending.attach("a", &started.id, 0).await.unwrap();
    let mut output = lasting.attach("a", &started.id, 0).await.unwrap();
    authority.revoke(&[1]);
    let refused = async || get(&ending, "/v1/sandboxes").await.is_err_and(|error| error.message().contains("revoked"));
    eventually("it is accepted for too long", refused).await;
    let end = tokio::time::timeout(Duration::from_secs(20), attached.next()).await.expect("the stream ends");
    assert!(end.is_err(), "the exec runs");
    assert!(get(&lasting, "/v1/sandboxes").await.is_ok());
    assert!(tokio::time::timeout(Duration::from_millis(300), output.next()).await.is_err(), "another is still valid");
    server.stop().await;
}

/// Promise (Server): Rules give names in certificates their tenants and scopes, and names without a rule none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_give_scopes() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "clients");
    let listen = listen(directory.path(), &authority, None, true);
    let rules = r#"{"rules": [{"uri": "spiffe://a/ci", "tenant": "acme", "scopes": ["sandboxes:read"]}]}"#;
    let server = start_on(directory, &listen, bounds(), |config| {
        config.gate.identities.certificates = CertificateRules::parse(rules).unwrap();
    })
    .await;
    let (known, other) = (["spiffe://a/ci"], ["cofferdam://tenant/acme"]);
    let reader = client(&server, Some(&authority.client(1, &known, VALID)), None);
    assert!(get(&reader, "/v1/sandboxes").await.is_ok());
    assert_eq!(post(&reader, "/v1/sandboxes", json!({})).await.unwrap_err().operation(), "authorize");
    let (text, _) = refusal(&client(&server, Some(&authority.client(2, &other, VALID)), None)).await;
    assert!(text.contains("names no tenant"), "{text}");
    server.stop().await;
}

/// Promise (Server): A browser that shows its user's certificate unasked cannot be used by a web page.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_web_page_cannot_use_a_certificate() {
    use hyper::header::HOST;
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "clients");
    let listen = listen(directory.path(), &authority, None, false);
    let server = start_on(directory, &listen, bounds(), |_| {}).await;
    let files = authority.client(1, &["cofferdam://tenant/acme"], VALID);
    for (name, value, status) in [
        ("accept", "*/*", 200),
        ("sec-fetch-site", "none", 200),
        ("sec-fetch-site", "same-origin", 200),
        ("sec-fetch-site", "cross-site", 401),
        ("sec-fetch-site", "same-site", 401),
        ("origin", "https://evil.example", 401),
        ("origin", "null", 401),
    ] {
        let mut sender = crate::support::over_tls(&server, Some(&files)).await;
        let request = hyper::Request::get("/v1/sandboxes").header(HOST, "sandboxes.example").header(name, value);
        let request = request.body(http_body_util::Full::default()).unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status().as_u16(), status, "{name}: {value}");
    }
    server.stop().await;
}

/// Promise (Server): A client names what is wrong with the certificate of a server, and doubts its own clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_explains_the_certificate_of_a_server() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new(directory.path(), "servers");
    let ca = authority.file();
    for (serial, (names, valid, trusts, text)) in [
        (["127.0.0.1"], -7200..-3600, true, "has expired 60 min ago, by the clock of this host"),
        (["127.0.0.1"], 7200..9000, true, "will be valid in"),
        (["example.com"], VALID, true, "for another host name"),
        (["127.0.0.1"], VALID, false, "does not trust the authority of the server's certificate"),
    ]
    .into_iter()
    .enumerate()
    {
        let files = authority.certificate(serial as u64 + 1, &names, valid, ExtendedKeyUsagePurpose::ServerAuth);
        let listen = Listen::Tcp("127.0.0.1:0".parse().unwrap(), Some(files.into()));
        let server = start_on(tempfile::tempdir().unwrap(), &listen, bounds(), |_| {}).await;
        let client = Client::new(&server.url, Some("cfd_x"), trusts.then_some(&*ca)).unwrap();
        let error = get(&client, "/v1/health").await.unwrap_err();
        assert!(error.message().contains(text) && error.remedy().is_some(), "{error} {:?}", error.remedy());
        server.stop().await;
    }
    let files = authority.client(9, &["cofferdam://tenant/acme"], VALID);
    let credentials = Credentials { certificate: Some(&files), ..Credentials::default() };
    assert!(Client::with("http://127.0.0.1:1", &credentials).is_err(), "a certificate needs TLS");
}
