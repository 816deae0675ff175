//! Cases: network policies, as far as they can be checked without a server. The names are below `.invalid`, which no
//! server of the internet has.

use std::sync::Arc;
use std::time::Duration;

use cofferdam_contract::{Error, ErrorKind, NetworkPolicy, Sandbox};
use tokio::net::TcpListener;

use crate::GuestProgram as P;
use crate::case::{Context, Outcome, Stop, Verdict, check, check_eq, text};

const LISTED: &str = "listed.invalid";
const UNLISTED: &str = "unlisted.invalid";
const PORT: u16 = 8139;
/// A port that no policy of the suite has.
const OTHER_PORT: u16 = 8140;
/// An address for documentation, which no host has.
const NOWHERE: &str = "192.0.2.1";
/// Hosts that are not valid in any policy.
const INVALID: [&str; 6] =
    ["not a host:80", "listed.invalid:0", "listed.invalid:65536", "[::ffff:10.0.0.7]:80", "@no-preset", ""];
/// Hosts that some backends cannot reach.
const UNREACHABLE: [&str; 6] =
    ["listed.invalid", "127.0.0.1:80", "localhost:80", "[fd00::1]:80", "198.18.0.7:80", "listed.invalid:53"];
/// Time in which a connection of a guest would arrive at this host.
const ARRIVAL_TIMEOUT: Duration = Duration::from_millis(100);

fn allow(hosts: &[&str], port: u16) -> NetworkPolicy {
    NetworkPolicy::Allow { hosts: hosts.iter().map(|host| format!("{host}:{port}")).collect() }
}

/// Returns a sandbox with a policy. Skips the case if its guests cannot look up names.
async fn sandbox(cx: &Context, policy: NetworkPolicy) -> Outcome<Arc<dyn Sandbox>> {
    let _ = cx.request(&P::LookUp { name: LISTED.into() })?;
    cx.sandbox_of(cx.spec().network(policy).build()?).await
}

async fn check_look_up(cx: &Context, sandbox: &Arc<dyn Sandbox>, name: &str, expected: &str) -> Verdict {
    let done = cx.exec_ok(sandbox, P::LookUp { name: name.into() }).await?;
    check_eq!(text(&done.stdout).trim_end(), expected, format!("the look-up of {name}"));
    Ok(())
}

async fn connect(cx: &Context, sandbox: &Arc<dyn Sandbox>, host: &str, port: u16) -> Outcome<String> {
    let done = cx.exec_ok(sandbox, P::Connect { host: host.into(), port }).await?;
    Ok(text(&done.stdout).trim_end().to_owned())
}

pub(super) async fn names_of_the_policy_alone(cx: Context) -> Verdict {
    let with = sandbox(&cx, allow(&[LISTED, "*.below.invalid"], PORT)).await?;
    let without = cx.sandbox().await?;
    for (name, expected) in [
        (LISTED, "found"),
        ("LISTED.invalid", "found"),
        ("a.below.invalid", "found"),
        ("below.invalid", "unknown"),
        ("a.listed.invalid", "unknown"),
        (UNLISTED, "unknown"),
    ] {
        check_look_up(&cx, &with, name, expected).await?;
    }
    check_look_up(&cx, &without, LISTED, "unknown").await
}

pub(super) async fn connections_of_the_policy_alone(cx: Context) -> Verdict {
    // The policy has the port of a server on this host's loopback interface.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let sandbox = sandbox(&cx, allow(&[LISTED], port)).await?;
    check_eq!(connect(&cx, &sandbox, LISTED, port).await?, "connected", "a name and port of the policy");
    for (host, port) in [(LISTED, OTHER_PORT), (UNLISTED, port), (NOWHERE, OTHER_PORT)] {
        check_eq!(connect(&cx, &sandbox, host, port).await?, "refused", format!("a connection to {host}:{port}"));
    }
    // In the sandbox's own network, the port of the policy may be served at every address. Such a connection is closed.
    for host in ["127.0.0.1", "localhost", NOWHERE] {
        connect(&cx, &sandbox, host, port).await?;
    }
    let arrived = tokio::time::timeout(ARRIVAL_TIMEOUT, listener.accept()).await;
    check!(arrived.is_err(), "a connection of the guest reached the host's loopback interface");
    Ok(())
}

