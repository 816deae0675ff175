//! `cofferdam serve` in a build that serves HTTP.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cofferdam::engine::PreparedBackend;
use cofferdam::resident::Http;
use cofferdam::{Backend, Error, ErrorKind, FindingState, Level, Result, registry};
use cofferdam_linux::trust::Secrecy;
use cofferdam_server::{
    Bounds, Capacity, CertificateRules, ClientCertificates, Consent, Gate, HostImages, HostPlugins, Identities, Listen,
    ListenTls, Listener, Oidc, OidcConfig, OtlpConfig, Policy, Predecessor, QueueBounds, Quota, QuotaFile,
    ServedBackend, Server, ServerConfig, SnapshotArchive, Store, TlsFiles, VolumesConfig, WorkspaceArchive,
    check_listener,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::pools::PreparedPools;
use super::upgrade::{self, Program};
use super::{open_in, state, systemd, traces};
use crate::args::{ClientCertificatesUse, HttpArgs, ServeArgs};
use crate::commands::review;
use crate::commands::run::no_signals;
use crate::commands::serve::{Plan, until_signal};
use crate::interrupts::Interrupts;
use crate::report;
use crate::settings::Settings;
use crate::style::Tone;

/// The reasons why a server is not upgraded.
const HAS_PRIVATE_SOCKET: &str = "only a server with --listen or --socket is upgraded; this one continues to serve";
const HAS_PLUGINS: &str =
    "a server with --plugin is not upgraded: one process has their state; this one continues to serve";
/// The time to close the database.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until a signal or a client requests the end.
pub async fn serve(plan: Plan) -> Result<u8> {
    let args = &plan.args.http;
    let program = Program::own()?;
    // Before any other program is started.
    let mut predecessor = match args.successor {
        true => Some(Predecessor::receive(upgrade::channel()?).await?),
        false => None,
    };
    let (mut listeners, listens) = passed(args, predecessor.as_mut())?;
    // Without other sockets, it is the server of this user.
    let is_private = listeners.is_empty() && listens.is_empty();
    if !is_private && (plan.args.idle_exit.is_some() || plan.args.max_runs.is_some()) {
        return Err(Error::invalid(
            "serve",
            "--idle-exit and --max-runs are for the private socket, which serves runs",
        )
        .with_remedy("leave them out, or --listen and --socket"));
    }
    let directory = state::directory(args.state.state.as_deref(), is_private)?;
    let store = open_in(&args.state, || Ok(directory.clone())).await?;
    let consent = Consent { without_tls: args.without_tls, without_keys: args.without_keys };
    let identities = identities(args)?;
    for listen in &listens {
        check_listener(listen, consent, &store, &identities).await?;
    }
    for listener in &listeners {
        check_listener(&listener.listen()?, consent, &store, &identities).await?;
    }
    quotas(args).map_or(Ok(()), |read| read().map(drop))?;
    let otlp = traces::config(args)?;
    if args.check {
        return check(&plan, &listens, &identities).await;
    }
    let claimed = if is_private { Some(plan.claim()?) } else { None };
    let _locked = state::lock(&directory, args.successor).await?;
    let prepared = plan.backend()?;
    let plugins = plugins(&plan).await?;
    let hosted = plugins.clone();
    let options = ServerOptions { identities, otlp, plugins };
    let begun = async {
        let server = server(&plan, &prepared, store.clone(), &directory, options)?.after(predecessor);
        let interrupts = Interrupts::listen().map_err(no_signals)?;
        let upgrades = signal(SignalKind::user_defined2()).map_err(no_signals)?;
        for listen in &listens {
            listeners.push(Listener::bind(listen).await?);
        }
        let mut resident = None;
        if let Some(claimed) = claimed {
            let (connections, accepted) = mpsc::channel(1);
            listeners.push(Listener::Shared(accepted, claimed.socket()));
            let http = Http { connections, is_busy: Box::new(server.is_busy()) };
            resident = Some(plan.resident(claimed, &prepared, Some(http))?);
        }
        Ok((server, resident, interrupts, upgrades))
    };
    let begun: Result<_> = begun.await;
    // A server that serves ends its plugins itself.
    if let (Err(_), Some(hosted)) = (&begun, &hosted) {
        hosted.close().await;
    }
    let (server, resident, interrupts, upgrades) = begun?;
    let has_plugins = hosted.is_some();
    let urls: Vec<_> = listeners.iter().map(Listener::url).collect();
    let obstacle = match (resident.is_some(), has_plugins) {
        (true, _) => Some(HAS_PRIVATE_SOCKET),
        (false, true) => Some(HAS_PLUGINS),
        (false, false) => None,
    };
    let control = server.control();
    let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
    let (stopping, ending) = (stop.clone(), ended.clone().drop_guard());
    let serving = tokio::spawn(async move {
        // Dropped when the server has ended, too early if its database fails.
        let _ending = ending;
        server.serve(listeners, stopping).await
    });
    let close = async move || {
        stop.cancel();
        serving.await.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Internal, "serve", "the server ended early").with_source(error))
        })
    };
    let status = until_signal(interrupts, async |mut requested| {
        let begun = tokio::select! {
            () = control.serving() => {
                plan.report(urls)?;
                systemd::ready();
                true
            }
            () = ended.cancelled() => false,
            _ = &mut requested => false,
        };
        let end = async {
            if !begun {
                return;
            }
            tokio::select! {
                _ = requested => systemd::stopping(),
                () = ended.cancelled() => {}
                () = systemd::watchdog() => {}
                () = program.at_signals(upgrades, &control, obstacle) => {}
            }
        };
        match resident {
            Some(resident) => resident.run(end, close).await,
            None => {
                end.await;
                let closed = close().await;
                closed.and(prepared.shutdown(Duration::ZERO).await)
            }
        }
    });
    let status = status.await?;
    // A database that does not answer must not keep the process.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, store.close()).await;
    // A successor settles what this process left when the last handle is dropped.
    drop(control);
    Ok(status)
}

