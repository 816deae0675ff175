//! Tokens of a real issuer on this host.

use std::time::Duration;

use base64::Engine;
use cofferdam_contract::ErrorKind;
use cofferdam_server::Scope;
use cofferdam_server::client::{Content, Method};
use cofferdam_simulated::Step;
use hyper::header::{AUTHORIZATION, HOST, WWW_AUTHENTICATE};
use ring::hmac;
use serde_json::{Value, json};

use crate::issuer::{Issuer, ORG, SigningKey, encode, eventually, known, now, token};
use crate::support::{Over, Running, bounds, create, exec, get, post, start_with, steps};

async fn started(issuer: &Issuer) -> Running {
    let known = issuer.known();
    start_with(Over::Tls, bounds(), |config| config.gate.identities.oidc = Some(known)).await
}

fn all() -> String {
    let names: Vec<_> = Scope::of_tenants().iter().map(ToString::to_string).collect();
    names.join(" ")
}

/// Promise (Server): A token of the issuer gives the tenant and the scopes of its claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_name_tenant_and_scopes() {
    let directory = tempfile::tempdir().unwrap();
    let (curve, edwards) = (SigningKey::p256("one"), SigningKey::ed25519("two"));
    let issuer = Issuer::start(directory.path(), &[&curve, &edwards]).await;
    let server = started(&issuer).await;
    let of = |key: &SigningKey, tenant: &str, scopes: &str| {
        server.with_key(Some(&key.token(&issuer.claims(tenant, scopes))))
    };
    let (acme, umbrella) = (of(&curve, "acme", &all()), of(&edwards, "umbrella", &all()));
    let own = create(&acme, json!({ "name": "box" })).await;
    assert_eq!(get(&acme, "/v1/sandboxes/box").await.unwrap()["id"], own);
    assert_eq!(get(&umbrella, "/v1/sandboxes/box").await.unwrap_err().kind(), ErrorKind::NotFound);
    let (key, _) = server.keyed("acme", Scope::ALL).await;
    assert_eq!(get(&key, "/v1/sandboxes/box").await.unwrap()["id"], own, "keys work beside tokens");
    let reader = of(&edwards, "acme", "openid sandboxes:read");
    assert!(get(&reader, "/v1/sandboxes").await.is_ok());
    let refused = post(&reader, "/v1/sandboxes", json!({})).await.unwrap_err();
    assert_eq!((refused.kind(), refused.operation()), (ErrorKind::Denied, "authorize"));
    let nothing = of(&curve, "acme", "openid");
    assert_eq!(get(&nothing, "/v1/sandboxes").await.unwrap_err().operation(), "authorize");
    server.stop().await;
}

/// Sends a request with a token, and returns the status, whether a key is asked for, and the document.
async fn answer(address: &str, token: &str) -> (u16, bool, String) {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::get("/v1/sandboxes").header(HOST, "localhost");
    let request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    let response =
        sender.send_request(request.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap()).await.unwrap();
    let (status, asks) = (response.status().as_u16(), response.headers().contains_key(WWW_AUTHENTICATE));
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    (status, asks, String::from_utf8(body.to_vec()).unwrap())
}

