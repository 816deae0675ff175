//! Requests to E2B: the API with the key, and the agent of a sandbox with the sandbox's token.
//!
//! Every answer is bounded in size and in time without a byte. Redirects are not followed, so that neither key nor token
//! goes elsewhere. Texts of E2B lose both before they become part of an error.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cofferdam_contract::{Error, ErrorKind, Result};
use hyper::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Body, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::E2bConfig;
use crate::error::{Failure, Refusal, shown, status_of};
use crate::frames::{Frame, Frames, framed};
use crate::upload::Upload;
use crate::wire::{EndOfStream, ErrorBody, OfProcess};

/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time without a byte after which an answer is given up. Streams have an event at least every [`KEEPALIVE_INTERVAL`].
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval in seconds of events that show that a stream is alive.
const KEEPALIVE_INTERVAL: &str = "20";
/// The most bytes of an answer that is held in memory.
const MAX_ANSWER: usize = 1 << 20;
/// The most bytes of a refusal that are read.
const MAX_REFUSAL: usize = 16 << 10;
/// The number of attempts of a request that may be repeated, and the pauses between them.
const MAX_ATTEMPTS: u32 = 4;
const MIN_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// The user of programs, and the one that sets a sandbox up.
pub(crate) const USER: &str = "user";
pub(crate) const ROOT: &str = "root";

/// A client of the API.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    /// For input, which waits for a program to read it, and for uploads, which have a bound of their own.
    http_without_timeout: reqwest::Client,
    config: Arc<E2bConfig>,
}

/// Returns the reasons of an error without its address.
fn reasons(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(reason) = source {
        text = format!("{text}: {reason}");
        source = reason.source();
    }
    shown(&text)
}

fn cut(error: reqwest::Error) -> Failure {
    Failure::Cut(reasons(error))
}

/// Encodes a part of a path or query.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn secret(text: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(text).map_err(|_| {
        Error::new(ErrorKind::Unavailable, "connect", "the token of the sandbox has characters that no header can have")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

impl Client {
    /// Creates a client. Nothing is sent.
    pub fn new(config: E2bConfig) -> Result<Self> {
        config.validate()?;
        let failed =
            |what: String| Error::new(ErrorKind::Internal, "connect", "cannot set up TLS").with_context("reason", what);
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let builder = || {
            let builder = reqwest::Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .redirect(Policy::none())
                .referer(false)
                .connect_timeout(CONNECT_TIMEOUT)
                .tcp_keepalive(CONNECT_TIMEOUT)
                .user_agent(concat!("cofferdam/", env!("CARGO_PKG_VERSION")));
            if config.is_local() { builder.no_proxy() } else { builder }
        };
        let http = builder().read_timeout(READ_TIMEOUT).build().map_err(|error| failed(reasons(error)))?;
        let http_without_timeout = builder().build().map_err(|error| failed(reasons(error)))?;
        Ok(Self { http, http_without_timeout, config: Arc::new(config) })
    }

    pub fn config(&self) -> &E2bConfig {
        &self.config
    }

    /// Sends a request to the API once.
    async fn once(&self, method: Method, path: &str, body: Option<String>) -> std::result::Result<Bytes, Failure> {
        let key = secret(self.config.key.reveal()).map_err(|error| Failure::Foreign(error.to_string()))?;
        let mut request = self.http.request(method, format!("{}{path}", self.config.api())).header("X-API-KEY", key);
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        answer(request.timeout(READ_TIMEOUT), self.config.key.reveal(), false).await
    }