/// The parts of a server that options name.
struct ServerOptions {
    identities: Identities,
    otlp: Option<OtlpConfig>,
    plugins: Option<Arc<dyn HostPlugins>>,
}

fn server(
    plan: &Plan,
    prepared: &Arc<PreparedBackend>,
    store: Store,
    directory: &Path,
    options: ServerOptions,
) -> Result<Server> {
    let ServerOptions { identities, otlp, plugins } = options;
    let (args, settings) = (&plan.args.http, &plan.settings);
    let audit = audit_log(plan)?;
    let base = QueueBounds::default();
    let pools = PreparedPools { name: names(&plan.args, settings)[0].to_owned(), backend: Arc::clone(prepared) };
    let server = Server::new(ServerConfig {
        bounds: bounds(args, plan.config()?.drain),
        policy: policy(&plan.args, settings, prepared)?,
        gate: Gate {
            owner: rustix::process::geteuid().as_raw(),
            tenant: args.tenant.clone().unwrap_or_else(|| settings.tenant.clone()),
            without_keys: args.without_keys,
            store: Some(store.clone()),
            identities,
        },
        store,
        snapshots: directory.join("snapshots"),
        images: images(settings),
        plugins,
        volumes: VolumesConfig { directory: directory.join("volumes"), before_use: release_abandoned },
        changes: Some(review::store_directory()),
        name: args.state.server_name.clone().unwrap_or_else(host_name),
        quota: Quota::default(),
        capacity: Capacity { sandboxes: args.max_sandboxes, memory: args.max_memory },
        queue: QueueBounds { wait: args.queue_time.unwrap_or(base.wait), ..base },
        usage_label: args.usage_label.clone(),
        audit,
        code: settings.code.clone(),
        port_domain: args.port_domain.clone(),
        otlp,
    })?;
    let server = match quotas(args) {
        Some(read) => server.with_quotas(read)?,
        None => server,
    };
    Ok(server.with_pools(Arc::new(pools)))
}

/// Opens the audit log of the configuration file.
fn audit_log(plan: &Plan) -> Result<Option<cofferdam_audit::Log>> {
    let log = plan.file.audit.as_ref().map(|audit| cofferdam_audit::Log::open(audit.log())).transpose();
    log.map_err(|error| {
        Error::new(ErrorKind::Unavailable, "serve", format!("cannot open the audit log: {error}"))
            .with_remedy("repair it, or leave [audit] out of the configuration file")
    })
}

