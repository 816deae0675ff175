//! Fuzz target for what a guest sends to its resolver and gateway: look-ups, first bytes, requests to the proxy and HTTP.
//! No bytes may reach a host or a path that the policy does not allow.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cofferdam_contract::{NetworkPolicy, NetworkRule, NetworkRules};
use cofferdam_egress::{Access, Content, Gateway, NETWORK, Rules, Server, fuzz};
use fastrand::Rng;
use hickory_proto::op::Message;
use hickory_proto::rr::RData;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::cases::damaged;
use crate::drive::Outcome;
use crate::watch;

/// The server of the policy, its port, and the only path that may be requested there.
const HOST: &str = "a.example";
const PORT: u16 = 80;
const PREFIX: &str = "/v1";
/// Every name below this domain may be looked up.
const DOMAIN: &str = ".b.example";
const FIRST_NAME: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 0);
/// Maximum time of a case, on a busy machine.
const LATE: Duration = Duration::from_secs(20);
/// Maximum length of an answer to a query.
const MAX_ANSWER: usize = 1024;
/// Size of the pipes between client, gateway and server.
const PIPE: usize = 256 << 10;

/// Samples of what a guest can send, for each parser.
const SAMPLES: [&[&[u8]]; 5] = [
    // Queries to the resolver.
    &[
        b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x01a\x07example\0\0\x01\0\x01",
        b"\0\x07\x01\0\0\x01\0\0\0\0\0\x01\x01x\x01b\x07example\0\0\x1c\0\x01\0\0\x29\x04\xd0\0\0\0\0\0\0",
        b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x06secret\x04evil\xc0\x0c\0\x10\0\x01",
    ],
    // First bytes of a connection.
    &[
        b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x16\x03\x01\0\x3e\x01\0\0\x3a\x03\x03aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\0\0\x02\x13\x01\x01\0\0\x0f\0\0\0\x0b\0\x09\0\0\x06a.exam",
        b"\x80\x2e\x01\0\x02",
    ],
    // Requests to the proxy.
    &[
        b"\x05\x01\0\x05\x01\0\x03\x09a.example\x01\xbb",
        b"\x05\x02\0\x02\x05\x01\0\x04\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\x01\0\x50",
        b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"GET http://a.example:8080/x HTTP/1.1\r\nHost: a.example\r\n\r\n",
    ],
    // Requests of HTTP/1.
    &[
        b"GET /v1/x HTTP/1.1\r\nHost: a.example\r\n\r\nGET /v1 HTTP/1.1\r\nHost: A.EXAMPLE:80\r\nConnection: close\r\n\r\n",
        b"POST /v1 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nGET /GET /v2 HTTP/1.1\r\nHost: a.example\r\n\r\n",
        b"PUT /v1/c HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n0\r\nA: b\r\n\r\n",
        b"GET http://a.example/v1 HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade, host\r\nUpgrade: websocket\r\n\r\n",
        b"CONNECT b.example:80 HTTP/1.1\r\nHost: a.example\r\nX: y\r\n folded\r\n\r\n",
    ],
    // Paths of requests.
    &[b"/v1/a%20b", b"/v1/%2e%2e/v2", b"/v1//..\\x", b"/v1;a=b/..;/x", b"/%76%31/%252e%252e/x", b"/v10"],
];

/// A gateway that checks the properties of every case.
#[derive(Debug)]
pub struct Networks {
    runtime: Runtime,
    rules: Rules,
}

impl Networks {
    /// Creates a target.
    pub fn new() -> Result<Self> {
        watch::keep_panics();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let only =
            NetworkRule { host: format!("{HOST}:{PORT}"), paths: vec![PREFIX.to_owned()], ..NetworkRule::default() };
        let below = NetworkRule { host: format!("*{DOMAIN}:{PORT}"), ..NetworkRule::default() };
        let policy = NetworkPolicy::Rules(NetworkRules { allow: vec![only, below], secrets: Vec::new() });
        let rules = Rules::of(&policy)?.context("the policy allows no network")?;
        Ok(Self { runtime, rules })
    }

    /// Generates the case of a seed and checks it.
    pub fn case(&mut self, seed: u64) -> Result<Outcome> {
        let bytes = case(&mut Rng::with_seed(seed));
        self.check(&bytes).with_context(|| format!("the bytes {}", bytes.escape_ascii()))
    }

