//! Certificates of clients and tokens, by options and variables.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType};

use super::{Server, outcome, program};

/// The files of an authority, a server and a client.
struct Files {
    ca: PathBuf,
    server: [PathBuf; 2],
    client: [PathBuf; 2],
}

fn files(directory: &Path) -> Files {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let ca = directory.join("ca.pem");
    fs::write(&ca, authority.pem()).unwrap();
    let created = |name: &str, san: SanType, usage| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        (params.subject_alt_names, params.extended_key_usages) = (vec![san], vec![usage]);
        let key = KeyPair::generate().unwrap();
        let paths = [directory.join(format!("{name}.pem")), directory.join(format!("{name}-key.pem"))];
        fs::write(&paths[0], params.signed_by(&key, &authority).unwrap().pem()).unwrap();
        fs::write(&paths[1], key.serialize_pem()).unwrap();
        fs::set_permissions(&paths[1], fs::Permissions::from_mode(0o600)).unwrap();
        paths
    };
    let uri = SanType::URI("cofferdam://tenant/acme".to_owned().try_into().unwrap());
    Files {
        server: created("server", SanType::IpAddress([127, 0, 0, 1].into()), ExtendedKeyUsagePurpose::ServerAuth),
        client: created("client", uri, ExtendedKeyUsagePurpose::ClientAuth),
        ca,
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Promise (Server): A certificate of a client opens the server, by options and by variables, also to the backend
/// `remote`.
#[test]
fn a_certificate_opens_the_server() {
    let state = tempfile::tempdir().unwrap();
    let Files { ca, server: [certificate, key], client: [own, own_key] } = files(state.path());
    let words = ["--listen", "127.0.0.1:0", "--tls-cert", text(&certificate), "--tls-key", text(&key)];
    let words = [&words[..], &["--tls-client-ca", text(&ca), "--client-certificates", "required"]].concat();
    let server = Server::start_in(state, &words);
    let options = ["--ca", text(&ca), "--client-cert", text(&own), "--client-key", text(&own_key)];
    let created = server.ask(&[&["create", "--name", "box"][..], &options].concat());
    assert!(created.starts_with("sb-"), "{created}");
    let with = |words: &[&str]| {
        let mut client = server.client(words);
        client.env("COFFERDAM_CA", &ca).env("COFFERDAM_CLIENT_CERT", &own).env("COFFERDAM_CLIENT_KEY", &own_key);
        client
    };
    let (code, stdout, stderr) = outcome(&mut with(&["exec", "box", "--", "echo", "hi"]));
    assert_eq!((code, stdout.as_str()), (0, "hi\n"), "{stderr}");
    let (code, stdout, stderr) =
        outcome(&mut with(&["run", "--backend", "remote", "--allow-weaker", super::WEAKER, "--", "echo", "there"]));
    assert_eq!((code, stdout.as_str()), (0, "there\n"), "{stderr}");
    let (code, _, stderr) = outcome(with(&["ls"]).env_remove("COFFERDAM_CLIENT_KEY"));
    assert!(code == 125 && stderr.contains("needs its private key"), "{stderr}");
    let bare = outcome(&mut server.client(&["ls", "--ca", text(&ca)]));
    assert!(bare.0 == 125 && bare.2.contains("requires a certificate") && bare.2.contains("--client-cert"), "{bare:?}");
    assert_eq!(server.stop(), Some(0));
}

/// Promise (Server): `serve --check` examines the files of identities, and asks the issuer of tokens for its keys.
#[test]
fn settings_of_identities_are_checked() {
    let state = tempfile::tempdir().unwrap();
    let Files { ca, server: [certificate, key], .. } = files(state.path());
    let file = |name: &str, content: &str| {
        let path = state.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let down =
        r#"{"issuer": "http://127.0.0.1:1", "audience": ["a"], "tenant": {"fixed": "a"}, "scopes": {"fixed": []}}"#;
    let (down, broken, empty) = (file("down.json", down), file("broken.json", "{}"), file("empty.pem", ""));
    let tls = ["--listen", "127.0.0.1:0", "--tls-cert", text(&certificate), "--tls-key", text(&key)];
    let checked = |words: &[&str]| outcome(program(state.path()).args(["serve", "--check"]).args(tls).args(words));
    let (code, _, stderr) = checked(&["--tls-client-ca", text(&ca)]);
    assert_eq!(code, 0, "{stderr}");
    for (words, expected) in [
        (&["--oidc", text(&down)][..], (1, "the issuer of tokens cannot be used")),
        (&["--oidc", text(&broken)], (125, "missing field")),
        (&["--oidc", "no-such.json"], (125, "the file of --oidc")),
        (&["--tls-client-ca", text(&empty)], (125, "authorities of clients")),
        (&["--tls-client-ca", text(&ca), "--tls-client-crl", text(&empty)], (125, "list of revoked")),
        (&["--tls-client-ca", text(&ca), "--client-rules", text(&broken)], (125, "missing field")),
        (&["--client-rules", text(&broken)], (125, "--tls-client-ca")),
    ] {
        let (code, _, stderr) = checked(words);
        assert!(code == expected.0 && stderr.contains(expected.1), "{words:?}: {code} {stderr}");
    }
}
