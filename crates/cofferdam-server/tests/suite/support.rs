//! A server in this process, and its client.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Backend, Limits, Result, TenantId};
use cofferdam_process::{ProcessBackend, ProcessConfig};
use cofferdam_server::client::{Client, Content};
use cofferdam_server::rest::views::{ExecView, SandboxDetails, StartExec};
use cofferdam_server::{
    Bounds, Capacity, Database, Gate, Identities, Listen, Listener, NewKey, Policy, QueueBounds, Quota, Scope,
    ServedBackend, Server, ServerConfig, SnapshotArchive, Store, TlsFiles, VolumesConfig, WorkspaceArchive, keys,
};
use cofferdam_simulated::{Program, SimulatedBackend, Step};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub use hyper::Method;

/// A running server.
pub struct Running {
    pub url: String,
    pub simulated: Arc<SimulatedBackend>,
    pub store: Store,
    stop: CancellationToken,
    task: Option<tokio::task::JoinHandle<()>>,
    /// Removed at the end.
    pub directory: tempfile::TempDir,
}

/// The kind of a listener.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Over {
    Socket,
    Tcp,
    /// TLS, where callers need a key.
    Tls,
}

/// Quick bounds.
pub fn bounds() -> Bounds {
    Bounds { tick: Duration::from_millis(20), drain_time: Duration::from_secs(2), ..Bounds::default() }
}

/// Starts a server with the simulated backend as its default, and the process backend.
pub async fn start(over: Over, bounds: Bounds) -> Running {
    start_with(over, bounds, |_| {}).await
}

fn audit(directory: &std::path::Path) -> cofferdam_audit::Log {
    cofferdam_audit::Log::open(cofferdam_audit::Config::new(directory.join("audit"))).unwrap()
}

/// Starts a server like [`start`], with other settings.
pub async fn start_with(over: Over, bounds: Bounds, change: impl FnOnce(&mut ServerConfig)) -> Running {
    start_made(over, bounds, |mut config| {
        change(&mut config);
        Server::new(config)
    })
    .await
}

/// Starts a server like [`start`] that a function makes of settings.
pub async fn start_made(over: Over, bounds: Bounds, make: impl FnOnce(ServerConfig) -> Result<Server>) -> Running {
    let directory = tempfile::tempdir().unwrap();
    let listen = match over {
        Over::Socket => Listen::Socket(directory.path().join("server.sock")),
        Over::Tcp => Listen::Tcp("127.0.0.1:0".parse().unwrap(), None),
        Over::Tls => Listen::Tcp("127.0.0.1:0".parse().unwrap(), Some(certificate(directory.path()).into())),
    };
    start_server(directory, &listen, bounds, |mut config| {
        config.gate.without_keys = over == Over::Tcp;
        make(config)
    })
    .await
}

/// Starts a server like [`start_with`], with any listener.
pub async fn start_on(
    directory: tempfile::TempDir,
    listen: &Listen,
    bounds: Bounds,
    change: impl FnOnce(&mut ServerConfig),
) -> Running {
    start_server(directory, listen, bounds, |mut config| {
        change(&mut config);
        Server::new(config)
    })
    .await
}

async fn start_server(
    directory: tempfile::TempDir,
    listen: &Listen,
    bounds: Bounds,
    make: impl FnOnce(ServerConfig) -> Result<Server>,
) -> Running {
    let (config, simulated) = config(directory.path(), bounds).await;
    let listener = Listener::bind(listen).await.unwrap();
    let (url, stop, store) = (listener.url(), CancellationToken::new(), config.store.clone());
    let server = make(config).unwrap().with_pools(Arc::new(crate::pools::Two));
    let serving = server.serve(vec![listener], stop.clone());
    let task = Some(tokio::spawn(async move { serving.await.unwrap() }));
    Running { url, simulated, store, stop, task, directory }
}

/// Starts a server that cannot start.
pub async fn start_and_fail(change: impl FnOnce(&mut ServerConfig)) -> Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let (mut config, _) = config(directory.path(), bounds()).await;
    change(&mut config);
    Server::new(config).unwrap().serve(Vec::new(), CancellationToken::new()).await
}

/// Returns the settings of a server in a directory, and its default backend.
async fn config(directory: &std::path::Path, bounds: Bounds) -> (ServerConfig, Arc<SimulatedBackend>) {
    let simulated = Arc::new(SimulatedBackend::default());
    let process = Arc::new(ProcessBackend::new(ProcessConfig::default()).expect("the backend starts"));
    let served = |backend: Arc<dyn Backend>| ServedBackend { backend, attributes: Vec::new(), archive: None };
    let archive: Arc<dyn SnapshotArchive> = Arc::new(WorkspaceArchive::new(Arc::clone(&simulated) as _));
    let policy = Policy {
        backends: BTreeMap::from([
            ("simulated".to_owned(), ServedBackend { archive: Some(archive), ..served(Arc::clone(&simulated) as _) }),
            ("process".to_owned(), served(process)),
        ]),
        default_backend: "simulated".to_owned(),
        max_limits: Limits::default(),
        allow_weaker: BTreeSet::new(),
        images: false,
        network: false,
        workspaces: true,
    };
    let store = Store::open(&Database::File(directory.join("state.db"))).await.unwrap();
    let owner = rustix::process::geteuid().as_raw();
    let gate = Gate {
        owner,
        tenant: TenantId::default(),
        without_keys: false,
        store: Some(store.clone()),
        identities: Identities::default(),
    };
    let config = ServerConfig {
        bounds,
        policy,
        gate,
        store,
        snapshots: directory.join("snapshots"),
        changes: Some(directory.join("changes")),
        images: Some(Arc::new(crate::images::OneImage::default())),
        plugins: Some(Arc::new(crate::plugins::Echo)),
        volumes: VolumesConfig { directory: directory.join("volumes"), before_use: || {} },
        name: "test".to_owned(),
        quota: Quota::default(),
        capacity: Capacity::default(),
        queue: QueueBounds::default(),
        usage_label: Some("project".to_owned()),
        audit: Some(audit(directory)),
        code: cofferdam_code::CodeConfig::default(),
        port_domain: Some("ports.example".to_owned()),
        otlp: None,
    };
    (config, simulated)
}

