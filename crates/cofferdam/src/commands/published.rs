//! Published ports of a run: checks and listeners before its sandbox exists, and their report.

use std::sync::Arc;
use std::time::Duration;

use cofferdam::publish::{Address, Listener, Published, publish};
use cofferdam::{Backend, Capability, Error, Result, Sandbox};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::args::PublishArgs;
use crate::report;
use crate::style::Tone;

/// The maximum of published ports of one run.
const MAX_PUBLISHED: usize = 16;
/// Time to pass on to clients what the sandbox has sent already.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks the options without any access to the host.
pub fn check(args: &PublishArgs) -> Result<()> {
    if args.publish.len() > MAX_PUBLISHED {
        return Err(Error::invalid("publish", format!("a run publishes at most {MAX_PUBLISHED} ports")));
    }
    for publication in &args.publish {
        if let Address::Tcp(address) = &publication.address
            && !address.ip().to_canonical().is_loopback()
            && !args.publish_beyond_loopback
        {
            let message = format!("{address} is not a loopback address: other hosts could connect to the sandbox");
            return Err(Error::invalid("publish", message)
                .with_remedy("leave out the address, or add --publish-beyond-loopback"));
        }
    }
    Ok(())
}

/// Listens on the addresses of a run, if its backend can connect to sandboxes.
pub fn listen(args: &PublishArgs, backend: &dyn Backend) -> Result<Vec<(Listener, u16)>> {
    if !args.publish.is_empty() && !backend.capabilities().contains(&Capability::Connect) {
        let message = format!("the backend '{}' cannot connect to ports of a sandbox", backend.name());
        return Err(Error::unsupported("publish", message)
            .with_remedy("use --level process, container or vm, or leave out --publish"));
    }
    let bind =
        |publication: &crate::values::Publication| Ok((Listener::bind(&publication.address)?, publication.guest.get()));
    args.publish.iter().map(bind).collect()
}

/// Passes connections to a sandbox, and reports the addresses unless the run is quiet.
pub fn start(listeners: Vec<(Listener, u16)>, sandbox: &Arc<dyn Sandbox>, quiet: bool) -> Vec<Published> {
    let published = listeners.into_iter().map(|(listener, port)| publish(sandbox, listener, port));
    let published: Vec<_> = published.collect();
    for port in published.iter().filter(|_| !quiet) {
        report::remark(&format!("published {} -> {}", port.address(), port.port()), Tone::Good);
    }
    published
}

/// Ends the published ports of a closed sandbox.
pub async fn finish(published: Vec<Published>, quiet: bool) {
    for failures in published.iter().filter(|_| !quiet).filter_map(Published::failures) {
        report::remark(&format!("published: {failures}"), Tone::Warning);
    }
    let mut finishing = JoinSet::new();
    for port in published {
        finishing.spawn(port.finish(FINISH_TIMEOUT));
    }
    finishing.join_all().await;
}

/// Adds the published ports to a JSON document.
pub fn add_to(document: &mut Value, published: &[Published]) {
    if !published.is_empty() {
        let one = |port: &Published| json!({"address": port.address().to_string(), "port": port.port()});
        document["published"] = published.iter().map(one).collect();
    }
}