    /// Sends a request to the API. One that may be `repeated` is sent again after a failure that may pass; any is sent
    /// again after a rate limit.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
        repeated: bool,
    ) -> std::result::Result<Bytes, Failure> {
        let body = body.map(json).transpose()?;
        let (mut attempts, mut pause) = (1, MIN_PAUSE);
        loop {
            let failure = match self.once(method.clone(), path, body.clone()).await {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => failure,
            };
            let limited = matches!(&failure, Failure::Refused(refusal) if refusal.status == 429);
            let wanted = failure.retry_after().unwrap_or(pause);
            if attempts >= MAX_ATTEMPTS || !(limited || repeated && failure.is_passing()) || wanted > MAX_PAUSE {
                return Err(failure);
            }
            tokio::time::sleep(wanted).await;
            (attempts, pause) = (attempts + 1, (pause * 2).min(MAX_PAUSE));
        }
    }

    /// Returns the agent of a sandbox.
    pub fn agent(&self, sandbox: &str, token: Option<&str>, domain: Option<&str>) -> Result<Agent> {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("e2b-sandbox-id"), secret(sandbox)?);
        headers.insert(HeaderName::from_static("e2b-sandbox-port"), HeaderValue::from_static("49983"));
        if let Some(token) = token {
            headers.insert(HeaderName::from_static("x-access-token"), secret(token)?);
        }
        let token = token.unwrap_or_default().to_owned();
        let (http, http_without_timeout) = (self.http.clone(), self.http_without_timeout.clone());
        Ok(Agent { http, http_without_timeout, base: self.config.agent(sandbox, domain), headers, token })
    }
}

/// Writes a document.
fn json(document: &(impl Serialize + Sync)) -> std::result::Result<String, Failure> {
    serde_json::to_string(document).map_err(|error| Failure::Foreign(format!("cannot write the request: {error}")))
}

/// Reads a document.
pub(crate) fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<T, Failure> {
    // The position in the text is enough: the text itself may have a token.
    serde_json::from_slice(bytes).map_err(|error| {
        Failure::Foreign(format!("the JSON is unexpected at line {}, column {}", error.line(), error.column()))
    })
}

/// Sends a request, and reads its whole answer.
async fn answer(request: RequestBuilder, hidden: &str, by_agent: bool) -> std::result::Result<Bytes, Failure> {
    let response = request.send().await.map_err(cut)?;
    let response = accepted(response, hidden, by_agent).await?;
    read(response, MAX_ANSWER).await
}