    /// Checks bytes, of which the first selects the parser of the others. An error is a finding.
    pub fn check(&mut self, bytes: &[u8]) -> Result<Outcome> {
        let Some((first, bytes)) = bytes.split_first() else { return Ok(Outcome::Refused) };
        let work = async {
            match usize::from(*first) % SAMPLES.len() {
                0 => look_up(bytes, self.rules.clone()).await,
                1 => first_bytes(bytes),
                2 => proxied(bytes).await,
                3 => requests(bytes, self.rules.clone()).await,
                _ => path(&String::from_utf8_lossy(bytes), &self.rules),
            }
        };
        let outcome = self.runtime.block_on(async { timeout(LATE, work).await });
        let panics = watch::panics();
        ensure!(panics.is_empty(), "panicked: {}", panics.join("; "));
        outcome.context("it did not end in time")?
    }
}

fn case(rng: &mut Rng) -> Vec<u8> {
    let part = rng.usize(..SAMPLES.len());
    let mut bytes = Vec::new();
    for _ in 0..1 + rng.usize(..3) {
        bytes.extend_from_slice(rng.choice(SAMPLES[part]).copied().unwrap_or_default());
    }
    if part == 0 {
        bytes = rng.choice(SAMPLES[part]).map(|sample| sample.to_vec()).unwrap_or_default();
    }
    if rng.u8(..4) > 0 {
        bytes = damaged(rng, bytes);
    }
    bytes.insert(0, part as u8);
    bytes
}

/// Looks up a name. An address is only given for a name of the policy.
async fn look_up(query: &[u8], rules: Rules) -> Result<Outcome> {
    let access = Access::of(&NetworkPolicy::None, rules).await?;
    let Some(answer) = Gateway::without_sockets(access, cofferdam_egress::RESOLVER, FIRST_NAME).answer(query) else {
        return Ok(Outcome::Refused);
    };
    ensure!(answer.len() <= MAX_ANSWER, "the answer has {} bytes", answer.len());
    ensure!(answer[..2] == query[..2], "the answer is to another query");
    let message = Message::from_vec(&answer).context("the answer is not valid")?;
    ensure!(message.answers.len() <= 1, "{} answers", message.answers.len());
    for record in &message.answers {
        let name = record.name.to_ascii().trim_end_matches('.').to_ascii_lowercase();
        ensure!(name == HOST || name.ends_with(DOMAIN), "an answer for {name}");
        let RData::A(address) = &record.data else { anyhow::bail!("an answer of another type: {record:?}") };
        let differing = address.0.to_bits() ^ NETWORK.0.to_bits();
        ensure!(differing.leading_zeros() >= u32::from(NETWORK.1), "the address {address} of {name}");
    }
    Ok(if message.answers.is_empty() { Outcome::Refused } else { Outcome::Ended })
}

/// Recognises a protocol. It does not depend on how the bytes are split.
fn first_bytes(bytes: &[u8]) -> Result<Outcome> {
    let bytes = &bytes[..bytes.len().min(fuzz::MAX_FIRST - 1)];
    let whole = fuzz::protocol(bytes);
    let first = (0..bytes.len()).find_map(|end| fuzz::protocol(&bytes[..end]));
    ensure!(first.is_none() || first == whole, "it is {first:?} at first, and {whole:?} later");
    Ok(if whole.is_some() { Outcome::Ended } else { Outcome::Refused })
}

/// Reads a request to the proxy. Its server has a port and no user.
async fn proxied(bytes: &[u8]) -> Result<Outcome> {
    let (mut client, gateway) = duplex(PIPE);
    client.write_all(&bytes[..bytes.len().min(PIPE)]).await?;
    client.shutdown().await?;
    let Some((host, _)) = fuzz::proxied(Box::new(gateway)).await else { return Ok(Outcome::Refused) };
    ensure!(bytes.first() == Some(&5) || !host.contains(['@', '/', '\r', '\n']), "the host {host:?}");
    Ok(Outcome::Ended)
}

/// Sends requests. Those that reach the server are for its name and an allowed path.
async fn requests(bytes: &[u8], rules: Rules) -> Result<Outcome> {
    let (client, own) = duplex(PIPE);
    let (server, upstream) = duplex(PIPE);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let service = service_fn(move |request: Request<Incoming>| {
        noted.lock().push(problem(&request));
        async move {
            let _ = request.into_body().collect().await;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"ok"))))
        }
    });
    let serving =
        hyper::server::conn::http1::Builder::new().half_close(true).serve_connection(TokioIo::new(server), service);
    let asking = async {
        let (mut reader, mut writer) = tokio::io::split(client);
        let mut answers = Vec::new();
        let (written, read) = tokio::join!(
            async {
                writer.write_all(bytes).await?;
                writer.shutdown().await
            },
            reader.read_to_end(&mut answers),
        );
        // The gateway may close before it has read everything.
        drop((written, read));
    };
    let relaying = fuzz::serve_http(own, upstream, rules, (HOST, PORT));
    let (served, relayed, ()) = tokio::join!(serving, relaying, asking);
    let denials = relayed.map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
    ensure!(denials.iter().all(|denial| !denial.contains(char::is_control)), "denials cannot be printed: {denials:?}");
    // A body that the client cuts off is one that the server sees cut off. Nothing else of a request is passed on.
    let cut = |error: &hyper::Error| error.is_incomplete_message() || error.is_body_write_aborted();
    ensure!(!served.as_ref().is_err_and(|error| error.is_parse() && !cut(error)), "the server got {served:?}");
    let seen = seen.lock();
    let problems: Vec<&String> = seen.iter().flatten().collect();
    ensure!(problems.is_empty(), "the server got {problems:?}");
    Ok(if seen.is_empty() { Outcome::Refused } else { Outcome::Ended })
}

