//! One connection of a sandbox: what was decided about it, and what it used.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use cofferdam_contract::{NetworkEvent, NetworkUsage};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::sync::{broadcast, watch};
use tokio::time::{Sleep, sleep};

use crate::addresses::is_public;
use crate::denials::Denials;
use crate::pace::Pace;
use crate::rules::{Content, Query, Refusal, Rule, Rules, Server};
use crate::{NETWORK, Reach};

/// The maximum of events that wait for a reader. Older ones are lost to it.
const MAX_EVENTS: usize = 1024;
/// The maximum length of each text in an event. Readers that look for secrets in it cut it further.
const MAX_TEXT: usize = 4096;
/// The maximum length of a text in a reason.
const MAX_REASON: usize = 1024;
/// The reason if another sandbox took the place of a connection.
const DISPLACED: &str = "displaced by connections of another sandbox; raise the limit of open files (ulimit -n)";

/// The state that all connections of a sandbox share: the rules as they are now, and where decisions are noted.
#[derive(Debug)]
pub struct PolicyEnforcer {
    /// The addresses that a policy of the sandbox can have.
    reach: Reach,
    rules: watch::Sender<Arc<Rules>>,
    pub denials: Arc<Denials>,
    events: broadcast::Sender<NetworkEvent>,
    /// The receivers of the first readers, which lose no event that came before them: the audit log, and one more.
    first: Mutex<Vec<broadcast::Receiver<NetworkEvent>>>,
    connections: AtomicU64,
    requests: AtomicU64,
    displaced: AtomicU64,
    /// The pace of events of requests. A guest that floods a connection with requests must not fill the logs.
    reports: Mutex<Pace>,
    sent: AtomicU64,
    received: AtomicU64,
}

impl PolicyEnforcer {
    pub fn new(rules: Rules, reach: Reach) -> Self {
        let (events, first) = broadcast::channel(MAX_EVENTS);
        let rules = watch::Sender::new(Arc::new(rules));
        let first = vec![first, events.subscribe()];
        Self {
            reach,
            rules,
            denials: Arc::default(),
            events,
            first: Mutex::new(first),
            connections: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            reports: Mutex::new(Pace::of_reports()),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    /// Returns the rules as they are now.
    pub fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.borrow())
    }

    /// Replaces the rules. Connections that no longer match end.
    pub fn set_rules(&self, rules: Rules) {
        self.rules.send_modify(|now| *now = Arc::new(rules.with_budgets_of(now)));
    }

    /// Returns what all connections have used so far.
    pub fn usage(&self) -> NetworkUsage {
        NetworkUsage {
            connections: self.connections.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            refused: self.denials.count(),
            displaced: self.displaced.load(Ordering::Relaxed),
            sent_bytes: self.sent.load(Ordering::Relaxed),
            received_bytes: self.received.load(Ordering::Relaxed),
        }
    }

    /// Notes that a connection ended because another sandbox took its place.
    pub fn note_displaced(&self, port: u16) {
        self.displaced.fetch_add(1, Ordering::Relaxed);
        self.denials.note(format_args!("connections to port {port}"), DISPLACED);
    }

    /// Returns a receiver of the events: the first two times of all events, and later of those from now on.
    pub fn events(&self) -> broadcast::Receiver<NetworkEvent> {
        self.first.lock().pop().unwrap_or_else(|| self.events.subscribe())
    }
}

