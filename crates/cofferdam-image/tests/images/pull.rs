//! Pulling from a real registry and from hostile ones.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cofferdam_image::store::{Options, Progress, Reference, RegistryOptions, Sha, StoreError};
use serde_json::json;

use super::server::{PASSWORD, Server, pushed};
use super::support::*;

fn name(text: &str) -> Reference {
    text.parse().unwrap()
}

/// Promise (Images): An image is pulled over TLS with the user's credentials, and only with them.
#[test]
fn a_private_image_is_pulled_over_tls_with_credentials() {
    let Some(server) = Server::start("a_private_image_is_pulled_over_tls_with_credentials", true) else { return };
    let fixture = Fixture::new();
    let layers = [
        (layer(&[(FILE, "tool", "", 0o755, b"one")]), gzip as fn(&[u8]) -> Vec<u8>),
        (layer(&[(FILE, "more", "", 0o644, b"two")]), zstandard),
    ];
    let digest = pushed(&server, "team/tool", &layers);
    let reference = name(&server.name("team/tool:1"));
    let pull = |options: &RegistryOptions| fixture.store.pull(&reference, options, &mut |_| ());
    let untrusted = RegistryOptions { certificates: Vec::new(), ..server.options() };
    let error = pull(&untrusted).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }) && error.to_string().contains("certificate"), "{error}");
    assert!(error.remedy().unwrap().contains("put the certificate of its authority into"), "{error}");
    let without = RegistryOptions { credentials: Vec::new(), ..server.options() };
    assert!(matches!(pull(&without), Err(StoreError::AccessDenied { has_credentials: false, .. })));
    let wrong = RegistryOptions { credentials: vec![server.login("wrong password")], ..server.options() };
    let error = pull(&wrong).unwrap_err();
    assert!(matches!(error, StoreError::AccessDenied { has_credentials: true, .. }), "{error}");
    assert!(!error.to_string().contains("wrong password"));
    assert_eq!([fixture.count("images"), fixture.count("blobs/sha256"), fixture.count("work")], [0; 3]);

    let mut steps = Vec::new();
    let added = fixture.store.pull(&reference, &server.options(), &mut |step| steps.push(step)).unwrap();
    assert_eq!(added.manifest.to_string(), digest);
    assert!(steps.iter().any(|step| matches!(step, Progress::Reading { done, total: Some(total) } if done == total)));
    assert!(steps.contains(&Progress::Unpacking { layer: 2, layers: 2 }));
    let found = fixture.store.resolve(&server.name("team/tool:1")).unwrap();
    assert_eq!(fs::read_to_string(found.layers[1].join("more")).unwrap(), "two");
    assert_eq!(found.config.cmd, ["sh"]);
    // By digest, too; and nothing is downloaded again.
    let blobs = fixture.count("blobs/sha256");
    let by_digest = name(&server.name(&format!("team/tool@{digest}")));
    fixture.store.pull(&by_digest, &server.options(), &mut |_| ()).unwrap();
    assert_eq!(fixture.store.resolve(&by_digest.to_string()).unwrap().digest.to_string(), digest);
    assert_eq!((fixture.count("blobs/sha256"), fixture.count("layers")), (blobs, 2));
    for missing in ["team/tool:2", "team/none:1"] {
        let error = fixture.store.pull(&name(&server.name(missing)), &server.options(), &mut |_| ()).unwrap_err();
        assert!(matches!(error, StoreError::NotInRegistry { .. }), "{error}");
    }
    let secret = format!("{:?}", server.options());
    assert!(!secret.contains(PASSWORD));
}

/// A certificate of an authority is no certificate of a server, even if it is trusted.
#[test]
fn a_self_signed_certificate_is_refused_with_the_way_to_a_right_one() {
    let test = "a_self_signed_certificate_is_refused_with_the_way_to_a_right_one";
    let Some(server) = Server::start_self_signed(test) else { return };
    let fixture = Fixture::new();
    for certificates in [Vec::new(), server.options().certificates] {
        let options = RegistryOptions { certificates, ..server.options() };
        let error = fixture.store.pull(&name(&server.name("team/tool:1")), &options, &mut |_| ()).unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
        let remedy = error.remedy().unwrap();
        assert!(remedy.contains("create an authority and a certificate that it signs"), "{error}: {remedy}");
    }
}