/// Returns what is wrong with a request that reached the server.
fn problem(request: &Request<Incoming>) -> Option<String> {
    let hosts: Vec<_> = request.headers().get_all("host").iter().collect();
    let is_host = |host: &[u8]| {
        let host = String::from_utf8_lossy(host).to_ascii_lowercase();
        let name = host.strip_suffix(":80").unwrap_or(&host);
        name.strip_suffix('.').unwrap_or(name) == HOST
    };
    let hop = ["proxy-authorization", "te", "keep-alive"].iter().any(|name| request.headers().contains_key(*name));
    let good = matches!(hosts[..], [host] if is_host(host.as_bytes()))
        && request.method() != "CONNECT"
        && request.uri().authority().is_none()
        && !hop
        && is_below(request.uri().path());
    (!good).then(|| format!("{} {} for {hosts:?}", request.method(), request.uri()))
}

/// Judges a path. However a server reads an allowed one, it is below the prefix.
fn path(path: &str, rules: &Rules) -> Result<Outcome> {
    let content = Content::Request { secure: false, method: "GET".to_owned(), path: path.to_owned() };
    if rules.decide(Server::Name(HOST), PORT, &content).is_err() {
        return Ok(Outcome::Refused);
    }
    ensure!(is_below(path), "the path {path:?} is allowed");
    Ok(Outcome::Ended)
}

/// Returns true if a path is below the prefix in each way that servers read it: decoded once or twice, with backslashes as
/// slashes, without parameters of segments, and with segments of dots resolved before or after that.
fn is_below(path: &str) -> bool {
    let once = decoded(path.as_bytes());
    let twice = decoded(&once);
    [path.as_bytes(), &once, &twice].iter().all(|read| {
        let text = String::from_utf8_lossy(read).replace('\\', "/");
        let bare = |segment: &str| segment.split(';').next().unwrap_or_default().to_owned();
        let whole = resolved(text.split('/').map(str::to_owned));
        let parameters = resolved(text.split('/').map(bare));
        // The undecoded text may have the prefix itself in another encoding.
        let first = if *read == path.as_bytes() && path.contains('%') { None } else { Some(&PREFIX[1..]) };
        [whole, parameters]
            .iter()
            .all(|segments| !segments.is_empty() && first.is_none_or(|first| segments[0] == *first))
    })
}

fn resolved(segments: impl Iterator<Item = String>) -> Vec<String> {
    let mut path = Vec::new();
    for segment in segments {
        match segment.as_str() {
            "" | "." => {}
            ".." => drop(path.pop()),
            _ => path.push(segment),
        }
    }
    path
}

/// Decodes percent-encoding. Invalid encoding stays as it is.
fn decoded(bytes: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    let (mut plain, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        match (bytes[at], digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                plain.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_as_servers_do() {
        for path in ["/v1", "/v1/", "/v1/x", "/%76%31/x", "/v1/a;b=c/x", "/v1/x/../y"] {
            assert!(is_below(path), "{path}");
        }
        for path in ["/v10", "/", "/v2", "/v1/../v2", "/v1/%2e%2e/v2", "/v1/%252e%252e/v2", "/v1/..;/v2", "/v1\\..\\v2"]
        {
            assert!(!is_below(path), "{path}");
        }
    }

    #[test]
    fn a_request_beside_the_policy_would_be_found() {
        let _alone = watch::ALONE.lock();
        let mut networks = Networks::new().unwrap();
        let open = NetworkPolicy::Allow { hosts: vec![format!("{HOST}:{PORT}")] };
        networks.rules = Rules::of(&open).unwrap().unwrap();
        let found = networks.check(b"\x03GET /v2 HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap_err();
        assert!(found.to_string().contains("GET /v2"), "{found}");
        assert!(networks.check(b"\x04/v2").is_err());
    }
}