/// A connection, with the decisions about its contents. Its end is reported when it is dropped.
#[derive(Debug)]
pub struct Flow {
    enforcer: Arc<PolicyEnforcer>,
    /// The name or address as the guest knows it.
    host: String,
    /// The address, if the guest named no host.
    literal: Option<IpAddr>,
    port: u16,
    /// True once the gateway intercepts its TLS.
    secure: AtomicBool,
    began: Instant,
    /// The server's address.
    pub address: Mutex<Option<IpAddr>>,
    /// The last contents that were allowed, and their rule.
    current: Mutex<Option<(Content, Arc<Rule>)>>,
    refused: Mutex<Option<String>>,
    /// True if the connection ends because another sandbox took its place.
    displaced: Arc<AtomicBool>,
    /// True if the rules allow the server, and there is no connection to it.
    unreachable: AtomicBool,
    /// Bytes that no rule was charged for yet.
    uncharged: AtomicU64,
    requests: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Flow {
    pub fn new(
        enforcer: &Arc<PolicyEnforcer>,
        host: String,
        literal: Option<IpAddr>,
        port: u16,
        displaced: Arc<AtomicBool>,
    ) -> Arc<Self> {
        enforcer.connections.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            enforcer: Arc::clone(enforcer),
            host,
            literal,
            port,
            secure: AtomicBool::new(false),
            began: Instant::now(),
            address: Mutex::default(),
            current: Mutex::default(),
            refused: Mutex::default(),
            displaced,
            unreachable: AtomicBool::new(false),
            uncharged: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        })
    }

    fn server(&self) -> Server<'_> {
        self.literal.map_or(Server::Name(&self.host), Server::Address)
    }

    /// Decides about contents of the connection, and counts a request of the rule.
    pub fn admit(&self, content: Content) -> Result<(), String> {
        let decided = self.decide(&self.enforcer.rules(), &content);
        let rule = decided.map_err(|refusal| self.explained(refusal, &content))?;
        let now = Instant::now();
        rule.budget.request(now).map_err(|refusal| exhausted(&rule, refusal))?;
        if !self.is_charged_alike(&rule) {
            return Err("requests of a rule that limits bytes need a connection of their own".to_owned());
        }
        let uncharged = self.uncharged.load(Ordering::Relaxed);
        rule.budget.charge(uncharged, now).map_err(|refusal| exhausted(&rule, refusal))?;
        self.uncharged.store(0, Ordering::Relaxed);
        *self.current.lock() = Some((content, rule));
        Ok(())
    }

    /// Decides about contents by these rules. A name that leads to an address which is not public needs a rule for that
    /// address too.
    fn decide(&self, rules: &Rules, content: &Content) -> Result<Arc<Rule>, Refusal> {
        let rule = rules.decide(self.server(), self.port, content)?;
        let address = self.address.lock().filter(|address| self.literal.is_none() && !is_public(*address));
        if let Some(address) = address {
            rules.connect([], (address, self.port).into())?;
        }
        Ok(rule)
    }

    /// Returns true if bytes of contents by this rule may be read together with those of the rule before.
    fn is_charged_alike(&self, rule: &Arc<Rule>) -> bool {
        let limited = |rule: &Rule| rule.budget.limits_bytes();
        match &*self.current.lock() {
            Some((_, last)) => Arc::ptr_eq(last, rule) || !(limited(last) || limited(rule)),
            None => true,
        }
    }

    /// Returns true if the rules may allow contents of the connection.
    pub fn may_be_allowed(&self) -> bool {
        let rules = self.enforcer.rules();
        match self.server() {
            Server::Name(name) => {
                matches!(rules.lookup(name), Ok(Query::Name(target)) if target.has_port(self.port))
            }
            Server::Address(address) => rules.connect([], (address, self.port).into()).is_ok(),
        }
    }

    /// Waits as long as the rate of the rule requires.
    pub async fn paced(&self) {
        if let Some(wait) = self.wait() {
            sleep(wait).await;
        }
    }

    fn wait(&self) -> Option<Duration> {
        self.current.lock().as_ref().and_then(|(_, rule)| rule.budget.wait(Instant::now()))
    }

    /// Decides about a request.
    pub fn admit_request(&self, method: &str, path: &str) -> Result<(), String> {
        let secure = self.secure.load(Ordering::Relaxed);
        self.admit(Content::Request { secure, method: method.to_owned(), path: path.to_owned() })
    }

    /// Reports a request, with the reason if it was refused. Of very many requests, only some have an event.
    pub fn report_request(&self, method: &str, path: &str, refused: Option<&str>) {
        self.enforcer.requests.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        if !self.enforcer.reports.lock().try_turn() {
            return;
        }
        let secure = self.secure.load(Ordering::Relaxed);
        let short = |text: &str| text.chars().take(MAX_TEXT).collect::<String>();
        let current = self.current.lock().as_ref().map(|(_, rule)| rule.text.clone());
        let content = Content::Request { secure, method: String::new(), path: String::new() };
        let event = NetworkEvent {
            method: Some(short(method)),
            path: Some(short(path)),
            rule: current.filter(|_| refused.is_none()),
            reason: refused.map(short),
            ..self.event(&content)
        };
        // Without a reader, there is nothing to do.
        let _ = self.enforcer.events.send(event);
    }

    /// Notes that the gateway intercepts TLS of the connection.
    pub fn set_secure(&self) {
        self.secure.store(true, Ordering::Relaxed);
    }

    /// Notes that the connection is refused.
    pub fn deny(&self, why: impl std::fmt::Display) {
        self.enforcer.denials.note(format_args!("the connection to {}:{}", self.host, self.port), &why);
        self.set_refused(why);
    }

    /// Notes that the connection is refused, for its event only.
    pub fn set_refused(&self, why: impl std::fmt::Display) {
        *self.refused.lock() = Some(why.to_string());
    }

    /// Notes that the server cannot be reached.
    pub fn set_unreachable(&self) {
        self.unreachable.store(true, Ordering::Relaxed);
    }

    /// Notes that the connection is refused before its contents are known. Returns the reason.
    pub fn refuse(&self, refusal: Refusal) -> String {
        let why = self.explained(refusal, &Content::Any);
        self.deny(&why);
        why
    }

    /// Returns a refusal with the rule that would allow the contents, if there can be one.
    fn explained(&self, refusal: Refusal, content: &Content) -> String {
        let Self { host, port, .. } = self;
        let hint = match (refusal, content) {
            // No policy allows the sandbox itself.
            (Refusal::NotListed | Refusal::NotPublic, _) if host == "localhost" => return refusal.to_string(),
            // Nor an address here.
            _ if self.literal.is_some() && self.enforcer.reach == Reach::Names => return refusal.to_string(),
            (Refusal::NotPublic, _) if self.enforcer.reach != Reach::Names => {
                format!("a rule for its address or range, with port {port},")
            }
            (Refusal::NotListed | Refusal::OtherPort | Refusal::Learning, _) => format!("--net {host}:{port}"),
            (Refusal::NotLookedUp, _) if self.literal.is_some_and(is_of_others) => format!("--net {host}:{port}"),
            (Refusal::OtherMethod, Content::Request { method, .. }) => format!("a rule with methods = [\"{method}\"]"),
            (Refusal::OtherPath, Content::Request { path, .. }) => {
                format!("a rule with paths = [\"{}\"]", path.chars().take(MAX_REASON).collect::<String>())
            }
            (Refusal::OtherProtocol, Content::Tls) => "a rule with protocol = \"tls\"".to_owned(),
            (Refusal::OtherProtocol, Content::Request { secure, .. }) => {
                format!("a rule with protocol = \"{}\"", if *secure { "https" } else { "http" })
            }
            (Refusal::OtherProtocol, Content::Any) => "a rule with protocol = \"any\"".to_owned(),
            _ => return refusal.to_string(),
        };
        format!("{refusal}; {hint} would allow it")
    }

    fn event(&self, content: &Content) -> NetworkEvent {
        let protocol = match content {
            Content::Any => "any",
            Content::Tls => "tls",
            Content::Request { secure: true, .. } => "https",
            Content::Request { secure: false, .. } => "http",
        };
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        NetworkEvent {
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            host: self.host.clone(),
            port: self.port,
            address: *self.address.lock(),
            protocol: protocol.to_owned(),
            method: None,
            path: None,
            rule: None,
            reason: None,
            ended: None,
            sent: self.sent.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            duration_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            requests: self.requests.load(Ordering::Relaxed),
        }
    }

    /// Waits until the rules no longer allow what the connection carries.
    pub async fn revoked(&self) {
        let mut changes = self.enforcer.rules.subscribe();
        loop {
            let rules = Arc::clone(&changes.borrow_and_update());
            let content = self.current.lock().as_ref().map(|(content, _)| content.clone());
            let is_allowed = match content {
                // The limits of the rule may be new.
                Some(content) => match self.decide(&rules, &content) {
                    Ok(rule) => self.current.lock().replace((content, rule)).is_some(),
                    Err(_) => false,
                },
                None => self.may_be_allowed(),
            };
            if !is_allowed {
                return self.deny("the policy changed, and does not allow it any more");
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until the connection has existed for this time without a byte. Never returns if it carried any.
    pub async fn silent(&self, time: Duration) {
        sleep(time).await;
        if self.sent.load(Ordering::Relaxed) + self.received.load(Ordering::Relaxed) > 0 {
            std::future::pending::<()>().await;
        }
    }

    /// Passes bytes by a read or write of the client's side, and counts them. `pass` gets the maximum that the budget of
    /// the rule has left.
    fn pass(&self, pass: impl FnOnce(usize) -> Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let rule = self.current.lock().as_ref().map(|(_, rule)| Arc::clone(rule));
        match rule {
            Some(rule) => rule.budget.pass(Instant::now(), pass),
            None => {
                let passed = ready!(pass(usize::MAX))?;
                self.uncharged.fetch_add(passed as u64, Ordering::Relaxed);
                Poll::Ready(Ok(passed))
            }
        }
    }

    /// Notes that the budget of the rule has no further byte for the connection. Returns the error that ends it.
    fn used_up(&self) -> io::Error {
        let rule = self.current.lock().as_ref().map(|(_, rule)| Arc::clone(rule));
        self.deny(rule.map_or_else(|| Refusal::UsedUp.to_string(), |rule| exhausted(&rule, Refusal::UsedUp)));
        io::Error::other("the budget is used up")
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let current = self.current.lock().take();
        let (content, rule) = current.map_or((Content::Any, None), |(content, rule)| (content, Some(rule)));
        let (rule, reason) = (rule.map(|rule| rule.text.clone()), self.refused.lock().take());
        let ended = match (self.displaced.load(Ordering::Relaxed), self.unreachable.load(Ordering::Relaxed)) {
            (true, _) => Some("displaced".to_owned()),
            (false, true) => Some("unreachable".to_owned()),
            (false, false) => None,
        };
        let event = NetworkEvent { rule: rule.filter(|_| reason.is_none()), reason, ended, ..self.event(&content) };
        let _ = self.enforcer.events.send(event);
    }
}

/// Returns the reason of a refusal by the budget or rate of a rule, which it names.
fn exhausted(rule: &Rule, refusal: Refusal) -> String {
    format!("{refusal}: {}", rule.text)
}

/// Returns true for an address that a policy can have: an IPv4 address that is not one of the sandbox's own.
fn is_of_others(address: IpAddr) -> bool {
    let IpAddr::V4(address) = address else { return false };
    let synthetic = (address.to_bits() ^ NETWORK.0.to_bits()).leading_zeros() >= u32::from(NETWORK.1);
    !synthetic && !address.is_loopback()
}

/// The size of the two buffers that a connection is copied through.
const COPY_BUFFER: usize = 64 << 10;

/// Copies in both directions until both have ended.
pub async fn copy<A, B>(a: &mut A, b: &mut B) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin + ?Sized,
    B: AsyncRead + AsyncWrite + Unpin + ?Sized,
{
    copy_bidirectional_with_sizes(a, b, COPY_BUFFER, COPY_BUFFER).await.map(drop)
}

/// A client's side of a connection, which is counted against the budget of its rule.
#[derive(Debug)]
pub struct Metered<S> {
    inner: S,
    flow: Arc<Flow>,
    /// The pause that the rate of the rule requires now.
    pause: Option<Pin<Box<Sleep>>>,
}

impl<S> Metered<S> {
    pub fn new(inner: S, flow: Arc<Flow>) -> Self {
        Self { inner, flow, pause: None }
    }

    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.pause.is_none() {
            // Other connections of the rule may have used its rate.
            self.pause = self.flow.wait().map(|wait| Box::pin(sleep(wait)));
        }
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(())
    }
}

/// Reads at most this number of bytes. Returns the number that was read. Fails if the maximum is 0 and there is a byte.
fn poll_read_at_most<S: AsyncRead + Unpin>(
    (inner, flow): (&mut S, &Flow),
    cx: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
    max: usize,
) -> Poll<io::Result<usize>> {
    let mut inner = Pin::new(inner);
    if max >= buffer.remaining() {
        let before = buffer.filled().len();
        ready!(inner.poll_read(cx, buffer))?;
        return Poll::Ready(Ok(buffer.filled().len() - before));
    }
    if max == 0 {
        // The end of the stream is not beyond the budget.
        let mut byte = [0];
        let mut probe = ReadBuf::new(&mut byte);
        ready!(inner.as_mut().poll_read(cx, &mut probe))?;
        return Poll::Ready(if probe.filled().is_empty() { Ok(0) } else { Err(flow.used_up()) });
    }
    let mut part = ReadBuf::new(buffer.initialize_unfilled_to(max));
    ready!(inner.poll_read(cx, &mut part))?;
    let read = part.filled().len();
    buffer.advance(read);
    Poll::Ready(Ok(read))
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pause(cx));
        let Self { inner, flow, .. } = &mut *self;
        let bytes = ready!(flow.pass(|max| poll_read_at_most((inner, flow), cx, buffer, max)))?;
        flow.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        flow.enforcer.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_pause(cx));
        let Self { inner, flow, .. } = &mut *self;
        let bytes = ready!(flow.pass(|max| match max {
            0 if !data.is_empty() => Poll::Ready(Err(flow.used_up())),
            _ => Pin::new(inner).poll_write(cx, &data[..data.len().min(max)]),
        }))?;
        flow.received.fetch_add(bytes as u64, Ordering::Relaxed);
        flow.enforcer.received.fetch_add(bytes as u64, Ordering::Relaxed);
        Poll::Ready(Ok(bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
