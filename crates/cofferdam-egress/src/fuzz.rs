//! Entry points of the gateway's parsers for fuzz targets. The resolver and the rules are public without them.

use std::sync::Arc;

use cofferdam_contract::Connection;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::flow::{Flow, PolicyEnforcer};
use crate::proxy::{self, Wanted};
use crate::rules::{Query, Rules};
use crate::sniff::{self, Protocol};
use crate::{Refusal, http};

/// The maximum number of first bytes of a client.
pub const MAX_FIRST: usize = sniff::MAX_FIRST;

/// Returns a text for the protocol of a client that sent these bytes first. Returns `None` if more are needed.
pub fn protocol(first: &[u8]) -> Option<String> {
    sniff::protocol(first).map(|protocol| match protocol {
        Protocol::Tls(name) => format!("TLS for {name:?}"),
        other => format!("{other:?}"),
    })
}

/// Returns the host and port of the server that a client of the proxy names.
pub async fn proxied(client: Connection) -> Option<(String, u16)> {
    let (wanted, _) = proxy::read(client).await?;
    Some(match wanted {
        Wanted::Name(name, port) => (name, port),
        Wanted::Address(to) => (to.ip().to_string(), to.port()),
    })
}

/// Serves the HTTP requests of a client to the server with this name and port. Returns what was refused.
///
/// # Errors
///
/// The refusal of the name itself.
pub async fn serve_http<C, S>(
    client: C,
    server: S,
    rules: Rules,
    (name, port): (&str, u16),
) -> Result<Vec<String>, Refusal>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Query::Name(target) = rules.lookup(name)? else { return Err(Refusal::InvalidName) };
    let enforcer = Arc::new(PolicyEnforcer::new(rules, crate::Reach::Names));
    let denials = Arc::clone(&enforcer.denials);
    let flow = Flow::new(&enforcer, target.name.clone(), None, port, Arc::default());
    let route = http::Route { target, port, denials: Arc::clone(&denials), secrets: None, flow: Some(flow) };
    http::serve(client, server, route).await;
    Ok(denials.list().iter().map(ToString::to_string).collect())
}