/// Writes a certificate for the loopback address.
pub fn certificate(directory: &std::path::Path) -> TlsFiles {
    use std::os::unix::fs::PermissionsExt;
    let files = TlsFiles { certificate: directory.join("cert.pem"), key: directory.join("key.pem") };
    let certificate = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&files.certificate, certificate.cert.pem()).unwrap();
    std::fs::write(&files.key, certificate.signing_key.serialize_pem()).unwrap();
    std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(0o600)).unwrap();
    files
}

impl Running {
    pub fn client(&self) -> Client {
        self.with_key(None)
    }

    /// Returns a client with a new key of a tenant, and the key's public part.
    pub async fn keyed(&self, tenant: &str, scopes: &[Scope]) -> (Client, String) {
        let scopes = scopes.iter().copied().collect();
        let tenant = TenantId::new(tenant).unwrap();
        let new = NewKey { tenant, name: "test".to_owned(), scopes, life: None };
        let (key, record) = keys::create(&self.store, new).await.unwrap();
        (self.with_key(Some(key.reveal())), record.id)
    }

    /// Returns a new key of a tenant.
    pub async fn key(&self, tenant: &str, scopes: &[Scope]) -> String {
        let scopes = scopes.iter().copied().collect();
        let tenant = TenantId::new(tenant).unwrap();
        let new = NewKey { tenant, name: "test".to_owned(), scopes, life: None };
        keys::create(&self.store, new).await.unwrap().0.reveal().to_owned()
    }

    pub fn with_key(&self, key: Option<&str>) -> Client {
        let ca = self.directory.path().join("cert.pem");
        Client::new(&self.url, key, self.url.starts_with("https").then_some(&*ca)).unwrap()
    }

    pub fn socket(&self) -> Option<PathBuf> {
        self.url.strip_prefix("unix:").map(PathBuf::from)
    }

    /// Begins to stop the server.
    pub fn begin_stop(&self) {
        self.stop.cancel();
    }

    /// Stops the server. Returns its directory of snapshots and its state.
    pub async fn stop_and_keep(mut self) -> (PathBuf, Store, tempfile::TempDir) {
        self.stop.cancel();
        self.task.take().unwrap().await.unwrap();
        (self.directory.path().join("snapshots"), self.store, self.directory)
    }

    /// Stops the server and checks that no sandbox is left.
    pub async fn stop(mut self) {
        self.stop.cancel();
        self.task.take().unwrap().await.unwrap();
        assert_eq!(self.simulated.living(), BTreeSet::new());
    }
}

/// A connection that speaks HTTP/1.1.
pub type Sender = hyper::client::conn::http1::SendRequest<http_body_util::Full<bytes::Bytes>>;

/// Connects over TLS, with a client's certificate, for requests that a client of this crate would not send.
pub async fn over_tls(server: &Running, certificate: Option<&TlsFiles>) -> Sender {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(server.directory.path().join("cert.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match certificate {
        None => builder.with_no_client_auth(),
        Some(files) => {
            let chain = vec![CertificateDer::from_pem_file(&files.certificate).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&files.key).unwrap()).unwrap()
        }
    };
    let address = server.url.strip_prefix("https://").unwrap();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub async fn get(client: &Client, path: &str) -> Result<Value> {
    client.call(Method::GET, path, None::<&()>).await
}

pub async fn post(client: &Client, path: &str, body: Value) -> Result<Value> {
    client.call(Method::POST, path, Some(&body)).await
}

/// Sends a request whose answer has no document.
pub async fn send(client: &Client, method: Method, path: &str, body: Option<Value>) -> Result<()> {
    let content = body.map_or(Content::None, |body| Content::Json(body.to_string()));
    client.send(method, path, content).await.map(drop)
}

/// Creates a sandbox and returns its id.
pub async fn create(client: &Client, body: Value) -> String {
    let details: SandboxDetails = client.call(Method::POST, "/v1/sandboxes", Some(&body)).await.unwrap();
    details.sandbox.id
}

/// Returns the body that runs simulated steps.
pub fn steps(steps: Vec<Step>) -> StartExec {
    let request = Program::new(steps).request().build().unwrap();
    let cofferdam_contract::Command::Argv(argv) = request.command() else { panic!("a command") };
    StartExec { argv: Some(argv.clone()), ..StartExec::default() }
}

/// Starts an exec.
pub async fn exec(client: &Client, sandbox: &str, body: &StartExec) -> Result<ExecView> {
    client.call(Method::POST, &format!("/v1/sandboxes/{sandbox}/execs"), Some(body)).await
}

/// Starts a shell line in a sandbox of the process backend.
pub async fn shell(client: &Client, sandbox: &str, line: &str) -> Result<ExecView> {
    let body = StartExec { shell: Some(line.to_owned()), ..StartExec::default() };
    exec(client, sandbox, &body).await
}

/// Returns the body of a sandbox of the process backend.
pub fn process() -> Value {
    json!({ "backend": "process" })
}