/// Returns the images of the host, in a build with an image store.
fn images(settings: &Settings) -> Option<Arc<dyn HostImages>> {
    #[cfg(feature = "images")]
    {
        Some(Arc::new(super::images::StoredImages::new(settings)))
    }
    #[cfg(not(feature = "images"))]
    {
        let _ = settings;
        None
    }
}

/// Loads the plugins of the options, in a build with plugins.
async fn plugins(plan: &Plan) -> Result<Option<Arc<dyn HostPlugins>>> {
    #[cfg(feature = "plugins")]
    {
        super::plugins::open(&plan.args.http.plugins, &plan.settings).await
    }
    #[cfg(not(feature = "plugins"))]
    {
        let _ = plan;
        Ok(None)
    }
}

/// Detaches volumes that killed processes left mounted.
fn release_abandoned() {
    #[cfg(feature = "container")]
    cofferdam::volumes::release_abandoned();
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns a function that reads the file of quotas and prices.
fn quotas(args: &HttpArgs) -> Option<impl Fn() -> Result<QuotaFile> + Send + Sync + 'static> {
    let path = args.quota.clone()?;
    Some(move || document(&path, "--quota", QuotaFile::parse))
}

/// Reads the identities that the server knows besides keys.
fn identities(args: &HttpArgs) -> Result<Identities> {
    let oidc = args.oidc.as_deref().map(|path| document(path, "--oidc", |text| Oidc::new(OidcConfig::parse(text)?)));
    let rules = args.client_rules.as_deref().map(|path| document(path, "--client-rules", CertificateRules::parse));
    Ok(Identities { oidc: oidc.transpose()?.map(Arc::new), certificates: rules.transpose()?.unwrap_or_default() })
}

/// Reads the file of an option.
fn document<T>(path: &Path, option: &str, parse: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    let text = super::text(path, Secrecy::Public, &format!("the file of {option}"))?;
    parse(&text).map_err(|error| error.with_context("file", path.display().to_string()))
}

fn tls(args: &HttpArgs) -> Option<ListenTls> {
    let clients = args.tls_client_ca.clone().map(|authorities| ClientCertificates {
        authorities,
        revoked: args.tls_client_crl.clone(),
        required: args.client_certificates == Some(ClientCertificatesUse::Required),
    });
    let (certificate, key) = (args.tls_cert.clone()?, args.tls_key.clone()?);
    Some(ListenTls { files: TlsFiles { certificate, key }, clients })
}

/// Returns the sockets of the service manager and of the process before, and what is left to listen on.
fn passed(args: &HttpArgs, predecessor: Option<&mut Predecessor>) -> Result<(Vec<Listener>, Vec<Listen>)> {
    let tls = tls(args);
    let mut listeners = systemd::sockets(tls.as_ref())?;
    let mut wanted: Vec<_> = args.listen.iter().map(|address| Listen::Tcp(*address, tls.clone())).collect();
    wanted.extend(args.socket.clone().map(Listen::Socket));
    if let Some(predecessor) = predecessor {
        let mut left = Vec::new();
        for listen in wanted {
            match predecessor.take(&listen)? {
                Some(listener) => listeners.push(listener),
                None => left.push(listen),
            }
        }
        wanted = left;
        listeners.extend(predecessor.take_others(tls.as_ref())?);
    }
    let is_tcp = |listen: &Listen| matches!(listen, Listen::Tcp(..));
    let is_over_tcp = listeners.iter().any(|listener| matches!(listener, Listener::Tcp(..)));
    if tls.is_some() && !is_over_tcp && !wanted.iter().any(is_tcp) {
        return Err(Error::invalid("serve", "--tls-cert needs --listen").with_remedy("add --listen ADDRESS:PORT"));
    }
    Ok((listeners, wanted))
}

fn bounds(args: &HttpArgs, drain_time: Duration) -> Bounds {
    let base = match args.max_requests {
        Some(requests) => Bounds::default().with_requests(requests),
        None => Bounds::default(),
    };
    Bounds {
        default_idle: args.idle.unwrap_or(base.default_idle),
        default_life: args.life.unwrap_or(base.default_life),
        max_life: args.max_life.unwrap_or(base.max_life),
        drain_time,
        handover_time: args.handover.unwrap_or(base.handover_time),
        ..base
    }
}

fn names<'a>(args: &'a ServeArgs, settings: &'a Settings) -> Vec<&'a str> {
    match args.backend.is_empty() {
        true => vec![settings.backend.name],
        false => args.backend.iter().map(String::as_str).collect(),
    }
}

