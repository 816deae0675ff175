//! `cofferdam port`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use cofferdam::{Error, ErrorKind, Result};
use cofferdam_server::client::Client;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::client::encoded;
use super::connect;
use crate::args::PortArgs;
use crate::commands::block_on;
use crate::commands::run::no_signals;
use crate::interrupts::Interrupts;
use crate::report::{self, Form};
use crate::style::Tone;

/// Connections at the same time. Further ones wait in the kernel.
const MAX_CONNECTIONS: usize = 64;

/// Forwards connections of this host to a port of a sandbox, until a signal.
pub fn main(args: &PortArgs) -> u8 {
    let done = connect(&args.client).and_then(|client| block_on(async { forward(client, args).await }));
    done.map_or_else(|error| report::error(&error, Form::Text), |()| 0)
}

async fn forward(client: Client, args: &PortArgs) -> Result<()> {
    let mut interrupts = Interrupts::listen().map_err(no_signals)?;
    let sandbox: Arc<str> = encoded(&args.sandbox).into();
    // A sandbox that does not exist is reported before anything listens.
    let path = format!("/v1/sandboxes/{sandbox}");
    client.call::<serde_json::Value>(cofferdam_server::client::Method::GET, &path, None::<&()>).await?;
    let address = args.listen.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, args.port)));
    let cannot = |error| {
        Error::new(ErrorKind::Unavailable, "forward", "cannot listen")
            .with_context("address", address.to_string())
            .with_source(error)
            .with_remedy("name a free address with --listen ADDRESS:PORT")
    };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let local = listener.local_addr().map_err(cannot)?;
    report::remark(&format!("forwarding {local} to port {} of {}", args.port, args.sandbox), Tone::Good);
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let permit = Arc::clone(&room).acquire_owned().await;
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.map_err(cannot)?.0,
            _ = interrupts.next() => return Ok(()),
        };
        let (client, sandbox, port) = (client.clone(), Arc::clone(&sandbox), args.port);
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = join(&client, &sandbox, port, stream).await {
                report::remark(&error.to_string(), Tone::Warning);
            }
        });
    }
}

async fn join(client: &Client, sandbox: &str, port: u16, stream: TcpStream) -> Result<()> {
    let _ = stream.set_nodelay(true);
    client.tunnel(sandbox, port).await?.join(Box::new(stream)).await
}