/// Promise (Server): Forged, foreign and expired tokens, and tokens without a usable tenant, are refused with the reason
/// and without a word of the token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_tokens_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (key, other) = (SigningKey::p256("one"), SigningKey::p256("one"));
    let issuer = Issuer::start(directory.path(), &[&key]).await;
    let known = issuer.known();
    let server = start_with(Over::Tcp, bounds(), |config| {
        config.gate.identities.oidc = Some(known);
        config.gate.without_keys = false;
    })
    .await;
    let address = server.url.strip_prefix("http://").unwrap();
    let good = issuer.claims("acme", &all());
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        key.token(&claims)
    };
    let without = |name: &str| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(name);
        key.token(&claims)
    };
    let headed = |head: Value| token(&head, &good, |message| key.sign(message));
    let secret = |secret: &[u8]| {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let head = json!({ "alg": "HS256", "kid": "one" });
        token(&head, &good, |message| hmac::sign(&secret, message).as_ref().to_vec())
    };
    let valid = key.token(&good);
    let (signed, signature) = valid.rsplit_once('.').unwrap();
    let raised = {
        let [head, _, signature] = valid.split('.').collect::<Vec<_>>()[..] else { panic!("three parts") };
        let mut claims = good.clone();
        claims[ORG] = json!("umbrella");
        format!("{head}.{}.{signature}", encode(claims.to_string().as_bytes()))
    };
    assert_eq!(answer(address, &valid).await.0, 200);
    for (token, status, text) in [
        (token(&json!({ "alg": "none" }), &good, |_| Vec::new()), 401, "head of the token is malformed"),
        (headed(json!({ "alg": "none", "kid": "one" })), 401, "head of the token is malformed"),
        (headed(json!({ "alg": "nOnE", "kid": "one" })), 401, "head of the token is malformed"),
        (secret(key.public()), 401, "algorithm of the token is not accepted"),
        (secret(key.document().to_string().as_bytes()), 401, "algorithm of the token is not accepted"),
        (secret(b""), 401, "algorithm of the token is not accepted"),
        (headed(json!({ "alg": "ES384", "kid": "one" })), 401, "algorithm of the token is not accepted"),
        (headed(json!({ "alg": "EdDSA", "kid": "one" })), 401, "no key of the issuer"),
        (headed(json!({ "alg": "ES256", "kid": "two" })), 401, "no key of the issuer"),
        (headed(json!({ "alg": "ES256", "kid": "x".repeat(300) })), 401, "extensions"),
        (headed(json!({ "alg": "ES256", "kid": "one", "crit": ["exp"] })), 401, "extensions"),
        (other.token(&good), 401, "signature of the token is wrong"),
        (raised, 401, "signature of the token is wrong"),
        (format!("{signed}."), 401, "signature of the token is wrong"),
        (format!("{signed}.{}", &signature[..40]), 401, "signature of the token is wrong"),
        (with("iss", json!("https://login.example")), 401, "another issuer"),
        (with("iss", json!(format!("{}/", issuer.url))), 401, "another issuer"),
        (without("iss"), 401, "names no issuer"),
        (with("aud", json!("other")), 401, "another service"),
        (with("aud", json!(["other", "else"])), 401, "another service"),
        (without("aud"), 401, "names no audience"),
        (with("exp", json!(now() - 10)), 401, "has expired"),
        (with("exp", json!("9999999999")), 401, "has no end"),
        (with("exp", json!(-1)), 401, "has no end"),
        (without("exp"), 401, "has no end"),
        (with("nbf", json!(now() + 300)), 401, "not valid yet"),
        (with("nbf", json!("soon")), 401, "time of the token is malformed"),
        (without(ORG), 403, "names no tenant"),
        (with(ORG, json!(["acme", "umbrella"])), 403, "several tenants"),
        (with(ORG, json!("../../acme")), 403, "a tenant that no server can have"),
        (with(ORG, json!("acme\r\nX-Injected: yes")), 403, "a tenant that no server can have"),
        (with("pad", json!("x".repeat(20_000))), 401, "too long"),
        ("a.b.c".to_owned(), 401, "malformed"),
        ("..".to_owned(), 401, "malformed"),
        ("a.b.c.d".to_owned(), 401, "the key is not valid"),
    ] {
        let (found, asks, body) = answer(address, &token).await;
        assert!(found == status && body.contains(text), "{found} {body} for {}", shown(&token));
        assert_eq!(asks, status == 401);
        let document: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&document["kind"], &document["operation"]), (&json!("denied"), &json!("authenticate")));
        for part in token.split('.').filter(|part| part.len() > 8) {
            assert!(!body.contains(part), "{body}");
        }
    }
    assert_eq!(answer(address, &with("aud", json!(["other", "cofferdam"]))).await.0, 200);
    server.stop().await;
}

fn shown(token: &str) -> String {
    let decode = |part: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).unwrap_or_default();
    let parts = token.split('.').take(2).map(|part| String::from_utf8_lossy(&decode(part)).into_owned());
    parts.collect::<Vec<_>>().join(" ").chars().take(500).collect()
}

/// Promise (Server): A key that the issuer has since is used without a restart, and one that it no longer has is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_the_issuer_rotate() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (SigningKey::p256("old"), SigningKey::ed25519("new"));
    let issuer = Issuer::start(directory.path(), &[&old]).await;
    let server = started(&issuer).await;
    let of = |key: &SigningKey| server.with_key(Some(&key.token(&issuer.claims("acme", &all()))));
    let (before, after) = (of(&old), of(&new));
    assert!(get(&before, "/v1/sandboxes").await.is_ok());
    assert_eq!(get(&after, "/v1/sandboxes").await.unwrap_err().operation(), "authenticate");
    issuer.publish(&[&old, &new]);
    eventually("the new key is not found", async || get(&after, "/v1/sandboxes").await.is_ok()).await;
    assert!(get(&before, "/v1/sandboxes").await.is_ok());
    issuer.publish(&[&new]);
    eventually("the old key is still used", async || get(&before, "/v1/sandboxes").await.is_err()).await;
    assert!(get(&after, "/v1/sandboxes").await.is_ok());
    server.stop().await;
}