fn policy(args: &ServeArgs, settings: &Settings, prepared: &Arc<PreparedBackend>) -> Result<Policy> {
    let mut backends = std::collections::BTreeMap::new();
    let names = names(args, settings);
    for (index, name) in names.iter().enumerate() {
        let backend: Arc<dyn Backend> = match index {
            0 => Arc::clone(prepared) as _,
            _ => registry::backend_with(name, &settings.setup)?,
        };
        let attributes = registry::attributes(name, &settings.setup)?;
        let archive = archive(name, &backend, settings)?;
        backends.insert((*name).to_owned(), ServedBackend { backend, attributes, archive });
    }
    Ok(Policy {
        backends,
        default_backend: names[0].to_owned(),
        max_limits: settings.limits.clone(),
        allow_weaker: settings.allow_weaker.clone(),
        images: args.http.allow_images,
        network: args.http.allow_network,
        workspaces: true,
    })
}

/// Returns the files of a backend's snapshots.
fn archive(name: &str, backend: &Arc<dyn Backend>, settings: &Settings) -> Result<Option<Arc<dyn SnapshotArchive>>> {
    if matches!(backend.level(), Level::Wasm | Level::Simulated | Level::Container) {
        return Ok(Some(Arc::new(WorkspaceArchive::new(Arc::clone(backend)))));
    }
    #[cfg(feature = "vm")]
    {
        let setup = registry::setup_of(name)?.or(settings.setup.clone());
        super::vms::archive(registry::find(name)?, &setup)
    }
    #[cfg(not(feature = "vm"))]
    {
        let _ = (name, settings);
        Ok(None)
    }
}

/// Examines the addresses, the files of TLS, the issuer of tokens, the audit log, the plugins, and this host for each
/// backend. The exit status is 1 if one cannot be used.
async fn check(plan: &Plan, listens: &[Listen], identities: &Identities) -> Result<u8> {
    let mut found = Checked::default();
    for listen in listens {
        listen.check()?;
    }
    if let Some(oidc) = &identities.oidc {
        match oidc.check().await {
            Ok(0) => found.bad("the issuer of tokens has no key that can be used"),
            Ok(keys) => found.good(&format!("the issuer of tokens has {keys} keys")),
            Err(error) => found.failed("the issuer of tokens cannot be used", &error),
        }
    }
    match plan.file.audit.as_ref().map(|audit| audit.directory.exists()) {
        None => {}
        // Opening a log creates it. A check creates none.
        Some(false) => found.good("the audit log is created when the server starts"),
        Some(true) => match audit_log(plan) {
            Ok(_) => found.good("the audit log can be written"),
            Err(error) => found.failed("the audit log cannot be used", &error),
        },
    }
    // Starts them, as a server does.
    match plugins(plan).await {
        Ok(Some(plugins)) => {
            let names: Vec<_> = plugins.plugins().into_iter().map(|plugin| plugin.name).collect();
            plugins.close().await;
            found.good(&format!("the plugins start: {}", names.join(", ")));
        }
        Ok(None) => {}
        Err(error) => found.failed("the plugins cannot be used", &error),
    }
    for name in names(&plan.args, &plan.settings) {
        let host = registry::doctor(name, &plan.settings.setup).await?;
        for item in host.items.iter().filter(|item| item.state == FindingState::Missing) {
            found.bad(&format!("backend {name}: {} is missing: {}", item.name, item.detail));
        }
        match host.usable {
            true => found.good(&format!("backend {name} can be used")),
            false => found.bad(&format!("backend {name} cannot be used")),
        }
    }
    if found.status == 0 {
        found.good("the settings and the database are valid");
    }
    Ok(found.status)
}

/// The results of `--check`, which are printed as they are found.
#[derive(Default)]
struct Checked {
    status: u8,
}

impl Checked {
    fn good(&self, text: &str) {
        report::remark(text, Tone::Good);
    }

    fn failed(&mut self, text: &str, error: &Error) {
        let remedy = error.remedy().map(|remedy| format!("; {remedy}")).unwrap_or_default();
        self.bad(&format!("{text}: {error}{remedy}"));
    }

    fn bad(&mut self, text: &str) {
        report::remark(text, Tone::Bad);
        self.status = 1;
    }
}
