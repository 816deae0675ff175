use cofferdam_contract::ErrorKind;
use hyper::Request;

use super::*;

const VALUE: &str = "s3cr3t/value+x";

fn secret(location: SecretPlace) -> NetworkSecret {
    NetworkSecret {
        name: "TOKEN".to_owned(),
        from: format!("command:echo {VALUE}"),
        hosts: vec!["api.example:443".to_owned(), "*.api.example".to_owned()],
        location,
        max_uses: None,
    }
}

fn header(name: &str) -> SecretPlace {
    SecretPlace::Header(name.to_owned())
}

fn read(location: SecretPlace) -> (Secrets, String) {
    let secrets = Secrets::read(&[secret(location)]).unwrap();
    let placeholder = secrets.variables().next().unwrap().1.to_owned();
    (secrets, placeholder)
}

fn request(uri: &str, headers: &[(&str, &str)]) -> request::Parts {
    let mut request = Request::get(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

/// Returns the headers of a request to a host, after the secrets were put in.
fn injected(secrets: &Secrets, mut request: request::Parts, host: &str) -> std::result::Result<String, String> {
    let (name, port) = host.split_once(':').unwrap();
    secrets.inject(&mut request, name, port.parse().unwrap())?;
    let headers = request.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
    Ok(headers.collect::<Vec<_>>().join("\n"))
}

/// Promise (Network): The value of a secret goes only into its place of requests to its hosts.
#[test]
fn a_value_goes_only_into_its_place_of_requests_to_its_hosts() {
    let (secrets, placeholder) = read(header("X-Api-Key"));
    let bearer = format!("Bearer {placeholder}");
    let headers = [("x-api-key", bearer.as_str()), ("x-other", &placeholder), ("range", "bytes=0-"), ("te", "x")];
    let shown = |host: &str| injected(&secrets, request(&format!("/{placeholder}"), &headers), host).unwrap();
    for host in ["api.example:443", "API.example.:443", "eu.api.example:80"] {
        let shown = shown(host);
        assert!(shown.starts_with(&format!("x-api-key: Bearer {VALUE}\nx-other: {placeholder}\n")), "{shown}");
        assert!(shown.contains("accept-encoding: identity") && !shown.contains("range"), "{shown}");
    }
    for host in ["api.example:80", "example:443", "api.example.other:443", "8.8.8.8:443"] {
        let shown = shown(host);
        assert!(!shown.contains(VALUE) && shown.contains("range: bytes=0-"), "{host} {shown}");
    }
}

#[test]
fn a_value_is_encoded_in_a_query() {
    let (secrets, placeholder) = read(SecretPlace::Query("key".to_owned()));
    let mut head = request(&format!("/p/{placeholder}?a={placeholder}&k%65y=x{placeholder}&key=b"), &[]);
    secrets.inject(&mut head, "api.example", 443).unwrap();
    let expected = format!("/p/{placeholder}?a={placeholder}&k%65y=xs3cr3t%2Fvalue%2Bx&key=b");
    assert_eq!(head.uri.to_string(), expected);
    let mut head = request(&format!("http://api.example/?key={placeholder}"), &[]);
    secrets.inject(&mut head, "api.example", 443).unwrap();
    assert_eq!(head.uri.to_string(), "http://api.example/?key=s3cr3t%2Fvalue%2Bx");
    for uri in ["/", "/?", "/?key", "/?key=other"] {
        let mut head = request(uri, &[]);
        secrets.inject(&mut head, "api.example", 443).unwrap();
        assert_eq!(head.uri.to_string(), uri);
    }
}

#[test]
fn a_value_replaces_basic_credentials() {
    let (secrets, placeholder) = read(SecretPlace::Basic);
    let basic = |scheme: &str, text: &str| format!("{scheme} {}", BASE64_STANDARD.encode(text));
    for (sent, expected) in [
        (basic("basic", &format!("user:{placeholder}")), basic("Basic", &format!("user:{VALUE}"))),
        (basic("Basic", &format!("{placeholder}:")), basic("Basic", &format!("{VALUE}:"))),
        (basic("Basic", "user:other"), basic("Basic", "user:other")),
        (format!("Bearer {placeholder}"), format!("Bearer {placeholder}")),
        (format!("Basic {placeholder}"), format!("Basic {placeholder}")),
    ] {
        let shown = injected(&secrets, request("/", &[("authorization", &sent)]), "api.example:443").unwrap();
        assert!(shown.starts_with(&format!("authorization: {expected}\n")), "{shown}");
    }
}

#[test]
fn a_value_is_used_at_most_as_often_as_allowed() {
    let secrets = Secrets::read(&[NetworkSecret { max_uses: Some(2), ..secret(header("authorization")) }]).unwrap();
    let placeholder = secrets.variables().next().unwrap().1.to_owned();
    let with = || request("/", &[("authorization", &placeholder)]);
    let twice = request("/", &[("authorization", &placeholder), ("authorization", &placeholder)]);
    assert!(injected(&secrets, twice, "api.example:443").unwrap_err().contains("more than once"));
    let upgrade = request("/", &[("authorization", &placeholder), ("upgrade", "websocket")]);
    assert!(injected(&secrets, upgrade, "api.example:443").unwrap_err().contains("WebSocket"));
    for _ in 0..2 {
        assert!(injected(&secrets, with(), "api.example:443").unwrap().contains(VALUE));
        assert!(injected(&secrets, with(), "other.example:443").is_ok());
        assert!(injected(&secrets, request("/", &[("upgrade", "websocket")]), "api.example:443").is_ok());
    }
    let why = injected(&secrets, with(), "api.example:443").unwrap_err();
    assert_eq!(why, "the secret TOKEN: it was used 2 times, as often as the policy allows");
}

#[test]
fn responses_that_cannot_be_scrubbed_are_refused() {
    let (secrets, _) = read(SecretPlace::Basic);
    let encoded = BASE64_STANDARD.encode(format!("user:{VALUE}"));
    for (name, value, expected) in [
        ("location", format!("/?key={VALUE}&x"), Ok(format!("/?key={}&x", "*".repeat(VALUE.len())))),
        ("x", encoded, Ok(format!("dXNlcjp{}A==", "*".repeat(18)))),
        ("content-encoding", "Identity".to_owned(), Ok("Identity".to_owned())),
        ("content-encoding", "gzip".to_owned(), Err(())),
        ("content-encoding", "identity, br".to_owned(), Err(())),
        ("transfer-encoding", "gzip, chunked".to_owned(), Err(())),
    ] {
        let mut head = hyper::Response::builder().header(name, &value).body(()).unwrap().into_parts().0;
        head.extensions.insert(ReasonPhrase::from_static(VALUE.as_bytes()));
        let scrubbed = secrets.scrub(&mut head).map_err(|_| ());
        assert_eq!(scrubbed.map(|()| head.headers[name].to_str().unwrap().to_owned()), expected, "{name}: {value}");
        assert!(expected.is_err() || head.extensions.get::<ReasonPhrase>().is_none());
    }
}

/// Promise (Network): Errors and debug output never contain the value of a secret.
#[test]
fn a_value_is_never_printed() {
    let (secrets, placeholder) = read(header("authorization"));
    let mut head = request("/", &[("authorization", &placeholder)]);
    secrets.inject(&mut head, "api.example", 443).unwrap();
    assert_eq!(head.headers["authorization"], VALUE);
    let mut shown = format!("{secrets:?} {head:?}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("value");
    for value in [format!("{VALUE}\n{VALUE}"), format!(" {VALUE}"), VALUE.repeat(10_000), VALUE[..6].to_owned()] {
        std::fs::write(&path, value).unwrap();
        let from = format!("file:{}", path.display());
        let error = Secrets::read(&[NetworkSecret { from, ..secret(SecretPlace::Basic) }]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        shown += &format!("{error} {error:?} {}", error.to_json());
    }
    assert!(shown.contains("TOKEN") && !shown.contains(&VALUE[..6]), "{shown}");
}

#[test]
fn invalid_secrets_are_refused() {
    let valid = || secret(SecretPlace::Basic);
    let hosts = |host: &str| NetworkSecret { hosts: vec![host.to_owned()], ..valid() };
    let named = |name: &str| NetworkSecret { name: name.to_owned(), ..valid() };
    let mut invalid = vec![named(""), named("1A"), named("A=B"), hosts("10.0.0.7:443"), hosts("@no-preset"), hosts("")];
    invalid.push(NetworkSecret { hosts: Vec::new(), ..valid() });
    invalid.push(NetworkSecret { max_uses: Some(0), ..valid() });
    invalid.push(secret(SecretPlace::Query(String::new())));
    for name in ["Host", "content-length", "connection", "te", "upgrade", "accept-encoding", "a b", ""] {
        invalid.push(secret(header(name)));
    }
    for secret in invalid {
        let error = Secrets::read(std::slice::from_ref(&secret)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{secret:?}");
    }
    assert!(Secrets::read(&[valid(), valid()]).is_err());
    assert!(Secrets::read(&vec![valid(); MAX_SECRETS + 1]).is_err());
    assert!(Secrets::read(&[secret(header("cookie"))]).is_ok());
}

#[test]
fn placeholders_are_random_and_can_be_kept() {
    let (first, placeholder) = read(SecretPlace::Basic);
    let (mut second, other) = read(SecretPlace::Basic);
    assert!(placeholder.len() == 49 && placeholder != other);
    second.keep_placeholders([("TOKEN", "cofferdam-secret-x"), ("OTHER", placeholder.as_str())]);
    assert_eq!(second.variables().next(), Some(("TOKEN", other.as_str())));
    second.keep_placeholders(first.variables());
    assert_eq!(second.variables().next(), Some(("TOKEN", placeholder.as_str())));
}
