//! Interception of TLS: the gateway is the server of the client, and the client of the server. It checks each request
//! in between as without TLS.

use std::io;
use std::time::Duration;

use hyper::StatusCode;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, join};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::authority::{Authority, Roots};
use crate::http::{self, Route};

/// Time for the handshake with a client, and with a server.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// The means of a gateway to intercept TLS of its sandbox.
#[derive(Debug)]
pub struct Interception {
    /// The authority of the sandbox, which it trusts.
    pub authority: Authority,
    /// The roots that servers are verified with.
    pub roots: Roots,
}

/// Serves the requests of one connection that has begun with the first message of TLS, until either side closes it.
pub async fn serve<C, S>(client: C, first: Vec<u8>, server: S, route: Route, interception: &Interception)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let flow = route.flow.clone();
    let denied = |why: &str| {
        if let Some(flow) = &flow {
            return flow.deny(why);
        }
        route.denials.note(format_args!("the connection to {}:{}", route.target.name, route.port), why);
    };
    let Ok(settings) = interception.authority.server(&route.target.name) else {
        return denied("its name cannot have a certificate");
    };
    let (reader, writer) = tokio::io::split(client);
    let client = join(io::Cursor::new(first).chain(reader), writer);
    let client = match timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(settings).accept(client)).await {
        Ok(Ok(client)) => client,
        // The client is gone, or shows the error itself. The summary explains what it could not know.
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
            return denied(&format!(
                "the policy requires interception of TLS, which failed: {error}; the client must speak HTTP/1.1 and \
                 trust the file that SSL_CERT_FILE names"
            ));
        }
        _ => return,
    };
    match connect(server, &route.target.name, &interception.roots).await {
        Ok(server) => http::serve(client, server, route).await,
        Err(why) => {
            denied(&format!("no TLS connection to the server: {why}"));
            let text = format!("no TLS connection to {}:{}: {why}", route.target.name, route.port);
            http::answer_all(client, StatusCode::BAD_GATEWAY, &text).await;
        }
    }
}

/// Connects with TLS to a server that must prove the name. Fails with the reason.
pub(crate) async fn connect<S>(server: S, name: &str, roots: &Roots) -> Result<TlsStream<S>, String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = ServerName::try_from(name.to_owned()).map_err(|_| "its name cannot have a certificate".to_owned())?;
    match timeout(HANDSHAKE_TIMEOUT, TlsConnector::from(roots.client()).connect(name, server)).await {
        Ok(connected) => connected.map_err(|error| error.to_string()),
        Err(_) => Err("the server did not complete the handshake in time".to_owned()),
    }
}

#[cfg(test)]
mod tests;