/// Promise (Server): Tokens with unknown keys make the server ask the issuer at a bounded rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_keys_do_not_flood_the_issuer() {
    let directory = tempfile::tempdir().unwrap();
    let key = SigningKey::ed25519("one");
    let issuer = Issuer::start(directory.path(), &[&key]).await;
    let settings = json!({ "refresh": 60, "retry": 60, "keep": 60 });
    let mut all = issuer.settings();
    all.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let known = known(&all);
    let server = start_with(Over::Tls, bounds(), |config| config.gate.identities.oidc = Some(known)).await;
    let forged: Vec<_> = (0..30).map(|number| SigningKey::ed25519(&format!("k{number}"))).collect();
    let clients = forged.iter().map(|key| server.with_key(Some(&key.token(&issuer.claims("acme", "runs")))));
    let clients: Vec<_> = clients.collect();
    let answers = futures_util::future::join_all(clients.iter().map(|client| get(client, "/v1/sandboxes"))).await;
    for answer in answers {
        let error = answer.unwrap_err();
        assert!(error.message().contains("no key of the issuer"), "{error}");
    }
    assert_eq!(issuer.requests(), 2, "one description, one set of keys");
    server.stop().await;
}

/// Promise (Server): While the issuer is down, its known keys are used for a bounded time. Then, and if none is known,
/// tokens are answered with 503 until it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_may_be_down_for_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let key = SigningKey::p256("one");
    let issuer = Issuer::start(directory.path(), &[&key]).await;
    issuer.fail();
    let server = started(&issuer).await;
    let client = server.with_key(Some(&key.token(&issuer.claims("acme", &all()))));
    assert_eq!(get(&client, "/v1/sandboxes").await.unwrap_err().kind(), ErrorKind::Unavailable);
    issuer.recover();
    eventually("it is back", async || get(&client, "/v1/sandboxes").await.is_ok()).await;
    issuer.fail();
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_millis(1500) {
        assert!(get(&client, "/v1/sandboxes").await.is_ok());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let ended = async || get(&client, "/v1/sandboxes").await.is_err_and(|error| error.kind() == ErrorKind::Unavailable);
    eventually("the keys are used for too long", ended).await;
    issuer.recover();
    eventually("it is back again", async || get(&client, "/v1/sandboxes").await.is_ok()).await;
    server.stop().await;
}

/// Promise (Server): Answers of an issuer that lead elsewhere, never end, or are of another one are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_an_issuer_are_checked() {
    let directory = tempfile::tempdir().unwrap();
    let key = SigningKey::p256("one");
    let issuer = Issuer::start(directory.path(), &[&key]).await;
    let known = issuer.known();
    assert_eq!(known.check().await.unwrap(), 1);
    let described = |jwks: &str| json!({ "issuer": issuer.url, "jwks_uri": jwks }).to_string();
    let keys = format!("{}/keys", issuer.url);
    for (answer, text) in [
        ((200, None, json!({ "issuer": "https://else", "jwks_uri": keys }).to_string()), "describes itself"),
        ((200, None, described("http://192.0.2.1/keys")), "https://"),
        ((200, None, described("http://127.0.0.1:1/keys")), "without TLS"),
        ((200, None, described("file:///etc/passwd")), "https://"),
        ((302, Some(keys.clone()), String::new()), "302"),
        ((200, None, "x".repeat(300 << 10)), "too large"),
        ((200, None, "<html>".to_owned()), "malformed"),
        ((404, None, String::new()), "404"),
    ] {
        issuer.answer("/.well-known/openid-configuration", answer);
        let error = known.check().await.unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    let mut strange = issuer.settings();
    strange["ca"] = json!(null);
    let error = crate::issuer::known(&strange).check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "the authority of the issuer is not trusted");
}

/// Promise (Server): The open streams of a token end with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_end_with_their_token() {
    use http_body_util::BodyExt;
    let directory = tempfile::tempdir().unwrap();
    let key = SigningKey::p256("one");
    let issuer = Issuer::start(directory.path(), &[&key]).await;
    let known = issuer.known();
    let mut quick = bounds();
    quick.stall_time = Duration::from_millis(800);
    let server = start_with(Over::Tls, quick, |config| config.gate.identities.oidc = Some(known)).await;
    let mut claims = issuer.claims("acme", &all());
    let lasting = server.with_key(Some(&key.token(&claims)));
    create(&lasting, json!({ "name": "a" })).await;
    let started = exec(&lasting, "a", &steps(vec![Step::SleepForever])).await.unwrap();
    claims["exp"] = json!(now() + 3);
    let short = server.with_key(Some(&key.token(&claims)));
    let path = format!("/v1/sandboxes/a/execs/{}/output", started.id);
    let followed = short.send(Method::GET, &path, Content::None).await.unwrap().into_body();
    let mut output = lasting.attach("a", &started.id, 0).await.unwrap();
    let followed = tokio::time::timeout(Duration::from_secs(20), followed.collect()).await.expect("the events end");
    assert!(followed.is_ok_and(|body| !body.to_bytes().windows(5).any(|part| part == b"exit\n")));
    assert!(tokio::time::timeout(Duration::from_millis(300), output.next()).await.is_err(), "another is still valid");
    assert!(get(&short, "/v1/sandboxes").await.unwrap_err().message().contains("expired"));
    server.stop().await;
}