#[test]
fn the_image_for_this_architecture_is_chosen_and_a_new_tag_replaces_the_old_one() {
    let Some(server) = Server::start("the_image_for_this_architecture_is_chosen", false) else { return };
    let fixture = Fixture::new();
    let layout = Layout::new();
    let ours = layout.image(&json!({}), &[(layer(&[(FILE, "f", "", 0o644, b"ours")]), gzip)]);
    let theirs = layout.image(&json!({}), &[(layer(&[(FILE, "f", "", 0o644, b"theirs")]), gzip)]);
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let size = |digest: &str| fs::metadata(layout.path().join("blobs/sha256").join(&digest[7..])).unwrap().len();
    let entry = |digest: &str, architecture: &str| {
        json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": size(digest),
            "platform": {"architecture": architecture, "os": "linux"},
        })
    };
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry(&theirs, "s390x"), entry(&ours, architecture)],
    });
    let (index, _) = layout.put(index.to_string().as_bytes());
    server.push(&layout, "multi", "1", &index);
    let tag = name(&server.name("multi:1"));
    let added = fixture.store.pull(&tag, &RegistryOptions::default(), &mut |_| ()).unwrap();
    assert_eq!(added.manifest.to_string(), ours);
    let by_digest = name(&server.name(&format!("multi@{index}")));
    let added = fixture.store.pull(&by_digest, &RegistryOptions::default(), &mut |_| ()).unwrap();
    assert_eq!(added.manifest.to_string(), ours);
    let newer = pushed(&server, "multi", &[(layer(&[(FILE, "f", "", 0o644, b"newer")]), gzip)]);
    let used = fixture.store.resolve(&tag.to_string()).unwrap();
    fixture.store.pull(&tag, &RegistryOptions::default(), &mut |_| ()).unwrap();
    let now = fixture.store.resolve(&tag.to_string()).unwrap();
    assert_eq!((now.digest.to_string(), used.digest.to_string()), (newer, ours));
    assert_eq!(fs::read_to_string(used.layers[0].join("f")).unwrap(), "ours");
}

/// Promise (Images): Two processes can pull the same image at once. Each file is downloaded once.
#[test]
fn two_pulls_at_once_give_one_image() {
    let Some(server) = Server::start("two_pulls_at_once_give_one_image", false) else { return };
    let fixture = Fixture::new();
    let data = noise(3 << 20);
    pushed(
        &server,
        "twice",
        &[(layer(&[(FILE, "f", "", 0o644, &data)]), gzip), (layer(&[(FILE, "g", "", 0o644, &data)]), gzip)],
    );
    let read = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let store = cofferdam_image::store::ImageStore::open(&fixture.root(), Options::default()).unwrap();
                let reference = name(&server.name("twice:1"));
                store
                    .pull(&reference, &RegistryOptions::default(), &mut |step| {
                        if matches!(step, Progress::Waiting) {
                            read.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                    .unwrap();
            });
        }
    });
    let found = fixture.store.resolve(&server.name("twice:1")).unwrap();
    assert_eq!(fs::read(found.layers[0].join("f")).unwrap(), data);
    assert_eq!(
        [fixture.count("layers"), fixture.count("images"), fixture.count("blobs/sha256"), fixture.count("work")],
        [2, 1, 4, 0]
    );
}

#[test]
fn an_image_that_exceeds_the_limit_is_not_downloaded() {
    let Some(server) = Server::start("an_image_that_exceeds_the_limit_is_not_downloaded", false) else { return };
    let fixture = Fixture::with(Options { max_bytes: 1 << 20, ..Options::default() });
    pushed(&server, "large", &[(layer(&[(FILE, "f", "", 0o644, &noise(2 << 20))]), gzip)]);
    let error =
        fixture.store.pull(&name(&server.name("large:1")), &RegistryOptions::default(), &mut |_| ()).unwrap_err();
    assert!(matches!(error, StoreError::QuotaExceeded { .. }), "{error}");
    assert_eq!([fixture.count("blobs/sha256"), fixture.count("work")], [0; 2]);
}

/// Answers each connection with what `answer` returns for the path, and closes it.
fn hostile(answer: impl Fn(&str, &mut TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|length| length == 1) {
                head.push(byte[0]);
                // The beginning of TLS.
                if head[0] == 0x16 {
                    break;
                }
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            if let Some(path) = head.split(' ').nth(1) {
                answer(path, &mut stream);
            }
        }
    });
    port
}