pub(super) async fn no_interface_but_loopback(cx: Context) -> Verdict {
    let sandbox = sandbox(&cx, allow(&[LISTED], PORT)).await?;
    check_look_up(&cx, &sandbox, LISTED, "found").await?;
    connect(&cx, &sandbox, LISTED, PORT).await?;
    for line in kernel_table(&cx, &sandbox, "dev").await?.lines().skip(2) {
        let Some((name, counters)) = line.split_once(':') else { continue };
        // Kernels add tunnels to each namespace, which are down.
        let used = counters.split_whitespace().any(|counter| counter != "0");
        check!(name.trim() == "lo" || !used, "the guest has another interface: {line}");
    }
    for line in kernel_table(&cx, &sandbox, "route").await?.lines().skip(1) {
        check!(line.trim().is_empty() || line.starts_with("lo"), "the guest has a route beyond loopback: {line}");
    }
    Ok(())
}

/// Reads a table of the guest's kernel about its network.
async fn kernel_table(cx: &Context, sandbox: &Arc<dyn Sandbox>, name: &str) -> Outcome<String> {
    let path = format!("/proc/self/net/{name}");
    let done = cx.exec(sandbox, P::ReadFile { path: path.clone() }).await?;
    match done.exit.success() {
        true => Ok(text(&done.stdout)),
        false => Err(Stop::skip(format!("the guest cannot read {path}"))),
    }
}

pub(super) async fn denials_name_the_look_up(cx: Context) -> Verdict {
    let sandbox = sandbox(&cx, allow(&[LISTED], PORT)).await?;
    check_look_up(&cx, &sandbox, LISTED, "found").await?;
    check_eq!(sandbox.network_denials(), [], "denials after an allowed look-up");
    for _ in 0..2 {
        check_look_up(&cx, &sandbox, UNLISTED, "unknown").await?;
    }
    let denials = sandbox.network_denials();
    let [denial] = &denials[..] else {
        return Err(Stop::fail(format!("expected one denial of {UNLISTED}, got {denials:?}")));
    };
    check!(
        denial.what.contains(UNLISTED) && denial.why.contains("--net"),
        "the denial lacks the name or a remedy: {denial}"
    );
    Ok(())
}

pub(super) async fn policy_of_a_live_sandbox(cx: Context) -> Verdict {
    let policy = allow(&[LISTED], PORT);
    let sandbox = sandbox(&cx, policy.clone()).await?;
    check_look_up(&cx, &sandbox, LISTED, "found").await?;
    match sandbox.set_network(NetworkPolicy::None).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            check_remedy(&error)?;
            return Err(Stop::skip("the backend cannot change the policy of a live sandbox"));
        }
        changed => changed?,
    }
    check_look_up(&cx, &sandbox, LISTED, "unknown").await?;
    sandbox.set_network(allow(&[UNLISTED], PORT)).await?;
    check_look_up(&cx, &sandbox, LISTED, "unknown").await?;
    check_look_up(&cx, &sandbox, UNLISTED, "found").await?;
    // A refused change leaves the policy as it is.
    let refused = sandbox.set_network(allow(&["not a host"], PORT)).await;
    check!(refused.is_err(), "an invalid policy was accepted");
    check_look_up(&cx, &sandbox, UNLISTED, "found").await?;
    sandbox.set_network(policy).await?;
    check_look_up(&cx, &sandbox, LISTED, "found").await
}

pub(super) async fn refused_hosts_have_a_remedy(cx: Context) -> Verdict {
    for host in INVALID {
        match created_with(&cx, host).await? {
            Err(error) if error.kind() == ErrorKind::InvalidInput => check_remedy(&error)?,
            other => check!(false, "the host {host:?}: expected invalid-input, got {other:?}"),
        }
    }
    // Backends differ in what they reach. None may ignore a host.
    for host in UNREACHABLE {
        match created_with(&cx, host).await? {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Unsupported => check_remedy(&error)?,
            Err(error) => check!(false, "the host {host:?}: expected unsupported, got {error}"),
        }
    }
    Ok(())
}

/// Creates and closes a sandbox whose policy has this host.
async fn created_with(cx: &Context, host: &str) -> Outcome<Result<(), Error>> {
    let policy = NetworkPolicy::Allow { hosts: vec![host.to_owned()] };
    let spec = match cx.spec().network(policy).build() {
        Ok(spec) => spec,
        Err(error) => return Ok(Err(error)),
    };
    match cx.backend().create(spec).await {
        Ok(sandbox) => {
            sandbox.close().await?;
            Ok(Ok(()))
        }
        Err(error) => Ok(Err(error)),
    }
}

fn check_remedy(error: &Error) -> Verdict {
    check!(error.remedy().is_some(), "the error has no remedy: {error}");
    Ok(())
}