async fn read(mut response: Response, max: usize) -> std::result::Result<Bytes, Failure> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(cut)? {
        if bytes.len() + chunk.len() > max {
            return Err(Failure::Foreign(format!("the answer has more than {max} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.into())
}

/// Returns an answer that is no refusal.
async fn accepted(response: Response, hidden: &str, by_agent: bool) -> std::result::Result<Response, Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let text = read(response, MAX_REFUSAL).await.unwrap_or_default();
    let body = serde_json::from_slice(&text);
    let body = body
        .unwrap_or_else(|_| ErrorBody { message: String::from_utf8_lossy(&text).into_owned(), ..ErrorBody::default() });
    let retry_after = seconds.map(Duration::from_secs);
    Err(Failure::Refused(Refusal {
        status: status.as_u16(),
        message: cleaned(&body.message, hidden),
        retry_after,
        by_agent,
    }))
}

/// Returns a text without the secret that it may repeat.
fn cleaned(text: &str, hidden: &str) -> String {
    if hidden.is_empty() { shown(text) } else { shown(&text.replace(hidden, "[secret]")) }
}

/// The agent of a sandbox.
#[derive(Clone)]
pub(crate) struct Agent {
    http: reqwest::Client,
    http_without_timeout: reqwest::Client,
    base: String,
    headers: HeaderMap,
    token: String,
}

impl Agent {
    fn request(&self, method: Method, path: &str, user: &str) -> RequestBuilder {
        self.request_by(&self.http, method, path, user)
    }

    fn request_by(&self, http: &reqwest::Client, method: Method, path: &str, user: &str) -> RequestBuilder {
        let basic = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(format!("{user}:"))));
        let request = http.request(method, format!("{}{path}", self.base)).headers(self.headers.clone());
        match basic {
            Ok(basic) => request.header(AUTHORIZATION, basic),
            Err(_) => request,
        }
    }

    fn rpc(&self, http: &reqwest::Client, method: &str, user: &str) -> RequestBuilder {
        let path = format!("/process.Process/{method}");
        self.request_by(http, Method::POST, &path, user).header("Connect-Protocol-Version", "1")
    }

    /// Calls a method with one answer, whose document is not needed.
    pub async fn call(&self, method: &str, body: &(impl Serialize + Sync)) -> std::result::Result<(), Failure> {
        let request = self.rpc(&self.http, method, USER).header(CONTENT_TYPE, "application/json").body(json(body)?);
        answer(request.timeout(READ_TIMEOUT), &self.token, true).await.map(drop)
    }

    /// Sends input, and waits as long as the program does not read it.
    pub async fn send(&self, input: &OfProcess<'_>) -> std::result::Result<(), Failure> {
        let request = self.rpc(&self.http_without_timeout, "SendInput", USER).header(CONTENT_TYPE, "application/json");
        answer(request.body(json(input)?), &self.token, true).await.map(drop)
    }

    /// Calls a method with a stream of answers.
    pub async fn stream<T: DeserializeOwned>(
        &self,
        method: &str,
        user: &str,
        body: &(impl Serialize + Sync),
    ) -> std::result::Result<Events<T>, Failure> {
        let request = self
            .rpc(&self.http, method, user)
            .header(CONTENT_TYPE, "application/connect+json")
            .header("Keepalive-Ping-Interval", KEEPALIVE_INTERVAL)
            .body(framed(json(body)?.as_bytes()));
        let response = request.send().await.map_err(cut)?;
        let response = accepted(response, &self.token, true).await?;
        Ok(Events { response, frames: Frames::default(), token: self.token.clone(), is_over: false, of: PhantomData })
    }

    /// Opens a file for reading, from a byte offset.
    pub async fn download(&self, path: &str, user: &str, offset: u64) -> std::result::Result<Response, Failure> {
        let url = format!("/files?path={}&username={user}", encoded(path));
        let mut request = self.request(Method::GET, &url, user).header("Accept-Encoding", "identity");
        if offset > 0 {
            request = request.header("Range", format!("bytes={offset}-"));
        }
        accepted(request.send().await.map_err(cut)?, &self.token, true).await
    }

    /// Writes a file. Takes as long as E2B takes data of it.
    pub async fn upload(&self, path: &str, user: &str, contents: Upload) -> std::result::Result<(), Failure> {
        let url = format!("/files?path={}&username={user}", encoded(path));
        // The other client's bound on silence includes the time in which the body is sent.
        let request = self.request_by(&self.http_without_timeout, Method::POST, &url, user);
        let request = request.header(CONTENT_TYPE, "application/octet-stream");
        let progress = contents.progress();
        let sending = answer(request.body(Body::wrap(contents)), &self.token, true);
        progress.bounded(READ_TIMEOUT, sending).await.map(drop)
    }
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent").field("base", &self.base).finish_non_exhaustive()
    }
}

/// The messages of a stream.
#[derive(Debug)]
pub(crate) struct Events<T> {
    response: Response,
    frames: Frames,
    token: String,
    is_over: bool,
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Events<T> {
    /// Waits for the next message. Returns `None` at the orderly end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> std::result::Result<Option<T>, Failure> {
        if self.is_over {
            return Ok(None);
        }
        loop {
            match self.frames.next().map_err(|bad| Failure::Foreign(bad.to_string()))? {
                Some(Frame::Message(message)) => return parsed(&message).map(Some),
                Some(Frame::End(last)) => {
                    self.is_over = true;
                    return self.ended(&last);
                }
                None => {}
            }
            match self.response.chunk().await.map_err(cut)? {
                Some(chunk) => self.frames.push(&chunk),
                None => return Err(Failure::Cut("the stream ended early".to_owned())),
            }
        }
    }

    fn ended(&self, last: &[u8]) -> std::result::Result<Option<T>, Failure> {
        let EndOfStream { error } = if last.is_empty() { EndOfStream::default() } else { parsed(last)? };
        let Some(ErrorBody { code, message }) = error else { return Ok(None) };
        let status = status_of(code.as_str().unwrap_or_default());
        let message = cleaned(&message, &self.token);
        Err(Failure::Refused(Refusal { status, message, retry_after: None, by_agent: true }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_removed_from_texts_of_e2b() {
        assert_eq!(cleaned("bad key e2b_1 \n", "e2b_1"), "bad key [secret] \\n");
        assert_eq!(cleaned("x", ""), "x");
    }
}