fn send(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) {
    let _ = write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(body);
}

type Answer = Box<dyn Fn(&str, &mut TcpStream) + Send>;

/// Promise (Images): A hostile registry gets neither memory, nor time, nor credentials.
#[test]
fn hostile_registries_are_refused() {
    let fixture = Fixture::new();
    let refused = |answer: Answer, expected: &str| {
        let port = hostile(
            move |path, stream| if path == "/v2/" { send(stream, "200 OK", "", b"") } else { answer(path, stream) },
        );
        let begun = Instant::now();
        let reference = name(&format!("127.0.0.1:{port}/a/b:1"));
        let error = fixture.store.pull(&reference, &RegistryOptions::default(), &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\u{1b}'), "{expected}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert_eq!(
            [fixture.count("images"), fixture.count("blobs/sha256"), fixture.count("layers"), fixture.count("work")],
            [0; 4]
        );
    };
    refused(
        Box::new(|_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            while stream
                .write_all(b"400\r\n")
                .and_then(|()| stream.write_all(&[b' '; 1024]))
                .and_then(|()| stream.write_all(b"\r\n"))
                .is_ok()
            {}
        }),
        "document of more than",
    );
    refused(
        Box::new(|_, stream| send(stream, "302 Found", "Location: /v2/again\r\n", b"")),
        "redirects without an end",
    );
    refused(Box::new(|_, stream| send(stream, "500 Oh", "", b"\x1b[31mred")), "\\u{1b}[31mred");
    refused(
        Box::new(|_, stream| {
            send(stream, "401 No", "WWW-Authenticate: Bearer realm=\"http://192.0.2.1/token\"\r\n", b"")
        }),
        "has no TLS",
    );
    refused(Box::new(|_, stream| send(stream, "401 No", "WWW-Authenticate: Bearer\r\n", b"")), "denies access");
    refused(Box::new(|_, stream| send(stream, "200 OK", "", b"{}")), "cannot parse");
    let digest = Sha::of(b"other").to_string();
    let index = json!({"manifests": [{"digest": digest}]}).to_string();
    refused(Box::new(move |_, stream| send(stream, "200 OK", "", index.as_bytes())), "hashes to something else");
    // Blobs: longer than described, other contents, and a connection that breaks again and again.
    let tar = layer(&[(FILE, "f", "", 0o644, b"x")]);
    let config = json!({"rootfs": {"diff_ids": [Sha::of(&tar).to_string()]}}).to_string();
    let manifest = json!({
        "config": {"digest": Sha::of(config.as_bytes()).to_string()},
        "layers": [{"digest": Sha::of(&tar).to_string(), "size": tar.len()}],
    })
    .to_string();
    type Blob = fn(&mut TcpStream, &[u8]);
    let blobs: [(Blob, &str); 3] = [
        (|stream, tar| send(stream, "200 OK", "", &[tar, b"more"].concat()), "larger than its description"),
        (|stream, tar| send(stream, "200 OK", "", &vec![0; tar.len()]), "hashes to something else"),
        (
            |stream, tar| {
                let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", tar.len());
                let _ = stream.write_all(&tar[..100]);
            },
            "broke",
        ),
    ];
    for (blob, expected) in blobs {
        let (tar, config, manifest) = (tar.clone(), config.clone(), manifest.clone());
        let config_digest = Sha::of(config.as_bytes()).to_string();
        refused(
            Box::new(move |path, stream| match path {
                path if path.contains("manifests") => send(stream, "200 OK", "", manifest.as_bytes()),
                path if path.contains(&config_digest) => send(stream, "200 OK", "", config.as_bytes()),
                _ => blob(stream, &tar),
            }),
            expected,
        );
    }
}

#[test]
fn a_registry_elsewhere_is_never_used_without_tls() {
    let fixture = Fixture::new();
    // The address leads to this host, but its name does not say so.
    let port = hostile(|_, stream| send(stream, "200 OK", "", b"{}"));
    let host = format!("{}:{port}", gethostname());
    let reference = name(&format!("{host}/a:1"));
    let error = fixture.store.pull(&reference, &RegistryOptions::default(), &mut |_| ()).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
}

fn gethostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.contains('.') { name } else { format!("{name}.localdomain") }
}
