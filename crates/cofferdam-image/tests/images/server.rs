//! A real registry on this host: `docker-registry`, with TLS and passwords, or with neither.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cofferdam_image::store::{RegistryOptions, Sha};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};

use super::support::{Layout, Packed};

const START_TIMEOUT: Duration = Duration::from_secs(30);
pub const USER: &str = "tester";
pub const PASSWORD: &str = "open sesame";
/// `USER` and the bcrypt hash of `PASSWORD`.
const HTPASSWD: &str = "tester:$2y$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n";

/// A running registry.
pub struct Server {
    temp: tempfile::TempDir,
    child: Child,
    pub port: u16,
    /// The certificate of its authority, if it has TLS.
    pub authority: Option<Vec<u8>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts a registry. Prints that the test is skipped if the host has none.
    pub fn start(test: &str, has_tls: bool) -> Option<Self> {
        Self::start_with(test, has_tls.then(certificates))
    }

    /// Starts a registry whose certificate is that of its authority.
    pub fn start_self_signed(test: &str) -> Option<Self> {
        Self::start_with(test, Some(self_signed()))
    }

    fn start_with(test: &str, certificates: Option<Certificates>) -> Option<Self> {
        if !Path::new("/usr/bin/docker-registry").exists() {
            println!("SKIP {test}: docker-registry is not installed");
            return None;
        }
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut http = json!({"addr": format!("127.0.0.1:{port}"), "secret": "test"});
        let mut config = json!({
            "version": "0.1",
            "log": {"level": "error", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": path("storage")}},
        });
        let authority = certificates.map(|(authority, certificate, key)| {
            fs::write(path("cert.pem"), certificate).unwrap();
            fs::write(path("key.pem"), key).unwrap();
            fs::write(path("htpasswd"), HTPASSWD).unwrap();
            http["tls"] = json!({"certificate": path("cert.pem"), "key": path("key.pem")});
            config["auth"] = json!({"htpasswd": {"realm": "test", "path": path("htpasswd")}});
            authority
        });
        config["http"] = http;
        // JSON is YAML.
        fs::write(path("config.yml"), config.to_string()).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "docker-registry", "serve"]).arg(path("config.yml"));
        let log = fs::File::create(path("log")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let server = Self { temp, child, port, authority };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(server.temp.path().join("log")).unwrap_or_default();
            assert!(begun.elapsed() < START_TIMEOUT, "the registry does not start: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }

    /// Returns the complete name of an image in the registry.
    pub fn name(&self, image: &str) -> String {
        format!("127.0.0.1:{}/{image}", self.port)
    }

    /// Writes a configuration of Docker with a password for this registry.
    pub fn login(&self, password: &str) -> PathBuf {
        use base64_of::encode;
        let path = self.temp.path().join(format!("config-{}.json", password.len()));
        let auth = encode(format!("{USER}:{password}").as_bytes());
        let registry = format!("127.0.0.1:{}", self.port);
        fs::write(&path, json!({"auths": {registry: {"auth": auth}}}).to_string()).unwrap();
        path
    }

    /// Returns options with which a pull from this registry works.
    pub fn options(&self) -> RegistryOptions {
        RegistryOptions {
            credentials: vec![self.login(PASSWORD)],
            certificates: self.authority.iter().cloned().collect(),
            insecure: Vec::new(),
        }
    }

    /// Uploads all files of a layout, and a manifest or index under a tag.
    pub fn push(&self, layout: &Layout, repository: &str, tag: &str, digest: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.push_all(layout, repository, tag, digest));
    }

    async fn push_all(&self, layout: &Layout, repository: &str, tag: &str, digest: &str) {
        let client = self.client();
        let scheme = if self.authority.is_some() { "https" } else { "http" };
        let base = format!("{scheme}://127.0.0.1:{}/v2/{repository}", self.port);
        let file = |digest: &str| {
            let digits = digest.strip_prefix("sha256:").unwrap();
            fs::read(layout.path().join("blobs/sha256").join(digits)).unwrap()
        };
        let mut manifests = Vec::new();
        for entry in fs::read_dir(layout.path().join("blobs/sha256")).unwrap() {
            let bytes = fs::read(entry.unwrap().path()).unwrap();
            let digest = Sha::of(&bytes).to_string();
            let document: Option<Value> = serde_json::from_slice(&bytes).ok();
            if document.as_ref().is_some_and(|it| it.get("config").is_some_and(|config| config.get("digest").is_some()))
            {
                manifests.push(digest);
            } else if document.is_none_or(|it| it.get("manifests").is_none()) {
                let begun = client
                    .post(format!("{base}/blobs/uploads/"))
                    .basic_auth(USER, Some(PASSWORD))
                    .send()
                    .await
                    .unwrap();
                assert_eq!(begun.status(), 202, "{begun:?}");
                let mut url = reqwest::Url::parse(begun.headers()["location"].to_str().unwrap()).unwrap();
                url.query_pairs_mut().append_pair("digest", &digest);
                let sent = client.put(url).basic_auth(USER, Some(PASSWORD)).body(bytes).send().await.unwrap();
                assert_eq!(sent.status(), 201, "{sent:?}");
            }
        }
        for (version, digest) in
            manifests.iter().map(|digest| (digest.as_str(), digest.as_str())).chain([(tag, digest)])
        {
            let bytes = file(digest);
            let document: Value = serde_json::from_slice(&bytes).unwrap();
            let kind = document["mediaType"].as_str().unwrap().to_owned();
            let request = client.put(format!("{base}/manifests/{version}")).header("content-type", kind);
            let sent = request.basic_auth(USER, Some(PASSWORD)).body(bytes).send().await.unwrap();
            assert_eq!(sent.status(), 201, "{}", sent.text().await.unwrap());
        }
    }

    fn client(&self) -> reqwest::Client {
        let mut roots = rustls::RootCertStore::empty();
        if let Some(authority) = &self.authority {
            let text = pem_of(authority);
            roots.add(text.into()).unwrap();
        }
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        reqwest::Client::builder().tls_backend_preconfigured(config).build().unwrap()
    }
}

fn pem_of(text: &[u8]) -> Vec<u8> {
    pem::parse(text).unwrap().into_contents()
}

/// Pushes an image of these layers as `repository:1`, and returns the digest of its manifest.
pub fn pushed(server: &Server, repository: &str, layers: &[Packed]) -> String {
    let layout = Layout::new();
    let digest = layout.image(&json!({"Env": ["PATH=/bin"], "Cmd": ["sh"]}), layers);
    server.push(&layout, repository, "1", &digest);
    digest
}

/// An authority's certificate, and a server's certificate and key.
type Certificates = (Vec<u8>, String, String);

fn certificates() -> Certificates {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    (authority.pem().into_bytes(), certificate.pem(), key.serialize_pem())
}

/// Returns one certificate for the authority and the server.
fn self_signed() -> Certificates {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    (certificate.clone().into_bytes(), certificate, key.serialize_pem())
}

mod base64_of {
    use base64::Engine as _;

    pub fn encode(bytes: &[u8]) -> String {
        base64::engine::general_purpose::STANDARD.encode(bytes)
    }
}
